"""Fine-tune a pretrained model to tag tokens: names of people and places, or parts of speech.

    accelerate launch recipes/finetune_token_classification.py --model runs/model \\
        --train_file train.conll --eval_file dev.conll --output_dir runs/tagger

Tagged sentences are read from columns of CoNLL (.conll, .txt: a token and its tag a line, an empty line after each
sentence), from .jsonl and .parquet with a list of tokens and a list of tags in each row, from folders that `datasets`
saved and from the Hub. Entities are read in IOB1, IOB2 and BIOES, and predicted in IOB2; tags that are none of
these are measured by accuracy. Beside the model, --output_dir receives results.json, predictions.jsonl
(each held-out sentence with its entities, their characters and probability, and the right ones), report.md,
and task.json, which recipes/predict.py reads. Needs the extra `tasks`.
"""

from collections.abc import Sequence

from lacuna import training
from lacuna.common.command_line import exit_cleanly
from lacuna.corpus import read_labelled
from lacuna.modeling import as_ours
from lacuna.tasks.base.fine_tuning import run_task
from lacuna.tasks.token_classification.task import TokenClassification


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, fine-tune; returns the folder of the model."""
    return run_task(TokenClassification, words, __doc__, training=training, as_ours=as_ours, read=read_labelled)


if __name__ == "__main__":
    exit_cleanly(main)
