"""Text cut into rows as the examples of transformers cut it, and the score of any model on held-out rows.

- Masked models, as in run_mlm.py: each line is tokenized with its special tokens ([CLS] line [SEP], blank lines too),
  all lines are joined and cut into rows of one length; the rest is left out. Held-out rows are masked once.
- Decoders, as in run_clm.py: no special tokens, line ends kept, the text is tokenized as a whole.

The score is the mean loss of the predicted tokens in nats, and in bits per byte of the text that they stand for.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from contenders import IGNORED
from harness import DATA, find_device, run_recipe, short_hash
from torch import Tensor
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling

from lacuna import modeling, tokenization  # noqa: F401  (the former teaches the Auto classes our models)
from lacuna.common.errors import progress_bar

Kind = Literal["masked", "causal"]
HEADS = {"masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
BOUNDARIES = {"masked": "line", "causal": "file"}
"""--document_boundary of our runs: lines are documents where held-out lines have special tokens around them."""
OPTIONS = (
    ("data", str(DATA / "wikitext-2"), "folder with a train and a valid text"),
    ("length", 128, "tokens in a row"),
    ("vocab_size", 8192, "tokens in the vocabulary"),
)
"""Options that `open_material` reads."""
MASK_SEED = 20_190_524
ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Material:
    """What a benchmark trains on and scores with; rows are int64 [rows, length]."""

    kind: Kind
    train_file: Path
    tokenizer: Any  # trained on the train text
    tokenizer_dir: Path
    train: Tensor
    inputs: Tensor  # held-out rows, which all models are scored on
    labels: Tensor
    byte_lengths: Tensor  # bytes of text that each token stands for, [vocab_size]
    fingerprint: str

    def positions(self) -> Tensor:
        """Positions of held-out rows that begin at 0 with each line, for models trained on lines as documents."""
        originals = torch.where(self.labels == IGNORED, self.inputs, self.labels)
        place = torch.arange(originals.shape[1]).expand_as(originals)
        return place - torch.where(originals == self.tokenizer.cls_token_id, place, 0).cummax(dim=1).values


def open_material(kind: Kind, options: argparse.Namespace) -> Material:
    """Read the train and the valid text of a folder, train the tokenizer on the former, cut rows."""
    data, length, vocab_size = Path(options.data), options.length, options.vocab_size
    train_file, held_out_file = find_split(data, "train"), find_split(data, "valid")
    train_text, held_out_text = (path.read_text(encoding="utf-8") for path in (train_file, held_out_file))
    folder = Path(options.work_dir, "tokenizers", short_hash(train_text, vocab_size))
    tokenization.train_once(documents=[train_text], output_dir=folder, vocab_size=vocab_size)
    plain = tokenization.load_tokenizer(str(folder))
    made_with = tokenization.tokenizer_fingerprint(plain)
    tokenizer = tokenization.adapt_tokenizer(tokenizer=plain, shape="encoder", segments=False, max_length=10**9)
    train, inputs = (group_texts(encode(text, tokenizer, kind), length) for text in (train_text, held_out_text))
    if kind == "masked":
        inputs, labels = make_masker(tokenizer, torch.Generator().manual_seed(MASK_SEED))(inputs)
    else:
        labels = inputs.clone()
        labels[:, 0] = IGNORED
    byte_lengths = torch.from_numpy(tokenization.token_byte_lengths(plain))
    digest = short_hash(*(part.numpy().tobytes() for part in (train, inputs, labels)), length, made_with)
    return Material(kind, train_file, tokenizer, folder, train, inputs, labels, byte_lengths, digest)


def find_split(folder: Path, name: str) -> Path:
    """The one text file in a folder whose name holds `name` ("train", "valid")."""
    found = [path for path in folder.glob(f"*{name}*") if path.suffix in (".txt", ".raw", ".tokens")]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SystemExit(f"--data {folder} must hold one text file with {name!r} in its name; there is: {names}")
    return found[0]


def encode(text: str, tokenizer: Any, kind: Kind) -> list[list[int]]:
    """Ids of each line with its special tokens, as run_mlm.py reads a text; for decoders of the text as a whole."""
    texts = text.removesuffix("\n").split("\n") if kind == "masked" else [text]
    return tokenizer(texts, add_special_tokens=kind == "masked", verbose=False)["input_ids"]


def group_texts(texts: Iterable[list[int]], length: int) -> Tensor:
    """All texts joined and cut into full rows, [rows, length], as the function of this name of run_mlm.py."""
    joined = np.fromiter(chain.from_iterable(texts), dtype=np.int64)
    if not (rows := len(joined) // length):
        raise SystemExit(f"the text has {len(joined)} tokens, and a row {length}: give more text or a shorter row")
    return torch.from_numpy(joined[: rows * length].reshape(rows, length))


def make_masker(
    tokenizer: Any, generator: torch.Generator, probability: float = 0.15
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function that gives masked rows and labels, as the collator of transformers draws them from `generator`."""
    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=probability)
    collator.generator = generator
    special = torch.zeros(len(tokenizer), dtype=torch.bool)
    special[tokenizer.all_special_ids] = True
    return lambda rows: collator.torch_mask_tokens(rows.clone(), special_tokens_mask=special[rows])


@torch.no_grad()
def score(model: Any, material: Material, *, inside_lines: bool = False) -> dict[str, float]:
    """Loss in nats, bits per byte and share of exact predictions of a model on the held-out rows; `inside_lines` gives
    it positions that begin anew with each line."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    options: dict[str, Any] = {"use_cache": False} if material.kind == "causal" else {}
    positions = material.positions() if inside_lines else None
    nats = size = targets = hits = 0.0
    for start in progress_bar(range(0, len(material.inputs), ROWS_AT_ONCE), doing="scoring", unit="batch"):
        rows = slice(start, start + ROWS_AT_ONCE)
        if positions is not None:
            options["position_ids"] = positions[rows].to(device)
        logits = model(input_ids=material.inputs[rows].to(device), **options).logits
        labels = material.labels[rows].to(device)
        if material.kind == "causal":
            logits, labels = logits[:, :-1], labels[:, 1:]
        chosen = labels != IGNORED
        logits, labels = logits[chosen].float(), labels[chosen]
        nats += float(functional.cross_entropy(logits, labels, reduction="none").double().sum())
        hits += float((logits.argmax(dim=-1) == labels).sum())
        size += float(material.byte_lengths[labels.cpu()].sum())
        targets += len(labels)
    model.train(was_training)
    bits = nats / math.log(2)
    return {"loss": nats / targets, "bits_per_byte": bits / size, "accuracy": hits / targets, "targets": targets}


def run_and_score(words: dict[str, Any], material: Material, options: argparse.Namespace) -> dict[str, Any]:
    """Run recipes/pretrain.py with these options on the train text; the score of its model, and the size of both."""
    places: dict[str, Any] = {"data": material.train_file, "tokenizer": material.tokenizer_dir}
    places |= {"document_boundary": BOUNDARIES[material.kind]}
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.work_dir) as place:
        folder, saves = f"{place}/run", {"eval_fraction": 0, "eval_steps": 0, "save_steps": 0}
        results = run_recipe("pretrain", {**words, **places, **saves, "output_dir": folder})
        before = json.loads(Path(folder, "run.json").read_text()).get("warm_start_seconds", 0)
        model = getattr(transformers, HEADS[material.kind]).from_pretrained(folder, dtype=torch.float32)
    return {
        **score(model.to(find_device()), material, inside_lines=BOUNDARIES[material.kind] == "line"),
        "steps": results["steps"],
        "tokens": results["train_tokens"],
        "seconds": results["train_seconds"] + before,
        "compile_seconds": results.get("compile_seconds"),
        "parameters": model.num_parameters(),
    }
