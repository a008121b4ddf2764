"""TensorBoard, Weights & Biases and trackio through accelerate's trackers; one that fails never stops a run."""

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lacuna.common.private import without_places, without_secrets

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


class Trackers:
    """Hands numbers to each requested tracker; made by the main process only, after an `Accelerator`.

    They are accelerate's classes, called one by one: with `Accelerator.log` an exception of the first would leave out
    the others.
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
        """
        Args:
            names: of `TRACKERS`, or registered by `accelerate.tracking.register_tracker_class`.
            project: the name that Weights & Biases and trackio collect runs under.
            config: the resolved options of the run; see `presentable`.
            output_dir: its last part is the run's name; TensorBoard's files go to its folder `tensorboard`.
            first_step: optimizer steps done before a resume; TensorBoard forgets what was logged later.
            warn: what to do with a sentence about a tracker that is left out.
        """
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        run, folder = output_dir.resolve().name, str(output_dir)
        purge = {"purge_step": first_step + 1} if first_step else {}
        options: dict[str, dict[str, Any]] = {
            "tensorboard": {"run_name": "tensorboard", "logging_dir": folder, **purge},
            "wandb": {"name": run, "group": run, "dir": folder},
            "trackio": {"name": run, "group": run},
        }
        self._warn = warn
        self.running: dict[str, Any] = {}
        """Those that work, by name."""
        for name in dict.fromkeys(names):
            with self._left_out_if_it_fails(name, "start"):
                tracker = LOGGER_TYPE_TO_CLASS[name](**{"run_name": project, **options.get(name, {})})
                tracker.start()
                tracker.store_init_configuration(presentable(config))
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
            self._warn(f"warning: --report_to {name} is left out, {reason}: {detail}; training continues")


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
