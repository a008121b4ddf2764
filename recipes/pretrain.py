"""Pretrain a language model from raw text.

    accelerate launch recipes/pretrain.py                                  # built-in text, a few minutes on a laptop
    accelerate launch recipes/pretrain.py --data my_texts/ --output_dir runs/mine
    accelerate launch recipes/pretrain.py --data my_texts/ --objective clm --output_dir runs/my_decoder
    accelerate launch recipes/pretrain.py --data my_texts/ --for train.csv  # and the texts of the task that follows
    accelerate launch recipes/pretrain.py --data my_texts/ --teacher runs/large  # and what a larger model expects
    python recipes/pretrain.py --data my_texts/ --show_examples 5          # what the model would see

Without --tokenizer one is trained on the text first. The text is tokenized once and kept in ~/.cache/lacuna (or
$LACUNA_CACHE), where later runs on the same text find it; so are the answers of a --teacher, which is asked once.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import corpus, modeling, objectives, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError, called
from lacuna.common.hub import push_trained
from lacuna.common.loading import check_vocabulary, commit_of
from lacuna.common.private import without_places
from lacuna.evaluation.probing import Probe, ProbeArguments

WHY = ", the default, which takes any text"
BETTER = "; for a classifier of topics with few labels --objective mlm_contrastive is a better start"


def read_for(data: Any) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """The texts of --for, what run.json says of them, and lines for people."""
    if not data.for_file:
        return [], [], []
    from lacuna.tasks import texts  # takes a second, which other runs need not wait

    read, builtin = partial(corpus.read_labelled, **data.reading_for()), corpus.BUILTIN_TASKS
    more, facts = texts.read_task_texts(data.for_file, task=data.for_task, read=read, builtin=builtin)
    return more, facts, texts.describe(facts, share=data.for_share)


def finder(data: Any, start: Any, vocabulary: Any, *, owner: Any, name: str, teacher: Any) -> Callable[[Any], Any]:
    """What finds the tokenizer for a text, that of an `owner` or a new one; a teacher is called `name`."""
    given = {"--for": data.for_file, "--tokenizer": data.tokenizer} if teacher is not None else {}
    given |= {f"--{each}": owner and getattr(start, each) is not None for each in vocabulary}
    for option in filter(given.get, given):
        raise InputError(f"{option} cannot be combined with {owner}, whose tokenizer reads the text; leave it out")
    if teacher is None:
        asked = {each: getattr(start, each) for each in ("model", "trust_remote_code", "revision")}
        return partial(tokenization.load_or_train, tokenizer=data.tokenizer, **asked, **vocabulary)
    with called({"--model": "--teacher"}):
        found = tokenization.load_or_train(None, tokenizer=None, model=name)
        check_vocabulary(tokenizer=found, model=teacher)
    return lambda _: found


def prepare(data: Any, goal: Any, how: Any, find: Any, *, more: list[str], seed: int) -> tuple[Any, Any, list[Any]]:
    """The tokenizer, the token store, and the objective of each stage."""
    fingerprint_of = tokenization.tokenizer_fingerprint
    tokenizer, store = corpus.prepare_corpus(data, tokenizer_for=find, fingerprint_of=fingerprint_of, more=more)
    facts = tokenization.token_facts(tokenizer)
    works = objectives.make_works(goal, store=store, tokenizer=tokenizer, seed=seed, teacher=how, **facts)
    return tokenizer, store, works


def make_model(start: Any, how: Any, objective: Any, tokenizer: Any, **sizes: int) -> tuple[Any, Any]:
    """The model, and the tokenizer that is saved beside it."""
    with called({"--tokenizer": "--teacher"} if how.teacher else {}):
        model = training.starting_model(start, modeling=modeling, objective=objective, tokenizer=tokenizer, **sizes)
    objective.check_model(model)
    if not start.model and {"[CLS]", "[SEP]"} <= tokenizer.get_vocab().keys():  # others stay as they are
        like: dict[str, Any] = {"shape": objective.shape, "segments": model.config.type_vocab_size > 1}
        like |= {"max_length": model.config.max_position_embeddings}
        tokenizer = tokenization.adapt_tokenizer(tokenizer=tokenizer, **like)
    return model, tokenizer


def make_probe(asked: ProbeArguments, *, model: Any, tokenizer: Any) -> Probe | None:
    """What is asked at every evaluation; None without --probe and --probe_prompts."""
    if not asked.probe and not asked.probe_prompts:
        return None
    records = (each for path in corpus.find_files(paths=asked.probe) for each in corpus.read_records(path))
    rows = ((record.fields, record.path, record.line) for record in records)
    return Probe(asked, rows=rows, tokenizer=tokenizer, model=model)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, train; returns the folder of the model."""
    of_text = corpus.CorpusArguments, objectives.ObjectiveArguments, objectives.DistillationArguments
    kinds = *of_text, training.NewModelArguments, training.TrainingArguments, ProbeArguments
    data, goal, how, start, arguments, asked = parse_arguments(kinds, words, description=__doc__)
    goal.check_used()
    teacher = objectives.load_teacher(how.teacher, goal, as_ours=modeling.as_ours) if how.teacher else None
    owner = "--teacher" if how.teacher else "--tokenizer" if data.tokenizer else start.model and "--model"
    vocabulary = start.vocabulary({} if owner else goal.vocabulary)
    identity = goal.identity() | start.identity(vocabulary) | how.identity(teacher)
    is_main = training.is_main_process()
    if is_main and not goal.show_examples:
        training.claim_output_dir(arguments, **identity)
        print(training.running_on(), flush=True)
    start.revision = commit_of(start.model, revision=start.revision)
    find = finder(data, start, vocabulary, owner=owner, name=how.teacher, teacher=teacher)
    more, of_task, lines = read_for(data)
    tokenizer, store, works = prepare(data, goal, how, find, more=more, seed=arguments.seed)
    if goal.show_examples:
        lines += [objectives.show_examples(work, tokenizer, goal.show_examples) for _, work in works]
        print("\n\n".join(lines))
        return str(arguments.output_dir)
    objective = works[-1][1]
    tokens = training.expected_tokens(arguments, works)  # refuses what cannot be divided, before anything takes long
    model, tokenizer = make_model(start, how, objective, tokenizer, length=max(goal.lengths), seed=arguments.seed)
    probe = make_probe(asked, model=model, tokenizer=tokenizer)
    of_teacher: dict[str, Any] = {}
    if teacher:
        training.use_all_cores()
        of_teacher, lines = objectives.ask(teacher, works, identity["teacher_weights"], store, judges=is_main)
        teacher = None  # frees its memory
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    learned = objective.name + f", distilled from `{without_places(how.teacher)}`" * bool(how.teacher)
    facts = {"objective": learned, "text": store.summary(), "self_pretraining": of_task, **of_teacher}
    facts["rows"] = [work.describe() for _, work in works]
    if is_main:
        why = (WHY + BETTER * (store.num_documents > 1)) * (learned == "mlm" and not start.model)
        new = "" if owner else f"; vocabulary: {len(tokenizer):,} tokens, --normalizer {vocabulary['normalizer']}"
        head = f"text: {facts['text']}{new}\nmodel: {described}; objective: {learned}{why}"
        print(head, *facts["rows"], *lines, sep="\n", flush=True)
    if not start.model and goal.embedding_init == "cooccurrence" and not training.goes_on(arguments):
        if is_main:
            print("first embeddings: from which tokens occur together (--embedding_init)", flush=True)
        training.use_all_cores()
        facts["warm_start_seconds"] = objectives.warm_start(model, objective, trained=tokens)
    results = training.train(
        model=model,
        work=works,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={**facts, **asdict(start), **asdict(data), **({} if owner else vocabulary)},
        evaluates_first=start.model is not None,
        probe=probe,
        identity={"model": described, "corpus": store.fingerprint, "weights": store.source_weights, **identity},
    )
    if is_main:
        done, ending = f"done: step {results['steps']:,}", training.ending(arguments.output_dir, of=objective.name)
        print(*training.outcome(results), f"{done}; {ending}", sep="\n", flush=True)
        push_trained(folder=arguments.output_dir, name=arguments.push_to_hub)
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
