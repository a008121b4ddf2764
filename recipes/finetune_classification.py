"""Fine-tune a pretrained model to label texts, or pairs of texts.

    accelerate launch recipes/finetune_classification.py --model runs/model --output_dir runs/classifier
    accelerate launch recipes/finetune_classification.py --model runs/model \\
        --train_file train.tsv --eval_file dev.tsv --output_dir runs/mine
    accelerate launch recipes/finetune_classification.py --model runs/model --train_file rows.csv \\
        --unlabelled_file more.csv --teacher runs/classifier --output_dir runs/better

The first runs on a laptop in about a minute: without --train_file the task is to tell which family of modules of the
standard library a docstring is from. Labelled rows are read from .jsonl, .csv, .tsv and .parquet, from .txt with a
label before each text, from folders that `datasets` saved and from the Hub (nyu-mll/glue:sst2). Their columns, and
whether a row has one label, several or a number, are inferred and printed, unless given. Where labels are few and
texts are many, a first classifier labels more texts (--teacher), from which a second one learns too. --model takes a
folder made by recipes/pretrain.py or any model of the Hub. Beside the model, --output_dir receives results.json,
predictions.jsonl (each held-out text, its label, the prediction and its probability), report.md with confusion.png,
and task.json, which recipes/predict.py reads.
"""

from collections.abc import Sequence
from typing import Any

from lacuna import training
from lacuna.common.command_line import exit_cleanly
from lacuna.corpus import builtin_classification, read_labelled, read_unlabelled
from lacuna.modeling import as_ours
from lacuna.tasks.base.fine_tuning import run_task
from lacuna.tasks.classification.task import Classification


def read(name: str, *, unlabelled: bool = False, **how: Any) -> list[Any]:
    """The rows of a file, of the Hub and so on; of a .txt whole lines where `unlabelled`, else a label and a text."""
    if unlabelled:
        return list(read_unlabelled(name, **how))
    return read_labelled(name, tagged=False, label_first=True, **how)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, fine-tune; returns the folder of the model."""
    rows: dict[str, Any] = {"read": read, "builtin": builtin_classification}
    return run_task(Classification, words, __doc__, training=training, as_ours=as_ours, **rows)


if __name__ == "__main__":
    exit_cleanly(main)
