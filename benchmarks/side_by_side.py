"""Training tokens per second of our models beside transformers' own, with the goals that they are to reach.

    python benchmarks/side_by_side.py --quick                                   # tiny models: does it run? a minute
    python benchmarks/side_by_side.py                                           # what `make bench` runs, ten minutes
    python benchmarks/side_by_side.py --cpu --contenders lacuna modernbert      # two of them, as the machine is
    python benchmarks/side_by_side.py --isa AVX2 --rounds 12                    # as a processor without bf16 would
    python benchmarks/side_by_side.py --share --memory                          # the last two parts alone

All models have one shape (256 wide, 6 layers, 4 heads, 8,192 tokens) and learn from the same rows of 128 tokens, cut
from text as transformers' run_mlm does it, 15 % of the tokens chosen. A step is forward, backward and fused AdamW;
making batches, compiling and warming up are not in the figures. Each runs in a process of its own, and they take turns
strictly. Ours has glibc keep freed memory and compiles its blocks, as our training loop does; the others run as their
users get them. `--list` says who they are.

- `--cpu`: all contenders, as the machine is.
- `--isa AVX2`: ours, and BertForMaskedLM, as on a processor that has no more than AVX2: all of it in float32.
- `--share`: which part of our step its matrix products would take if they were computed alone (products.py).
- `--memory`: how many rows of 512 tokens fit into --memory_gib. A fresh process for each of --memory_rows takes two
  steps; what its peak adds to the size of the built model is fitted with a line, and the line is asked for the most
  rows. One more process takes two steps of that many.

Without any of these four, all are measured.
"""

import argparse
import contextlib
import math
import os
import platform
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from clock import apart, compare, take_turns, times
from contenders import DROPOUT, IGNORED, SIDE_BY_SIDE, Shape, ask_here, build_here
from held_out import make_collator, mask_rows
from kept import short_hash
from products import measure_share
from report import DATA, Report, make_parser, table
from torch import Tensor

from lacuna.corpus import TextArguments, open_text
from lacuna.tokenization import load_tokenizer, train_once

NUM_BATCHES = 8
CACHE = Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna"))
TEXT = DATA / "wikitext-2" / "train.txt"
GIB = 2**30
OF_ISA = ["lacuna", "lacuna_bert", "bert"]
OF_MEMORY = ["lacuna_eager", "bert"]
# oneDNN multiplies bf16, MKL float32, and torch (with what it compiles) does the rest: all must believe the same.
ISAS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    **{
        isa: {"ONEDNN_MAX_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": "avx512"}
        for isa in ("AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX")
    },
}
# Ours, theirs: by how much ours is to be faster, for each set of contenders that says so.
PAIRS: dict[tuple[str, str], dict[str, float]] = {
    ("lacuna", "bert"): {"cpu": 6.0, "AVX2": 2.0},
    ("lacuna", "bert_bf16_compiled"): {"cpu": 2.0},
    ("lacuna", "modernbert"): {"cpu": 1.3},
    ("lacuna", "lacuna_eager"): {},
    ("lacuna_bert", "bert"): {},
    ("lacuna_bert", "bert_bf16_compiled"): {},
    ("lacuna_clm", "gpt2"): {},
    ("lacuna_clm", "gpt2_bf16_compiled"): {},
}
SHARE_GOAL, MEMORY_GOAL = 0.55, 3.0
QUICK: dict[str, Any] = {
    **{"rounds": 2, "steps": 1, "warmup": 1, "batch_size": 4, "length": 32, "hidden_size": 32, "layers": 2},
    **{"heads": 2, "vocab_size": 512, "memory_rows": [1, 3], "memory_length": 32, "memory_gib": 0.05},
    "no_compile": True,
}


def make_batches(options: argparse.Namespace) -> tuple[dict[bool, list[dict[str, Tensor]]], dict[str, Any]]:
    """Batches for encoders and decoders (by `is_decoder`), each NUM_BATCHES of [rows, length]; and what they are of.

    As run_mlm does it: [CLS] line [SEP] [CLS] line ..., cut into rows; 15 % of the text's tokens are chosen, of which
    80 % become [MASK], 10 % any token, 10 % stay. A decoder learns every token.
    """
    source = options.data or (str(TEXT) if TEXT.exists() else None)
    text = open_text(TextArguments(data=[source] if source else []))
    path = CACHE / "tokenizers" / short_hash(text.fingerprint, "side_by_side", options.vocab_size)
    train_once(documents=text.texts(), output_dir=path, vocab_size=options.vocab_size)
    tokenizer = load_tokenizer(path)
    wanted = NUM_BATCHES * options.batch_size * options.length
    ids: list[int] = []
    for line in (line for document in text.texts() for line in document.splitlines() if line.strip()):
        if len(ids) >= wanted:
            break
        ids += tokenizer(line)["input_ids"]
    size = (NUM_BATCHES * options.batch_size, options.length)
    tokens = torch.from_numpy(np.resize(np.array(ids, dtype=np.int64), size))  # a short text is read again
    special = torch.zeros(len(tokenizer), dtype=torch.bool)
    special[tokenizer.all_special_ids] = True
    collator = make_collator(tokenizer, torch.Generator().manual_seed(0))
    masked, labels = mask_rows(tokens, collator=collator, special=special)
    facts = {
        "text": Path(source).name if source else "the documentation inside the Python interpreter",
        "tokens": min(len(ids), wanted),
        "vocabulary": len(tokenizer),
        "targets": int((labels != IGNORED).sum()),
        "fingerprint": short_hash(tokens.numpy().tobytes(), masked.numpy().tobytes()),
    }
    batches = {
        is_decoder: [
            {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}
            for x, y in zip(inputs.split(options.batch_size), wanted.split(options.batch_size), strict=True)
        ]
        for is_decoder, inputs, wanted in ((False, masked, labels), (True, tokens, tokens))
    }
    return batches, facts


def model_of(options: argparse.Namespace, *, positions: int) -> dict[str, Any]:
    """What all contenders are built with."""
    shape = Shape(options.hidden_size, options.layers, options.heads, options.vocab_size, max(positions, 512))
    return {
        "shape": shape,
        "dropout": DROPOUT["side_by_side"],
        "compiles": not options.no_compile,
        "threads": options.threads,
    }


def check_same_work(contenders: dict[str, dict[str, Any]]) -> None:
    """First losses must be numbers, and equal where the weights are.

    Raises:
        RuntimeError: they are not.
    """
    losses = {name: facts["first_loss"] for name, facts in contenders.items()}
    for name, loss in losses.items():
        others = [other for other in losses if SIDE_BY_SIDE[other].weights == SIDE_BY_SIDE[name].weights]
        if not np.isfinite(loss) or any(abs(loss - losses[other]) > 1e-3 * loss for other in others):
            raise RuntimeError(f"{name}: with equal weights losses must be equal, and they are {losses}")


class Shop:
    """The batches, and the processes in which contenders work."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options, self.folder = options, folder
        self.batches, self.facts = make_batches(options)

    def start(self, stack: contextlib.ExitStack, name: str, title: str, environment: dict[str, str]) -> Any:
        """A process for this contender; those of one name and title find what the first of them compiled."""
        # Code that an earlier command compiled would hide how long compiling takes.
        inductor = os.path.join(self.folder, f"{title}-{name}")
        return stack.enter_context(apart(**environment, TORCHINDUCTOR_CACHE_DIR=inductor))

    def speed(self, names: list[str], *, title: str, environment: dict[str, str]) -> dict[str, Any]:
        """Let them take turns; what each of them is, its warm-up, and all turns in their order."""
        model = model_of(self.options, positions=self.options.length)
        with contextlib.ExitStack() as stack:
            calls = {name: self.start(stack, name, title, environment) for name in names}
            contenders = {
                name: call(build_here, name, batches=self.batches[SIDE_BY_SIDE[name].is_decoder], **model)
                for name, call in calls.items()
            }
            check_same_work(contenders)
            runs = {
                steps: {name: partial(call, ask_here, "run", steps=steps) for name, call in calls.items()}
                for steps in (self.options.warmup, self.options.steps)
            }
            warm = take_turns(runs[self.options.warmup], rounds=1, title=f"{title}, warm-up, ")
            found = take_turns(runs[self.options.steps], rounds=self.options.rounds, title=f"{title}, ")
        for name, facts in contenders.items():
            facts |= {"warm_up": warm[name][0], "turns": found[name]}
        return summarize(contenders, title=title)

    def share(self) -> dict[str, Any]:
        """See products.py."""
        options = self.options
        with contextlib.ExitStack() as stack:
            call = self.start(stack, "lacuna", "cpu", {})
            facts = call(
                build_here, "lacuna", batches=self.batches[False], **model_of(options, positions=options.length)
            )
            call(ask_here, "run", steps=options.warmup)
            return {**facts, **call(ask_here, measure_share, rounds=options.rounds, steps=options.steps)}

    def peak(self, name: str, rows: int) -> int:
        """Bytes that two steps of so many rows take in a fresh process."""
        options = self.options
        model = {**model_of(options, positions=options.memory_length), "compiles": False}
        with contextlib.ExitStack() as stack:
            call = self.start(stack, name, "memory", {})
            call(build_here, name, batches=[], **model)
            size = {"rows": rows, "length": options.memory_length, "vocab_size": options.vocab_size}
            return call(ask_here, "peak_memory", **size)

    def memory(self) -> dict[str, Any]:
        """For each of the two: peaks, the line through them, the most rows in the budget, and the peak with them."""
        budget, found = round(self.options.memory_gib * GIB), {}
        for name in OF_MEMORY:
            peaks = [{"rows": rows, "bytes": self.peak(name, rows)} for rows in self.options.memory_rows]
            found[name] = fit_memory(peaks, budget=budget)
            most = found[name]["most_rows"]
            if most and psutil.virtual_memory().available > 1.3 * budget:
                found[name]["bytes_of_most_rows"] = self.peak(name, most)
        ours, theirs = (found[name]["most_rows"] for name in OF_MEMORY)
        return {"budget": budget, "contenders": found, "ratio": ours / theirs if theirs else None}


def summarize(contenders: dict[str, dict[str, Any]], *, title: str) -> dict[str, Any]:
    """Medians and ratios of what was measured of one set of contenders, and `pairs` with their goals."""
    speeds = {name: [turn["tokens_per_second"] for turn in facts["turns"]] for name, facts in contenders.items()}
    for name, facts in contenders.items():
        warm, turns = facts["warm_up"], facts["turns"]
        usual = statistics.median(turn["seconds"] / turn["steps"] for turn in turns)
        facts |= {
            "tokens_per_second": statistics.median(speeds[name]),
            # What the steps of the warm-up took beyond as many later ones: compiling, and getting warm.
            "warm_up_seconds": max(0.0, warm["seconds"] - usual * warm["steps"]),
        }
        reference = "lacuna_clm" if SIDE_BY_SIDE[name].is_decoder else "lacuna"
        if name != reference and reference in speeds:
            facts |= compare(speeds[reference], speeds[name])
    pairs = [
        {"ours": ours, "theirs": theirs, **compare(speeds[ours], speeds[theirs]), "goal": goals.get(title)}
        for (ours, theirs), goals in PAIRS.items()
        if ours in speeds and theirs in speeds
    ]
    return {"contenders": contenders, "pairs": pairs}


def fit_memory(peaks: list[dict[str, int]], *, budget: int) -> dict[str, Any]:
    """The line bytes = fixed + rows x each through the peaks, and the most rows that it puts into the budget."""
    each, fixed = np.polyfit([peak["rows"] for peak in peaks], [peak["bytes"] for peak in peaks], 1)
    most = max(0, math.floor((budget - fixed) / each)) if each > 0 else 0
    return {"peaks": peaks, "bytes_fixed": float(fixed), "bytes_of_a_row": float(each), "most_rows": most}


def goals_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, of what was measured."""
    found: list[tuple[str, float, float, str]] = []
    for title, measured in body["speed"].items():
        for pair in measured["pairs"]:
            if pair["goal"] is not None:
                precision = measured["contenders"][pair["theirs"]]["precision"]
                what = f"{pair['ours']} beside {pair['theirs']} ({precision}), {title}"
                found.append((what, pair["ratio"], pair["goal"], "times as fast"))
    if "share" in body:
        found.append(("share of the matrix products in a step", 100 * body["share"]["share"], 100 * SHARE_GOAL, "%"))
    if body.get("memory", {}).get("ratio") is not None:
        what = f"rows that train in {body['memory']['budget'] / GIB:g} GiB, beside bert (float32)"
        found.append((what, body["memory"]["ratio"], MEMORY_GOAL, "times as many"))
    names = ("what", "measured", "goal", "unit")
    return [
        {**dict(zip(names, goal, strict=True)), "reached": "yes" if goal[1] >= goal[2] else "no"} for goal in found
    ]


def speed_lines(title: str, measured: dict[str, Any]) -> list[str]:
    """All contenders of a set, and ours at the shape of theirs."""
    names = ("model", "precision", "compile", "parameters", "tokens_per_second")
    rows = [
        {
            "contender": f"`{name}`",
            **{fact: facts[fact] for fact in names},
            "ours is faster by (min..max over rounds)": times(facts),
            "compile and warm-up, s": facts["warm_up_seconds"],
        }
        for name, facts in measured["contenders"].items()
    ]
    same = [f"{times(pair)} beside `{pair['theirs']}`" for pair in measured["pairs"] if pair["ours"] == "lacuna_bert"]
    heading = "as the machine is" if title == "cpu" else f"as on a processor that has no more than {title}"
    lines = [f"## Speed, {heading}", "", *table(rows)]
    lines += ['"Ours" is `lacuna` for encoders and `lacuna_clm` for decoders.', ""]
    if same:
        lines += [f"With the shape and the weights of BertForMaskedLM, `lacuna_bert` is {', '.join(same)}.", ""]
    return lines


def share_lines(share: dict[str, Any], *, largest: int = 8) -> list[str]:
    """The products that take longest, and all together."""
    rows = [
        {
            "product": f"{row['product']} of {', '.join('x'.join(map(str, shape)) for shape in row['shapes'])}",
            "dtype": row["dtype"],
            "calls in a step": row["count"],
            "GFLOP": row["operations"] / 1e9,
            "ms": row["seconds"] * 1e3,
            "TFLOP/s": row["operations"] / row["seconds"] / 1e12,
        }
        for row in share["by_product"][:largest]
    ]
    return [
        "## Share of the matrix products in our step",
        "",
        f"{share['products']} products of {share['operations'] / 1e9:.1f} GFLOP (torch's profiler counts "
        f"{share['operations_profiled'] / 1e9:.1f} in the step that is timed) would take "
        f"{share['seconds_alone'] * 1e3:.1f} ms alone, at {share['operations'] / share['seconds_alone'] / 1e12:.2f} "
        f"TFLOP/s; a step takes {share['seconds_step'] * 1e3:.1f} ms: {share['share']:.1%} "
        f"({min(share['shares']):.1%}..{max(share['shares']):.1%} over rounds). Products inside fused attention "
        "kernels are not among them.",
        "",
        *table(rows),
    ]


def memory_lines(memory: dict[str, Any], *, length: int) -> list[str]:
    """The lines through the peaks and what they say."""
    rows = [
        {
            "contender": f"`{name}`",
            "rows: peak, GiB": ", ".join(f"{peak['rows']}: {peak['bytes'] / GIB:.2f}" for peak in facts["peaks"]),
            "GiB a row": facts["bytes_of_a_row"] / GIB,
            "fixed, GiB": facts["bytes_fixed"] / GIB,
            "most rows in the budget": facts["most_rows"],
            "bytes of most rows": facts.get("bytes_of_most_rows"),
        }
        for name, facts in memory["contenders"].items()
    ]
    return [
        f"## Memory, rows of {length} tokens in {memory['budget'] / GIB:g} GiB",
        "",
        "Peak of two steps (forward, backward, AdamW) in a fresh process, less what the process held with the model "
        "built; a line through the peaks gives the most rows, and the last column is the peak measured with so many. "
        "Nobody compiles here.",
        "",
        *table(rows),
    ]


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people: goals first."""
    settings, data = body["settings"], body["data"]
    lines = [
        f"{settings['batch_size']} rows of {settings['length']} tokens of {data['text']}, vocabulary "
        f"{data['vocabulary']:,}, 15 % masked, {settings['hidden_size']} wide, {settings['layers']} layers, "
        f"{settings['heads']} heads, fused AdamW; {settings['rounds']} rounds of {settings['steps']} steps, in turn, "
        f"each in a process of its own, after {settings['warmup']} steps of warm-up.",
        "",
    ]
    lines += table(body["goals"]) if body["goals"] else []
    for title, measured in body["speed"].items():
        lines += speed_lines(title, measured)
    if "share" in body:
        lines += share_lines(body["share"])
    if "memory" in body:
        lines += memory_lines(body["memory"], length=settings["memory_length"])
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = make_parser(
        __doc__,
        ("cpu", False, "measure all contenders"),
        ("share", False, "measure the share of matrix products"),
        ("memory", False, "measure how many rows fit into memory"),
        ("data", str, "text: a file or folder (wikitext-2 beside the repository, or built-in text)"),
        ("contenders", tuple(SIDE_BY_SIDE), "only some of them"),
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
        ("memory_rows", [4, 8, 16], "of --memory"),
        ("memory_gib", 4.0, "memory that rows are to fit into"),
        ("no_compile", False, "nobody compiles"),
        ("quick", False, "tiny models that nobody compiles, two rounds"),
        ("threads", int, "CPU threads (default: all cores)"),
        ("list", False, "say who the contenders are, and end"),
    )
    parser.add_argument("--isa", choices=sorted(ISAS), help="measure as a processor that has no more than this")
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
    for name, contender in SIDE_BY_SIDE.items():
        compiled = {"blocks": ", blocks compiled", "whole": ", torch.compile"}.get(contender.compiles, "")
        options = getattr(contender.build, "keywords", "")
        built = " ".join((getattr(contender.build, "func", contender.build).__doc__ or "").split())
        print(f"{name}: {built} {options} {'bf16 where fast' if contender.bf16 else 'float32'}{compiled}")


def main() -> None:
    """Prepare, measure, report."""
    options = parse()
    if options.list:
        list_contenders()
        return
    report = Report(__file__, options, "torch", "transformers")
    body = report.body
    with tempfile.TemporaryDirectory(prefix="side_by_side-") as folder:
        shop = Shop(options, folder)
        body |= {"data": shop.facts, "speed": {}}
        sets: dict[str, tuple[list[str], dict[str, str]]] = {"cpu": (list(SIDE_BY_SIDE), {})} if options.cpu else {}
        if options.isa:
            sets[options.isa] = OF_ISA, ISAS[options.isa]
        for title, (every, environment) in sets.items():
            if names := [name for name in every if name in options.contenders]:
                body["speed"][title] = shop.speed(names, title=title, environment=environment)
        if options.share:
            body["share"] = shop.share()
        if options.memory:
            body["memory"] = shop.memory()
    body["goals"] = goals_of(body)
    report.write("Side by side", to_markdown(body), mark="-quick" if options.quick else "")


if __name__ == "__main__":
    from lacuna.common.command_line import exit_cleanly

    exit_cleanly(main)
