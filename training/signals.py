"""SIGTERM and Ctrl-C end a run after the step, with a checkpoint; a watchdog ends processes that hang."""

import faulthandler
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

SAME_REQUEST = 1.0
"""Seconds in which further signals are the same request: launchers pass on the Ctrl-C that all processes got."""


class StopSignals:
    """While it is entered, SIGTERM and SIGINT are noted in `received` instead of ending the process.

    A second one, later than `SAME_REQUEST`, ends the process at once with 128 + its number; nothing is saved then.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # as of what a shell's script has started with &
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
        elif time.monotonic() - self._at > SAME_REQUEST:
            os._exit(128 + number)


class Watchdog:
    """Ends a process that has not called `beat` for some seconds (0: never), after printing the stack of each thread.

    It is Python's own (`faulthandler`), which works where the interpreter itself hangs; the exit code is 1.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> Self:
        self.beat()
        return self

    def __exit__(self, *error: object) -> None:
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Say that all is well."""
        if self.seconds and sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)
