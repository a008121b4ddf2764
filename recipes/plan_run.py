"""What a run of recipes/pretrain.py would need, without training: memory, operations, time, disk.

    python recipes/plan_run.py                                        # built-in text, micro encoder, this machine
    python recipes/plan_run.py --data my_texts/ --size base --device H100 --batch_size 512
    python recipes/plan_run.py --size large --objective clm --device A100 --num_devices 8 --mfu 0.4
    python recipes/plan_run.py --data my_texts/ --memory_gb 8         # how many rows fit at once

It takes the options of pretrain.py but --probe and --teacher, and --device, --num_devices, --memory_gb and --mfu. The
text is prepared as for training (a tokenizer, rows) and kept where the run will find it, since the number of rows is
part of the answer; weights are only described. docs/planning.md says how each number comes about.
"""

from collections.abc import Sequence
from functools import partial

import torch

from lacuna import corpus, modeling, objectives, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.loading import commit_of
from lacuna.training.planning.plan import PlanArguments, plan_run


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, plan; returns the token store that the run will find."""
    of_text, of_model = (corpus.CorpusArguments, objectives.ObjectiveArguments), training.NewModelArguments
    kinds = PlanArguments, *of_text, of_model, training.TrainingArguments
    wanted, data, goal, model_arguments, arguments = parse_arguments(kinds, words, description=__doc__)
    goal.check_used()
    training.use_all_cores()
    more: list[str] = []
    if data.for_file:
        from lacuna.tasks.texts import read_task_texts  # takes a second, which other plans need not wait

        read = partial(corpus.read_labelled, **data.reading_for())
        more, _ = read_task_texts(data.for_file, task=data.for_task, read=read, builtin=corpus.BUILTIN_TASKS)
    model_arguments.revision = commit_of(model_arguments.model, revision=model_arguments.revision)
    asked = {name: getattr(model_arguments, name) for name in ("model", "trust_remote_code", "revision")}
    vocabulary = model_arguments.vocabulary({} if data.tokenizer or model_arguments.model else goal.vocabulary)
    find = partial(tokenization.load_or_train, tokenizer=data.tokenizer, **asked, **vocabulary)
    fingerprint_of = tokenization.tokenizer_fingerprint
    tokenizer, store = corpus.prepare_corpus(data, tokenizer_for=find, fingerprint_of=fingerprint_of, more=more)
    facts = tokenization.token_facts(tokenizer)
    works = objectives.make_works(goal, store=store, tokenizer=tokenizer, seed=arguments.seed, **facts)
    # A model of --model is loaded whole; a new one is its shapes only, so that any size can be planned anywhere.
    how = {"tokenizer": tokenizer, "length": max(goal.lengths), "seed": arguments.seed}
    with torch.device("cpu" if model_arguments.model else "meta"):
        model = training.starting_model(model_arguments, modeling=modeling, objective=works[-1][1], **how)
    plan = plan_run(model=model, works=works, arguments=arguments, wanted=wanted)
    print(f"{type(model).__name__}, --objective {goal.objective}; text: {store.summary()}\n\n{plan}")
    return str(store.path)


if __name__ == "__main__":
    exit_cleanly(main)
