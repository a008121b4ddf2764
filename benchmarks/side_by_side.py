"""Training tokens per second of our models beside transformers' own, with the goals that they are to reach.

    python benchmarks/side_by_side.py --quick                                   # tiny models: does it run? a minute
    python benchmarks/side_by_side.py                                           # what `make bench` runs, ten minutes
    python benchmarks/side_by_side.py --cpu --contenders lacuna modernbert      # two of them, as the machine is
    python benchmarks/side_by_side.py --isa AVX2 --rounds 12                    # as a processor without bf16 would
    python benchmarks/side_by_side.py --share --memory                          # the last two parts alone

All models have one shape (256 wide, 6 layers, 4 heads, 8,192 tokens) and learn from the same rows of 128 tokens, cut
from text as transformers' run_mlm does it: the tokens of all texts one after the other, 15 % of them chosen, the same
ones for all. A step is forward, backward and fused AdamW; making batches is not timed. `python
benchmarks/side_by_side.py --list` says who they are.

Each runs in a process of its own with its own memory, and they take turns strictly, A B C A B C: a slower minute of
the machine slows all of them, and ratios are taken within rounds. Ours has glibc keep freed memory and compiles its
blocks, as our training loop does; the others run as their users get them. Compiling and warming up is not in the
figures; how long it takes is reported.

- `--cpu`: all contenders, as the machine is.
- `--isa AVX2`: ours, and BertForMaskedLM, as on a processor that has no more than AVX2: all of it in float32.
- `--share`: which part of our step its matrix products would take if they were computed alone (products.py).
- `--memory`: how many rows of 512 tokens fit into --memory_gib. A fresh process for each of --memory_rows takes two
  steps; what its peak adds to the size of the built model is fitted with a line, and the line is asked for the most
  rows. One more process takes two steps of that many.

Without any of these four, all are measured.
"""

import argparse
import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from comparison import fit_memory, summarize, to_markdown
from contenders import CONTENDERS, IGNORED, Sizes
from reports import REPOSITORY, RESULTS, describe_machine, positive, write_report
from tqdm import tqdm
from turns import Worker

NUM_BATCHES = 8
CACHE = Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna"))
DATA = Path(os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data"), "wikitext-2", "train.txt")
OF_ISA = ["lacuna", "lacuna_bert", "bert"]
OF_MEMORY = ["lacuna_eager", "bert"]
# oneDNN multiplies bf16, MKL float32, and torch (with what it compiles) does the rest: all must believe the same.
ISAS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX512_CORE": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
    "AVX512_CORE_BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512"},
    "AVX512_CORE_AMX": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "ATEN_CPU_CAPABILITY": "avx512"},
}
QUICK: dict[str, Any] = {
    **{"rounds": 2, "steps": 1, "warmup": 1, "batch_size": 4, "length": 32, "hidden_size": 32, "layers": 2},
    **{"heads": 2, "vocab_size": 512, "memory_rows": [1, 3], "memory_length": 32, "memory_gib": 0.05},
    "no_compile": True,
}


def prepare_rows(*, data: str | None, folder: Path, number: int, rows: int, length: int, vocab_size: int) -> Any:
    """Write batches.npz: `input_ids`, `masked_ids` and `labels` [number, rows, length]; say what they are made of.

    As run_mlm does it: [CLS] line [SEP] [CLS] line ..., cut into rows; 15 % of the text's tokens are chosen, of which
    80 % become [MASK], 10 % any token, 10 % stay.
    """
    from lacuna.corpus import TextArguments, open_text
    from lacuna.tokenization import load_tokenizer, train_once

    source = data or (str(DATA) if DATA.exists() else None)
    text = open_text(TextArguments(data=[source] if source else []))
    key = hashlib.sha256(f"{text.fingerprint} side_by_side {vocab_size}".encode()).hexdigest()[:16]
    path = CACHE / "tokenizers" / key
    train_once(documents=text.texts(), output_dir=path, vocab_size=vocab_size)
    tokenizer = load_tokenizer(path)
    wanted = number * rows * length
    ids: list[int] = []
    for line in (line for document in text.texts() for line in document.splitlines() if line.strip()):
        if len(ids) >= wanted:
            break
        ids += tokenizer(line)["input_ids"]
    tokens = np.resize(np.array(ids, dtype=np.int64), (number, rows, length))  # a short text is read again
    generator = np.random.default_rng(0)
    chosen = (generator.random(tokens.shape) < 0.15) & ~np.isin(tokens, tokenizer.all_special_ids)
    what = generator.random(tokens.shape)
    masked = np.where(chosen & (what < 0.8), tokenizer.mask_token_id, tokens)
    masked = np.where(chosen & (what >= 0.9), generator.integers(0, len(tokenizer), tokens.shape), masked)
    labels = np.where(chosen, tokens, IGNORED)
    np.savez(folder / "batches.npz", input_ids=tokens, masked_ids=masked, labels=labels)
    return {
        "text": Path(source).name if source else "the documentation inside the Python interpreter",
        "tokens": min(len(ids), wanted),
        "vocabulary": len(tokenizer),
        "targets": int(chosen.sum()),
        "fingerprint": hashlib.sha256(tokens.tobytes() + masked.tobytes()).hexdigest()[:16],
    }


def start(name: str, *, folder: Path, title: str, environment: dict[str, str] | None = None) -> Worker:
    """A worker for this contender; those of one name and title find what the first of them compiled."""
    place = folder / f"{title}-{name}"
    return Worker(name=name, script="contenders.py", folder=place, environment=environment or {})


def model_of(options: argparse.Namespace, *, positions: int) -> dict[str, Any]:
    """What all contenders are built with."""
    return {
        "sizes": vars(Sizes(options.hidden_size, options.layers, options.heads, options.vocab_size, positions)),
        "is_compiled": not options.no_compile,
        "threads": options.threads,
    }


def check_same_work(contenders: dict[str, dict[str, Any]]) -> None:
    """First losses must be numbers, and equal where the weights are.

    Raises:
        RuntimeError: they are not.
    """
    losses = {name: facts["first_loss"] for name, facts in contenders.items()}
    for name, loss in losses.items():
        others = [other for other in losses if CONTENDERS[other].weights == CONTENDERS[name].weights]
        if not np.isfinite(loss) or any(abs(loss - losses[other]) > 1e-3 * loss for other in others):
            raise RuntimeError(f"{name}: with equal weights losses must be equal, and they are {losses}")


def measure_speed(
    names: list[str], *, options: argparse.Namespace, folder: Path, environment: dict[str, str], title: str
) -> dict[str, Any]:
    """Let them take turns; what each of them is, its warm-up, and all turns in their order."""
    model = model_of(options, positions=max(options.length, 512))
    workers: dict[str, Worker] = {}
    try:
        for name in names:
            workers[name] = start(name, folder=folder, title=title, environment=environment)
            workers[name].send("build", name=name, batches=str(folder / "batches.npz"), **model)
        contenders = {name: worker.receive() for name, worker in workers.items()}
        check_same_work(contenders)
        turns = []
        with tqdm(total=len(workers) * (options.rounds + 1), unit="turn", leave=False) as bar:
            for number in range(options.rounds + 1):  # round 0 warms up
                for name, worker in workers.items():
                    bar.set_description(f"{title}, {name}, round {number}" if number else f"{title}, {name}, warm-up")
                    turn = worker.ask("run", steps=options.steps if number else options.warmup)
                    turns.append({"contender": name, "round": number, **turn})
                    bar.update()
        return {"contenders": contenders, "turns": turns}
    finally:
        for worker in workers.values():
            worker.close()


def measure_share(*, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """In a process of its own; see products.py."""
    worker = start("lacuna", folder=folder, title="cpu")
    try:
        with tqdm(total=2, unit="part", leave=False, desc="share, warm-up") as bar:
            model = model_of(options, positions=max(options.length, 512))
            facts = worker.ask("build", name="lacuna", batches=str(folder / "batches.npz"), **model)
            worker.ask("run", steps=options.warmup)
            bar.update()
            bar.set_description("share, products and steps in turn")
            return {**facts, **worker.ask("share", rounds=options.rounds, steps=options.steps)}
    finally:
        worker.close()


def measure_memory(*, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """For each of the two: peaks, the line through them, the most rows in the budget, and the peak with so many."""
    budget = round(options.memory_gib * 2**30)
    model = {**model_of(options, positions=max(options.memory_length, 512)), "is_compiled": False}

    def peak(name: str, rows: int) -> dict[str, Any]:
        worker = start(name, folder=folder, title="memory")
        try:
            worker.ask("build", name=name, batches=None, **model)
            return worker.ask("peak_memory", rows=rows, length=options.memory_length, vocab_size=options.vocab_size)
        finally:
            worker.close()

    found: dict[str, Any] = {}
    with tqdm(total=len(OF_MEMORY) * (len(options.memory_rows) + 1), unit="process", leave=False) as bar:
        for name in OF_MEMORY:
            peaks = []
            for rows in options.memory_rows:
                bar.set_description(f"memory, {name}, {rows} rows")
                peaks.append(peak(name, rows))
                bar.update()
            found[name] = fit_memory(peaks, budget=budget)
            most = found[name]["most_rows"]
            if most and psutil.virtual_memory().available > 1.3 * budget:
                bar.set_description(f"memory, {name}, {most} rows")
                found[name]["bytes_of_most_rows"] = peak(name, most)["bytes"]
            bar.update()
    ours, theirs = (found[name]["most_rows"] for name in OF_MEMORY)
    return {"budget": budget, "contenders": found, "ratio": ours / theirs if theirs else None}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="measure all contenders")
    parser.add_argument("--isa", choices=sorted(ISAS), help="measure as a processor that has no more than this")
    parser.add_argument("--share", action="store_true", help="measure the share of matrix products")
    parser.add_argument("--memory", action="store_true", help="measure how many rows fit into memory")
    parser.add_argument("--data", help="text: a file or folder (wikitext-2 beside the repository, or built-in text)")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="only them"
    )
    for name, default, text in (
        ("rounds", 6, "times that each takes its turn"),
        ("steps", 3, "optimizer steps in a turn"),
        ("warmup", 3, "steps of each before the first round, not counted"),
        ("batch_size", 32, "rows in a batch"),
        ("length", 128, "tokens in a row"),
        ("hidden_size", 256, "width of the models"),
        ("layers", 6, "their layers"),
        ("heads", 4, "their attention heads"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        ("memory_length", 512, "tokens in a row of --memory"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{text} ({default})")
    parser.add_argument("--memory_rows", type=positive, nargs="+", default=[4, 8, 16], help="of --memory (4 8 16)")
    parser.add_argument("--memory_gib", type=float, default=4.0, help="memory that rows are to fit into (4)")
    parser.add_argument("--no_compile", action="store_true", help="nobody compiles")
    parser.add_argument("--quick", action="store_true", help="tiny models that nobody compiles, two rounds")
    parser.add_argument("--threads", type=positive, help="CPU threads (default: all cores)")
    parser.add_argument("--list", action="store_true", help="say who the contenders are, and end")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    if len(set(options.memory_rows)) < 2:
        parser.error("--memory_rows must be two or more numbers: a line is drawn through them")
    if options.hidden_size % (2 * options.heads):
        parser.error(f"--hidden_size {options.hidden_size} must be an even multiple of --heads {options.heads}")
    if not (options.cpu or options.isa or options.share or options.memory):
        options.cpu = options.share = options.memory = True
        options.isa = "AVX2" if platform.machine().lower() in ("x86_64", "amd64") else None
    return options


def list_contenders() -> None:
    """What each builds and how it trains."""
    for name, contender in CONTENDERS.items():
        compiled = {"blocks": ", blocks compiled", "whole": ", torch.compile"}.get(contender.compiles, "")
        precision = "bf16 where fast" if contender.takes_bf16 else "float32"
        print(f"{name}: {' '.join((contender.build.__doc__ or '').split())} {precision}{compiled}")


def main() -> None:
    """Parse, prepare, measure, report."""
    options = parse()
    if options.list:
        list_contenders()
        return
    settings = {name: value for name, value in vars(options).items() if name not in ("output_dir", "list", "data")}
    body: dict[str, Any] = {"settings": settings, "machine": describe_machine("torch", "transformers"), "speed": {}}
    with tempfile.TemporaryDirectory(prefix="side_by_side-") as name:
        folder = Path(name)
        body["data"] = prepare_rows(
            data=options.data,
            folder=folder,
            number=NUM_BATCHES,
            rows=options.batch_size,
            length=options.length,
            vocab_size=options.vocab_size,
        )
        sets = {"cpu": (list(CONTENDERS), dict[str, str]())} if options.cpu else {}
        if options.isa:
            sets[options.isa] = (OF_ISA, ISAS[options.isa])
        for title, (all_names, environment) in sets.items():
            names = [name for name in all_names if name in options.contenders]
            if names:
                body["speed"][title] = measure_speed(
                    names, options=options, folder=folder, environment=environment, title=title
                )
        if options.share:
            body["share"] = measure_share(options=options, folder=folder)
        if options.memory:
            body["memory"] = measure_memory(options=options, folder=folder)
    summarize(body)
    name = "{date}-{name}-quick" if options.quick else "{date}-{name}"
    write_report(name="side_by_side", output_dir=options.output_dir, body=body, to_markdown=to_markdown, pattern=name)


if __name__ == "__main__":
    from lacuna.common.command_line import exit_cleanly

    exit_cleanly(main)
