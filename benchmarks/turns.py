"""Processes that take turns: each has its own memory and environment, and waits on a pipe while another one works.

The parent asks in lines of JSON and is answered in such. What a worker or its libraries print goes to a log, which is
shown when the worker fails.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reports import REPOSITORY


class Worker:
    """A process that does what it is asked, and nothing in between."""

    def __init__(self, *, name: str, script: str, folder: Path, environment: dict[str, str]) -> None:
        """Start it; it may still be importing when this returns.

        Args:
            name: what to call it when it fails.
            script: file of this folder that calls `serve`.
            folder: where its log and compiled code go.
            environment: what differs from this process's own.
        """
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log.txt"
        paths = [str(REPOSITORY), str(REPOSITORY / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(REPOSITORY / "benchmarks" / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    # Code that an earlier command compiled would hide how long compiling takes.
                    "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                    **environment,
                },
            )

    def send(self, request: str, **arguments: Any) -> None:
        """Ask for something without waiting; each `send` needs a `receive`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest question.

        Raises:
            RuntimeError: the worker ended instead; with the end of its log.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """`send` and `receive`."""
        self.send(request, **arguments)
        return self.receive()

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def _fail(self) -> None:
        code = self._process.wait()
        said = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise RuntimeError(f"{self.name} ended with exit code {code}, so nothing was measured; it said:\n{said}")


def serve(handle: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the parent until it closes the pipe.

    Args:
        handle: (request, arguments) -> answer; an exception ends this process, and the parent shows it.
    """
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like an answer
        for line in sys.stdin:
            arguments = json.loads(line)
            answer = handle(arguments.pop("request"), arguments)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
