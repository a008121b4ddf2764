"""Pretrain a language model from raw text.

    accelerate launch recipes/pretrain.py                                  # built-in text, a few minutes on a laptop
    accelerate launch recipes/pretrain.py --data my_texts/ --output_dir runs/mine
    accelerate launch recipes/pretrain.py --data my_texts/ --objective clm --output_dir runs/my_decoder
    torchrun --nproc_per_node 2 recipes/pretrain.py --max_steps 20         # two processes on a CPU

Without --tokenizer one is trained on the text first. The text is tokenized once and kept in ~/.cache/lacuna (or
$LACUNA_CACHE), where later runs on the same text find it.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from filelock import FileLock

import corpus
import modeling
import tokenization
from objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens, TokenPrediction
from training import (
    ArgumentError,
    NewModelArguments,
    TrainingArguments,
    claim_output_dir,
    exit_cleanly,
    is_main_process,
    load_pretrained,
    load_pretrained_tokenizer,
    parse_arguments,
    processes,
    train,
)

DEFAULT_FAMILY = {"encoder": "modernbert", "decoder": "qwen3"}
CACHE = Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna"))


def prepare_text(data: corpus.CorpusArguments, model: NewModelArguments) -> tuple[Any, corpus.TokenStore]:
    """The tokenizer and the token store; built by whichever process comes first, found there by the others."""
    folder = data.tokenizer or model.model
    if data.corpus and (data.data or not folder):
        raise ArgumentError("--corpus goes without --data, and with the --tokenizer that it was made with")
    source: dict[str, Any] = {"paths": data.data, "text_column": data.text_column}

    def documents() -> Any:
        return corpus.read_documents(**source) if data.data else corpus.builtin_documents()

    def fingerprint(of_tokenizer: str) -> str:
        return corpus.corpus_fingerprint(**source, tokenizer_fingerprint=of_tokenizer)

    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "prepare.lock"):
        if not folder:
            folder = str(CACHE / "tokenizers" / fingerprint(f"bpe {model.vocab_size}")[:16])
            if not Path(folder, "tokenizer.json").is_file():
                tokenization.save_tokenizer(
                    tokenizer=tokenization.train_bpe(documents=documents(), vocab_size=model.vocab_size),
                    output_dir=Path(folder),
                )
        of_hub = folder == model.model and not Path(folder).is_dir()
        tokenizer = load_pretrained_tokenizer(model) if of_hub else tokenization.load_tokenizer(folder)
        made_with = tokenization.tokenizer_fingerprint(tokenizer)
        if data.corpus:
            store = corpus.open_store(data.corpus)
            if store.tokenizer_fingerprint != made_with:
                raise ArgumentError(f"--corpus {data.corpus} was made with another tokenizer than {folder}")
        else:
            complete = fingerprint(made_with)
            store = corpus.build_store(
                documents=documents(),
                tokenizer=tokenizer,
                output_dir=CACHE / "corpora" / complete[:16],
                fingerprint=complete,
                tokenizer_fingerprint=made_with,
            )
    return tokenizer, store


def build_model(
    arguments: NewModelArguments, objective: TokenPrediction, tokenizer: Any, length: int, seed: int
) -> Any:
    """A new model of the family and size asked for, or the one that --model names."""
    transformers.set_seed(seed)
    if arguments.model:
        return load_pretrained(
            arguments=arguments, auto_class=objective.head, num_ids=len(tokenizer), sequence_length=length
        )
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")}
    config = modeling.LacunaConfig.from_family(
        arguments.family or DEFAULT_FAMILY[objective.shape],
        arguments.size,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=max(length, 512),
        **ids,
    )
    if config.shape != objective.shape:
        raise ArgumentError(
            f"--objective {objective.name} trains models of shape {objective.shape}, and --family "
            f"{arguments.family} has shape {config.shape}; use --family {DEFAULT_FAMILY[objective.shape]}"
        )
    return getattr(transformers, objective.head).from_config(config)


def main() -> None:
    """Parse, build, train."""
    model_arguments, data, goal, arguments = parse_arguments(
        (NewModelArguments, corpus.CorpusArguments, ObjectiveArguments, TrainingArguments), description=__doc__
    )
    if is_main_process():
        claim_output_dir(arguments)
        print(processes().describe(), flush=True)
    tokenizer, store = prepare_text(data, model_arguments)
    objective = OBJECTIVES[goal.objective](
        store=store,
        tokens=SpecialTokens.of(tokenizer),
        byte_lengths=tokenization.token_byte_lengths(tokenizer),
        token_edges=tokenization.token_edges(tokenizer),
        seed=arguments.seed,
        sequence_length=goal.lengths[-1],
        arguments=goal,
    )
    model = build_model(model_arguments, objective, tokenizer, goal.lengths[-1], arguments.seed)
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    if is_main_process():
        print(f"text: {store.summary()}\nmodel: {described}; objective: {objective.name}", flush=True)
    if not model_arguments.model:
        tokenizer = tokenization.adapt_tokenizer(
            tokenizer=tokenizer,
            shape=objective.shape,
            segments=model.config.type_vocab_size > 1,
            max_length=model.config.max_position_embeddings,
        )
    results = train(
        model=model,
        work=objective,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": objective.name, "text": store.summary(), **asdict(model_arguments), **asdict(data)},
        identity={"model": described, "corpus": store.fingerprint, **asdict(goal)},
    )
    if is_main_process():
        print(f"done: {results['steps']:,} steps; the model is in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
