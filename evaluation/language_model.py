"""A model, its tokenizer, and what a suite must know of them: which way it reads and how its texts begin and end."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from lacuna.common.errors import InputError
from lacuna.common.loading import check_vocabulary, load_configuration, load_model, load_tokenizer, longest_input

from .scoring import dense_logits, logits_at

Kind = Literal["causal", "masked"]
AUTO_CLASSES = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}
ARCHITECTURES = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
}


@dataclass(frozen=True)
class LanguageModel:
    """A causal or masked model that is ready to score text; made by `of` or `load_language_model`."""

    model: Any
    tokenizer: Any
    kind: Kind
    prefix: tuple[int, ...]  # special tokens before a text, and after it
    suffix: tuple[int, ...]
    max_length: int | None  # tokens the model takes, special ones included; None without a limit
    selects: bool  # whether logits can be computed at chosen positions only

    @classmethod
    def of(cls, *, model: Any, tokenizer: Any, kind: Kind | None = None) -> "LanguageModel":
        """Take a model in memory and put it into evaluation mode.

        Args:
            model: a `PreTrainedModel` with a head that predicts tokens.
            kind: None: found from its class.

        Raises:
            InputError: model and tokenizer do not fit, a special token is missing, or a model said to be causal
                sees what it is to predict.
        """
        kind = find_kind(model.config, architecture=type(model).__name__) if kind is None else kind
        check_vocabulary(tokenizer=tokenizer, model=model)
        prefix, suffix = _edges(kind, tokenizer, model.config)
        model.eval()
        if kind == "causal":
            _refuse_foresight(model, prefix=prefix, vocab_size=len(tokenizer))
        limit = longest_input(config=model.config, tokenizer=tokenizer)
        return cls(
            model, tokenizer, kind, prefix, suffix, limit, selects=_can_select(model, vocab_size=len(tokenizer))
        )

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.device

    def encode(self, text: str, *, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a text without special tokens, int64 [length], and their characters, int64 [length, 2].

        The name of a special token in a text is text. The characters are [length, 0] for a tokenizer without offsets.

        Raises:
            InputError: the text holds half a character (a lone surrogate); `where` says which text.
        """
        fast = bool(self.tokenizer.is_fast)
        options = {"add_special_tokens": False, "split_special_tokens": True, "return_offsets_mapping": fast}
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"{where} holds {text[error.start]!r}, which is not a character") from error
        found = self.tokenizer(text, verbose=False, **options)  # verbose warns of long texts, which are cut here
        ids = np.asarray(found["input_ids"], dtype=np.int64)
        offsets = np.asarray(found.get("offset_mapping", []), dtype=np.int64).reshape(len(ids), 2 if fast else 0)
        return ids, offsets


def find_kind(config: Any, *, architecture: str | None = None) -> Kind:
    """Which way a model reads, from the class that was saved or from its configuration.

    Raises:
        InputError: it does not predict tokens, or is an encoder-decoder.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{config.model_type} is an encoder-decoder; only encoders and decoders can be evaluated")
    architecture = architecture or next(iter(config.architectures or []), "")
    for ending, kind in ARCHITECTURES.items():
        if architecture.endswith(ending):
            return kind  # type: ignore[return-value]
    if getattr(config, "is_decoder", False):
        return "causal"
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return "masked"
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "causal"
    raise InputError(f"a {architecture or config.model_type} predicts no tokens; name an encoder or decoder")


def load_language_model(*, model: str | None, trust_remote_code: bool = False) -> LanguageModel:
    """Load a checkpoint of Lacuna or of any native family in float32, on the GPU if there is one.

    Raises:
        InputError: no model was named, it cannot be read, or it was saved without a head that predicts tokens.
        CorruptCheckpointError: the weights cannot be read.
    """
    if not model:
        raise InputError("there is nothing to evaluate: name a pretrained model's folder or Hub id with --model")
    config = load_configuration(model, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    kind = find_kind(config)
    loaded, report = load_model(model, auto_class=AUTO_CLASSES[kind], trust_remote_code=trust_remote_code)
    missing = sorted(report["missing_keys"])
    if missing:  # transformers draws them at random, and the numbers would say nothing
        raise InputError(
            f"--model {model} was saved without {missing[0]} ({len(missing)} such weights): it is no pretrained "
            f"{kind} language model. Name the folder that pretraining wrote"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LanguageModel.of(model=loaded.to(device), tokenizer=tokenizer, kind=kind)


def _edges(kind: Kind, tokenizer: Any, config: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens around a text: a masked model's template, and a causal model's start.

    Without a start, the first token could not be scored. Families without a token for it (GPT-2, Qwen) begin documents
    with the one that ends them.
    """
    if kind == "causal":
        names = ("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")
        found = [getattr(tokenizer, name, None) for name in names] + [getattr(config, "bos_token_id", None)]
        starts = [token for token in found if isinstance(token, int)]
        if not starts:
            raise InputError("the tokenizer has no token that starts a text (bos, cls or eos): set its bos_token")
        return (starts[0],), ()
    if tokenizer.mask_token_id is None:
        raise InputError("the tokenizer has no mask token, and a masked model is asked with one")
    if not tokenizer.is_fast:
        raise InputError("the tokenizer is not a fast one (tokenizer.json), which maps tokens to characters")
    template = tokenizer("a", return_special_tokens_mask=True)
    ids, special = template["input_ids"], template["special_tokens_mask"]
    if all(special):
        raise InputError("the tokenizer makes no token of the letter a: it does not belong to this model")
    first, last = special.index(0), len(ids) - special[::-1].index(0)
    return tuple(ids[:first]), tuple(ids[last:])


@torch.no_grad()
def _refuse_foresight(model: Any, *, prefix: tuple[int, ...], vocab_size: int) -> None:
    """Raise when a later token changes what is predicted before it.

    An encoder saved as a causal model loads without complaint, sees the answer and has excellent bits per byte.
    """
    row = [*prefix, *(token % vocab_size for token in range(5, 12))]
    other = [*row[:-1], (row[-1] + 1) % vocab_size]
    logits = dense_logits(model, input_ids=torch.tensor([row, other], device=model.device))[:, :-1].float()
    if (logits[0] - logits[1]).abs().max() > 1e-3 * logits.std().clamp(min=1e-3):
        raise InputError(
            f"{type(model).__name__} is used as a causal model but sees the tokens that follow: its predictions would "
            "be answers it has read. An encoder must be saved as a masked language model"
        )


@torch.no_grad()
def _can_select(model: Any, *, vocab_size: int) -> bool:
    """Whether `logits_at` gives the same numbers when the head computes them at chosen positions only."""
    row = [token % vocab_size for token in (5, 6, 7, 8)]
    input_ids = torch.tensor([row, row[::-1]], device=model.device)
    rows, positions = torch.tensor([1, 0, 1], device=model.device), torch.tensor([3, 1, 2], device=model.device)
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    expected = logits_at(model, inputs, rows=rows, positions=positions, selects=False)
    try:
        found = logits_at(model, inputs, rows=rows, positions=positions, selects=True)
    except (RuntimeError, IndexError, ValueError):
        return False
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
