"""Fine-tune a pretrained model to give texts vectors, near to those of texts that belong to them.

    accelerate launch recipes/finetune_embeddings.py --model runs/model --train_file rows.jsonl
    torchrun --nproc_per_node 2 recipes/finetune_embeddings.py --model runs/model --train_file stsb.csv --max_steps 20
    python recipes/finetune_embeddings.py --model runs/model --train_file nli.jsonl --dry_run

Rows are read from .jsonl, .csv, .tsv and .parquet, from folders that `datasets` saved and from the Hub: two texts with
a score of how alike they are, two that belong together (question and answer), three of which the last does not, or
premise, hypothesis and label. What they are is told by their columns and said. Trainer and losses are those of
sentence-transformers (the extra `embeddings`), and so is the folder: `SentenceTransformer(output_dir)` loads it. The
weights of the best evaluation after training began are kept. Beside the model, --output_dir receives results.json
(scores beside those before training and those of words without a model), predictions.jsonl, report.md, task.json,
metrics.jsonl and curves.png. It is not Lacuna's loop that trains, so there is no --resume, --seeds, --lora_rank,
--freeze_backbone or --early_stopping_patience here.
"""

import json
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.private import shown_command, without_places
from lacuna.corpus import read_labelled
from lacuna.tasks import (
    EmbeddingArguments,
    Embeddings,
    load_base,
    load_encoder,
    resolve_max_length,
    save_encoder,
    used,
    write_results,
)
from lacuna.training import (
    FineTuningArguments,
    ModelArguments,
    claim_output_dir,
    is_main_process,
    processes,
    refusal,
    use_all_cores,
)
from lacuna.training.environment import bf16_is_fast
from lacuna.training.fine_tuning import expected_time, learning, outcome
from lacuna.training.rates import with_rate
from lacuna.training.run_log import RunLog


def facts(data: EmbeddingArguments, model: str, work: Embeddings) -> dict[str, str]:
    """What the model card says of where the model comes from."""
    given = {name: value for name, value in used(data).items() if value is not None}
    held_out = f"`{without_places(data.eval_file)}`" if data.eval_file else "of the same"
    libraries = ("torch", "transformers", "sentence-transformers")
    return {
        "made from": f"`{without_places(model)}`",
        "data": f"{work.num_examples:,} rows of `{without_places(str(data.train_file))}` to learn from, "
        f"{work.num_eval_examples:,} {held_out} held out",
        "options": f"`{without_places(json.dumps(given))}`",
        "command": f"`{shown_command()}`",
        "versions": ", ".join(
            [f"Python {sys.version.split()[0]}", *(f"{name} {version(name)}" for name in libraries)]
        ),
    }


def expected(work: Embeddings, encoder: Any, data: EmbeddingArguments, options: dict[str, Any]) -> list[str]:
    """What `--dry_run` says after the examples: how many weights learn, at which rate, and how long that will take."""
    steps, evaluations = work.expected(encoder, **options)
    times = expected_time(
        steps=steps, evaluations=evaluations, batch_size=data.batch_size, held_out=work.num_eval_examples
    )
    return [learning(encoder, data.learning_rate), *times]


def main() -> None:
    """Parse, build, train, save."""
    start, data = parse_arguments((ModelArguments, EmbeddingArguments), description=__doc__)
    fixed = FineTuningArguments(output_dir=data.output_dir, dry_run=data.dry_run, learning_rate=data.learning_rate)
    if is_main := is_main_process():
        claim_output_dir(fixed, resumes=False)
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code)
    max_length = resolve_max_length(asked=data.max_length, default=128, config=config, tokenizer=tokenizer)
    columns = ("kind", "text_column", "text_pair_column", "negative_column", "label_column", "seed", "eval_fraction")
    work = Embeddings(
        train_rows=read_labelled(data.train_file, tagged=False),
        eval_rows=read_labelled(data.eval_file, tagged=False) if data.eval_file else [],
        tokenizer=tokenizer,
        max_length=max_length,
        **{name: getattr(data, name) for name in columns},
    )
    if is_main:
        print("\n".join([processes().describe(), *work.describe(5 if data.dry_run else 0)]), flush=True)
    elif data.dry_run:
        return
    use_all_cores()
    encoder = load_encoder(
        model=start.model, max_length=max_length, trust_remote_code=start.trust_remote_code, seed=data.seed
    )
    data.learning_rate = with_rate(fixed, getattr(encoder[0], "auto_model", encoder)).learning_rate
    shared = ("batch_size", "max_steps", "max_epochs", "eval_steps", "seed")
    options = {name: getattr(data, name) for name in shared}
    options["bf16"] = bf16_is_fast() if data.mixed_precision == "auto" else data.mixed_precision == "bf16"
    options["num_processes"] = processes().count
    if data.dry_run:
        print("\n".join([*expected(work, encoder, data, options), *refusal(fixed, resumes=False)]), flush=True)
        return
    if is_main and fixed.learning_rate is None:
        print(f"learning rate {data.learning_rate:g}, in proportion to the weights (--learning_rate)", flush=True)
    folder, title = Path(data.output_dir), f"{work.name}, {work.kind}"
    rate = data.learning_rate
    with closing(
        RunLog(output_dir=folder, enabled=is_main, first_step=0, done=0.0, title=title, peak_rate=rate)
    ) as log:
        results = work.train(
            encoder,
            log=log,
            **{name: getattr(data, name) for name in ("output_dir", "learning_rate", "warmup_steps")},
            **options,
        )
        if is_main:
            save_encoder(encoder, results=results, facts=facts(data, start.model, work), output_dir=folder)
        log.finish(results)
    if is_main:
        write_results(work, results, folder)
        print("\n".join([*outcome(results), f"the model is in {folder}"]), flush=True)


if __name__ == "__main__":
    exit_cleanly(main)
