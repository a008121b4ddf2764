"""Training tokens per second and memory of our models beside transformers' own, with the goals to reach.

    python benchmarks/side_by_side.py --quick                                   # tiny models: does it run? a minute
    python benchmarks/side_by_side.py                                           # what `make bench` runs, ten minutes
    python benchmarks/side_by_side.py --contenders lacuna modernbert            # two of them
    python benchmarks/side_by_side.py --parts AVX2 --rounds 12                  # as a processor without bf16 would

All models have one shape (256 wide, 6 layers, 4 heads, 8,192 tokens) and learn from the same rows of 128 tokens, cut
from text as transformers' run_mlm.py does it, 15 % of the tokens masked. A step is forward, backward and fused AdamW;
making batches, compiling and warming up are not in its time. All have the same dropout. Each has a process of its own,
and they take turns. `SIDE_BY_SIDE` in contenders.py says how they train. Memory is the peak of the process, less what
it held before the model. The second part is as on a processor that has no more than AVX2, all in float32.

`products alone`: how many times as fast ours could be at the most, if its matrix products ran at the machine's peak,
which is measured, and all else took no time.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import SIDE_BY_SIDE, Shape, build_here, run_here
from harness import DATA, Report, apart, compare, make_parser, short_hash, table, take_turns
from held_out import make_masker
from torch import Tensor

from lacuna.common.command_line import exit_cleanly
from lacuna.common.files import cache_folder
from lacuna.corpus import TextArguments, open_text
from lacuna.tokenization import load_tokenizer, train_once

NUM_BATCHES, ROWS, WARM_UP = 8, 32, 3  # steps of each contender before the first round, not counted
SHAPE, QUICK = Shape(256, 6, 4, 8192, 128), Shape(32, 2, 2, 512, 32)
TEXT = DATA / "wikitext-2" / "train.txt"
PARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "cpu": (list(SIDE_BY_SIDE), {}),
    # oneDNN multiplies bf16, MKL float32, and torch (with what it compiles) does the rest: all must believe the same.
    "AVX2": (
        ["lacuna", "lacuna_bert", "bert"],
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    ),
}
"""Contenders, and environment variables of their processes."""
# Ours, theirs: how many times as fast ours is to be, in each part that has a goal.
PAIRS: dict[tuple[str, str], dict[str, float]] = {
    ("lacuna", "bert"): {"cpu": 5.0, "AVX2": 2.0},
    ("lacuna", "bert_compiled"): {"cpu": 2.0},
    ("lacuna", "modernbert"): {"cpu": 3.0},
    ("lacuna", "modernbert_compiled"): {},
    ("lacuna_bert", "bert"): {},
    ("lacuna_clm", "gpt2"): {},
    ("lacuna_clm", "gpt2_compiled"): {},
    ("lacuna_clm", "qwen3_compiled"): {},
}


def make_batches(data: str | None, shape: Shape) -> tuple[dict[bool, list[dict[str, Tensor]]], dict[str, Any]]:
    """Batches for encoders and decoders (by `is_decoder`), each NUM_BATCHES of [rows, length]; and their text."""
    source = data or (str(TEXT) if TEXT.exists() else None)
    text = open_text(TextArguments(data=[source] if source else []))
    path = cache_folder() / "tokenizers" / short_hash(text.fingerprint, "side_by_side", shape.vocab_size)
    train_once(documents=text.texts(), output_dir=path, vocab_size=shape.vocab_size)
    tokenizer = load_tokenizer(path)
    size = (NUM_BATCHES * ROWS, shape.positions)
    lines = (line for document in text.texts() for line in document.splitlines() if line.strip())
    ids = list(islice((token for line in lines for token in tokenizer(line)["input_ids"]), size[0] * size[1]))
    tokens = torch.from_numpy(np.resize(np.array(ids, dtype=np.int64), size))  # a short text is read again
    rows = {False: make_masker(tokenizer, torch.Generator().manual_seed(0))(tokens), True: (tokens, tokens)}
    batches = {
        is_decoder: [{"input_ids": x, "labels": y} for x, y in zip(*(part.split(ROWS) for part in pair), strict=True)]
        for is_decoder, pair in rows.items()
    }
    name = Path(source).name if source else "the documentation inside the Python interpreter"
    return batches, {"text": name, "tokens": len(ids), "vocabulary": len(tokenizer)}


def check_same_work(contenders: dict[str, dict[str, Any]]) -> None:
    """RuntimeError unless first losses are numbers, and equal where the weights are."""
    losses = {name: facts["first_loss"] for name, facts in contenders.items()}
    for name, loss in losses.items():
        others = [other for other in losses if SIDE_BY_SIDE[other].weights == SIDE_BY_SIDE[name].weights]
        if not np.isfinite(loss) or any(abs(loss - losses[other]) > 1e-3 * loss for other in others):
            raise RuntimeError(f"{name}: with equal weights losses must be equal, and they are {losses}")


def measure(
    title: str,
    names: list[str],
    environment: dict[str, str],
    shape: Shape,
    batches: dict[bool, list[dict[str, Tensor]]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Let contenders take turns, each in a process with these environment variables: facts, turns and ratios."""
    model = {"shape": shape, "dropout": options.dropout, "compiles": not options.quick}
    with contextlib.ExitStack() as stack:
        # Code that an earlier command compiled would hide how long compiling takes.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="side_by_side-"))
        calls = {
            name: stack.enter_context(apart(**environment, TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, name)))
            for name in names
        }
        contenders = {
            name: call(build_here, name, batches[SIDE_BY_SIDE[name].is_decoder], options.threads, **model)
            for name, call in calls.items()
        }
        check_same_work(contenders)
        runs = lambda steps: {name: partial(call, run_here, steps) for name, call in calls.items()}  # noqa: E731
        warm = take_turns(runs(WARM_UP), rounds=1, title=f"{title}, warm-up,")
        found = take_turns(runs(options.steps), rounds=options.rounds, title=f"{title},")
    for name, facts in contenders.items():
        turns, (first,) = found[name], warm[name]
        usual = statistics.median(turn["seconds"] / turn["steps"] for turn in turns)
        facts["tokens_per_second"] = statistics.median(turn["tokens_per_second"] for turn in turns)
        facts["peak_memory"] = max(turn["peak_memory"] for turn in turns)
        # What the steps of the warm-up took beyond as many later ones: compiling, and getting warm.
        facts["warm_up_seconds"] = max(0.0, first["seconds"] - usual * first["steps"])
        facts |= {"warm_up": first, "turns": turns}
    pairs = []
    for (ours, theirs), goals in PAIRS.items():
        if ours in found and theirs in found:
            ratio = compare(*([turn["tokens_per_second"] for turn in found[name]] for name in (ours, theirs)))
            goal = goals.get(title)
            reached = goal and ("yes" if ratio["lacuna_faster_by"] >= goal else "no")
            memory = contenders[theirs]["peak_memory"] / contenders[ours]["peak_memory"]
            most = contenders[ours]["products_alone"] / contenders[theirs]["tokens_per_second"]
            pair = {"ours": ours, "theirs": theirs, **ratio, "goal": goal, "reached": reached}
            pairs.append({**pair, "products alone": most, "their memory / ours": memory})
    return {"contenders": contenders, "pairs": pairs}


def to_markdown(body: dict[str, Any]) -> list[str]:
    settings, shape = body["settings"], body["shape"]
    lines = [
        f"{ROWS} rows of {shape['positions']} tokens of {body['data']['text']}, vocabulary {shape['vocab_size']:,}, "
        f"{shape['hidden_size']} wide, {shape['layers']} layers, {shape['heads']} heads, dropout "
        f"{settings['dropout']:g}; {settings['rounds']} rounds of {settings['steps']} steps, {WARM_UP} before them."
    ]
    for title, measured in body["speed"].items():
        names = ("model", "precision", "compile", "parameters", "tokens_per_second")
        rows = []
        for name, facts in measured["contenders"].items():
            row = {"contender": name, **{fact: facts[fact] for fact in names}}
            row |= {"peak memory, MB": facts["peak_memory"] / 1e6, "compile and warm-up, s": facts["warm_up_seconds"]}
            rows.append(row)
        machine = "as the machine is" if title == "cpu" else f"as on a processor that has no more than {title}"
        lines += ["", f"## Speed, {machine}", "", *table(measured["pairs"]), *table(rows)]
    return lines


def main() -> None:
    parser = make_parser(
        __doc__,
        ("parts", tuple(PARTS), "one of them"),
        ("data", str, "text: a file or folder (wikitext-2 beside the repository, or built-in text)"),
        ("contenders", tuple(SIDE_BY_SIDE), "only some of them"),
        ("rounds", 6, "turns of each"),
        ("steps", 3, "optimizer steps in a turn"),
        ("dropout", 0.0, "of all models"),
        ("quick", False, "tiny models, nothing compiled, two rounds"),
        ("threads", int, "CPU threads (all cores)"),
    )
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(rounds=2, steps=1, mark="quick")
    options = parser.parse_args()
    report, shape = Report(options), QUICK if options.quick else SHAPE
    batches, report.body["data"] = make_batches(options.data, shape)
    report.body["shape"] = asdict(shape)
    report.body["speed"] = speed = {}
    for title, (every, environment) in PARTS.items():
        names = [name for name in every if name in options.contenders]
        if names and title in options.parts:
            speed[title] = measure(title, names, environment, shape, batches, options)
    report.write("Side by side", to_markdown(report.body))


if __name__ == "__main__":
    exit_cleanly(main)
