"""Fine-tune a pretrained model to choose among several answers or continuations.

    accelerate launch recipes/finetune_multiple_choice.py --model runs/model \\
        --train_file train.csv --eval_file val.csv --output_dir runs/chooser

Questions are read from .jsonl, .csv, .tsv and .parquet, from folders that `datasets` saved and from the Hub: a context
and/or a question, with a list of choices, of any number in each row, or with a column for each choice as in SWAG
(ending0 to ending3). The label is the number, letter, name or text of the right choice; the recipe prints which it
found. Beside the model, --output_dir receives results.json, predictions.jsonl (each held-out question, the chosen and
the right choice, the probability of each), report.md and task.json, which recipes/predict.py reads.
"""

from collections.abc import Sequence
from functools import partial

from lacuna import training
from lacuna.common.command_line import exit_cleanly
from lacuna.corpus import read_labelled
from lacuna.modeling import as_ours
from lacuna.tasks.base.fine_tuning import run_task
from lacuna.tasks.multiple_choice.task import MultipleChoice


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, fine-tune; returns the folder of the model."""
    read = partial(read_labelled, tagged=False)
    return run_task(MultipleChoice, words, __doc__, training=training, as_ours=as_ours, read=read)


if __name__ == "__main__":
    exit_cleanly(main)
