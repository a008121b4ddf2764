"""Text cut into rows as the examples of transformers cut it, and the score of any model on held-out rows.

- Masked models, as in run_mlm.py: each line is tokenized with its special tokens ([CLS] line [SEP], blank lines too),
  all lines are joined and cut into rows of one length; the rest is left out. Held-out rows get one mask, drawn once
  by transformers' own collator: 15 % of the text, of which 80 % becomes [MASK], 10 % a random token, 10 % stays.
- Decoders, as in run_clm.py: no special tokens, line ends kept; the text is tokenized as a whole. Every token but the
  first of a row is predicted from those before it in the row.

The score is the mean loss of the predicted tokens in nats, and bits per byte: their loss in bits divided by the bytes
of text that they stand for. All models are scored in float32.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from contenders import IGNORED
from kept import short_hash
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import DataCollatorForLanguageModeling

from lacuna import tokenization

Kind = Literal["masked", "causal"]
MASK_PROBABILITY = 0.15
MASK_SEED = 20_190_524
ROWS_AT_ONCE = 32


def find_split(folder: Path, name: str) -> Path:
    """The one file of raw text in a folder whose name holds `name` ("train", "valid")."""
    files = folder.iterdir() if folder.is_dir() else []
    found = sorted(path for path in files if name in path.name and path.suffix in (".txt", ".raw", ".tokens"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(f"--data {folder} must hold one text file with {name!r} in its name; there is: {names}")
    return found[0]


@dataclass(frozen=True)
class HeldOut:
    """Rows that every model is scored on: `inputs` and the tokens to be predicted, int64 [rows, length]."""

    kind: Kind
    inputs: Tensor
    labels: Tensor
    byte_lengths: Tensor
    """Bytes of text that each token stands for, [vocab_size]."""
    start: int
    """The token that begins a line, in rows that hold one."""

    def subset(self, count: int) -> "HeldOut":
        """At most `count` of the rows, spread evenly."""
        total = len(self.inputs)
        chosen = torch.linspace(0, total - 1, min(count, total)).round().long().unique()
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen])

    def positions(self) -> Tensor:
        """Positions that begin at 0 with each line, for models that keep what they read inside of it: as `inputs`."""
        originals = torch.where(self.labels == IGNORED, self.inputs, self.labels)
        place = torch.arange(originals.shape[1]).expand_as(originals)
        return place - torch.where(originals == self.start, place, 0).cummax(dim=1).values


@dataclass(frozen=True)
class Material:
    """What a benchmark trains on and scores with: `train` rows, and the tokenizer that was trained on their text."""

    kind: Kind
    train_file: Path
    tokenizer: Any
    tokenizer_dir: Path
    train: Tensor
    held_out: HeldOut
    special: Tensor
    """Ids that are no text, bool [vocab_size]."""
    fingerprint: str


def open_material(*, kind: Kind, data: Path, work_dir: Path, length: int, vocab_size: int) -> Material:
    """Read both files, train the tokenizer on one of them, cut rows."""
    train_file, held_out_file = find_split(data, "train"), find_split(data, "valid")
    train_text, held_out_text = (path.read_text(encoding="utf-8") for path in (train_file, held_out_file))
    folder = work_dir / "tokenizers" / short_hash(train_text, vocab_size)
    tokenization.train_once(documents=[train_text], output_dir=folder, vocab_size=vocab_size)
    plain = tokenization.load_tokenizer(str(folder))
    tokenizer = tokenization.adapt_tokenizer(tokenizer=plain, shape="encoder", segments=False, max_length=10**9)
    made_with = tokenization.tokenizer_fingerprint(plain)
    encode = encode_lines if kind == "masked" else encode_whole
    train, rows = (group_texts(encode(text, tokenizer), length) for text in (train_text, held_out_text))
    special = torch.zeros(len(tokenizer), dtype=torch.bool)
    special[list(tokenizer.all_special_ids)] = True
    if kind == "masked":
        generator = torch.Generator().manual_seed(MASK_SEED)
        inputs, labels = mask_rows(rows, collator=make_collator(tokenizer, generator), special=special)
    else:
        inputs, labels = rows, rows.clone()
        labels[:, 0] = IGNORED
    byte_lengths = torch.from_numpy(tokenization.token_byte_lengths(plain))
    held_out = HeldOut(kind, inputs, labels, byte_lengths, start=tokenizer.cls_token_id)
    digest = short_hash(*(part.numpy().tobytes() for part in (train, inputs, labels)), length, made_with)
    return Material(kind, train_file, tokenizer, folder, train, held_out, special, digest)


def encode_lines(text: str, tokenizer: Any) -> list[list[int]]:
    """Ids of each line with its special tokens, as run_mlm.py reads a text file: line ends are not part of a line."""
    return tokenizer(text.removesuffix("\n").split("\n"), verbose=False)["input_ids"]


def encode_whole(text: str, tokenizer: Any) -> list[list[int]]:
    """Ids of a text as one document without special tokens."""
    return [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]


def group_texts(texts: Iterable[list[int]], length: int) -> Tensor:
    """All texts joined and cut into full rows, [rows, length], as the function of this name of run_mlm.py."""
    joined = np.fromiter(chain.from_iterable(texts), dtype=np.int64)
    rows = len(joined) // length
    if not rows:
        raise SystemExit(f"the text has {len(joined)} tokens, and a row {length}: give more text or a shorter row")
    return torch.from_numpy(joined[: rows * length].reshape(rows, length))


def make_collator(tokenizer: Any, generator: torch.Generator) -> Any:
    """The collator of transformers that masks tokens, drawing from `generator`."""
    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=MASK_PROBABILITY)
    collator.generator = generator
    return collator


def mask_rows(rows: Tensor, *, collator: Any, special: Tensor) -> tuple[Tensor, Tensor]:
    """Masked rows and labels, int64 [rows, length] each; special tokens are never chosen."""
    return collator.torch_mask_tokens(rows.clone(), special_tokens_mask=special[rows])


@torch.no_grad()
def score(model: Any, held_out: HeldOut, *, inside_lines: bool = False) -> dict[str, float]:
    """Loss in nats, bits per byte and share of exact predictions of a model on held-out rows.

    Args:
        inside_lines: give the model positions that begin anew with each line; see `HeldOut.positions`.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    options: dict[str, Any] = {"use_cache": False} if held_out.kind == "causal" else {}
    positions = held_out.positions() if inside_lines else None
    nats = size = targets = hits = 0.0
    starts = range(0, len(held_out.inputs), ROWS_AT_ONCE)
    for start in tqdm(starts, desc="scoring", unit="batch", leave=False, delay=2):
        rows = slice(start, start + ROWS_AT_ONCE)
        if positions is not None:
            options["position_ids"] = positions[rows].to(device)
        logits = model(input_ids=held_out.inputs[rows].to(device), **options).logits
        labels = held_out.labels[rows].to(device)
        if held_out.kind == "causal":
            logits, labels = logits[:, :-1], labels[:, 1:]
        chosen = labels != IGNORED
        logits, labels = logits[chosen].float(), labels[chosen]
        nats += float(functional.cross_entropy(logits, labels, reduction="none").double().sum())
        hits += float((logits.argmax(dim=-1) == labels).sum())
        size += float(held_out.byte_lengths[labels.cpu()].sum())
        targets += len(labels)
    model.train(was_training)
    bits = nats / math.log(2)
    return {"loss": nats / targets, "bits_per_byte": bits / size, "accuracy": hits / targets, "targets": targets}
