"""The model that pretraining starts from: a new one of --family and --size, or the one that --model names."""

from contextlib import suppress
from typing import Any

import torch
import transformers

from lacuna.common.errors import InputError
from lacuna.common.loading import check_vocabulary, load_configuration, load_model, load_tokenizer, num_positions

from .arguments import NewModelArguments
from .environment import is_main_process

DEFAULT_FAMILY = {"encoder": "modernbert", "decoder": "qwen3", "encoder-decoder": "bart"}
_USUAL = {"encoder": "mlm", "decoder": "clm", "encoder-decoder": "denoising"}
_BOTH_HEADS = "AutoModelForPreTraining"
"""Of masked words and of the relation of two sentences; some native families have the first alone."""


def starting_model(
    arguments: NewModelArguments, *, modeling: Any, objective: Any, tokenizer: Any, length: int, seed: int
) -> Any:
    """A new model, or the one that --model names, with a head for the objective and positions for `length` tokens.

    Args:
        modeling: the room of that name: `LacunaConfig`, `as_ours`, by which a native model becomes one of ours.
        objective: its `name`, the `shape` of model that it trains, `head`, the name of an Auto class, `fields` of its
            configuration, and whether it `learns_means` of states, which a classifier then reads.

    Raises:
        InputError: there is no such model, it cannot have that head, or it is too small.
        CorruptCheckpointError: its weights cannot be read.
    """
    transformers.set_seed(seed)
    if arguments.model:
        of_new = {"--family": arguments.family, "--size": arguments.size != type(arguments).size}
        for option in filter(of_new.get, of_new):
            raise InputError(f"{option} is for a new model, and --model {arguments.model} has its own: leave it out")
        model = modeling.as_ours(_load(arguments, arguments.model, objective, tokenizer, length))
        kind = None
        if objective.head == _BOTH_HEADS and type(model) is modeling.LacunaForMaskedLM:
            kind = modeling.LacunaForPreTraining
        elif "question_aware" in objective.fields and getattr(model.config, "question_aware", None) is False:
            kind, model.config.question_aware = modeling.LacunaForQuestionAnswering, True
        if kind:
            old, model = model, kind(model.config)
            model.load_state_dict(old.state_dict(), strict=False)  # all but the head, which is new
        return _read_by(model, objective)
    family = arguments.family or DEFAULT_FAMILY[objective.shape]
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")}
    config = modeling.LacunaConfig.from_family(
        family,
        arguments.size,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=max(length, 512),
        **ids,
        **arguments.shape,
    )
    if config.shape != objective.shape:
        raise InputError(
            f"--objective {objective.name} trains models of shape {objective.shape}, and --family "
            f"{arguments.family} has shape {config.shape}; use --family {DEFAULT_FAMILY[objective.shape]}"
        )
    config.update(objective.fields)
    return _read_by(getattr(transformers, objective.head).from_config(config), objective)


def _read_by(model: Any, objective: Any) -> Any:
    """Let classifiers that begin from the model read what the objective trains; BERT's always read their pooler."""
    if objective.learns_means and not getattr(model.config, "pooler", True):
        model.config.classifier_pooling = "mean"
    return model


def _load(arguments: NewModelArguments, model: str, objective: Any, tokenizer: Any, length: int) -> Any:
    code, revision, head = arguments.trust_remote_code, arguments.revision, objective.head
    config = load_configuration(model, trust_remote_code=code, revision=revision)
    masked, causal = transformers.MODEL_FOR_MASKED_LM_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    likely = {
        "encoder-decoder": getattr(config, "is_encoder_decoder", False),
        "encoder": type(config) in masked and not getattr(config, "is_decoder", False),
        "decoder": type(config) in causal and getattr(config, "is_causal", True),
    }
    shape = getattr(config, "shape", next(filter(likely.get, likely), objective.shape))
    if shape != objective.shape and not (getattr(config, "hybrid", False) and head == "AutoModelForMaskedLM"):
        raise InputError(
            f"--model {model} is of shape {shape}, and --objective {objective.name} trains models of shape "
            f"{objective.shape}: take another --model, or --objective {_USUAL[shape]}"
        )
    if head == _BOTH_HEADS and type(config) not in transformers.MODEL_FOR_PRETRAINING_MAPPING:
        head = "AutoModelForMaskedLM"
    loaded, _ = load_model(model, auto_class=head, trust_remote_code=code, revision=revision)
    old = None
    with suppress(InputError):  # a model without a tokenizer can only be compared in size
        old = load_tokenizer(model, trust_remote_code=code, revision=revision)
    added = 0 if old is None else fit_vocabulary(loaded, old=old, new=tokenizer)
    if added and is_main_process():
        print(f"vocabulary: {added:,} new tokens, which begin as the mean of those that they replace", flush=True)
    check_vocabulary(tokenizer=tokenizer, model=loaded)
    longest = num_positions(loaded.config)
    if longest is not None and length > longest:
        raise InputError(
            f"--sequence_length {length} is more than the {longest} positions of --model {model}; lower it"
        )
    return loaded


@torch.no_grad()
def fit_vocabulary(model: Any, *, old: Any, new: Any) -> int:
    """Give a model rows for the tokens that a tokenizer adds to the model's own.

    The rows of a new token, in the embeddings and in the output layer, begin as the mean of those of the tokens that
    it replaces (Hewitt, 2021, "Initializing new word embeddings for pretrained language models", takes the mean of
    all); those of special tokens begin at random.

    `new` is the tokenizer `old` of the model, or what `recipes/train_tokenizer.py --extend` made of it. Returns how
    many tokens are new. Raises InputError: `new` gives other ids to tokens of `old`.
    """
    before, after = old.get_vocab(), new.get_vocab()
    moved = next((token for token, number in before.items() if after.get(token) != number), None)
    if moved is not None:
        raise InputError(
            f"--tokenizer gives the id {after.get(moved)} to {moved!r}, which has {before[moved]} in the tokenizer of "
            "--model: leave --tokenizer out, or extend that one with recipes/train_tokenizer.py --extend"
        )
    added = {token: number for token, number in after.items() if token not in before}
    if len(new) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(new), pad_to_multiple_of=64, mean_resizing=False)
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = {id(table): table for layer in layers if layer is not None for table in layer.parameters()}
    special = {*new.all_special_ids}
    for token, number in added.items():
        pieces = [] if number in special else old.backend_tokenizer.model.tokenize(token)
        for table in tables.values() if pieces else ():
            table[number] = table[[piece.id for piece in pieces]].mean(dim=0)
    return len(added)
