"""Fine-tune a pretrained encoder-decoder or decoder to write one text from another: translations, summaries, answers.

    accelerate launch recipes/finetune_seq2seq.py --model runs/model --output_dir runs/translator \\
        --train_file train.en --train_target_file train.de --eval_file val.en --eval_target_file val.de
    torchrun --nproc_per_node 2 recipes/finetune_seq2seq.py --model runs/model --train_file pairs.csv
    python recipes/finetune_seq2seq.py --model runs/model --train_file pairs.jsonl --dry_run

Pairs are two columns of .jsonl, .csv, .tsv or .parquet files, of folders that `datasets` saved or of data sets of the
Hub, or two files whose lines belong together. An encoder-decoder (recipes/pretrain.py --objective denoising) reads the
source and learns to write the target; a decoder (--objective clm) reads the source and a token that ends it, and
learns to go on with the target. Held-out targets are written by the model itself and measured by chrF, BLEU and ROUGE.
Beside the model, --output_dir receives results.json, predictions.jsonl (each held-out source, what was written and
what should have been), report.md and task.json, which recipes/predict.py reads. Needs the extra `tasks`.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import read_labelled, read_parallel
from lacuna.tasks import (
    SequenceToSequence,
    SequenceToSequenceArguments,
    load_base,
    load_model,
    resolve_lengths,
    used,
    write_results,
    writes_with,
)
from lacuna.training import FineTuningArguments, ModelArguments, fine_tune


def read(file: str | None, target_file: str | None) -> list[Any]:
    """The pairs of a file, or of two."""
    if file is None:
        return []
    return read_labelled(file, tagged=False) if target_file is None else read_parallel(file, target_file)


def main() -> None:
    """Parse, build, fine-tune."""
    start, data, arguments = parse_arguments(
        (ModelArguments, SequenceToSequenceArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code, writes=True)
    auto_class = writes_with(config, model=start.model)
    source_length, target_length = resolve_lengths(
        source=data.max_length, target=data.max_target_length, config=config, tokenizer=tokenizer
    )
    work = SequenceToSequence(
        train_rows=read(data.train_file, data.train_target_file),
        eval_rows=read(data.eval_file, data.eval_target_file),
        tokenizer=tokenizer,
        config=config,
        source_column=data.source_column,
        target_column=data.target_column,
        files=None if data.train_target_file is None else (str(data.train_file), data.train_target_file),
        source_prefix=data.source_prefix,
        max_length=source_length,
        max_target_length=target_length,
        num_beams=data.num_beams,
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class=auto_class,
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
        run_info={"objective": "fine-tuning from one text to another", "model": start.model, "task": used(data)},
        identity={"task": asdict(data), "examples": work.num_examples},
        finish=partial(write_results, work),
        describe=work.describe,
    )


if __name__ == "__main__":
    exit_cleanly(main)
