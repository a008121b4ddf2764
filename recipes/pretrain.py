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

import modeling
from corpus import (
    CorpusArguments,
    TokenStore,
    build_store,
    builtin_documents,
    corpus_fingerprint,
    open_store,
    read_documents,
)
from objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens, TokenPrediction
from tokenization import (
    adapt_tokenizer,
    load_tokenizer,
    save_tokenizer,
    token_byte_lengths,
    tokenizer_fingerprint,
    train_bpe,
)
from training import (
    ArgumentError,
    NewModelArguments,
    TrainingArguments,
    claim_output_dir,
    exit_cleanly,
    is_main_process,
    load_pretrained,
    parse_arguments,
    processes,
    train,
)

DEFAULT_FAMILY = {"encoder": "modernbert", "decoder": "qwen3"}
CACHE = Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna"))


def prepare_text(data: CorpusArguments, model: NewModelArguments) -> tuple[Any, TokenStore]:
    """The tokenizer and the token store; built by whichever process comes first, found there by the others."""
    folder = data.tokenizer or model.model
    if data.corpus and not folder:
        raise ArgumentError("--corpus needs the --tokenizer that it was made with")

    def documents() -> Any:
        return read_documents(paths=data.data, text_column=data.text_column) if data.data else builtin_documents()

    def fingerprint(of_tokenizer: str) -> str:
        return corpus_fingerprint(paths=data.data, text_column=data.text_column, tokenizer_fingerprint=of_tokenizer)

    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "prepare.lock"):
        if not folder:
            folder = str(CACHE / "tokenizers" / fingerprint(f"bpe {model.vocab_size}")[:16])
            if not Path(folder, "tokenizer.json").is_file():
                save_tokenizer(
                    tokenizer=train_bpe(documents=documents(), vocab_size=model.vocab_size), output_dir=Path(folder)
                )
        tokenizer = load_tokenizer(folder)
        made_with = tokenizer_fingerprint(tokenizer)
        if data.corpus:
            store = open_store(data.corpus)
            if store.tokenizer_fingerprint != made_with:
                raise ArgumentError(f"--corpus {data.corpus} was made with another tokenizer than {folder}")
        else:
            complete = fingerprint(made_with)
            store = build_store(
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
    transformers.set_seed(seed)
    return getattr(transformers, objective.head).from_config(config)


def main() -> None:
    """Parse, build, train."""
    model_arguments, data, goal, arguments = parse_arguments(
        (NewModelArguments, CorpusArguments, ObjectiveArguments, TrainingArguments), description=__doc__
    )
    if is_main_process():
        claim_output_dir(arguments)
        print(processes().describe(), flush=True)
    tokenizer, store = prepare_text(data, model_arguments)
    options = asdict(goal)
    objective = OBJECTIVES[options.pop("objective")](
        store=store,
        tokens=SpecialTokens.of(tokenizer),
        byte_lengths=token_byte_lengths(tokenizer),
        seed=arguments.seed,
        **options,
    )
    model = build_model(model_arguments, objective, tokenizer, goal.sequence_length, arguments.seed)
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    if is_main_process():
        print(f"text: {store.summary()}")
        print(f"model: {described}; objective: {objective.name}")
    sources = {"corpus": store.fingerprint, "tokenizer": store.tokenizer_fingerprint}
    identity = {"model": described, **sources, **asdict(goal)}
    results = train(
        model=model,
        work=objective,
        tokenizer=adapt_tokenizer(
            tokenizer=tokenizer,
            shape=objective.shape,
            segments=getattr(model.config, "type_vocab_size", 0) > 1,
            max_length=model.config.max_position_embeddings,
        ),
        arguments=arguments,
        run_info={"objective": objective.name, "corpus": store.summary(), "identity": identity},
        identity=identity,
    )
    if is_main_process():
        steps, seconds = results["steps"], results["train_seconds"]
        print(f"done: {steps:,} steps in {seconds:.0f} s; the model is in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
