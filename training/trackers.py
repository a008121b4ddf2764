"""TensorBoard, Weights & Biases and trackio through accelerate's trackers; one that fails never stops a run."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from tqdm import tqdm

from .arguments import TRACKERS

_TOKEN = re.compile(r"\b(?:hf|ghp|github_pat)_[A-Za-z0-9_]{16,}")
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


def _warn(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


class Trackers:
    """Hands numbers to each tracker that was asked for; to be made by the main process only.

    They are accelerate's classes, each called by itself: `Accelerator.init_trackers`, `log` and `end_training` go
    through all of them in a row, and an exception of the first leaves out the others.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        project: str,
        config: dict[str, Any],
        output_dir: Path,
        first_step: int = 0,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        """Start the trackers. An `Accelerator` must have been made before.

        Args:
            names: of `TRACKERS`, or registered by `accelerate.tracking.register_tracker_class`.
            project: the name that Weights & Biases and trackio collect runs under.
            config: the options of the run as they were resolved; see `presentable`.
            output_dir: its last part is the run's name; TensorBoard's files go to its folder `tensorboard`.
            first_step: optimizer steps that were done before a resume; TensorBoard forgets what was logged later.
            warn: what to do with a sentence about a tracker that is left out.
        """
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        run = output_dir.resolve().name
        places: dict[str, tuple[list[Any], dict[str, Any]]] = {
            "tensorboard": (["tensorboard", str(output_dir)], {"purge_step": first_step + 1} if first_step else {}),
            "wandb": ([project], {"name": run, "group": run, "dir": str(output_dir)}),
            "trackio": ([project], {"name": run, "group": run}),
        }
        self._warn = warn
        self._running: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            words, settings = places.get(name, ([project], {}))
            self._try(name, "start", partial(self._start, name, LOGGER_TYPE_TO_CLASS, words, settings, config))

    def _start(
        self, name: str, classes: dict[str, Any], words: list[Any], settings: dict[str, Any], config: dict[str, Any]
    ) -> None:
        if name not in classes:
            raise ValueError(f"there is no such tracker; there are {', '.join(TRACKERS)}")
        tracker = classes[name](*words, **settings)
        tracker.start()
        tracker.store_init_configuration(presentable(config))
        self._running[name] = tracker

    @property
    def names(self) -> list[str]:
        """Those that work."""
        return list(self._running)

    def log(self, values: dict[str, Any], *, step: int) -> None:
        """Send a line of metrics.jsonl, as `eval/NAME` what begins with `eval_` and as `train/NAME` the rest.

        Args:
            values: numbers by name; anything else is left out.
            step: optimizer steps so far.
        """
        numbers = {
            (f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"): value
            for name, value in values.items()
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name, tracker in list(self._running.items()):
            self._try(name, "log", partial(tracker.log, dict(numbers), step=step))

    def finish(self) -> None:
        """Let each tracker send what it has and end; more calls do nothing."""
        for name, tracker in list(self._running.items()):
            self._try(name, "finish", tracker.finish)
        self._running = {}

    def _try(self, name: str, what: str, action: Callable[[], Any]) -> None:
        """Do it; a tracker that fails is named, with the error and what to install, and left out from then on."""
        try:
            action()
        except (Exception, SystemExit) as error:
            self._running.pop(name, None)
            cause, remedy = f"it failed to {what}", f' (its extra is ".[{name}]")' if name in TRACKERS else ""
            if isinstance(error, ImportError):
                cause, remedy = "it is not installed", f' (pip install -e ".[{name}]")' if name in TRACKERS else ""
                while isinstance(error.__context__, ImportError):
                    error = error.__context__  # what was looked for first
            detail = " ".join(_cleaned(f"{type(error).__name__}: {error}").split())
            self._warn(f"warning: --report_to {name} is left out, {cause}{remedy}: {detail[:300]}; training goes on")


def presentable(config: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Options as trackers take them, without what tells where and by whom a run was started.

    Args:
        config: names and values; mappings within get names with a dot, sequences become text.

    Returns:
        Numbers and texts by name. None is left out, of absolute paths the last part stays, tokens and the values of
        environment variables that hold secrets are replaced by `***`.
    """
    flat: dict[str, bool | int | float | str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": held for inner, held in presentable(value).items()}
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[name] = value
        elif isinstance(value, list | tuple | set):
            parts = [_cleaned(part) if isinstance(part, str | PurePath) else part for part in value]
            flat[name] = ",".join(part if isinstance(part, str) else json.dumps(part, default=str) for part in parts)
        elif value is not None:
            flat[name] = _cleaned(value)
    return flat


def _cleaned(value: Any) -> str:
    """Text without secrets; of an absolute path only its last part."""
    text = _CREDENTIALS.sub("://", _TOKEN.sub("***", str(value)))
    for name, secret in os.environ.items():
        if _SECRET_NAME.search(name) and len(secret) >= 8:
            text = text.replace(secret, "***")
    if text.startswith(("/", "~", "file:/")) or PurePath(text).is_absolute():
        return PurePath(text).name
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
