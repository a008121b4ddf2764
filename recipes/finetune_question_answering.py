"""Fine-tune a pretrained model to mark the answer to a question in a text.

    accelerate launch recipes/finetune_question_answering.py --model runs/model --output_dir runs/answers
    accelerate launch recipes/finetune_question_answering.py --model runs/model \\
        --train_file train-v2.0.json --eval_file dev-v2.0.json --output_dir runs/mine

The first runs on a laptop in about a minute: without --train_file the questions ask for the defaults of parameters of
the standard library. Questions are read from SQuAD JSON (1.1 and 2.0, where some have no answer), from .jsonl or
.parquet with the columns question, context and answers ({"text": [...], "answer_start": [...]}), and from the Hub. A
context longer than --max_length is cut into windows that share --stride tokens. --model takes a folder made by
recipes/pretrain.py or any encoder of the Hub. Beside the model, --output_dir receives results.json, predictions.jsonl
(each held-out question, the prediction, its place and probability, and the answers), report.md, and
task.json, which recipes/predict.py reads.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from lacuna import training
from lacuna.common.command_line import exit_cleanly
from lacuna.corpus import builtin_questions, read_labelled
from lacuna.modeling import as_ours
from lacuna.tasks.base.fine_tuning import run_task
from lacuna.tasks.question_answering.task import QuestionAnswering


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, fine-tune; returns the folder of the model."""
    rows: dict[str, Any] = {"read": partial(read_labelled, tagged=False), "builtin": builtin_questions}
    return run_task(QuestionAnswering, words, __doc__, training=training, as_ours=as_ours, **rows)


if __name__ == "__main__":
    exit_cleanly(main)
