"""Fine-tune a pretrained model to label texts, or pairs of texts.

    accelerate launch recipes/finetune_classification.py --model runs/model --output_dir runs/classifier
    accelerate launch recipes/finetune_classification.py --model runs/model \\
        --train_file train.tsv --eval_file dev.tsv --output_dir runs/mine
    torchrun --nproc_per_node 2 recipes/finetune_classification.py --model runs/model --max_steps 20

The first runs on a laptop in about a minute: without --train_file the task is to tell which family of modules of the
standard library a docstring is from. Labelled rows are read from .jsonl, .csv, .tsv and .parquet; their columns are
guessed and can be named. --model takes a folder made by recipes/pretrain.py or any model of the Hub. Beside the model,
--output_dir receives predictions.jsonl: each held-out text, its label, the prediction and its probability.
"""

from dataclasses import asdict
from pathlib import Path

import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from corpus import builtin_classification, read_records
from tasks import Classification, ClassificationArguments, load_configuration, load_model, resolve_max_length
from training import (
    FineTuningArguments,
    ModelArguments,
    claim_output_dir,
    exit_cleanly,
    is_main_process,
    parse_arguments,
    processes,
    train,
)


def main() -> None:
    """Parse, build, train."""
    start, data, arguments = parse_arguments(
        (ModelArguments, ClassificationArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_configuration(model=start.model, trust_remote_code=start.trust_remote_code)
    if is_main_process():
        claim_output_dir(arguments)
        print(processes().describe(), flush=True)
    work = Classification(
        train_rows=list(read_records(Path(data.train_file))) if data.train_file else builtin_classification(),
        eval_rows=list(read_records(Path(data.eval_file))) if data.eval_file else [],
        tokenizer=tokenizer,
        text_column=data.text_column,
        text_pair_column=data.text_pair_column,
        label_column=data.label_column,
        label_names=data.label_names,
        max_length=resolve_max_length(asked=data.max_length, default=256, config=config, tokenizer=tokenizer),
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )
    model = load_model(
        auto_class="AutoModelForSequenceClassification",
        model=start.model,
        tokenizer=tokenizer,
        label_names=work.label_names,
        trust_remote_code=start.trust_remote_code,
        seed=arguments.seed,
    )
    if is_main_process():
        print(
            "\n".join([*work.notes, f"{work.num_examples:,} rows to learn from, {work.num_eval_examples:,} held out"])
        )
    results = train(
        model=model,
        work=work,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for classification", "model": start.model, "task": asdict(data)},
        identity={"task": asdict(data), "labels": work.label_names, "examples": work.num_examples},
    )
    if is_main_process():
        work.write_predictions(Path(arguments.output_dir, "predictions.jsonl"))
        if work.num_eval_examples:
            print(
                f"accuracy {results['eval_accuracy']:.1%} on {work.num_eval_examples:,} held-out rows; "
                f"always the most frequent label: {results['baseline_accuracy']:.1%}"
            )
        print(f"the model and predictions.jsonl are in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
