"""Fine-tune a pretrained model to give texts vectors, near to those of texts that belong to them.

    accelerate launch recipes/finetune_embeddings.py --model runs/model --train_file rows.jsonl
    accelerate launch recipes/finetune_embeddings.py --model runs/model --data my_texts/

Rows are read from .jsonl, .csv, .tsv and .parquet, from folders that `datasets` saved and from the Hub: two texts with
a score of how alike they are, two that belong together (question and answer), or three of which the last does not.
What they are is inferred from the columns and printed. With --data no rows are needed: of a plain text, a sentence
and the passage around it belong together. Trainer and losses are from sentence-transformers (the extra `embeddings`),
and so is the folder: `SentenceTransformer(output_dir)` loads it. The weights of the best evaluation after training
began are kept. Beside the model, --output_dir receives results.json (scores beside those before training, of words
without a model and of both together), predictions.jsonl, report.md, task.json, run.json, metrics.jsonl and curves.png.
It is not Lacuna's loop that trains, so there is no --resume, --seeds, --lora_rank, --freeze_backbone or
--early_stopping_patience here.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.files import write_text
from lacuna.common.hub import push_trained
from lacuna.common.loading import commit_of
from lacuna.common.private import shown_command
from lacuna.corpus import TextArguments, open_text, pair_passages, read_labelled
from lacuna.tasks.base.arguments import used
from lacuna.tasks.base.fine_tuning import warn_of_seen
from lacuna.tasks.base.models import load_base, read_first_words
from lacuna.tasks.base.report import write_results
from lacuna.tasks.embeddings.encoders import load_encoder, save_encoder, train_encoder
from lacuna.tasks.embeddings.task import EmbeddingArguments, Embeddings
from lacuna.training import FineTuningArguments, ModelArguments, claim_output_dir, is_main_process, processes, refusal
from lacuna.training.environment import bf16_is_fast, running_on, use_all_cores
from lacuna.training.fine_tuning import fell_short, learning, outcome
from lacuna.training.optimizers.schedules import with_rate
from lacuna.training.reports.card import encoder_card
from lacuna.training.reports.log import RunLog
from lacuna.training.reports.page import ending


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, train, save; returns the folder of the model."""
    start, data = parse_arguments((ModelArguments, EmbeddingArguments), words, description=__doc__)
    shared = ("output_dir", "dry_run", "learning_rate", "push_to_hub")
    fixed = FineTuningArguments(**{name: getattr(data, name) for name in shared})
    is_main, folder = is_main_process(), Path(data.output_dir)
    if is_main:
        claim_output_dir(fixed, resumes=False)
    commit = commit_of(start.model, revision=start.revision)
    origin = {"model": start.model, "trust_remote_code": start.trust_remote_code, "revision": commit}
    config, tokenizer = load_base(**origin)
    reading = {"text_column": data.text_column or "text", **data.reading()}
    text = open_text(TextArguments(data=data.data, **reading)) if data.data else None
    pairs = None if text is None else partial(pair_passages, text, seed=data.seed, show_progress=is_main)
    how = {"tokenizer": tokenizer, "config": config, "seed": data.seed, "builtin": pairs}
    work = Embeddings.from_arguments(data, read=partial(read_labelled, tagged=False), **how)
    work.notes += warn_of_seen(start.model, data, work)
    if is_main:
        print("\n".join([running_on(), *work.describe(5 if data.dry_run else 0)]), flush=True)
    use_all_cores()
    encoder = load_encoder(max_length=work.max_length, seed=data.seed, **origin)
    read_first_words(encoder.tokenizer)
    inner = getattr(encoder[0], "auto_model", encoder)
    data.learning_rate = with_rate(fixed, inner).learning_rate
    named = ("batch_size", "max_steps", "max_epochs", "max_minutes", "eval_steps", "learning_rate", "warmup_steps")
    options = {name: getattr(data, name) for name in (*named, "seed")} | {"num_processes": processes()}
    options["bf16"] = bf16_is_fast() if data.mixed_precision == "auto" else data.mixed_precision == "bf16"
    if data.dry_run:
        if is_main:
            print(learning(encoder, data.learning_rate), *refusal(fixed, resumes=False), sep="\n", flush=True)
        return str(folder)
    if is_main and fixed.learning_rate is None:
        rate = f"{data.learning_rate:g}"
        print(f"learning rate {rate}, automatic, by RMS of the weights (--learning_rate)", flush=True)
    log = RunLog(output_dir=folder, enabled=is_main, first_step=0, done=0.0, title=f"{work.name}, {work.kind}")
    with closing(log):
        info = {"objective": work.objective, "model": start.model, "command": shown_command()}
        info |= {"examples": work.num_examples, "held_out": work.num_eval_examples}
        info |= {"task": {**used(data), **work.settings(), "revision": commit}, "libraries": ["sentence_transformers"]}
        if is_main:  # at once, for report_run.py
            write_text(folder / "run.json", json.dumps({**info, "arguments": options}, indent=2, default=str) + "\n")
        results = train_encoder(work, encoder, log=log, **options)
        if is_main:
            card = encoder_card(inner, info, results, vectors=f"{encoder.get_embedding_dimension()} numbers each")
            save_encoder(encoder, folder, card=card)
        log.finish(results)
    if is_main:
        write_results(work, results, folder)
        print("\n".join([*outcome(results), *fell_short(results, work), ending(str(folder))]), flush=True)
        push_trained(folder=data.output_dir, name=data.push_to_hub)
    return str(folder)


if __name__ == "__main__":
    exit_cleanly(main)
