"""Pretrain a language model from raw text.

    accelerate launch recipes/pretrain.py                                  # built-in text, a few minutes on a laptop
    accelerate launch recipes/pretrain.py --data my_texts/ --output_dir runs/mine
    accelerate launch recipes/pretrain.py --data my_texts/ --objective clm --output_dir runs/my_decoder
    torchrun --nproc_per_node 2 recipes/pretrain.py --max_steps 20         # two processes on a CPU
    python recipes/pretrain.py --data my_texts/ --show_examples 5          # what the model would see

Without --tokenizer one is trained on the text first. The text is tokenized once and kept in ~/.cache/lacuna (or
$LACUNA_CACHE), where later runs on the same text find it.
"""

import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers

from lacuna import corpus, modeling, tokenization, training
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.loading import load_tokenizer
from lacuna.objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens, TokenPrediction, show_examples

DEFAULT_FAMILY = {"encoder": "lacuna", "decoder": "qwen3", "encoder-decoder": "bart"}
CACHE = Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna"))


def prepare_text(
    data: corpus.CorpusArguments, model: training.NewModelArguments, *, num_sentinels: int
) -> tuple[Any, corpus.TokenStore]:
    """The tokenizer and the token store; built by whichever process comes first, found there by the others."""
    folder = data.tokenizer or model.model
    if data.corpus and (data.data or not folder):
        raise InputError("--corpus goes without --data, and with the --tokenizer that it was made with")
    if data.corpus:
        tokenizer, store = _load_tokenizer(folder, model), corpus.open_store(data.corpus)
        if store.tokenizer_fingerprint != tokenization.tokenizer_fingerprint(tokenizer):
            raise InputError(f"--corpus {data.corpus} was made with another tokenizer than {folder}")
        return tokenizer, store
    text = corpus.open_text(data)
    if not folder:
        folder = str(CACHE / "tokenizers" / _key(text.fingerprint, f"sample {model.vocab_size} {num_sentinels}"))
        tokenization.train_once(
            documents=text.texts(), output_dir=Path(folder), vocab_size=model.vocab_size, num_sentinels=num_sentinels
        )
    tokenizer = _load_tokenizer(folder, model)
    made_with = tokenization.tokenizer_fingerprint(tokenizer)
    store = corpus.prepare_store(
        text=text,
        tokenizer=tokenizer,
        tokenizer_fingerprint=made_with,
        output_dir=CACHE / "corpora" / _key(text.fingerprint, made_with),
    )
    return tokenizer, store


def _key(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _load_tokenizer(folder: str | None, model: training.NewModelArguments) -> Any:
    of_hub = folder == model.model and not Path(str(folder)).is_dir()
    return (
        load_tokenizer(str(folder), trust_remote_code=model.trust_remote_code)
        if of_hub
        else tokenization.load_tokenizer(str(folder))
    )


def build_model(
    arguments: training.NewModelArguments, objective: TokenPrediction, tokenizer: Any, length: int, seed: int
) -> Any:
    """A new model of the family and size asked for, or the one that --model names."""
    transformers.set_seed(seed)
    if arguments.init_from_native and not arguments.model:
        raise InputError("--init_from_native needs --model, a folder or Hub id of a model of transformers")
    if arguments.model:
        model = training.load_pretrained(
            arguments.model,
            auto_class=objective.head,
            tokenizer=tokenizer,
            sequence_length=length,
            trust_remote_code=arguments.trust_remote_code,
        )
        return modeling.from_native(model) if arguments.init_from_native else model
    family = arguments.family or DEFAULT_FAMILY[objective.shape]
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")}
    config = modeling.LacunaConfig.from_family(
        family,
        arguments.size,
        hybrid=objective.name == "hybrid",
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=max(length, 512),
        **ids,
    )
    if config.shape != objective.shape:
        raise InputError(
            f"--objective {objective.name} trains models of shape {objective.shape}, and --family "
            f"{arguments.family} has shape {config.shape}; use --family {DEFAULT_FAMILY[objective.shape]}"
        )
    return getattr(transformers, objective.head).from_config(config)


def main() -> None:
    """Parse, build, train."""
    data, goal, model_arguments, arguments = parse_arguments(
        (corpus.CorpusArguments, ObjectiveArguments, training.NewModelArguments, training.TrainingArguments),
        description=__doc__,
    )
    goal.check_used()
    if training.is_main_process() and not goal.show_examples:
        training.claim_output_dir(arguments)
        print(training.processes().describe(), flush=True)
    tokenizer, store = prepare_text(data, model_arguments, num_sentinels=goal.num_sentinels)
    parts = {
        "store": store,
        "tokens": SpecialTokens.of(tokenizer),
        "byte_lengths": tokenization.token_byte_lengths(tokenizer),
        "token_edges": tokenization.token_edges(tokenizer),
        "seed": arguments.seed,
        "arguments": goal,
    }
    works = [(at, OBJECTIVES[goal.objective](**parts, sequence_length=length)) for at, length in goal.stages]
    objective = works[-1][1]
    if goal.show_examples:
        return print("\n\n".join(show_examples(work, tokenizer, goal.show_examples, at) for at, work in works))
    model = build_model(model_arguments, objective, tokenizer, max(goal.lengths), arguments.seed)
    objective.check_model(model)
    described = f"{type(model).__name__}, {model.num_parameters() / 1e6:.2f} M parameters"
    facts = {"objective": objective.name, "text": store.summary(), "rows": [work.describe() for _, work in works]}
    if training.is_main_process():
        print(f"text: {facts['text']}\nmodel: {described}; objective: {objective.name}")
        print(*facts["rows"], sep="\n", flush=True)
    if not model_arguments.model:
        tokenizer = tokenization.adapt_tokenizer(
            tokenizer=tokenizer,
            shape=objective.shape,
            segments=model.config.type_vocab_size > 1,
            max_length=model.config.max_position_embeddings,
        )
    results = training.train(
        model=model,
        work=works,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={**facts, **asdict(model_arguments), **asdict(data)},
        identity={"model": described, "corpus": store.fingerprint, **goal.identity()},
    )
    if training.is_main_process():
        print(f"done: {results['steps']:,} steps; the model is in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
