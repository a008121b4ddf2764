"""Pretrain a language model from raw text.

    accelerate launch recipes/pretrain.py                                  # built-in text, a few minutes on a laptop
    accelerate launch recipes/pretrain.py --data my_texts/ --output_dir runs/mine
    accelerate launch recipes/pretrain.py --data my_texts/ --objective clm --output_dir runs/my_decoder
    accelerate launch recipes/pretrain.py --data my_texts/ --for train.csv  # and the texts of the task that follows
    torchrun --nproc_per_node 2 recipes/pretrain.py --max_steps 20         # two processes on a CPU
    python recipes/pretrain.py --data my_texts/ --show_examples 5          # what the model would see

Without --tokenizer one is trained on the text first. The text is tokenized once and kept in ~/.cache/lacuna (or
$LACUNA_CACHE), where later runs on the same text find it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import corpus, modeling, objectives, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.hub import push_trained
from lacuna.common.loading import commit_of
from lacuna.evaluation.probing import Probe, ProbeArguments

WHY = ", the default, which takes any text"
BETTER = "; if labels will be few, run recipes/finetune_embeddings.py --data on it before fine-tuning"


def read_for(data: Any) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """The texts of --for, what run.json says of them, and lines for people."""
    if not data.for_file:
        return [], [], []
    from lacuna.tasks import texts  # takes a second, which other runs need not wait

    read = partial(corpus.read_labelled, **data.reading_for())
    options = {"task": data.for_task, "read": read, "builtin": corpus.BUILTIN_TASKS}
    more, facts = texts.read_task_texts(data.for_file, **options)
    return more, facts, texts.describe(facts, share=data.for_share)


def prepare(
    data: Any, goal: Any, model_arguments: Any, *, more: list[str], seed: int
) -> tuple[Any, Any, list[tuple[float, Any]]]:
    """The tokenizer, the token store, and the objective of each stage."""
    asked = {name: getattr(model_arguments, name) for name in ("model", "vocab_size", "trust_remote_code", "revision")}
    find = partial(tokenization.load_or_train, tokenizer=data.tokenizer, num_sentinels=goal.num_sentinels, **asked)
    fingerprint_of = tokenization.tokenizer_fingerprint
    tokenizer, store = corpus.prepare_corpus(data, tokenizer_for=find, fingerprint_of=fingerprint_of, more=more)
    facts = tokenization.token_facts(tokenizer)
    works = objectives.make_works(goal, store=store, tokenizer=tokenizer, seed=seed, **facts)
    return tokenizer, store, works


def warm_start(model: Any, work: Any, *, tokens: float) -> float:
    """Give the embeddings their start (--embedding_init cooccurrence), and return the seconds that it took."""
    if training.is_main_process():
        print("first embeddings: from which tokens occur together (--embedding_init)", flush=True)
    training.use_all_cores()
    began = time.perf_counter()
    objectives.warm_start(model, work, trained=tokens)
    return round(time.perf_counter() - began, 2)


def make_probe(asked: ProbeArguments, *, model: Any, tokenizer: Any) -> Probe | None:
    """What is asked at every evaluation; None without --probe and --probe_prompts."""
    if not asked.probe and not asked.probe_prompts:
        return None
    records = (each for path in corpus.find_files(paths=asked.probe) for each in corpus.read_records(path))
    rows = ((record.fields, record.path, record.line) for record in records)
    return Probe(asked, rows=rows, tokenizer=tokenizer, model=model)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, train; returns the folder of the model."""
    of_model = training.NewModelArguments, training.TrainingArguments
    kinds = corpus.CorpusArguments, objectives.ObjectiveArguments, *of_model, ProbeArguments
    data, goal, model_arguments, arguments, asked = parse_arguments(kinds, words, description=__doc__)
    goal.check_used()
    identity = goal.identity() | model_arguments.identity()
    if training.is_main_process() and not goal.show_examples:
        training.claim_output_dir(arguments, **identity)
        print(training.processes().describe(), flush=True)
    model_arguments.revision = commit_of(model_arguments.model, revision=model_arguments.revision)
    more, of_task, lines = read_for(data)
    tokenizer, store, works = prepare(data, goal, model_arguments, more=more, seed=arguments.seed)
    if goal.show_examples:
        shown = [objectives.show_examples(work, tokenizer, goal.show_examples) for _, work in works]
        print("\n\n".join([*lines, *shown]))
        return str(arguments.output_dir)
    objective = works[-1][1]
    how = {"tokenizer": tokenizer, "length": max(goal.lengths), "seed": arguments.seed}
    model = training.starting_model(model_arguments, modeling=modeling, objective=objective, **how)
    objective.check_model(model)
    if not model_arguments.model:
        like: dict[str, Any] = {"shape": objective.shape, "segments": model.config.type_vocab_size > 1}
        like |= {"max_length": model.config.max_position_embeddings}
        tokenizer = tokenization.adapt_tokenizer(tokenizer=tokenizer, **like)
    probe = make_probe(asked, model=model, tokenizer=tokenizer)
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    facts = {"objective": objective.name, "text": store.summary(), "rows": [work.describe() for _, work in works]}
    facts["self_pretraining"] = of_task
    if training.is_main_process():
        is_default = objective.name == "mlm" and not model_arguments.model
        why = (WHY + BETTER * (store.num_documents > 1)) * is_default
        head = f"text: {facts['text']}\nmodel: {described}; objective: {objective.name}{why}"
        print(head, *facts["rows"], *lines, sep="\n", flush=True)
    if not model_arguments.model and goal.embedding_init == "cooccurrence" and not training.goes_on(arguments):
        facts["warm_start_seconds"] = warm_start(model, objective, tokens=training.expected_tokens(arguments, works))
    results = training.train(
        model=model,
        work=works,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={**facts, **asdict(model_arguments), **asdict(data)},
        evaluates_first=model_arguments.model is not None,
        probe=probe,
        identity={"model": described, "corpus": store.fingerprint, "weights": store.source_weights, **identity},
    )
    if training.is_main_process():
        done, ending = f"done: step {results['steps']:,}", training.ending(arguments.output_dir, of=objective.shape)
        print(*training.outcome(results), f"{done}; {ending}", sep="\n", flush=True)
        push_trained(folder=arguments.output_dir, name=arguments.push_to_hub)
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
