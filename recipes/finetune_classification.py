"""Fine-tune a pretrained model to label texts, or pairs of texts.

    accelerate launch recipes/finetune_classification.py --model runs/model --output_dir runs/classifier
    accelerate launch recipes/finetune_classification.py --model runs/model \\
        --train_file train.tsv --eval_file dev.tsv --output_dir runs/mine
    torchrun --nproc_per_node 2 recipes/finetune_classification.py --model runs/model --max_steps 20
    python recipes/finetune_classification.py --model runs/model --train_file rows.csv --dry_run

The first runs on a laptop in about a minute: without --train_file the task is to tell which family of modules of the
standard library a docstring is from. Labelled rows are read from .jsonl, .csv, .tsv and .parquet, from folders that
`datasets` saved and from the Hub (nyu-mll/glue:sst2). Their columns, and whether a row has one label, several or a
number, are guessed and said, and can be named. --model takes a folder made by recipes/pretrain.py or any model of the
Hub. Beside the model, --output_dir receives results.json, predictions.jsonl (each held-out text, its label, the
prediction and its probability), report.md with confusion.png, and task.json, which recipes/predict.py reads.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import builtin_classification, read_labelled
from lacuna.tasks import (
    Classification,
    ClassificationArguments,
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
        (ModelArguments, ClassificationArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code)
    work = Classification(
        train_rows=read_labelled(data.train_file, tagged=False) if data.train_file else builtin_classification(),
        eval_rows=read_labelled(data.eval_file, tagged=False) if data.eval_file else [],
        tokenizer=tokenizer,
        text_column=data.text_column,
        text_pair_column=data.text_pair_column,
        label_column=data.label_column,
        problem_type=data.problem_type,
        label_separator=data.label_separator,
        label_names=data.label_names,
        class_weights=data.class_weights,
        max_length=resolve_max_length(asked=data.max_length, default=256, config=config, tokenizer=tokenizer),
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class="AutoModelForSequenceClassification",
            model=start.model,
            tokenizer=tokenizer,
            label_names=work.label_names,
            problem_type=work.problem_type,
            pooling=data.pooling,
            trust_remote_code=start.trust_remote_code,
            seed=seed,
        )

    fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for classification", "model": start.model, "task": used(data)},
        identity={"task": asdict(data), "labels": work.label_names, "examples": work.num_examples},
        finish=partial(write_results, work),
        describe=work.describe,
    )


if __name__ == "__main__":
    exit_cleanly(main)
