"""Generating a text from another: what a model reads of both, its loss, and what it writes by itself.

An encoder-decoder reads the source with its encoder and writes the target with its decoder. A decoder reads the source
and a token that ends it, and continues from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from lacuna.common.errors import InputError
from lacuna.common.loading import longest_input
from lacuna.common.work import to_device
from lacuna.tasks.base.features import IGNORED, LENGTH_STEP, model_inputs, pad_inputs, pad_like, records, tokenize

_TOKENIZE_AT_ONCE = 1000
_SHORTEST = 4  # tokens of a text that special ones leave room for


def writes_with(config: Any) -> str:
    """The Auto class of a model that writes texts; InputError for an encoder, which writes none."""
    if getattr(config, "is_encoder_decoder", False):
        return "AutoModelForSeq2SeqLM"
    shape = getattr(config, "shape", None)
    only_reads = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if shape == "encoder" or (shape is None and only_reads):
        raise InputError(
            f"--model {config.name_or_path} is an encoder ({config.model_type}), which writes no text: name a decoder "
            "(recipes/pretrain.py --objective clm makes one) or an encoder-decoder (--objective denoising)"
        )
    return "AutoModelForCausalLM"


def resolve_lengths(
    *, source: int | None, target: int | None, config: Any, tokenizer: Any, default: tuple[int, int] = (256, 128)
) -> tuple[int, int]:
    """Tokens to truncate sources and targets to: the requested number, else the default or what the model takes.

    Both together must fit into a decoder, each by itself into an encoder-decoder; else it is an InputError.
    """
    limit = longest_input(config=config, tokenizer=tokenizer)
    if limit is None:
        return source or default[0], target or default[1]
    if getattr(config, "is_encoder_decoder", False):
        for option, asked in (("max_length", source), ("max_target_length", target)):
            if asked is not None and asked > limit:
                raise InputError(f"--{option} {asked} is more than the {limit} tokens that the model takes: lower it")
        return source or min(default[0], limit), target or min(default[1], limit)
    if (source or _SHORTEST) + (target or _SHORTEST) + 1 > limit:
        given = {"max_length": source, "max_target_length": target}
        named = " and ".join(f"--{option} {value}" for option, value in given.items() if value is not None)
        raise InputError(
            f"{named}: source, a token that ends it, and target do not fit into the {limit} tokens that this decoder "
            "takes: lower them"
        )
    target = target or min(default[1], limit // 2, limit - 1 - (source or _SHORTEST))
    return source or min(default[0], limit - 1 - target), target


@dataclass(kw_only=True, eq=False)
class Writer:
    """What a tokenizer and a model need to know of each other for one to write texts."""

    tokenizer: Any
    config: Any
    max_length: int
    """Tokens that a source is cut to, special tokens included."""
    max_target_length: int
    """Tokens that a target is cut to, and that are written at most, the end included."""
    num_beams: int = 1
    source_prefix: str = ""

    def __post_init__(self) -> None:
        tokenizer, config = self.tokenizer, self.config
        self.is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        ends = [tokenizer.eos_token_id, tokenizer.sep_token_id, getattr(config, "eos_token_id", None)]
        end = next((token for token in ends if token is not None), None)
        if end is None:
            raise InputError(
                "the tokenizer has no token that ends a text, and a model that writes must learn to stop: set "
                "tokenizer.eos_token and save it in the folder of --model"
            )
        self.end = int(end[0]) if isinstance(end, list) else int(end)
        self.border = self.end if tokenizer.sep_token_id is None else int(tokenizer.sep_token_id)
        self.start = getattr(config, "decoder_start_token_id", None)

    def sources(self, texts: Sequence[str]) -> tuple[list[dict[str, np.ndarray]], int]:
        """What the model reads of sources before it writes, and how many were cut."""
        prefixed = [self.source_prefix + text for text in texts]
        inputs, cut = tokenize(tokenizer=self.tokenizer, texts=prefixed, max_length=self.max_length)
        # Segments are left out: a source is a single one, and models that write seldom know any.
        sources = [each["input_ids"] for each in inputs]
        if not self.is_encoder_decoder:
            border = np.array([self.border], dtype=np.int32)
            sources = [ids if [*ids[-1:]] == [self.border] else np.append(ids, border) for ids in sources]
        return [{"input_ids": ids} for ids in sources], cut

    def targets(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """What the model is to write, with its end: int32 [tokens] each; and how many were cut."""
        found: list[np.ndarray] = []
        cut = 0
        for begin in range(0, len(texts), _TOKENIZE_AT_ONCE):
            part = list(texts[begin : begin + _TOKENIZE_AT_ONCE])
            # An encoder-decoder learns them with the frame that its decoder knows.
            given = {"text_target": part} if self.is_encoder_decoder else {"text": part, "add_special_tokens": False}
            for ids in self.tokenizer(**given, return_attention_mask=False, verbose=False)["input_ids"]:
                if self.is_encoder_decoder and ids and ids[0] == self.start:  # the model puts it there itself
                    ids = ids[1:]
                body = ids[:-1] if ids and ids[-1] == self.end else ids
                cut += len(body) >= self.max_target_length
                found.append(np.array([*body[: self.max_target_length - 1], self.end], dtype=np.int32))
        return found, cut

    def example(self, source: dict[str, np.ndarray], target: np.ndarray) -> dict[str, Any]:
        """Inputs and `labels`; for a decoder both texts in a row, of which the target is learnt."""
        if self.is_encoder_decoder:
            return {**source, "labels": target}
        prompt = source["input_ids"]
        labels = np.concatenate([np.full(len(prompt), IGNORED, dtype=np.int32), target])
        return {"input_ids": np.concatenate([prompt, target]), "labels": labels}

    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Inputs padded to the longest, and `labels` [batch, length of the targets or of all], -100 for no target."""
        if not self.is_encoder_decoder:
            batch = pad_inputs(examples=examples, tokenizer=self.tokenizer, side="right")
            batch["labels"] = pad_like(values=[item["labels"] for item in examples], batch=batch, fill=IGNORED)
            return batch
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        longest = max(len(example["labels"]) for example in examples)
        longest = max(longest, min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self.max_target_length))
        batch["labels"] = torch.full((len(examples), longest), IGNORED, dtype=torch.long)
        for row, example in enumerate(examples):
            labels = torch.from_numpy(example["labels"].astype(np.int64))
            batch["labels"][row, : len(labels)] = labels
        return batch

    def prompts(self, sources: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
        """Inputs of `generate`, padded to the longest; those of a decoder on the left."""
        side = None if self.is_encoder_decoder else "left"
        return pad_inputs(examples=sources, tokenizer=self.tokenizer, side=side)

    def with_hints(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add where the targets are, which a GPU would have to be waited for."""
        labels = batch["labels"] if self.is_encoder_decoder else batch["labels"][:, 1:]
        return {**batch, "target_positions": (labels != IGNORED).flatten().nonzero()[:, 0]}

    def nats(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the labels of each row, summed, and their number: float32 and int64 [batch]."""
        labels = batch["labels"]
        if self.is_encoder_decoder:  # what its decoder reads, the model makes of the labels itself
            logits = model(**model_inputs(batch), labels=labels, use_cache=False).logits
        else:
            logits, labels = model(**model_inputs(batch), use_cache=False).logits[:, :-1], labels[:, 1:]
        found = batch.get("target_positions")
        found = (labels != IGNORED).flatten().nonzero()[:, 0] if found is None else found
        rows, places = found // labels.shape[1], found % labels.shape[1]
        each = F.cross_entropy(logits[rows, places].float(), labels[rows, places], reduction="none")
        return each.new_zeros(len(labels)).index_add(0, rows, each), (labels != IGNORED).sum(dim=1)

    @torch.no_grad()
    def write(self, model: Any, sources: Sequence[dict[str, np.ndarray]]) -> list[list[int]]:
        """The tokens that the model writes for each source, up to the end, which is the last of them where it came."""
        prompts = to_device(self.prompts(sources), model.device)
        written = model.generate(
            **model_inputs(prompts),
            max_new_tokens=self.max_target_length,
            num_beams=self.num_beams,
            do_sample=False,
            eos_token_id=self.end,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        read = 1 if self.is_encoder_decoder else prompts["input_ids"].shape[1]
        texts = written[:, read:].tolist()
        return [ids[: ids.index(self.end) + 1] if self.end in ids else ids for ids in texts]

    def sureness(
        self, model: Any, sources: Sequence[dict[str, np.ndarray]], written: Sequence[Sequence[int]]
    ) -> list[float]:
        """The mean probability (geometric) that the model gives the tokens it wrote; 0 where it wrote none."""
        targets = [np.array(ids, dtype=np.int32) for ids in written]
        batch = self.collate([*map(self.example, sources, targets)])
        nats, counts = self.nats(model, to_device(batch, model.device))
        return torch.where(counts > 0, (-nats / counts.clamp(min=1)).exp(), 0.0).tolist()

    def answers(self, model: Any, sources: Sequence[dict[str, np.ndarray]]) -> list[dict[str, Any]]:
        """The text that the model writes for each source, how sure it is of that, and whether it came to an end."""
        written = self.write(model, sources)
        return records(
            prediction=[self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in written],
            probability=[round(sure, 6) for sure in self.sureness(model, sources, written)],
            ended=[self.end in ids for ids in written],
        )
