"""Break lines that matter, one at a time in a copy of the repository, and see whether a test notices.

    python tests/mutants.py                                  # 100 mutants, at most 30 minutes on two cores
    python tests/mutants.py --count 5 --paths training/order.py --seed 1

First each test file runs once, to learn which tests run which lines (kept in --work_dir until code changes). Then each
mutant meets the tests that run its line, the fastest of each file first. mutmut and cosmic-ray cannot: both run all
tests of a line, and begin a Python for it or rewrite functions that our checkpoints carry along. Here all is forked
from a process with the libraries imported.
"""

import ast
import contextlib
import gc
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from multiprocessing import connection, forkserver, resource_tracker, util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import coverage
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("common", "corpus", "evaluation", "modeling", "objectives", "recipes", "tasks", "tokenization", "training")
LIBRARIES = (
    "accelerate",
    "datasets",
    "hypothesis",
    "matplotlib.pyplot",
    "safetensors.torch",
    "scipy.stats",
    "sentencex",
)
LIBRARIES += ("sklearn.metrics", "torch.distributed.fsdp", "torch.utils.data", "transformers.modeling_utils")
LIBRARIES += ("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto")
LIBRARIES += ("transformers.models.bert.modeling_bert", "transformers.models.bart.modeling_bart")
PATHS = ("training/loop.py", "training/step.py", "training/order.py", "training/progress.py", "training/checkpoints")
PATHS += ("training/optimizers", "objectives", "modeling/losses_lacuna.py", "modeling/masks_lacuna.py")
PATHS += ("modeling/conversion.py", "tasks/base/metrics.py")
LEFT_OUT = ("arguments.py", "show.py", "__init__.py")  # options and what is only shown
TESTS = ("tests/training", "tests/objectives", "tests/modeling", "tests/faults", "tests/tasks/test_metrics.py")
TESTS += ("tests/recipes/test_global_batches.py", "tests/recipes/test_pretrain.py", "tests/recipes/test_push_model.py")
MOST_MEMORY = 16 * 2**30
EXPLAINED = REPOSITORY / "tests" / "mutants_explained.json"
"""Changes, "PATH: LINE: OLD -> NEW", and why no test can notice; the report shows it beside those that survive."""
ROUNDS = 15.0, 90.0, 400.0  # seconds of tests that a mutant meets, as long as it survives
"""How long the chosen tests of a mutant take: at first, and when there is time left for those that survive."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
UNDONE = {"abs", "clamp", "clip", "clone", "copy", "exp", "log", "masked_fill", "rounded"}
UNDONE |= {"flip", "roll", "sqrt", "square", "transpose"}
"""Calls whose argument may stand in their place."""
PLACES = re.compile("folder|dir|path|final|temporary|checkpoint", re.IGNORECASE)
OUTCOMES = ("noticed", "no end", "survived", "not tried")
SPOKEN = {"print", "warn", "say", "filterwarnings", "debug", "info", "warning"}
"""Calls that only tell a person something."""
UNSEEN = {"eq", "frozen", "fused", "indent", "maxsize", "persistent_workers", "pin_memory", "slots"}
UNSEEN |= {"strict"}
"""Keywords that no result depends on."""


@dataclass(frozen=True)
class Mutant:
    """One change in one statement."""

    path: str
    first: int  # line of the statement
    last: int
    function: bool  # it stands in one, and not where it runs on import
    start: int  # bytes of the file that are replaced
    end: int
    old: str
    new: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.first}"

    @property
    def line(self) -> str:
        """What the line says."""
        return (REPOSITORY / self.path).read_text(encoding="utf-8").splitlines()[self.first - 1].strip()

    def __str__(self) -> str:
        return " ".join(f"{self.old}  ->  {self.new}".split())

    def write(self, folder: Path) -> None:
        """Change the file in a copy of the repository."""
        source = (folder / self.path).read_bytes()
        (folder / self.path).write_bytes(source[: self.start] + self.new.encode() + source[self.end :])


def is_text(node: ast.BinOp) -> bool:
    """Whether an operator joins texts or makes paths."""
    texts = [each for each in ast.walk(node) if isinstance(each, ast.JoinedStr | ast.Constant)]
    return any(isinstance(getattr(each, "value", ""), str) for each in texts) or (
        isinstance(node.op, ast.Div) and PLACES.search(ast.unparse(node.left)) is not None
    )


def changes(node: ast.AST) -> Iterator[str]:
    """What a node may become."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield ast.unparse(ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators))
        case ast.BinOp(op=op) if type(op) in SWAPS and not is_text(node):
            yield ast.unparse(ast.BinOp(node.left, SWAPS[type(op)](), node.right))
        case ast.BoolOp():
            yield ast.unparse(ast.BoolOp(SWAPS[type(node.op)](), node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield ast.unparse(node.operand)
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int() | float()) if node.value == 0 or abs(node.value) > 1e-4:  # below: tolerances
            yield str(node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield ast.unparse(ast.Call(ast.Name(NAMES[name]), node.args, node.keywords))
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, value, _]):
            yield ast.unparse(value)
        case ast.Call(func=ast.Name(id=name), args=[value, *_]) if name in UNDONE:
            yield ast.unparse(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in UNDONE:
            yield ast.unparse(node.args[0] if ast.unparse(value) in ("math", "np", "torch") else value)
    match node:
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Assign(targets=[ast.Name(id=name)]) if name in {
            each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)
        }:
            yield "pass"
    if isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
        yield ast.unparse(ast.AugAssign(node.target, SWAPS[type(node.op)](), node.value))
    if isinstance(node, ast.If | ast.While):
        yield ast.unparse(ast.UnaryOp(ast.Not(), node.test))


def spoken(node: ast.AST) -> bool:
    """Whether a node is a text, a message or a keyword of no result: what it says is not what the code does."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) in SPOKEN
    if isinstance(node, ast.keyword):
        return node.arg in UNSEEN
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__") or node.name.lstrip("_").startswith("describe")
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, statement: ast.stmt | None, function: bool) -> Iterator[Mutant]:
        if spoken(node) or (isinstance(node, ast.AnnAssign) and node.value is None):
            return
        if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or spoken(node.value)):
            return
        statement = node if isinstance(node, ast.stmt) else statement
        target = node.test if isinstance(node, ast.If | ast.While) else node
        if statement is not None and not isinstance(statement, ast.Import | ast.ImportFrom | ast.Global):
            block = getattr(statement, "body", None)
            last = block[0].lineno - 1 if isinstance(block, list) else statement.end_lineno or 0
            start, end = (
                starts[getattr(target, f"{part}lineno", 1) - 1] + getattr(target, f"{part}col_offset", 0)
                for part in ("", "end_")
            )
            old = source.encode()[start:end].decode()
            for new in changes(node):
                new = f"({new})" if isinstance(target, ast.expr) and not isinstance(node, ast.Constant) else new
                yield Mutant(path, statement.lineno, max(last, statement.lineno), function, start, end, old, new)
        children: list[Any] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.FunctionDef):
            children = [each for each in node.args.defaults + node.args.kw_defaults if each]
            for child in children:
                yield from visit(child, node, function)
            children, function = list(node.body), True
        if isinstance(node, ast.AnnAssign):
            children = [node.value]
        for child in children:
            yield from visit(child, statement, function)

    yield from visit(ast.parse(source), None, False)


def files_of(paths: Sequence[str], pattern: str) -> list[Path]:
    """Files, and those in folders whose names match."""
    found = [[path] if path.is_file() else sorted(path.rglob(pattern)) for path in map(REPOSITORY.joinpath, paths)]
    return [path for each in found for path in each if path.name not in LEFT_OUT]


def sample(paths: list[Path], *, count: int, seed: int) -> list[Mutant]:
    """Mutants of so many lines, drawn at random; none that is explained, which computes the same."""
    by_line: dict[str, list[Mutant]] = defaultdict(list)
    explained = json.loads(EXPLAINED.read_text(encoding="utf-8"))
    for path in paths:
        name, text = str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for mutant in mutants_of(name, text):
            if f"{name}: {lines[mutant.first - 1].strip()}: {mutant}" not in explained:
                by_line[mutant.place].append(mutant)
    draw = random.Random(seed)
    return [draw.choice(by_line[line]) for line in draw.sample(sorted(by_line), min(count, len(by_line)))]


@dataclass
class Job:
    """Tests to run in a copy of the repository."""

    files: list[str]
    limit: float  # in seconds
    mutant: Mutant | None = None
    chosen: list[str] | None = None  # tests in their order; all by default
    measure: bool = False  # which tests run which lines


class Watch:
    """A plugin of pytest: runs chosen tests only; keeps seconds, outcomes, and who runs which lines."""

    def __init__(self, job: Job, measuring: coverage.Coverage | None) -> None:
        self.chosen, self.measuring, self.context = job.chosen, measuring, ""
        self.seconds: dict[str, float] = defaultdict(float)
        self.contexts: dict[str, list[str]] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.chosen is not None:
            order = {name: number for number, name in enumerate(self.chosen)}
            items[:] = sorted((each for each in items if each.nodeid in order), key=lambda each: order[each.nodeid])

    @contextlib.contextmanager
    def inside(self, context: str) -> Iterator[None]:
        """Lines that run now belong to this context."""
        before = self.context
        self.switch(context)
        yield
        self.switch(before)

    def switch(self, context: str) -> None:
        self.context = os.environ["MUTANTS_CONTEXT"] = context
        if self.measuring:
            self.measuring.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.contexts[item.nodeid] = [item.nodeid, *getattr(item, "fixturenames", ())]
        with self.inside(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        # What several tests share is made in the first of them.
        with self.inside(self.context if fixturedef.scope == "function" else fixturedef.argname):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def lines(self) -> dict[str, dict[int, list[str]]]:
        """path -> line -> tests that run it."""
        assert self.measuring is not None
        data, found = self.measuring.get_data(), {}
        tests = defaultdict(list)
        for test, contexts in self.contexts.items():
            for context in contexts:
                tests[context].append(test)
        for file in data.measured_files():
            found[str(Path(file).relative_to(Path.cwd()))] = {
                line: sorted({test for context in contexts for test in tests.get(context, ())})
                for line, contexts in data.contexts_by_lineno(file).items()
            }
        return found


def new_coverage(folder: Path, **options: Any) -> coverage.Coverage:
    rooms = [f"{folder}/{room}/*" for room in ROOMS]
    return coverage.Coverage(data_file=os.environ["MUTANTS_COVERAGE"], include=rooms, config_file=False, **options)


def measured(run: Callable[..., None]) -> Callable[..., None]:
    """`processes._run` in a copy: notes the lines that it runs too."""

    @wraps(run)
    def measuring(args: list[str], cwd: str, env: dict[str, str], folder: str) -> None:
        if "MUTANTS_COVERAGE" not in env:
            return run(args, cwd, env, folder)
        os.environ["MUTANTS_COVERAGE"] = env["MUTANTS_COVERAGE"]
        lines = new_coverage(REPOSITORY, context=env["MUTANTS_CONTEXT"], data_suffix=True)
        lines.start()
        try:
            run(args, cwd, env, folder)
        finally:
            lines.stop()
            lines.save()

    return measuring


def fork_server(folder: Path) -> None:
    """Fork the server of tests/processes.py, instead of a new Python; it wakes up when it is called."""

    spawn = util.spawnv_passfds

    def begin(path: bytes, args: list[str], fds: list[int]) -> int:
        if pid := os.fork():
            return pid
        try:
            util.spawnv_passfds = spawn  # for workers of what runs there
            select.select(fds, [], [])
            sys.path[:0] = [str(folder / "tests")]
            forkserver.main(*fds[:2], ["preloaded"])
        finally:
            os._exit(0)

    resource_tracker.ensure_running()
    forkserver._forkserver._forkserver_pid = None  # that of the process that this one was forked from
    with mock.patch.object(util, "spawnv_passfds", begin):
        forkserver.ensure_running()


def work(job: Job, folder: Path, result: Path, core: int) -> None:
    """In the forked process: run the tests of a job in its copy, and write what came of it.

    What they write goes beside the result, into a folder whose path is short, as those of sockets must be.
    """
    os.setsid()
    temporary = result.parent
    with result.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.sched_setaffinity(0, {core})
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))  # a list that grows without end
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "TMPDIR": str(temporary)}
    tempfile.tempdir = None
    if job.mutant:
        os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
    for name in [name for name in sys.modules if name.split(".")[0] in ("lacuna", "harness")]:
        del sys.modules[name]  # of the repository, not of its copy
    sys.modules["__main__"] = ModuleType("__main__")
    sys.path[:] = [str(folder), *(path for path in sys.path if not path or Path(path) != REPOSITORY / "tests")]
    fork_server(folder)
    lines = None
    if job.measure:
        os.environ["MUTANTS_COVERAGE"] = str(temporary / "coverage")
        lines = new_coverage(folder)
        lines.start()
    watch = Watch(job, lines)
    unused = [
        word for name in ("anyio", "cacheprovider", "unraisableexception", "xdist") for word in ("-p", f"no:{name}")
    ]
    options = ["-m", "not slow", *unused, f"--basetemp={temporary / 'pytest'}"]
    options += [] if job.measure else ["-x"]
    code = int(pytest.main([*options, *job.files], plugins=[watch]))
    found: dict[str, Any] = {"code": code, "failed": watch.failed, "seconds": watch.seconds}
    if lines is not None:
        lines.stop()
        lines.save()
        lines.combine([str(temporary)], keep=False)
        found["lines"] = watch.lines()
    result.write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


class Crew:
    """A copy of the repository for each core, and jobs that run in them."""

    def __init__(self, folder: Path, cores: list[int]) -> None:
        self.folder, self.cores = folder, cores
        self.environment = {"LACUNA_DATA": os.environ.get("LACUNA_DATA", str(REPOSITORY.parent / "shared" / "data"))}
        for core in cores:
            self.copy(core)

    def path(self, core: int) -> Path:
        return self.folder / f"copy-{core}"

    def copy(self, core: int) -> None:
        """Make the copy anew."""
        shutil.rmtree(self.path(core), ignore_errors=True)
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache", ".hypothesis", "__pycache__")
        shutil.copytree(REPOSITORY, self.path(core), ignore=ignored)
        (self.path(core) / "lacuna").symlink_to(".")
        with (self.path(core) / "tests" / "processes.py").open("a") as file:
            file.write("\nfrom mutants import measured\n_run = measured(_run)\n")

    def run(self, jobs: list[Job], *, deadline: float = math.inf) -> Iterator[tuple[Job, dict[str, Any]]]:
        """Each job with what came of it, as they end; its code is -1 where it took too long or died.

        None begins after the deadline.
        """
        fork, waiting, busy = multiprocessing.get_context("fork"), jobs[::-1], {}
        os.environ |= self.environment
        while busy or (waiting and time.monotonic() < deadline):
            for core in set(self.cores) - set(busy):
                if waiting and time.monotonic() < deadline:
                    job = waiting.pop()
                    if job.mutant:
                        job.mutant.write(self.path(core))
                    result = Path(tempfile.mkdtemp(prefix="mutant")) / "result.json"
                    process = fork.Process(target=work, args=(job, self.path(core), result, core))
                    process.start()
                    busy[core] = (job, process, result, time.monotonic())
            connection.wait([process.sentinel for _, process, _, _ in busy.values()], timeout=1)
            for core, (job, process, result, began) in list(busy.items()):
                took = time.monotonic() - began
                if process.is_alive() and took < job.limit:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.join()
                if job.mutant:
                    shutil.copy2(REPOSITORY / job.mutant.path, self.path(core) / job.mutant.path)
                del busy[core]
                found = (
                    json.loads(result.read_text()) if result.exists() else {"code": -1, "failed": [], "seconds": {}}
                )
                shutil.rmtree(result.parent, ignore_errors=True)
                yield job, {**found, "took": took}


class Map:
    """Which tests run which lines, and how long they take."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}
        self.reach: Counter[str] = Counter()  # lines of each test
        self.failed: set[str] = set()

    def add(self, found: dict[str, Any]) -> None:
        self.failed.update(found["failed"])
        self.seconds |= found["seconds"]
        for path, lines in found["lines"].items():
            for line, tests in lines.items():
                self.lines[path][int(line)].update(tests)
                self.reach.update(tests)

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests that run its line, one of each file in turn (its own: four), the fastest and narrowest
        first.

        What runs on import, or where nobody sees it (compiled), belongs to all tests of the file; and what hardly any
        test runs may be made once and kept, so that all tests of the file follow.
        """
        own = tuple(f"/test_{name}.py" for name in Path(mutant.path).with_suffix("").parts)
        lines = self.lines[mutant.path]
        numbers = range(mutant.first, mutant.last + 1) if mutant.function else []
        seen = set().union(*(lines[number] for number in numbers if number in lines))
        found = seen if len(seen) > 2 else set().union(*lines.values())
        places: Counter[str] = Counter()
        ranked = []
        for test in sorted(found - self.failed, key=lambda test: (self.seconds[test] * self.reach[test], test)):
            file = test.partition("::")[0]
            ranked.append((test not in seen, places[file], self.seconds[test], test))
            places[file] += 1 if file.endswith(own) else 4
        return [test for *_, test in sorted(ranked)]

    def choose(self, tests: list[str], *, seconds: float) -> tuple[list[str], list[str]]:
        """As many as fit (one at least), those of a file together; and the rest."""
        chosen: list[str] = []
        for test in tests:
            if not chosen or self.seconds[test] <= seconds:
                chosen.append(test)
                seconds -= self.seconds[test]
        files: dict[str, float] = defaultdict(float)
        for test in chosen:
            files[test.partition("::")[0]] += self.seconds[test]
        rest = [test for test in tests if test not in set(chosen)]
        return sorted(chosen, key=lambda test: (files[test.partition("::")[0]], test.partition("::")[0])), rest


def learn(crew: Crew, files: list[str], folder: Path) -> Map:
    """The map, test file by test file; those that did not change since are read from the folder."""
    shared = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    shared += [path for path in (REPOSITORY / "tests").rglob("*.py") if not path.name.startswith("test_")]
    common = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(shared) if path != Path(__file__))
    ).hexdigest()
    kept = {}
    for file in files:
        content = (REPOSITORY / file).read_text(encoding="utf-8") + common
        kept[file] = folder / f"{Path(file).stem}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
    new = [Job([file], 900, measure=True) for file, path in kept.items() if not path.exists()]
    for number, (job, found) in enumerate(crew.run(new), start=1):
        print(
            f"{number} of {len(new)}: {job.files[0]}, {len(found['seconds'])} tests, {found['took']:.0f} s", flush=True
        )
        if found["code"] not in (0, 1, 5):
            raise SystemExit(f"{job.files[0]} could not be run")
        kept[job.files[0]].write_text(json.dumps(found))
    known = Map()
    for path in kept.values():
        known.add(json.loads(path.read_text()))
    print(f"{len(known.seconds)} tests in {sum(known.seconds.values()):.0f} s; fail unbroken: {sorted(known.failed)}")
    return known


@dataclass
class Fate:
    """What came of a mutant; of a control (None), where nothing is broken and nothing may fail."""

    mutant: Mutant | None
    tests: list[str]  # that run its line and did not run yet
    outcome: str = "not tried"
    ran: int = 0
    noticed_by: str = ""

    def note(self, found: dict[str, Any]) -> None:
        """A test that fails, an import that fails and no end in time are all noticed."""
        self.ran += len(found["seconds"])
        self.outcome = {0: "survived", -1: "no end"}.get(found["code"], "noticed")
        self.noticed_by = next(iter(found["failed"]), "")

    def __str__(self) -> str:
        what = "control" if self.mutant is None else f"{self.mutant.place}  {self.mutant}"
        return f"{self.outcome:9} {what}  {self.noticed_by or f'{self.ran} tests'}"


def try_mutants(crew: Crew, mutants: list[Mutant], known: Map, *, deadline: float) -> list[Fate]:
    """Run the fastest tests of each, then the rest for those that survive, while there is time."""
    fates = []
    for number, mutant in enumerate(mutants):
        tests = known.tests(mutant)
        fates += [Fate(broken, tests) for broken in (mutant, None)[: 1 + (number % 20 == 0)]]
    for seconds in ROUNDS:
        jobs: list[Job] = []
        owners: dict[int, Fate] = {}
        for fate in fates:
            if fate.tests and fate.outcome in ("not tried", "survived") and (fate.mutant or not fate.ran):
                chosen, fate.tests = known.choose(fate.tests, seconds=seconds)
                limit = 60 + 5 * sum(known.seconds[test] for test in chosen)  # other programs may run
                files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
                jobs.append(Job(files, limit, fate.mutant, chosen))
                owners[id(jobs[-1])] = fate
        for number, (job, found) in enumerate(crew.run(jobs, deadline=deadline), start=1):
            owners[id(job)].note(found)
            left = (deadline - time.monotonic()) / 60
            print(f"{number} of {len(jobs)}, {left:.0f} min left: {owners[id(job)]}", flush=True)
    for fate in fates:
        fate.outcome = "survived" if fate.mutant and not known.tests(fate.mutant) else fate.outcome
    return fates


def write_report(report: Any, fates: list[Fate]) -> None:
    """Rates by room, survivors, and controls."""
    from harness import table

    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for fate in fates:
        room = Path(fate.mutant.path).parent.as_posix() if fate.mutant else "nothing broken"
        for name in {room, "all" if fate.mutant else room}:
            rooms[name][fate.outcome] += 1
    rates = [
        {"where": room, "lines": sum(counts.values()), **{name: counts[name] for name in OUTCOMES}}
        for room, counts in sorted(rooms.items(), key=lambda item: (item[0] == "all", item))
    ]
    survivors = [
        {"where": each.mutant.place, "line": f"`{each.mutant.line}`", "change": f"`{each.mutant}`", "tests": each.ran}
        for each in fates
        if each.mutant and each.outcome in ("survived", "no end")
    ]
    kept = ("outcome", "ran", "noticed_by")
    report.body["mutants"] = [
        {"mutant": each.mutant and vars(each.mutant), **{name: getattr(each, name) for name in kept}} for each in fates
    ]
    told = (
        f"It took {report.body['minutes']} minutes. Changes that compute the same are not drawn ({EXPLAINED.name} "
        "says why). Survivors, and those whose tests did not end:"
    )
    lines = [*table(rates), "", told, "", *table(survivors)]
    report.write("Mutants: lines broken one at a time, and whether a test noticed", lines)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the recipes of tests
    sys.path.append(str(REPOSITORY / "benchmarks"))
    from harness import Report, make_parser  # not in the copies, which begin with the rest of this file

    parser = make_parser(
        __doc__,
        ("count", 100, "lines to break"),
        ("seed", 1, "which ones"),
        ("minutes", 30, "to take at most"),
        ("work_dir", str(REPOSITORY / "runs" / "mutants"), "for the copies, and for which tests run which lines"),
    )
    parser.add_argument("--paths", nargs="+", default=PATHS, help="files and folders to break")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of the tests that may notice")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    report, folder = Report(options), Path(options.work_dir)
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    crew = Crew(folder, sorted(os.sched_getaffinity(0)))
    known = learn(crew, [str(path.relative_to(REPOSITORY)) for path in files_of(options.tests, "test_*.py")], folder)
    mutants = sample(files_of(options.paths, "*.py"), count=options.count, seed=options.seed)
    fates = try_mutants(crew, mutants, known, deadline=deadline)
    report.body["minutes"] = round(options.minutes - (deadline - time.monotonic()) / 60)
    write_report(report, fates)


if __name__ == "__main__":
    main()
