"""What a run shows and records: the progress line, metrics.jsonl, results.json, curves.png and trackers."""

import contextlib
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm.auto import tqdm  # in a notebook a widget, where ipywidgets are

from lacuna.common.errors import StorageError
from lacuna.common.files import write_text
from lacuna.common.private import without_places, without_secrets

from .curves import draw_curves

_SIGN_OF_LIFE_SECONDS = 60.0
_IN_NOTEBOOK = any("notebook" in kind.__module__ for kind in tqdm.__mro__)
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_OTHER = {"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu", "seconds", "event"}
"""What a line of metrics.jsonl holds beside the objective's own metrics."""


def short(value: float) -> str:
    """A number as people read it: 12,345 or 0.1234 or 1.2e-05."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def memory_in_use() -> int:
    """Bytes: the peak of the tensors on the GPU; without one, the memory of this process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return psutil.Process().memory_info().rss


class Lines:
    """metrics.jsonl: whole lines only. A damaged file is rewritten once that is possible."""

    def __init__(self, path: Path, *, first_step: int) -> None:
        """Begin the file, or go back to a step: later lines are dropped, except marks of earlier resumes."""
        self.path = path
        self.size = -1  # in bytes, of what was written
        self.records: list[dict[str, Any]] = []
        if first_step and path.is_file():
            kept = _whole_lines(path.read_bytes())
            self.records = [each for each in kept if each["step"] <= first_step or each.get("event") == "resume"]

    def append(self, *records: dict[str, Any]) -> None:
        """Write records, and those that could not be written before; OSError or StorageError where that fails."""
        self.records += records
        new, size, self.size = "".join(map(_line, records)).encode(), self.size, -1
        if self.path.is_file() and self.path.stat().st_size == size:
            with self.path.open("ab", buffering=0) as file:
                if file.write(new) == len(new):
                    self.size = size + len(new)
                    return
                file.truncate(size)  # a full disk took half a line
        text = "".join(map(_line, self.records))
        write_text(self.path, text)
        self.size = len(text.encode())


def _line(record: dict[str, Any]) -> str:
    """What is not finite is written as null, which JSON has, and read back as NaN."""
    bad = {name: None for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps(record | bad, default=str) + "\n"


def _whole_lines(content: bytes) -> list[dict[str, Any]]:
    """Records up to the first line that is none: a process that is killed may leave half a line behind."""
    found: list[dict[str, Any]] = []
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        found.append({name: math.nan if value is None else value for name, value in record.items()})
    return found


@dataclass(kw_only=True)
class Trackers:
    """Hands numbers to each requested tracker; made by the main process only, after an `Accelerator`.

    They are accelerate's classes, called one by one: with `Accelerator.log` an exception of the first would leave out
    the others.
    """

    names: Sequence[str]  # of `TRACKERS`, or registered by `accelerate.tracking.register_tracker_class`
    project: str  # the name that Weights & Biases and trackio collect runs under
    config: dict[str, Any]  # the resolved options of the run; see `presentable`
    output_dir: Path  # its last part is the run's name; TensorBoard's files go to its folder `tensorboard`
    first_step: int = 0  # optimizer steps done before a resume; TensorBoard forgets what was logged later
    warn: Callable[[str], None] = lambda text: tqdm.write(text, file=sys.stderr)
    """What to do with a sentence about a tracker that is left out."""

    def __post_init__(self) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        run, folder = self.output_dir.resolve().name, str(self.output_dir)
        purge = {"purge_step": self.first_step + 1} if self.first_step else {}
        options: dict[str, dict[str, Any]] = {
            "tensorboard": {"run_name": "tensorboard", "logging_dir": folder, **purge},
            "wandb": {"name": run, "group": run, "dir": folder},
            "trackio": {"name": run, "group": run},
        }
        self.running: dict[str, Any] = {}  # those that work, by name
        for name in dict.fromkeys(self.names):
            with self._left_out_if_it_fails(name, "start"):
                tracker = LOGGER_TYPE_TO_CLASS[name](**{"run_name": self.project, **options.get(name, {})})
                tracker.start()
                tracker.store_init_configuration(presentable(self.config))
                self.running[name] = tracker

    def log(self, values: dict[str, Any], *, step: int) -> None:
        """Send the numbers of a line of metrics.jsonl: `eval/NAME` for what begins with `eval_`, else `train/NAME`."""
        numbers = {
            (name.replace("eval_", "eval/", 1) if name.startswith("eval_") else f"train/{name}"): value
            for name, value in values.items()
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, tracker in list(self.running.items()):
            with self._left_out_if_it_fails(name, "log"):
                tracker.log(dict(numbers), step=step)

    def finish(self) -> None:
        """Let each tracker send what it has and end; more calls do nothing."""
        for name, tracker in list(self.running.items()):
            with self._left_out_if_it_fails(name, "finish"):
                tracker.finish()
        self.running = {}

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, name: str, what: str) -> Iterator[None]:
        """A tracker that fails in here is named, with the error, and left out from then on."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.running.pop(name, None)
            missing = f'it is not installed (pip install -e ".[{name}]")'
            reason = missing if isinstance(error, ImportError) else f"it failed to {what}"
            detail = " ".join(_cleaned(f"{type(error).__name__}: {error}").split())[:300]
            self.warn(f"warning: --report_to {name} is left out, {reason}: {detail}; training continues")


def presentable(config: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Options as trackers take them: without what tells where and by whom a run was started, and without None."""

    def flat(value: Any) -> bool | int | float | str:
        if isinstance(value, int | float) and math.isfinite(value):
            return value
        return ",".join(map(_cleaned, value)) if isinstance(value, list | tuple) else _cleaned(value)

    return {name: flat(value) for name, value in config.items() if value is not None}


def _cleaned(value: Any) -> str:
    """Text without tokens, hosts, home folders and the values of environment variables that hold secrets."""
    text = without_places(without_secrets(str(value)))
    for name, secret in os.environ.items():
        if _SECRET_NAME.search(name) and len(secret) >= 8:
            text = text.replace(secret, "***")
    return text


@dataclass(kw_only=True)
class RunLog:
    """Shows a run and records it; on processes other than the main one it does nothing.

    On a terminal there is a progress line. Elsewhere there is a line for each evaluation, and one a minute if nothing
    else was printed. What cannot be written, drawn or sent is a warning and never stops the run.
    """

    output_dir: Path
    enabled: bool  # on the main process
    first_step: int  # optimizer steps that the run has made when the log is opened
    done: float  # the share of the run that is done, 0 to 1
    title: str = ""  # of curves.png
    metric: str = ""  # what is drawn there first
    trackers: Trackers | None = None

    def __post_init__(self) -> None:
        self._results: dict[str, Any] = {}
        self._failing = self._curves_failed = self.on_terminal = False
        self._step: int | None = self.first_step or None
        self._timed_from = (0.0, 0.0)
        self._curves_wait_until = time.monotonic() + 20.0  # a short run is drawn once, at its end
        self._printed = time.monotonic()
        with contextlib.suppress(AttributeError, ValueError, OSError):
            self.on_terminal = self.enabled and (_IN_NOTEBOOK or sys.stderr.isatty())
        self._bar = tqdm(
            total=1.0,
            initial=self.done,
            file=sys.stderr,
            disable=not self.on_terminal,
            dynamic_ncols=True,
            mininterval=0.25,
            miniters=0,
            bar_format="{percentage:3.0f}%|{bar:10}| {desc}",
        )
        self._lines = Lines(self.output_dir / "metrics.jsonl", first_step=self.first_step if self.enabled else 0)
        self._append()
        self._newest = next((line for line in reversed(self.records) if "loss" in line), dict[str, Any]())
        self._show()

    @property
    def records(self) -> list[dict[str, Any]]:
        return self._lines.records

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._printed = time.monotonic()
        if self.enabled:
            with contextlib.suppress(OSError, ValueError):  # a pipe that nobody reads, a log file on a full disk
                stream = sys.stdout if _IN_NOTEBOOK else sys.stderr  # which a notebook paints red
                tqdm.write(text, file=stream)
                stream.flush()

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say what is happening in here, with the seconds that have passed on a terminal."""
        self.say(what)
        began, over = time.monotonic(), threading.Event()

        def tick() -> None:
            while self.on_terminal and not over.wait(1.0):
                self._bar.set_description_str(f"{what}: {time.monotonic() - began:.0f} s")

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def advance(self, done: float, *, step: int | None = None) -> None:
        """Move to a share of the run, 0 to 1, and to an optimizer step, by default the last recorded one."""
        self.done = max(self.done, min(done, 1.0))
        self._step = self._step if step is None else step
        if not self._timed_from[0]:  # after the first step, which takes longer than others
            self._timed_from = (time.monotonic(), self.done)
        self._show()

    def record(self, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, show its numbers on the progress line and hand them to the trackers."""
        self._append(values)
        if self.trackers is not None:
            self.trackers.log(values, step=values["step"])
        self._step = values["step"]
        self._newest = values if "loss" in values else self._newest
        self._show()

    def mark(self, event: str, step: int, **facts: Any) -> None:
        """Record an event (checkpoint, resume, skipped or spike) in metrics.jsonl, where curves.png finds it."""
        self._append({"step": step, "event": event, **facts})

    def evaluation(self, values: dict[str, Any]) -> None:
        """Record an evaluation (once, though a run killed before its end repeats it), print it, redraw the curves."""
        if not any(line["step"] == values["step"] and values.keys() <= line.keys() for line in self.records[-8:]):
            self.record(values)
        state = ""
        if not self.on_terminal and self._newest:  # a person at a terminal has these on the progress line
            left = f", {self._left()} left" if self._left() and self.done < 1 else ""
            state = f"  ({self.done:.0%}, train loss {self._newest['loss']:.3f}{left})"
        found = {name.removeprefix("eval_"): value for name, value in values.items() if name.startswith("eval_")}
        shown = "  ".join(f"{name} {short(value)}" for name, value in found.items())
        self.say(f"step {values['step']:>6,}  {shown}{state}")
        self._draw_curves()

    def finish(self, results: dict[str, float]) -> None:
        """Write results.json and close the progress line; StorageError where it cannot be written."""
        self.close()
        self._results = results
        self._draw_curves(force=True)
        if self.enabled:
            write_text(self.output_dir / "results.json", json.dumps(results, indent=2) + "\n")

    def close(self) -> None:
        """Leave the terminal clean, at the end or when a run ends early; the trackers get their end too."""
        with contextlib.suppress(OSError, ValueError):
            self._bar.close()
        if self.trackers is not None:
            self.trackers.finish()

    def _append(self, *records: dict[str, Any]) -> None:
        """To metrics.jsonl; a file that cannot be written is one warning, until it can be again."""
        if not self.enabled:
            return
        failed = self._failing
        try:
            self._lines.append(*records)
            self._failing = False
        except (OSError, StorageError) as error:
            self._failing = True
            if not failed:
                self.say(f"warning: metrics.jsonl cannot be written ({error}); training continues, its lines wait")
        if failed and not self._failing:
            self.say("metrics.jsonl can be written again; no line is missing")

    def _left(self) -> str | None:
        """How long the run still takes at its speed so far; None while that is not known."""
        started, before = self._timed_from
        if self.done <= before:
            return None
        return tqdm.format_interval((time.monotonic() - started) * (1.0 - self.done) / (self.done - before))

    def _show(self) -> None:
        """The progress line; without a terminal a line a minute if nothing else was printed."""
        if not self.on_terminal:
            if time.monotonic() - self._printed >= _SIGN_OF_LIFE_SECONDS:
                self.say("  ".join([f"{self.done:.0%}", *self._parts()]))
            return
        with contextlib.suppress(OSError, ValueError):
            self._bar.set_description_str("  ".join(self._parts()), refresh=False)
            self._bar.update(self.done - self._bar.n)

    def _parts(self) -> list[str]:
        """What the progress line says, the most important first."""
        values, left = self._newest, self._left()
        parts = ["starting" if self._step is None else f"step {self._step:,}"]
        parts += [f"loss {values['loss']:.3f}"] if "loss" in values else []
        parts += [f"{left} left"] if left else []
        if "tokens_per_second" in values:
            parts.append(f"{tqdm.format_sizeof(values['tokens_per_second'])} tokens/s")
        named = (("lr", "learning_rate"), ("norm", "grad_norm"))
        parts += [f"{label} {values[name]:.3g}" for label, name in named if name in values]
        own = [(name, each) for name, each in values.items() if name not in _OTHER and isinstance(each, int | float)]
        parts += [f"{name} {each:.3f}" if abs(each) < 1000 else f"{name} {short(each)}" for name, each in own]
        parts += [f"MFU {values['mfu']:.1%}"] if values.get("mfu") is not None else []
        return [*parts, f"{memory_in_use() / 2**30:.1f} GiB"]

    def _draw_curves(self, *, force: bool = False) -> None:
        """curves.png, unless drawing it would take more than a tenth of the time."""
        started = time.monotonic()
        if not self.enabled or (started < self._curves_wait_until and not force):
            return
        try:
            shown: dict[str, Any] = {"title": self.title, "metric": self.metric, "results": self._results}
            draw_curves(records=self.records, path=self.output_dir / "curves.png", **shown)
        except Exception as error:
            if not self._curves_failed:
                cause = f"{type(error).__name__}: {error}"
                self.say(f"warning: curves.png could not be drawn ({cause}); training continues")
            self._curves_failed = True
        ended = time.monotonic()
        self._curves_wait_until = ended + 10 * (ended - started)
