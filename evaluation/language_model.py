"""A pretrained language model that scores text: how likely it finds given tokens at given positions."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from lacuna.common.errors import InputError, NumericsError, progress_bar
from lacuna.common.loading import check_vocabulary, load_configuration, load_model, load_tokenizer, longest_input

Kind = Literal["causal", "masked", "encoder-decoder"]
AUTO_CLASSES = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}
AUTO_CLASSES |= {"encoder-decoder": "AutoModelForSeq2SeqLM"}
ARCHITECTURES = {"ForCausalLM": "causal", "LMHeadModel": "causal", "ForMaskedLM": "masked", "ForPreTraining": "masked"}
TOKENS_AT_ONCE = 8192 if torch.cuda.is_available() else 2048  # on a CPU, more leaves its caches: a fifth slower
PAIRED = ("ForConditionalGeneration", "MTModel")  # ends of encoder-decoders with a head that predicts tokens
LOGIT_BYTES = 2**28  # logits held at once: 256 MiB, which is 8192 positions of a vocabulary of 8192
REQUESTS_SORTED_AT_ONCE = 16384  # so that there are batches of requests of one length


@dataclass(frozen=True)
class LanguageModel:
    """A model that is ready to score text, or to be inspected; made by `of` or `load_language_model`."""

    model: Any
    tokenizer: Any
    kind: Kind
    prefix: tuple[int, ...]  # special tokens before a text, and after it
    suffix: tuple[int, ...]
    max_length: int | None  # tokens the model takes, special ones included; None without a limit
    batch_size: int | None = None  # requests that are scored at once; None: about `TOKENS_AT_ONCE` tokens

    @classmethod
    def of(cls, *, model: Any, tokenizer: Any, kind: Kind | None = None) -> "LanguageModel":
        """Take a model with a head that predicts tokens, and put it into evaluation mode; `kind` is that of its class.

        Raises InputError: model and tokenizer do not fit, a special token is missing, or a causal model sees ahead.
        """
        kind = find_kind(model.config, architecture=type(model).__name__) if kind is None else kind
        check_vocabulary(tokenizer=tokenizer, model=model)
        prefix, suffix = _edges(kind, tokenizer, model.config)
        model.eval()
        if kind == "causal":
            _refuse_foresight(model, prefix=prefix, vocab_size=len(tokenizer))
        return cls(model, tokenizer, kind, prefix, suffix, longest_input(config=model.config, tokenizer=tokenizer))

    def encode(self, text: str, *, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a text without special tokens, int64 [length], and their characters, int64 [length, 2].

        The name of a special token in a text is text. The characters are [length, 0] for a tokenizer without offsets.
        Raises InputError: the text holds half a character (a lone surrogate); `where` says which text.
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


def find_kind(config: Any, *, architecture: str | None = None, paired: bool = False) -> Kind:
    """Which way a model reads, from the class that was saved or from its configuration.

    InputError: it does not predict tokens, or is an encoder-decoder and not `paired`.
    """
    architecture = architecture or next(iter(config.architectures or []), str(config.model_type))
    if getattr(config, "is_encoder_decoder", False):
        if paired and architecture.endswith(PAIRED):
            return "encoder-decoder"
        why = f"a {architecture} predicts no tokens" if paired else "only encoders and decoders can be evaluated"
        raise InputError(f"{config.model_type} is an encoder-decoder; {why}")
    for ending, kind in ARCHITECTURES.items():
        if architecture.endswith(ending):
            return kind  # type: ignore[return-value]
    if "For" not in architecture:  # no head
        if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
            return "masked"
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return "causal"
    raise InputError(f"a {architecture} predicts no tokens: name a model with a language head, as of pretrain.py")


def load_language_model(
    *,
    model: str | None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    inspected: bool = False,
    bf16: bool = False,
) -> LanguageModel:
    """Load a checkpoint of Lacuna or of any native family in float32 or bf16, on the GPU if there is one.

    For `inspect_text` (`inspected`) attention shows its weights, and encoder-decoders are taken too. Raises
    InputError: no model was named, it cannot be read or has no head that predicts tokens; CorruptCheckpointError:
    weights cannot be read.
    """
    if not model:
        raise InputError("there is nothing to evaluate: name a pretrained model's folder or Hub id with --model")
    origin: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision}
    config = load_configuration(model, **origin)
    tokenizer = load_tokenizer(model, **origin)
    kind = find_kind(config, paired=inspected)
    origin |= {"attn_implementation": "eager"} if inspected else {}
    loaded, report = load_model(model, auto_class=AUTO_CLASSES[kind], **origin)
    missing = sorted(report["missing_keys"])
    if missing:  # transformers draws them at random, and the numbers would say nothing
        raise InputError(
            f"--model {model} was saved without {missing[0]} ({len(missing)} such weights): it is no pretrained "
            f"{kind} language model. Name the folder that pretraining wrote"
        )
    device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    loaded = loaded.to(device, torch.bfloat16 if bf16 else torch.float32)
    return LanguageModel.of(model=loaded, tokenizer=tokenizer, kind=kind)


def _edges(kind: Kind, tokenizer: Any, config: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens around a text: the tokenizer's template, or a causal model's start.

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
    if kind == "masked" and tokenizer.mask_token_id is None:
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


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens whose likelihood is asked, and what the model reads to predict them."""

    ids: np.ndarray  # what the model reads, int64 [length]
    positions: np.ndarray  # where its predictions are read, int64 [num_targets]
    targets: np.ndarray  # ids whose likelihood is asked there, int64 [num_targets]
    owner: int  # number of the text or window that it is from
    weight: int = 1  # how far it moves the progress bar


Scored = tuple[Request, np.ndarray, np.ndarray]
"""A request, its losses in nats, float64 [num_targets], and, if asked for, whether each target was the likeliest."""


def dense_logits(model: Any, **inputs: Any) -> Tensor:
    """Logits of all positions, [batch, length, vocabulary]; without a cache where the model could keep one."""
    if "use_cache" in signature(model.forward).parameters:
        inputs["use_cache"] = False
    output = model(**inputs)
    return output.prediction_logits if "prediction_logits" in output else output.logits


def _is_sparse(model: Any) -> bool:
    """Whether a model can be told which positions predict, as those of Lacuna can."""
    return "sparse_prediction" in signature(model.forward).parameters


def logits_at(model: Any, inputs: dict[str, Tensor], *, rows: Tensor, positions: Tensor) -> Tensor:
    """Logits at chosen positions, [number chosen, vocabulary]; `rows` and `positions` are int64 [number chosen].

    Nothing is computed for the other positions behind the trunk, in Lacuna's masked models behind its last attention:
    pseudo-log-likelihood reads one position of a text, and a large vocabulary costs as much as a tiny model's blocks.
    """
    shape, found = inputs["input_ids"].shape, []

    def choose(module: Any, arguments: Any, output: Any) -> None:
        if getattr(output, "last_hidden_state", rows).shape[:-1] == shape:
            output.last_hidden_state = output.last_hidden_state[None, rows, positions]
            found.append(output)

    if _is_sparse(model):
        logits = dense_logits(model, **inputs, target_positions=rows * shape[1] + positions)
        return logits if logits.dim() == 2 else logits[rows, positions]
    handle = model.base_model.register_forward_hook(choose)
    try:
        logits = dense_logits(model, **inputs)
    finally:
        handle.remove()
    return logits[0] if found else logits[rows, positions]


def score(
    *, language_model: LanguageModel, requests: Iterable[Request], total: int, description: str, hits: bool = False
) -> Iterator[Scored]:
    """Score requests, in another order than they came, with a progress bar after three seconds.

    `total` is the sum of their weights. `hits`: look for the likeliest tokens too. Raises NumericsError: a target's
    likelihood is not a finite number.
    """
    vocab_size = language_model.model.get_input_embeddings().num_embeddings
    some = batches(iter(requests), batch_size=language_model.batch_size, vocab_size=vocab_size)
    with progress_bar(total=total, doing=description, unit="token") as bar:
        for scored in _on_each_core(partial(_score_batch, language_model, hits=hits), some, language_model.model):
            yield from scored
            bar.update(sum(request.weight for request, *_ in scored))


def _on_each_core(
    function: Callable[[list[Request]], list[Scored]], some: Iterable[list[Request]], model: Any
) -> Iterator[list[Scored]]:
    """What a function makes of batches, in their order.

    On a CPU each core has a batch of its own: one that fits its cache is little work for several. Compiled blocks and
    the hook of `logits_at` are for one batch at a time.
    """
    threads, waiting = torch.get_num_threads(), deque[Future[list[Scored]]]()
    is_compiled = any(module._compiled_call_impl for module in model.modules())
    at_once = threads if _is_sparse(model) and model.device.type == "cpu" and not is_compiled else 1
    torch.set_num_threads(threads // at_once)
    try:
        with ThreadPoolExecutor(at_once) as pool:
            for batch in some:
                waiting.append(pool.submit(function, batch))
                if len(waiting) > at_once:
                    yield waiting.popleft().result()
            yield from (each.result() for each in waiting)
    finally:
        torch.set_num_threads(threads)


def batches(requests: Iterator[Request], *, batch_size: int | None, vocab_size: int) -> Iterator[list[Request]]:
    """Batches of requests of one length, the longest first: without padding, which takes 8 % of the time in bf16."""
    while pool := sorted(islice(requests, REQUESTS_SORTED_AT_ONCE), key=lambda request: -len(request.ids)):
        while pool:
            batch = pool[: batch_size or max(1, TOKENS_AT_ONCE // len(pool[0].ids))]
            batch = [request for request in batch if len(request.ids) == len(pool[0].ids)]
            if batch_size is None:
                sizes = 4 * vocab_size * np.cumsum([len(request.targets) for request in batch])
                batch = batch[: max(1, int(np.searchsorted(sizes, LOGIT_BYTES, side="right")))]
            yield batch
            pool = pool[len(batch) :]


def inputs_of(language_model: LanguageModel, batch: Sequence[Request]) -> dict[str, Tensor]:
    """What the model reads for requests of one length."""
    ids = torch.from_numpy(np.stack([request.ids for request in batch])).to(language_model.model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def _score_batch(language_model: LanguageModel, batch: list[Request], *, hits: bool) -> list[Scored]:
    device = language_model.model.device
    counts = [len(request.targets) for request in batch]
    targets = torch.from_numpy(np.concatenate([request.targets for request in batch])).to(device)
    logits = logits_at(
        language_model.model,
        inputs_of(language_model, batch),
        rows=torch.from_numpy(np.repeat(np.arange(len(batch)), counts)).to(device),
        positions=torch.from_numpy(np.concatenate([request.positions for request in batch])).to(device),
    )
    nats = F.cross_entropy(logits.float(), targets, reduction="none").cpu().double().numpy()
    right = (logits.argmax(dim=-1) == targets if hits else torch.zeros_like(targets)).cpu().numpy()
    if not np.isfinite(nats).all():
        raise NumericsError(
            "the model gives likelihoods that are not finite numbers: its weights are damaged, or it learned nothing. "
            "Look at the loss in metrics.jsonl beside it"
        )
    ends = np.cumsum(counts)[:-1]
    return list(zip(batch, np.split(nats, ends), np.split(right, ends), strict=True))
