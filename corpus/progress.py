"""The one form in which long work shows how far it is."""

import sys
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 30


def progress_bar(*, total: int | None, doing: str, delay: float = 0) -> Any:
    """Bytes done, bytes per second and time left: a bar on a terminal, elsewhere a line each half minute.

    Args:
        total: bytes; None if nobody knows.
        doing: one word in front.
        delay: seconds of work before anything is shown.
    """
    seconds = 0.1 if sys.stderr.isatty() else LOG_SECONDS
    return tqdm(
        total=total,
        desc=doing,
        delay=max(delay, seconds if seconds > 1 else 0),
        mininterval=seconds,
        maxinterval=max(10, seconds),
        unit="B",
        unit_scale=True,
        leave=False,
        file=sys.stderr if sys.stderr.isatty() else _Lines(),
    )


class _Lines:
    """Standard error for a file or another program: each state of a bar is a line of its own."""

    def write(self, text: str) -> None:
        text = text.strip()
        if text:
            print(text, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()
