"""Fine-tune a pretrained model to choose among several answers or continuations.

    accelerate launch recipes/finetune_multiple_choice.py --model runs/model \\
        --train_file train.csv --eval_file val.csv --output_dir runs/chooser
    torchrun --nproc_per_node 2 recipes/finetune_multiple_choice.py --model runs/model --train_file train.jsonl
    python recipes/finetune_multiple_choice.py --model runs/model --train_file train.jsonl --dry_run

Questions are read from .jsonl, .csv, .tsv and .parquet, from folders that `datasets` saved and from the Hub: a context
and/or a question, with a list of choices, of any number in each row, or with a column for each choice as in SWAG
(ending0 to ending3). The label is the number, letter, name or text of the right choice; what it is, is said. Beside
the model, --output_dir receives results.json, predictions.jsonl (each held-out question, the chosen and the right
choice, the probability of each), report.md and task.json, which recipes/predict.py reads.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import read_labelled
from lacuna.tasks import (
    MultipleChoice,
    MultipleChoiceArguments,
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
        (ModelArguments, MultipleChoiceArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code)
    work = MultipleChoice(
        train_rows=read_labelled(data.train_file, tagged=False),
        eval_rows=read_labelled(data.eval_file, tagged=False) if data.eval_file else [],
        tokenizer=tokenizer,
        context_column=data.context_column,
        question_column=data.question_column,
        choices_columns=data.choices_columns,
        label_column=data.label_column,
        max_length=resolve_max_length(asked=data.max_length, default=256, config=config, tokenizer=tokenizer),
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class="AutoModelForMultipleChoice",
            model=start.model,
            tokenizer=tokenizer,
            trust_remote_code=start.trust_remote_code,
            seed=seed,
        )

    fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for multiple choice", "model": start.model, "task": used(data)},
        identity={"task": asdict(data), "examples": work.num_examples},
        finish=partial(write_results, work),
        describe=work.describe,
    )


if __name__ == "__main__":
    exit_cleanly(main)
