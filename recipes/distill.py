"""Pretrain a small model that learns from a larger one: from the text, and from what the larger one expects there.

    accelerate launch recipes/distill.py --teacher runs/model --max_steps 200    # built-in text, minutes on a laptop
    accelerate launch recipes/distill.py --teacher runs/model --data my_texts/ --output_dir runs/small
    accelerate launch recipes/distill.py --teacher runs/decoder --objective clm --data my_texts/ --size tiny
    torchrun --nproc_per_node 2 recipes/distill.py --teacher runs/model --max_steps 20    # two processes on a CPU

The teacher is a model of recipes/pretrain.py (mlm or clm), or of transformers with a byte-level tokenizer; the student
has its tokenizer. It is asked once about all of the text, and how long that takes is shown; its answers are kept in
~/.cache/lacuna (or $LACUNA_CACHE), where later runs on the same text find them. docs/pretraining.md says more.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from lacuna import corpus, modeling, objectives, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError, called
from lacuna.common.hub import push_trained
from lacuna.common.loading import check_vocabulary, commit_of
from lacuna.common.private import without_places


def prepare(
    teacher: Any, data: Any, goal: Any, how: Any, start: Any, *, seed: int
) -> tuple[Any, Any, list[tuple[float, Any]]]:
    """The teacher's tokenizer, the token store, and the objective of each stage."""
    if data.for_file:
        raise InputError("--for is an option of pretrain.py: name its texts with --data, in a file without labels")
    if start.vocab_size != type(start).vocab_size:
        raise InputError(f"--vocab_size {start.vocab_size}: the student has the tokenizer of --teacher; leave it out")
    fingerprint_of = tokenization.tokenizer_fingerprint
    with called({"--model": "--teacher"}):
        tokenizer = tokenization.load_or_train(None, tokenizer=None, model=how.teacher, vocab_size=start.vocab_size)
        check_vocabulary(tokenizer=tokenizer, model=teacher)
    if data.tokenizer and fingerprint_of(tokenization.load_tokenizer(data.tokenizer)) != fingerprint_of(tokenizer):
        raise InputError(
            f"--tokenizer {data.tokenizer} is not that of --teacher {how.teacher}, and both models must read the same "
            "tokens: leave it out"
        )
    tokenizer, store = corpus.prepare_corpus(data, tokenizer_for=lambda _: tokenizer, fingerprint_of=fingerprint_of)
    facts = tokenization.token_facts(tokenizer)
    works = objectives.make_works(goal, store=store, tokenizer=tokenizer, seed=seed, **facts, teacher=how)
    return tokenizer, store, works


def ask(teacher: Any, works: list[tuple[float, Any]], *, corpus: str) -> dict[str, Any]:
    """Give the objectives the teacher's answers; what run.json says of it."""
    training.use_all_cores()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made_of = {"teacher": objectives.fingerprint_of(teacher), "corpus": corpus}
    for _, work in works:
        work.learn_from(teacher, made_of=made_of, device=device)
    scores = works[-1][1].judge(teacher, device=device) if training.is_main_process() else {}
    seconds = sum(work.answers.about["seconds"] for _, work in works)
    return {"teacher_weights": made_of["teacher"], "teacher_scores": scores, "teacher_seconds": seconds}


def make_student(start: Any, objective: Any, tokenizer: Any, *, length: int, seed: int) -> tuple[Any, Any]:
    """The student, and the tokenizer that is saved beside it."""
    parts = {"tokenizer": tokenizer, "length": length, "seed": seed}
    model = training.starting_model(start, modeling=modeling, objective=objective, **parts)
    objective.check_model(model)
    if not start.model and {"[CLS]", "[SEP]"} <= tokenizer.get_vocab().keys():  # others stay as they are
        like: dict[str, Any] = {"shape": objective.shape, "segments": model.config.type_vocab_size > 1}
        like |= {"max_length": model.config.max_position_embeddings}
        tokenizer = tokenization.adapt_tokenizer(tokenizer=tokenizer, **like)
    return model, tokenizer


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, ask the teacher, train; returns the folder of the model."""
    of_text = corpus.CorpusArguments, objectives.ObjectiveArguments, objectives.DistillationArguments
    kinds = *of_text, training.NewModelArguments, training.TrainingArguments
    data, goal, how, start, arguments = parse_arguments(kinds, words, description=__doc__)
    goal.check_used()
    asked = goal.identity() | start.identity() | asdict(how)
    del asked["teacher"]  # it counts by its weights
    if training.is_main_process() and not goal.show_examples:
        training.claim_output_dir(arguments, **asked)
        print(training.processes().describe(), flush=True)
    start.revision = commit_of(start.model, revision=start.revision)
    teacher = objectives.load_teacher(how.teacher, goal, as_ours=modeling.as_ours)
    tokenizer, store, works = prepare(teacher, data, goal, how, start, seed=arguments.seed)
    if goal.show_examples:
        print("\n\n".join(objectives.show_examples(work, tokenizer, goal.show_examples) for _, work in works))
        return str(arguments.output_dir)
    facts = ask(teacher, works, corpus=store.fingerprint)
    scores = ", ".join(f"{name} {value:.4f}" for name, value in facts["teacher_scores"].items())
    of_teacher = f"{type(teacher).__name__}, {teacher.num_parameters() / 1e6:.2f} M parameters; held out: {scores}"
    del teacher
    objective = works[-1][1]
    model, tokenizer = make_student(start, objective, tokenizer, length=max(goal.lengths), seed=arguments.seed)
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    learned = f"{objective.name}, distilled from `{without_places(how.teacher)}`"
    facts |= {"text": store.summary(), "rows": [work.describe() for _, work in works], "objective": learned}
    if training.is_main_process():
        head = f"text: {facts['text']}\nteacher: {of_teacher}\nstudent: {described}"
        print(head, *facts["rows"], sep="\n", flush=True)
    if not start.model and goal.embedding_init == "cooccurrence" and not training.goes_on(arguments):
        objectives.warm_start(model, objective, trained=training.expected_tokens(arguments, works))
    identity = {"model": described, "corpus": store.fingerprint, "weights": store.source_weights, **asked}
    results = training.train(
        model=model,
        work=works,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={**facts, **asdict(how), **asdict(start), **asdict(data)},
        evaluates_first=start.model is not None,
        identity={**identity, "teacher_weights": facts["teacher_weights"]},
    )
    if training.is_main_process():
        ending = training.ending(arguments.output_dir, of=objective.shape)
        print(*training.outcome(results), ending, sep="\n", flush=True)
        push_trained(folder=arguments.output_dir, name=arguments.push_to_hub)
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
