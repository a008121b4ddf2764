"""Fine-tune a pretrained model to mark the answer to a question in a text.

    accelerate launch recipes/finetune_question_answering.py --model runs/model --output_dir runs/answers
    accelerate launch recipes/finetune_question_answering.py --model runs/model \\
        --train_file train-v2.0.json --eval_file dev-v2.0.json --output_dir runs/mine
    torchrun --nproc_per_node 2 recipes/finetune_question_answering.py --model runs/model --max_steps 20
    python recipes/finetune_question_answering.py --model runs/model --train_file rajpurkar/squad --dry_run

The first runs on a laptop in about a minute: without --train_file the questions ask for the defaults of parameters of
the standard library. Questions are read from SQuAD JSON (1.1 and 2.0, where some have no answer), from .jsonl or
.parquet with the columns question, context and answers ({"text": [...], "answer_start": [...]}), and from the Hub. A
context longer than --max_length is cut into windows that share --stride tokens. --model takes a folder made by
recipes/pretrain.py or any encoder of the Hub. Beside the model, --output_dir receives results.json, predictions.jsonl
(each held-out question, the prediction, its place and probability, and the answers), report.md with per-type.png, and
task.json, which recipes/predict.py reads.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import builtin_questions, read_labelled
from lacuna.modeling.pipeline_lacuna import add_question_pipeline
from lacuna.tasks import (
    QuestionAnswering,
    QuestionAnsweringArguments,
    load_base,
    load_model,
    resolve_max_length,
    used,
    write_results,
)
from lacuna.training import FineTuningArguments, ModelArguments, fine_tune


def main() -> None:
    """Parse, build, fine-tune."""
    start, data, arguments = parse_arguments(
        (ModelArguments, QuestionAnsweringArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code)
    work = QuestionAnswering(
        train_rows=read_labelled(data.train_file, tagged=False) if data.train_file else builtin_questions(),
        eval_rows=read_labelled(data.eval_file, tagged=False) if data.eval_file else [],
        tokenizer=tokenizer,
        max_length=resolve_max_length(asked=data.max_length, default=384, config=config, tokenizer=tokenizer),
        stride=data.stride,
        max_answer_length=data.max_answer_length,
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class="AutoModelForQuestionAnswering",
            model=start.model,
            tokenizer=tokenizer,
            trust_remote_code=start.trust_remote_code,
            seed=seed,
        )

    def finish(results: dict[str, float], folder: Path) -> None:
        write_results(work, results, folder)
        add_question_pipeline(folder)  # a native model does not bring it along

    fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for question answering", "model": start.model, "task": used(data)},
        identity={"task": asdict(data), "examples": work.num_examples},
        finish=finish,
        describe=work.describe,
    )


if __name__ == "__main__":
    exit_cleanly(main)
