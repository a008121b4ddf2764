"""Fine-tune a pretrained model to tag tokens: names of people and places, or parts of speech.

    accelerate launch recipes/finetune_token_classification.py --model runs/model \\
        --train_file train.conll --eval_file dev.conll --output_dir runs/tagger
    torchrun --nproc_per_node 2 recipes/finetune_token_classification.py --model runs/model --train_file train.conll
    python recipes/finetune_token_classification.py --model runs/model --train_file rows.jsonl --dry_run

Tagged sentences are read from columns of CoNLL (.conll, .txt: a token and its tag a line, an empty line after each
sentence), from .jsonl and .parquet with a list of tokens and a list of tags in each row, from folders that `datasets`
saved and from the Hub. Whether entities are written in IOB1, IOB2 or BIOES is told from the tags and said; tags that
are none of these are measured by accuracy. Beside the model, --output_dir receives results.json, predictions.jsonl
(each held-out sentence with its entities, their characters and probability, and the right ones), report.md with
per-type.png or confusion.png, and task.json, which recipes/predict.py reads. Needs the extra `tasks`.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import read_labelled
from lacuna.tasks import (
    TokenClassification,
    TokenClassificationArguments,
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
        (ModelArguments, TokenClassificationArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code)
    work = TokenClassification(
        train_rows=read_labelled(data.train_file),
        eval_rows=read_labelled(data.eval_file) if data.eval_file else [],
        tokenizer=tokenizer,
        tokens_column=data.tokens_column,
        tags_column=data.tags_column,
        label_names=data.label_names,
        label_all_tokens=data.label_all_tokens,
        max_length=resolve_max_length(asked=data.max_length, default=256, config=config, tokenizer=tokenizer),
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class="AutoModelForTokenClassification",
            model=start.model,
            tokenizer=tokenizer,
            label_names=work.label_names,
            trust_remote_code=start.trust_remote_code,
            seed=seed,
        )

    fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for token classification", "model": start.model, "task": used(data)},
        identity={"task": asdict(data), "labels": work.label_names, "examples": work.num_examples},
        finish=partial(write_results, work),
        describe=work.describe,
    )


if __name__ == "__main__":
    exit_cleanly(main)
