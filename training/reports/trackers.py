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

from lacuna.common.private import without_places, without_secrets

from ..arguments import TRACKERS

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


class Trackers:
    """Hands numbers to each tracker that was asked for; to be made by the main process only.

    They are accelerate's classes, each called by itself: with `Accelerator.log` an exception of the first would leave
    out the others.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        project: str,
        config: dict[str, Any],
        output_dir: Path,
        first_step: int = 0,
        warn: Callable[[str], None] = lambda text: tqdm.write(text, file=sys.stderr),
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
        run = output_dir.resolve().name
        made: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
            "tensorboard": (("tensorboard", str(output_dir)), {"purge_step": first_step + 1} if first_step else {}),
            "wandb": ((project,), {"name": run, "group": run, "dir": str(output_dir)}),
            "trackio": ((project,), {"name": run, "group": run}),
        }
        self._warn = warn
        self._running: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            words, options = made.get(name, ((project,), {}))
            self._try(name, "start", partial(self._start, name, words, options, config))

    def _start(self, name: str, words: Sequence[Any], options: dict[str, Any], config: dict[str, Any]) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        if name not in LOGGER_TYPE_TO_CLASS:
            raise ValueError(f"there is no such tracker; there are {', '.join(TRACKERS)}")
        tracker = LOGGER_TYPE_TO_CLASS[name](*words, **options)
        tracker.start()
        tracker.store_init_configuration(presentable(config))
        self._running[name] = tracker

    @property
    def names(self) -> list[str]:
        """Those that work."""
        return list(self._running)

    def log(self, values: dict[str, Any], *, step: int) -> None:
        """Send the numbers of a line of metrics.jsonl: `eval/NAME` for what begins with `eval_`, else `train/NAME`."""
        numbers = {
            (name.replace("eval_", "eval/", 1) if name.startswith("eval_") else f"train/{name}"): value
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
            cause, remedy = f"it failed to {what}", f' (its extra is ".[{name}]")'
            if isinstance(error, ImportError):
                cause, remedy = "it is not installed", f' (pip install -e ".[{name}]")'
                while isinstance(error.__context__, ImportError):
                    error = error.__context__  # what was looked for first
            reason = f"{cause}{remedy if name in TRACKERS else ''}"
            detail = " ".join(_cleaned(f"{type(error).__name__}: {error}").split())[:300]
            self._warn(f"warning: --report_to {name} is left out, {reason}: {detail}; training continues")


def presentable(config: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Options as trackers take them, without what tells where and by whom a run was started.

    Mappings within get names with a dot, sequences become text, None is left out.
    """
    flat: dict[str, bool | int | float | str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": held for inner, held in presentable(value).items()}
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[name] = value
        elif isinstance(value, list | tuple | set):
            texts = (part if isinstance(part, str | PurePath) else json.dumps(part, default=str) for part in value)
            flat[name] = ",".join(map(_cleaned, texts))
        elif value is not None:
            flat[name] = _cleaned(value)
    return flat


def _cleaned(value: Any) -> str:
    """Text without tokens, hosts, home folders and the values of environment variables that hold secrets."""
    text = without_places(without_secrets(str(value).removeprefix("file://")))
    secrets = (held for name, held in os.environ.items() if _SECRET_NAME.search(name) and len(held) >= 8)
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
