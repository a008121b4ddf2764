"""What a person sees of a run, and what stays of it: one live line, metrics.jsonl, results.json, run.json."""

import contextlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lacuna.common.files import write_text

from .arguments import TrainingArguments
from .curves import draw_curves
from .environment import Processes
from .live_line import Remaining, duration, fit, line_items, memory_in_use, short
from .trackers import Trackers

_LIBRARIES = ["torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors"]
_DRAW_SECONDS = 0.25
_SIGN_OF_LIFE_SECONDS = 60.0
_BAR = "{percentage:3.0f}%|{bar:10}| "
_BAR_WIDTH = 17
_REWRITE = -1
"""The size of a log that is not as it should be."""


class _Lines:
    """metrics.jsonl: whole lines only, whatever happens between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes of the lines that are known to be in the file."""
        self.waiting = b""
        """Lines that could not be written yet."""

    def keep(self, first_step: int) -> list[dict[str, Any]]:
        """Go back to a step: later lines are dropped, but for marks of earlier resumes. Returns what is left.

        Nothing is written before the next `write`.

        Raises:
            OSError: there is a file that cannot be read.
        """
        if not first_step or not self.path.is_file():
            return []
        content = self.path.read_bytes()
        kept = [
            (line, record)
            for line, record in _whole_lines(content)
            if record["step"] <= first_step or record.get("event") == "resume"
        ]
        whole = b"".join(line for line, _ in kept)
        # Where only an end is dropped, the file is cut: that needs no room on the disk.
        self.size = len(whole) if content.startswith(whole) else _REWRITE
        return [record for _, record in kept]

    def write(self, *records: dict[str, Any], everything: list[dict[str, Any]], durable: bool = False) -> None:
        """Append records, after those that could not be written before.

        Args:
            records: new lines.
            everything: all lines, these included: if the file is not what it should be, it is written anew.
            durable: do not return before they are on the disk.

        Raises:
            OSError: they could not be written, and wait.
        """
        self.waiting += b"".join(map(_line, records))
        with self.path.open("ab", buffering=0) as file:
            if file.tell() > self.size >= 0:
                file.truncate(self.size)  # half a line of a full disk, or of a process that was killed
            if file.seek(0, os.SEEK_END) == self.size:
                written = file.write(self.waiting)
                if written != len(self.waiting):
                    file.truncate(self.size)
                    raise OSError(f"only {written} of {len(self.waiting)} bytes could be written")
                self.size, self.waiting = self.size + written, b""
                if durable:
                    os.fsync(file.fileno())
                return
        whole = b"".join(map(_line, everything))
        write_text(self.path, whole.decode("utf-8"))
        self.size, self.waiting = len(whole), b""


def _line(record: dict[str, Any]) -> bytes:
    """What is not finite is written as null, which JSON has, and read back as NaN."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
    return (json.dumps(finite, default=str) + "\n").encode("utf-8")


def _whole_lines(content: bytes) -> list[tuple[bytes, dict[str, Any]]]:
    """Lines and their records up to the first that is none: a process that is killed may leave half a line behind."""
    found: list[tuple[bytes, dict[str, Any]]] = []
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        found.append((line, {name: math.nan if value is None else value for name, value in record.items()}))
    return found


def _columns() -> int:
    """Width of the terminal behind standard error; 80 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80


class RunLog:
    """Shows a run and writes its records; on processes other than the main one it does nothing.

    On a terminal there is one live line. Elsewhere there is a line for each evaluation, and one a minute where
    nothing else was printed. Nothing of it stops a run: what cannot be written, drawn or sent is a warning.
    """

    def __init__(
        self,
        *,
        output_dir: Path,
        enabled: bool,
        first_step: int,
        done: float,
        title: str = "",
        peak_rate: float | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        """Open the log of a new or a resumed run.

        Args:
            output_dir: folder for metrics.jsonl, curves.png and results.json.
            enabled: whether this is the main process.
            first_step: optimizer steps that were done before; 0 begins a new log.
            done: share of the run that was done before.
            title: model and objective, for curves.png.
            peak_rate: the highest learning rate of the run, for curves.png.
            trackers: further places that get each line.
        """
        self.output_dir = output_dir
        self.path = output_dir / "metrics.jsonl"
        self.enabled = enabled
        self.title, self.peak_rate = title, peak_rate
        self.trackers = trackers
        self.records: list[dict[str, Any]] = []
        self.on_terminal = False
        if not enabled:
            return
        self._lines = _Lines(self.path)
        self._failing = self._curves_failed = self._undrawn = False
        self._step: int | None = first_step or None
        self._done = done
        self._remaining = Remaining(done)
        self._drawn = -math.inf
        self._printed = time.monotonic()
        self._curves_wait_until = -math.inf
        with contextlib.suppress(AttributeError, ValueError, OSError):
            self.on_terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=1.0, initial=done, file=sys.stderr, disable=not self.on_terminal, bar_format="{desc}", ncols=1
        )
        with self._not_stopping():
            output_dir.mkdir(parents=True, exist_ok=True)
            self.records = self._lines.keep(first_step)
            self._lines.write(everything=self.records)
        self._newest: dict[str, Any] = next((line for line in reversed(self.records) if "loss" in line), {})
        self._redraw(force=True)

    def say(self, text: str) -> None:
        """Print a line above the live line."""
        if not self.enabled:
            return
        self._printed = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # a pipe that nobody reads, a log file on a full disk
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def advance(self, done: float, *, step: int | None = None) -> None:
        """Move to a share of the run.

        Args:
            done: between 0 and 1.
            step: optimizer steps so far; the live line shows the last recorded one where it is not given.
        """
        if not self.enabled:
            return
        self._done = max(self._done, min(done, 1.0))
        self._step = self._step if step is None else step
        self._redraw()

    def record(self, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, show its numbers on the live line and hand them to the trackers.

        Args:
            values: `step`, and numbers by name. The live line knows `loss`, `learning_rate`, `grad_norm`,
                `tokens_per_second` and `mfu` (share of the device's peak, 0 to 1); metrics of the objective are what
                remains.
        """
        if not self.enabled:
            return
        self._append(values, durable=False)
        if self.trackers is not None:
            self.trackers.log(values, step=values["step"])
        self._step = values["step"]
        if "loss" in values:
            self._newest = values
        self._redraw()

    def mark(self, event: str, step: int, **facts: Any) -> None:
        """Keep what happened in metrics.jsonl, where curves.png finds it.

        Args:
            event: checkpoint, resume, skipped or spike.
            step: optimizer steps so far.
            facts: more to keep with it, as JSON has it.
        """
        if self.enabled:
            self._append({"step": step, "event": event, **facts}, durable=True)

    def evaluation(self, values: dict[str, Any]) -> None:
        """Record an evaluation, print it and redraw the curves.

        A run that was killed between its last step and its end is evaluated again when it is taken up; the log has it
        once.
        """
        if not any(line["step"] == values["step"] and values.keys() <= line.keys() for line in self.records[-8:]):
            self.record(values)
        shown = "  ".join(
            f"{name.removeprefix('eval_')} {short(value)}"
            for name, value in values.items()
            if name.startswith("eval_")
        )
        if not self.enabled:
            return
        state = ""
        if not self.on_terminal and self._newest:
            # A person at a terminal has these on the live line.
            parts = [f"{self._done:.0%}", f"train loss {self._newest['loss']:.3f}"]
            if (left := self._remaining.seconds(self._done)) is not None and self._done < 1:
                parts.append(f"{duration(left)} left")
            state = f"  ({', '.join(parts)})"
        self.say(f"step {values['step']:>6,}  {shown}{state}")
        self._redraw_curves()

    def finish(self, results: dict[str, float]) -> None:
        """Write results.json and close the live line.

        Raises:
            StorageError: results.json cannot be written.
        """
        if not self.enabled:
            return
        self.close()
        if self._undrawn:
            self._redraw_curves(force=True)
        write_text(self.output_dir / "results.json", json.dumps(results, indent=2) + "\n")

    def close(self) -> None:
        """Leave the terminal clean, at the end or when a run ends early; the trackers get their end too."""
        if not self.enabled:
            return
        if not self.bar.disable:
            self._redraw(force=True)
            with contextlib.suppress(OSError, ValueError):
                self.bar.close()
            self.bar.disable = True
        if self.trackers is not None:
            self.trackers.finish()
            self.trackers = None

    @contextlib.contextmanager
    def _not_stopping(self) -> Iterator[None]:
        """Files that cannot be written are one warning, until they can be again."""
        try:
            yield
        except OSError as error:
            if not self._failing:
                self.say(f"warning: {self.path} cannot be written ({error}); training goes on, its lines wait")
            self._failing = True
        else:
            if self._failing:
                self.say(f"{self.path} can be written again; no line is missing")
            self._failing = False

    def _append(self, values: dict[str, Any], *, durable: bool) -> None:
        self.records.append(values)
        self._undrawn = True
        with self._not_stopping():
            self._lines.write(values, everything=self.records, durable=durable)

    def _redraw(self, *, force: bool = False) -> None:
        """The live line, a few times a second at most; without a terminal a line a minute at most."""
        now = time.monotonic()
        due = now - self._drawn >= _DRAW_SECONDS if self.on_terminal else now - self._printed >= _SIGN_OF_LIFE_SECONDS
        if not due and not (force and self.on_terminal):
            return
        self._drawn = now
        items = line_items(
            step=self._step,
            done=self._done,
            values=self._newest,
            seconds_left=self._remaining.seconds(self._done),
            memory=memory_in_use(),
        )
        if not self.on_terminal:
            self.say(fit(items, 119))
            return
        if self.bar.disable:
            return
        with contextlib.suppress(OSError, ValueError):
            # The last column stays free: some terminals wrap when it is filled.
            self.bar.ncols = max(1, _columns() - 1)
            self.bar.n = self._done
            room = self.bar.ncols - _BAR_WIDTH
            if sum(len(item.text) + 2 for item in items[1:]) - 2 <= room:
                self.bar.bar_format = _BAR + "{desc}"
                self.bar.set_description_str(fit(items[1:], room), refresh=False)
            else:
                self.bar.bar_format = "{desc}"
                self.bar.set_description_str(fit(items, self.bar.ncols), refresh=False)
            self.bar.refresh()

    def _redraw_curves(self, *, force: bool = False) -> None:
        """curves.png, unless drawing it would take more than a tenth of the time."""
        started = time.monotonic()
        if started < self._curves_wait_until and not force:
            return
        try:
            path = self.output_dir / "curves.png"
            draw_curves(records=self.records, path=path, title=self.title, peak_rate=self.peak_rate)
            self._undrawn = False
        except Exception as error:
            if not self._curves_failed:
                self.say(f"warning: curves.png could not be drawn ({type(error).__name__}: {error}); training goes on")
            self._curves_failed = True
        ended = time.monotonic()
        self._curves_wait_until = ended + 10 * (ended - started)


def describe_run(
    *,
    arguments: TrainingArguments,
    launched: Processes,
    device: torch.device,
    precision: str,
    run_info: dict[str, Any],
) -> dict[str, Any]:
    """What run.json says: options as they were resolved, versions, the machine, fingerprints of the data."""
    return {
        "arguments": asdict(arguments),
        **run_info,
        "environment": {
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
            "processes": launched.count,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "mixed_precision": precision,
        },
    }
