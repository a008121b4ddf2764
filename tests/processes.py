"""Recipes in processes of their own that begin at once: forked from a server that has all imports behind it.

Python and its libraries take five seconds of a processor to begin, which is most of what a short run takes. What is
forked from the server is otherwise as good as new: it has its own number, group, environment, folder and output, it
can be killed, and it ends with the recipe's exit code.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parent.parent
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["preloaded"])


def no_curves(*, path: Path, **_: object) -> None:
    """In place of `draw_curves`, which takes most of a short run: a picture with nothing in it."""
    path.write_bytes(b"\x89PNG")


def last_of_each(words: list[str]) -> list[str]:
    """A command line in which later options replace those of the same name before, which recipes refuse."""
    if "--then" in words:  # one run after another (tests/recipes/observed_pretrain.py)
        place = words.index("--then")
        return [*last_of_each(words[:place]), "--then", *last_of_each(words[place + 1 :])]
    options: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0]
            if name not in ("--text", "--for"):  # which add up
                options.pop(name, None)
        options.setdefault(name, []).append(word)
    return [word for group in options.values() for word in group]


class Running:
    """A script that runs: one process, or as many as ranks."""

    def __init__(self, path: Path, words: list[str], *, cwd: Path, env: dict[str, str], num_processes: int) -> None:
        self._folder = TemporaryDirectory()
        self.args = [str(path), *last_of_each(words)]
        self.processes: list[ForkServerProcess] = []
        ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        for rank in range(num_processes):
            own = {name: value for name, value in env.items() if name not in RANKS} | {"OMP_NUM_THREADS": "1"}
            if num_processes > 1:
                own |= {**ranks, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                own |= {"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)}
            process = _SERVER.Process(target=_run, args=(self.args, str(cwd), own, self._folder.name))
            with _modules_on_the_path():
                process.start()
            self.processes.append(process)
        self.pids = [process.pid for process in self.processes if process.pid is not None]
        while any(process.is_alive() and os.getpgid(process.pid or 0) != process.pid for process in self.processes):
            time.sleep(0.001)  # until each has a group of its own, which `kill` needs

    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def wait(self, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """What it printed, and the worst of its exit codes (negative for a signal).

        Raises:
            TimeoutError: It took longer than `timeout` seconds, and is killed.
        """
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        late = any(process.exitcode is None for process in self.processes)
        if late:
            self.kill()
        out, err = (Path(self._folder.name, name).read_text(errors="replace") for name in ("stdout", "stderr"))
        self._folder.cleanup()
        if late:
            raise TimeoutError(f"{self.args} took more than {timeout} seconds; it said:\n{out[-2000:]}{err[-2000:]}")
        codes = [process.exitcode or 0 for process in self.processes]
        return subprocess.CompletedProcess(self.args, max(codes, key=abs), out, err)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to each process with all that it has started."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
        for process in self.processes:
            if number == signal.SIGKILL:
                process.join()


def start(
    path: str | Path,
    *words: object,
    cwd: Path = REPOSITORY,
    env: dict[str, str] | None = None,
    num_processes: int = 1,
) -> Running:
    """Begin `python PATH WORDS...`, or the same under `torchrun --nproc_per_node NUM_PROCESSES`.

    Args:
        path: The script, relative to the repository.
        words: Its arguments.
        cwd: The folder that it runs in.
        env: Its whole environment; this one's by default. OMP_NUM_THREADS is 1 whatever it says.
        num_processes: Number of ranks.
    """
    arguments = [str(word) for word in words]
    environment = dict(os.environ) if env is None else env
    return Running(REPOSITORY / path, arguments, cwd=cwd, env=environment, num_processes=num_processes)


def run(
    path: str | Path,
    *words: object,
    cwd: Path = REPOSITORY,
    env: dict[str, str] | None = None,
    num_processes: int = 1,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """`start` and wait for the end, like `subprocess.run` with its output captured as text."""
    return start(path, *words, cwd=cwd, env=env, num_processes=num_processes).wait(timeout)


def _run(args: list[str], cwd: str, env: dict[str, str], folder: str) -> None:
    """In the new process: become what the command line would have started."""
    os.setsid()
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = args
    sys.path[0:0] = [str(Path(args[0]).parent)]
    runpy.run_path(args[0], run_name="__main__")


@contextlib.contextmanager
def _modules_on_the_path():  # type: ignore[no-untyped-def]
    """The server begins with the first process, and finds `preloaded` and the rooms as this process does."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY)])
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
