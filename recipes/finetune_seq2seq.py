"""Fine-tune a pretrained encoder-decoder or decoder to write one text from another: translations, summaries, answers.

    accelerate launch recipes/finetune_seq2seq.py --model runs/model --output_dir runs/translator \\
        --train_file train.en --train_target_file train.de --eval_file val.en --eval_target_file val.de

Pairs are two columns of .jsonl, .csv, .tsv or .parquet files, of folders that `datasets` saved or of data sets of the
Hub, or two files whose lines belong together. An encoder-decoder (recipes/pretrain.py --objective denoising) reads the
source and learns to write the target; a decoder (--objective clm) reads the source and a token that ends it, and
learns to continue with the target. The model writes held-out targets by itself, scored by chrF, BLEU and ROUGE.
Beside the model, --output_dir receives results.json, predictions.jsonl (each held-out source, what was written and
what should have been), report.md and task.json, which recipes/predict.py reads. Needs the extra `tasks`.
"""

from collections.abc import Sequence
from typing import Any

from lacuna import training
from lacuna.common.command_line import exit_cleanly
from lacuna.corpus import read_labelled, read_parallel
from lacuna.modeling import as_ours
from lacuna.tasks.base.fine_tuning import run_task
from lacuna.tasks.sequence_to_sequence.task import SequenceToSequence


def read(file: str, target_file: str | None = None, **reading: Any) -> list[Any]:
    if target_file is None:
        return read_labelled(file, tagged=False, **reading)
    return read_parallel(file, target_file, **reading)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, fine-tune; returns the folder of the model."""
    return run_task(SequenceToSequence, words, __doc__, training=training, as_ours=as_ours, read=read)


if __name__ == "__main__":
    exit_cleanly(main)
