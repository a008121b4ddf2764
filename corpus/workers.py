"""Processes that make pieces, and their end of the pipe.

A worker is an interpreter that runs `main` below: it imports neither torch nor the program that started it, reads
texts from its standard input and answers with a line for each piece. It ends when its input ends, also when the
program at the other end was killed.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from lacuna.common.errors import WorkerError

from .pieces import Plan, TextPiece, encoder_of, make_piece

PLAN = "plan.json"
TOKENIZER = "tokenizer.json"
MAX_DEFAULT_WORKERS = 8  # a worker takes about 100 MB, and all together are to stay under 1 GiB
POLL_SECONDS = 0.2


def default_workers() -> int:
    """As many as there are cores for this process, up to MAX_DEFAULT_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_WORKERS)


class Workers:
    """Makes pieces in `count` processes, or in this one; as a context it ends them all.

    Args:
        folder: of the build, where the plan and the tokenizer are.
        count: processes; with 0 or 1 the work is done here, on the threads that the tokenizer takes.
    """

    def __init__(self, *, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count if count > 1 else 0
        self._tasks: queue.Queue[tuple[TextPiece, Path] | None] = queue.Queue(maxsize=2)
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: BaseException | None = None
        self._held: tuple[TextPiece, Path] | None = None
        self._make: Callable[[TextPiece, Path], None] | None = None

    def __enter__(self) -> "Workers":
        return self

    def submit(self, text: TextPiece, path: Path) -> None:
        """Have a piece made at `path`; waits while all workers are busy.

        Raises:
            OSError: a piece could not be written.
            WorkerError: a worker died.
        """
        if not self.count:
            self._make_here(text, path)
        elif not self._threads and self._held is None:
            self._held = text, path  # a corpus of one piece is not worth a process
        else:
            if not self._threads:
                for _ in range(self.count):
                    self._start()
            if self._held is not None:
                held, self._held = self._held, None
                self._put(held)
            self._put((text, path))

    def finish(self) -> None:
        """Wait for all pieces. Raises what `submit` raises."""
        if self._held is not None:
            self._make_here(*self._held)
        for _ in self._threads:
            self._put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(POLL_SECONDS)
                self._raise_failure()
        self._raise_failure()

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for thread in self._threads:
            if thread.is_alive():
                self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _make_here(self, text: TextPiece, path: Path) -> None:
        if self._make is None:
            self._make = _piece_maker(self.folder)
        self._make(text, path)

    def _put(self, task: tuple[TextPiece, Path] | None) -> None:
        while True:
            self._raise_failure()
            try:
                self._tasks.put(task, timeout=POLL_SECONDS)
            except queue.Full:
                continue
            return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _start(self) -> None:
        with _without_interrupts():
            process = subprocess.Popen(
                # -P: a folder of text that is called like a module is none.
                [sys.executable, "-P", "-c", "from lacuna.corpus.workers import main; main()", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        self._processes.append(process)
        thread = threading.Thread(target=self._serve, args=(process,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, process: subprocess.Popen[bytes]) -> None:
        """Hand pieces to one process until there are none left."""
        assert process.stdin is not None and process.stdout is not None
        place = ""
        try:
            while (task := self._tasks.get()) is not None and self._failure is None:
                place = task[0].place
                _send(process.stdin, *task)
                del task  # the worker has it now
                answer = process.stdout.readline()
                if not answer:
                    raise BrokenPipeError
                _raise_answer(json.loads(answer), place)
            process.stdin.close()
            process.wait()
        except BrokenPipeError:
            if self._failure is None:
                self._failure = _death(process.wait(), place)
        except BaseException as error:
            if self._failure is None:
                self._failure = error


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """What is started in here never hears Ctrl-C, not while it imports either; this process hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send(pipe: IO[bytes], text: TextPiece, path: Path) -> None:
    head = {
        "number": text.number,
        "source": text.source,
        "place": text.place,
        "sizes": [len(data) for data in text.texts],
        "path": str(path),
    }
    pipe.write(json.dumps(head).encode() + b"\n")
    for data in text.texts:
        pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[TextPiece, Path] | None:
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    texts = [pipe.read(size) for size in head["sizes"]]
    if list(map(len, texts)) != head["sizes"]:
        return None  # whoever sent it is no more
    return TextPiece(number=head["number"], source=head["source"], place=head["place"], texts=texts), Path(
        head["path"]
    )


def _raise_answer(answer: dict[str, object], place: str) -> None:
    if "errno" in answer:
        raise OSError(answer["errno"], answer["strerror"], answer["filename"])
    if "trace" in answer:
        raise WorkerError(f"making tokens of the text from {place} on failed:\n{answer['trace']}")


def _death(code: int, place: str) -> WorkerError:
    reason = f"ended with exit code {code}"
    if code < 0:
        reason = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            reason += ", perhaps because memory ran out"
    at = f" while it tokenized the text from {place} on" if place else ""
    return WorkerError(
        f"a worker process {reason}{at}. What is ready is kept: the same command goes on from there, with fewer "
        "--num_workers if memory is short."
    )


def _piece_maker(folder: Path) -> Callable[[TextPiece, Path], None]:
    plan = Plan.load(folder / PLAN)
    encoder = encoder_of(tokenizer_json=(folder / TOKENIZER).read_text(encoding="utf-8"), plan=plan)

    def make(text: TextPiece, path: Path) -> None:
        make_piece(text=text, encoder=encoder, plan=plan, path=path)

    return make


def main() -> None:
    """Make pieces of what comes in, until nothing comes any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    make: Callable[[TextPiece, Path], None] | None = None
    while (task := _receive(sys.stdin.buffer)) is not None:
        answer: dict[str, object] = {}
        try:
            make = make or _piece_maker(Path(sys.argv[1]))
            make(*task)
        except OSError as error:
            answer = {"errno": error.errno, "strerror": error.strerror, "filename": str(error.filename or task[1])}
        except Exception:
            answer = {"trace": traceback.format_exc()}
        try:
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:
            break


if __name__ == "__main__":
    main()
