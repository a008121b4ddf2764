"""What a run of recipes/pretrain.py would need, without training: memory, operations, time, energy, disk.

    python recipes/plan_run.py                                        # built-in text, tiny encoder, this machine
    python recipes/plan_run.py --data my_texts/ --size base --device H100 --batch_size 512
    python recipes/plan_run.py --size large --objective clm --device A100 --num_devices 8 --mfu 0.4
    python recipes/plan_run.py --data my_texts/ --memory_gb 8         # how many rows fit at once

It takes all options of recipes/pretrain.py, and five of its own: --device, --num_devices, --memory_gb, --mfu and
--watts. The text is prepared as for training (a tokenizer, rows) and kept where the run will find it, since the number
of rows is part of the answer; weights are only described. docs/planning.md says how each number comes about.
"""

import torch
from pretrain import build_model, prepare_text

from lacuna import corpus, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens
from lacuna.training.planning import PlanArguments, plan_run


def main() -> None:
    """Parse, build, plan."""
    wanted, model_arguments, data, goal, arguments = parse_arguments(
        (
            PlanArguments,
            training.NewModelArguments,
            corpus.CorpusArguments,
            ObjectiveArguments,
            training.TrainingArguments,
        ),
        description=__doc__,
    )
    goal.check_used()
    training.use_all_cores()
    tokenizer, store = prepare_text(data, model_arguments, num_sentinels=goal.num_sentinels)
    parts = {
        "store": store,
        "tokens": SpecialTokens.of(tokenizer),
        "byte_lengths": tokenization.token_byte_lengths(tokenizer),
        "token_edges": tokenization.token_edges(tokenizer),
        "seed": arguments.seed,
        "arguments": goal,
    }
    works = [(at, OBJECTIVES[goal.objective](**parts, sequence_length=length)) for at, length in goal.stages]
    # A model of --model is loaded whole; a new one is its shapes only, so that any size can be planned anywhere.
    with torch.device("cpu" if model_arguments.model else "meta"):
        model = build_model(model_arguments, works[-1][1], tokenizer, max(goal.lengths), arguments.seed)
    plan = plan_run(model=model, works=works, arguments=arguments, wanted=wanted)
    print(f"{type(model).__name__}, --objective {goal.objective}; text: {store.summary()}\n\n{plan}")


if __name__ == "__main__":
    exit_cleanly(main)
