"""A student learns what a teacher of its own tokenizer expects: the teacher is asked once, its answers are kept.

Hinton et al., 2015 (https://arxiv.org/abs/1503.02531). Of each target only the likeliest tokens are kept:

    $LACUNA_CACHE/teachers/XXXX/     XXXX stands for the teacher's weights, the text and the options
        about.json                   what it was made of, and shapes
        offsets.bin                  int64 [examples + 1], in targets
        ids.bin, log_probs.bin       uint16 (or int32) and float16 [targets, top_k], likeliest first

So what is asked must not depend on when it is seen: it is a row, for `mlm` always with the same masks.
Answers are written in a hidden folder beside their place, which is renamed when they are whole.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lacuna.common.errors import InputError, StorageError, called, progress_bar
from lacuna.common.files import cache_folder, locked, storage_errors, sync, write_text
from lacuna.common.loading import load_configuration, load_model, num_positions
from lacuna.common.options import Arguments, check_range, option
from lacuna.common.work import to_device

from .arguments import ObjectiveArguments
from .base import PackedPrediction
from .clm import CausalLanguageModelling
from .data import IGNORED, Tensors, for_model, target_positions
from .mlm import MaskedLanguageModelling

VERSION = 1  # rises when other answers are made of the same teacher, text and options
ABOUT, IDS, LOG_PROBS, OFFSETS = "about.json", "ids.bin", "log_probs.bin", "offsets.bin"
_LEAST = 1e-6  # probability of all other tokens: float32 cannot tell less from nothing
_AT_ONCE = 64  # examples that the teacher reads together
_GIVEN = ("teacher_ids", "teacher_log_probs")
_teacher = partial(option, group="teacher")


@dataclass
class DistillationArguments(Arguments):
    """Whom the student learns from, and how much."""

    teacher: str = option(
        "",
        "Larger model to learn from, beside the text (mlm or clm): a folder or Hub id.",
        group="model",
        metavar="MODEL",
    )
    distill_weight: float = _teacher(
        0.9, "Share of the loss that is what the teacher expects; the rest is the text itself.", advanced=True
    )
    top_k: int = _teacher(16, "Likeliest tokens of the teacher that are kept for each target.", advanced=True)

    def __post_init__(self) -> None:
        check_range(self, "distill_weight", above=0, at_most=1)
        check_range(self, "top_k", at_least=1)
        for name, value in asdict(self).items():
            if not self.teacher and value != getattr(type(self), name):
                raise InputError(f"--{name} {value} means nothing without --teacher; leave it out")

    def identity(self, teacher: Any) -> dict[str, Any]:
        """Without which a run would be another one; the `teacher` counts by its weights, and without one nothing."""
        own = {**asdict(self), "teacher_weights": fingerprint_of(teacher)} if teacher else {}
        return {name: value for name, value in own.items() if name != "teacher"}


class Answers:
    """What a teacher expects at the targets of each example, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        """OSError, ValueError or KeyError: they are not there, or not whole."""
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        shape = (self.about["targets"], self.about["top_k"])
        kinds = ((OFFSETS, "int64", self.about["examples"] + 1), (IDS, self.about["dtype"], shape))
        # Plain views: slices of np.memmap itself cost five times as much.
        self._offsets, self._ids, self._log_probs = (
            np.memmap(folder / name, dtype=dtype, mode="r", shape=size).view(np.ndarray)
            for name, dtype, size in (*kinds, (LOG_PROBS, "float16", shape))
        )

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        """Ids and log-probabilities at the targets of an example, from left to right: [num_targets, top_k] each."""
        here = slice(*self._offsets[number : number + 2].tolist())
        return dict(zip(_GIVEN, (self._ids[here].astype(np.int64), self._log_probs[here]), strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return Answers, (self.folder,)  # a worker process that does not fork gets the path, not a copy


def teacher_nats(student: Tensor, ids: Tensor, log_probs: Tensor) -> Tensor:
    """Cross-entropy of a student's log-probabilities [N, vocab_size] against a teacher's, summed over N targets.

    Of the teacher's only the likeliest tokens are known, `ids` and `log_probs` [N, top_k]. All others count as one
    token with what is left of the probability; without it a student would learn that they never come (Anshumann et
    al., 2025, https://arxiv.org/abs/2503.16870).
    """
    shares, known = log_probs.float().exp(), student.gather(1, ids)
    nats = (shares * known).sum()
    if ids.shape[1] < student.shape[1]:
        others = torch.log1p(-known.exp().sum(dim=-1).clamp(max=1.0 - _LEAST))
        nats = nats + ((1.0 - shares.sum(dim=-1)).clamp(min=0.0) * others).sum()
    return -nats


class Distilled(PackedPrediction):
    """What objectives of students share; it comes before the objective that they would have without a teacher.

    Rows, held-out examples and scores are those of that objective; masks are drawn from (seed, row).
    """

    teachers: tuple[str, ...]  # how the class of a teacher is named, at its end
    answers: Answers | None = None  # without them examples are those of a plain objective

    def __init__(self, *, how: DistillationArguments, **parts: Any) -> None:
        super().__init__(**parts)
        self.how = how
        if how.top_k > self.tokens.vocab_size:
            raise InputError(
                f"--top_k {how.top_k} is more than the {self.tokens.vocab_size} tokens there are; lower it"
            )

    def example(self, row: int, index: int) -> dict[str, Any]:
        """Row `row`, and the teacher's answers [num_targets, top_k]."""
        return {**self._asked(row), **(self.answers[row] if self.answers else {})}

    def _asked(self, row: int) -> dict[str, Any]:
        """What the teacher is asked of a row."""
        return self._example(self.rows[row], row, rate=self.arguments.mask_probability, held_out=False)

    def collate(self, examples: list[dict[str, Any]]) -> Tensors:
        """As without a teacher, and the answers at all N targets of the batch in row-major order, [N, top_k]."""
        plain = [{name: value for name, value in each.items() if name not in _GIVEN} for each in examples]
        given = [name for name in _GIVEN if name in examples[0]]
        answers = {name: torch.from_numpy(np.concatenate([each[name] for each in examples])) for name in given}
        return super().collate(plain) | answers

    def predict(self, model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        """Logits [M, vocab_size] at some positions, and which of these see the N targets, rising: int64 [N]."""
        raise NotImplementedError

    def places(self, batch: Tensors) -> Tensor:
        """The positions [N] in the flattened batch that predict something."""
        found = batch.get("target_positions")
        return target_positions(self.wanted(batch["labels"])) if found is None else found

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Both cross-entropies, against teacher and text, are reported; the loss has `distill_weight` of the first."""
        logits, places = self.predict(model, {name: value for name, value in batch.items() if name not in _GIVEN})
        student = functional.log_softmax(logits[places].float(), dim=-1)
        targets = self.wanted(batch["labels"]).flatten()[self.places(batch)]
        of_teacher = teacher_nats(student, *(batch[name] for name in _GIVEN)) / num_targets["tokens"]
        of_text = functional.nll_loss(student, targets, reduction="sum") / num_targets["tokens"]
        loss = self.how.distill_weight * of_teacher + (1 - self.how.distill_weight) * of_text
        return loss, {"teacher_loss": of_teacher.detach(), "text_loss": of_text.detach()}

    def learn_from(self, teacher: nn.Module, *, made_of: dict[str, str], device: torch.device) -> None:
        """Find the answers of a teacher, or ask it: one process does, the others wait.

        `made_of`: fingerprints of teacher and text. Raises InputError: the teacher reads across documents;
        StorageError: there is no room for the answers.
        """
        try:
            self.check_model(teacher)
        except InputError as error:
            raise InputError(f"--teacher {self.how.teacher}: {error}") from error
        names = (*self.options, "mask_probability", "packing", "eval_fraction")
        facts: dict[str, Any] = {name: getattr(self.arguments, name) for name in names} | made_of
        facts |= {"version": VERSION, "objective": self.name, "length": self.sequence_length, "seed": self.seed}
        facts |= {"rows": self.rows.sizes, "top_k": self.how.top_k}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        folder = cache_folder() / "teachers" / digest[:16]
        waiting = f"another process is asking the teacher for {folder}; waiting for it"
        with locked(folder.with_name(f".{folder.name}.lock"), waiting=waiting):
            try:
                self.answers = Answers(folder)
            except (OSError, ValueError, KeyError):
                self._ask(teacher.to(device), folder, facts, device)
                self.answers = Answers(folder)

    def _ask(self, teacher: nn.Module, folder: Path, facts: dict[str, Any], device: torch.device) -> None:
        """Say how large the answers will be, and write them."""
        numbers, began = range(self.num_examples), time.perf_counter()
        counted = progress_bar(numbers, doing="counting targets", unit="row")
        offsets = np.cumsum([0, *(int((self._asked(number)["labels"] != IGNORED).sum()) for number in counted)])
        dtype, targets = np.dtype("uint16" if self.tokens.vocab_size <= 1 << 16 else "int32"), int(offsets[-1])
        size, free = targets * self.how.top_k * (dtype.itemsize + 2), shutil.disk_usage(folder.parent).free
        what = f"{size / 1e6:,.1f} MB in {folder}"
        print(f"asking the teacher once about {targets:,} targets: {what}", flush=True)
        if size > free:
            say = "lower --top_k, or name another place with LACUNA_CACHE"
            raise StorageError(f"the teacher's answers take {what}, where {free / 1e6:,.1f} MB are free: {say}")
        making = folder.with_name(f".{folder.name}.making")
        shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
        try:
            with storage_errors(f"cannot write the teacher's answers to {folder}"):
                making.mkdir()
                with (making / IDS).open("wb") as ids, (making / LOG_PROBS).open("wb") as log_probs:
                    for best, values in self._answered(teacher, numbers, device):
                        ids.write(best.astype(dtype).tobytes())
                        log_probs.write(values.astype(np.float16).tobytes())
                (making / OFFSETS).write_bytes(offsets.astype(np.int64).tobytes())
                about = {"examples": len(numbers), "targets": targets, "top_k": self.how.top_k, "dtype": dtype.name}
                about |= {"seconds": round(time.perf_counter() - began, 1), "made_of": facts}
                write_text(making / ABOUT, json.dumps(about, indent=2) + "\n")
                for path in making.iterdir():
                    sync(path)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    @torch.no_grad()
    def _answered(self, teacher: nn.Module, numbers: range, device: torch.device) -> Iterator[tuple[Any, Any]]:
        """The likeliest ids and their log-probabilities, [targets, top_k] of a few examples each."""
        for start in progress_bar(range(0, len(numbers), _AT_ONCE), doing="asking the teacher", unit="batch", delay=0):
            batch = self.collate([self._asked(number) for number in numbers[start : start + _AT_ONCE]])
            for part in self.in_parts(batch):
                logits, places = self.predict(teacher, to_device(part, device))
                known = logits[places, : self.tokens.vocab_size].float()
                best = known.log_softmax(dim=-1).topk(self.how.top_k)
                yield best.indices.cpu().numpy(), best.values.cpu().numpy()

    @torch.no_grad()
    def judge(self, teacher: nn.Module, *, device: torch.device) -> dict[str, float]:
        """The teacher's own scores on the held-out examples, by the names of `summarize`."""
        records: list[dict[str, Any]] = []
        for start in range(0, self.num_eval_examples, _AT_ONCE):
            rows = range(start, min(start + _AT_ONCE, self.num_eval_examples))
            batch = self.collate([self.eval_example(row) for row in rows])
            records += self.evaluate(teacher.to(device), to_device(batch, device))
        return self.summarize(records) if records else {}

    def _describe_targets(self) -> str:
        expected = f"its {self.how.top_k} likeliest tokens and the rest as one"
        share = f"{self.how.distill_weight:.0%} of the loss is what the teacher expects"
        return f"{super()._describe_targets()}; {share}, {expected}"


class DistilledMasked(Distilled, MaskedLanguageModelling):
    """`mlm` beside a teacher."""

    teachers = ("ForMaskedLM", "ForPreTraining")

    def predict(self, model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        """The masked positions, and all others too where a native model has no way to leave them out."""
        logits = model(**for_model(model, batch), sparse_prediction=True).logits
        if logits.ndim == 2:
            return logits, torch.arange(len(logits), device=logits.device)
        return logits.flatten(0, 1), self.places(batch)


class DistilledCausal(Distilled, CausalLanguageModelling):
    """`clm` beside a teacher."""

    teachers = ("ForCausalLM", "LMHeadModel")

    def predict(self, model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        """All positions; a target is seen one before it."""
        given = {name: value for name, value in for_model(model, batch).items() if name != "labels"}
        return model(**given, use_cache=False).logits.flatten(0, 1), self.places(batch)


DISTILLED: dict[str, type[Distilled]] = {"mlm": DistilledMasked, "clm": DistilledCausal}


def load_teacher(teacher: str, goal: ObjectiveArguments, *, as_ours: Callable[[Any], Any]) -> Any:
    """The model of --teacher, to be asked and not to be trained.

    `as_ours` makes a native model one of Lacuna, which keeps the documents of a row apart.

    Raises InputError: there is none, it predicts something else, or it reads shorter rows only;
    CorruptCheckpointError: its weights cannot be read.
    """
    if (kind := DISTILLED.get(goal.objective)) is None:
        raise InputError(f"--objective {goal.objective} is not learned from a teacher: use {' or '.join(DISTILLED)}")
    with called({"--model": "--teacher"}):
        config = load_configuration(teacher)
        head = next(iter(config.architectures or []), "model without a head")
        if not head.endswith(kind.teachers):
            ways = [f"use --objective {name}" for name, each in DISTILLED.items() if head.endswith(each.teachers)]
            raise InputError(
                f"--teacher {teacher} is a {head}, and --objective {goal.objective} is learned from a class that ends "
                f"in {' or '.join(kind.teachers)}: {(*ways, 'name another model')[0]}"
            )
        longest, length = num_positions(config), max(goal.lengths)
        if longest is not None and length > longest:
            raise InputError(
                f"--sequence_length {length} is more than the {longest} positions of --teacher {teacher}; lower it"
            )
        model, _ = load_model(teacher, auto_class=kind.head)
    return as_ours(model).eval().requires_grad_(False)


def ask(teacher: Any, works: Any, weights: str, store: Any, *, judges: bool) -> tuple[dict[str, Any], list[str]]:
    """Give the objective of each stage the teacher's answers; what run.json says of it, and a line for people.

    `weights`: the fingerprint of the teacher. Its scores on held-out rows are in both if this process `judges`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made_of = {"teacher": weights, "corpus": store.fingerprint}
    for _, work in works:
        work.learn_from(teacher, made_of=made_of, device=device)
    scores = works[-1][1].judge(teacher, device=device) if judges else {}
    seconds = sum(work.answers.about["seconds"] for _, work in works)
    said = [f"{name} {value:.4f}" for name, value in scores.items()]
    line = f"teacher: {type(teacher).__name__}, {teacher.num_parameters() / 1e6:.2f} M parameters"
    about = {"teacher_weights": weights, "teacher_scores": scores, "teacher_seconds": seconds}
    return asdict(works[-1][1].how) | about, [line + f"; held out: {', '.join(said)}" * bool(said)]


def fingerprint_of(model: Any) -> str:
    """A hash of configuration and weights of a model, wherever it lies: hexadecimal, 16 digits."""
    left_out = ("transformers_version", "_name_or_path")
    facts = {name: value for name, value in model.config.to_diff_dict().items() if name not in left_out}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
