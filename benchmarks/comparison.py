"""What the turns of benchmarks/side_by_side.py say: medians, ratios within rounds, goals, and tables for people."""

import itertools
import math
import statistics
from typing import Any

import numpy as np
from contenders import CONTENDERS, warm_up_seconds

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
LARGEST_PRODUCTS = 8  # in the table
GIB = 2**30


def compare(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """By how much ours is faster: tokens per second of each round, ours by theirs."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


def summarize_speed(measured: dict[str, Any], *, title: str) -> None:
    """Add medians and ratios to what was measured of one set of contenders, and `pairs`."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in measured["contenders"]}
    for turn in measured["turns"]:
        turns[turn["contender"]].append(turn)
    speeds = {name: [turn["tokens"] / turn["seconds"] for turn in mine[1:]] for name, mine in turns.items()}
    for name, facts in measured["contenders"].items():
        warm_up, *runs = turns[name]
        facts["tokens_per_second"] = statistics.median(speeds[name])
        facts["tokens_per_second_by_round"] = speeds[name]
        facts["warm_up_seconds"] = warm_up_seconds(warm_up, runs)
        facts["graphs_compiled_while_timed"] = sum(run["graphs_compiled"] for run in runs)
        waited = sum(run["cpu_seconds_waiting"] for run in runs)
        facts["cpu_share_while_waiting"] = waited / max(1e-9, sum_of_waits(turns[name]))
        reference = CONTENDERS[name].reference
        if name != reference and reference in speeds:
            facts |= compare(speeds[reference], speeds[name])
    measured["pairs"] = [
        {"ours": ours, "theirs": theirs, **compare(speeds[ours], speeds[theirs]), "goal": goals.get(title)}
        for (ours, theirs), goals in PAIRS.items()
        if ours in speeds and theirs in speeds
    ]


def sum_of_waits(turns: list[dict[str, Any]]) -> float:
    """Seconds between the turns of one contender."""
    return math.fsum(after["began"] - before["ended"] for before, after in itertools.pairwise(turns))


def fit_memory(peaks: list[dict[str, int]], *, budget: int) -> dict[str, Any]:
    """The line bytes = fixed + rows x each through the peaks, and the most rows that it puts into the budget."""
    each, fixed = np.polyfit([peak["rows"] for peak in peaks], [peak["bytes"] for peak in peaks], 1)
    return {
        "peaks": peaks,
        "bytes_fixed": float(fixed),
        "bytes_of_a_row": float(each),
        "most_rows": max(0, math.floor((budget - fixed) / each)) if each > 0 else 0,
    }


def goals_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, of what was measured."""
    found = []
    for title, measured in body["speed"].items():
        for pair in measured["pairs"]:
            if pair["goal"] is not None:
                theirs = measured["contenders"][pair["theirs"]]
                what = f"{pair['ours']} beside {pair['theirs']} ({theirs['precision']}), {title}"
                found.append({"what": what, "measured": pair["ratio"], "goal": pair["goal"], "unit": "times as fast"})
    if "share" in body:
        what = "share of the matrix products in a step"
        found.append({"what": what, "measured": 100 * body["share"]["share"], "goal": 100 * SHARE_GOAL, "unit": "%"})
    if body.get("memory", {}).get("ratio") is not None:
        what = f"rows that train in {body['memory']['budget'] / GIB:g} GiB, beside bert (float32)"
        found.append({"what": what, "measured": body["memory"]["ratio"], "goal": MEMORY_GOAL, "unit": "times as many"})
    return [{**goal, "reached": bool(goal["measured"] >= goal["goal"])} for goal in found]


def summarize(body: dict[str, Any]) -> None:
    """Add what follows from the measurements."""
    for title, measured in body["speed"].items():
        summarize_speed(measured, title=title)
    body["goals"] = goals_of(body)


def table(*rows: list[str]) -> list[str]:
    """The first row is the head."""
    head, *rest = rows
    return ["", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rest))]


def spread(facts: dict[str, Any]) -> str:
    """A ratio with its range, where there is one."""
    return f"{facts['ratio']:.2f} x ({facts['ratio_min']:.2f}..{facts['ratio_max']:.2f})" if "ratio" in facts else ""


def speed_table(title: str, measured: dict[str, Any]) -> list[str]:
    """All contenders of a set, and ours at the shape of theirs."""
    rows = [
        ["contender", "model", "precision", "compile", "parameters", "tokens/s (median)"]
        + ["ours is faster by (min..max over rounds)", "compile and warm-up, s"]
    ]
    for name, facts in measured["contenders"].items():
        rows.append(
            [f"`{name}`", facts["model"], facts["precision"], facts["compile"], f"{facts['parameters'] / 1e6:.2f} M"]
            + [f"{facts['tokens_per_second']:,.0f}", spread(facts), f"{facts['warm_up_seconds']:.1f}"]
        )
    waiting = max(facts["cpu_share_while_waiting"] for facts in measured["contenders"].values())
    heading = "as the machine is" if title == "cpu" else f"as on a processor that has no more than {title}"
    lines = ["", f"## Speed, {heading}", *table(*rows), ""]
    lines.append(
        '"Ours" is `lacuna` for encoders and `lacuna_clm` for decoders. While others worked, a process used at most '
        f"{waiting:.1%} of a core."
    )
    same = [f"{spread(pair)} beside `{pair['theirs']}`" for pair in measured["pairs"] if pair["ours"] == "lacuna_bert"]
    if same:
        lines += ["", f"With the shape and the weights of BertForMaskedLM, `lacuna_bert` is {', '.join(same)}."]
    return lines


def share_table(share: dict[str, Any]) -> list[str]:
    """The products that take longest, and all together."""
    rows = [["product", "shapes", "dtype", "calls in a step", "GFLOP", "ms", "TFLOP/s"]]
    for row in share["by_product"][:LARGEST_PRODUCTS]:
        shapes = ", ".join("x".join(map(str, shape)) for shape in row["shapes"])
        numbers = [str(row["count"]), f"{row['operations'] / 1e9:.2f}", f"{row['seconds'] * 1e3:.2f}"]
        rows.append([row["product"], shapes, row["dtype"], *numbers, f"{row['operations_per_second'] / 1e12:.2f}"])
    return [
        "",
        "## Share of the matrix products in our step",
        "",
        f"{share['products']} products of {share['operations'] / 1e9:.1f} GFLOP (torch's profiler counts "
        f"{share['operations_profiled'] / 1e9:.1f} in the step that is timed) would take "
        f"{share['seconds_alone'] * 1e3:.1f} ms alone, at {share['operations_per_second'] / 1e12:.2f} TFLOP/s; "
        f"a step takes {share['seconds_step'] * 1e3:.1f} ms: {share['share']:.1%} "
        f"({share['share_min']:.1%}..{share['share_max']:.1%} over rounds). Products inside fused attention kernels "
        "are not among them.",
        *table(*rows),
    ]


def memory_table(memory: dict[str, Any], *, length: int) -> list[str]:
    """The lines through the peaks and what they say."""
    budget = f"{memory['budget'] / GIB:g} GiB"
    rows = [["contender", "rows: peak, GiB", "GiB a row", "fixed, GiB", f"most rows in {budget}", "its peak, GiB"]]
    for name, facts in memory["contenders"].items():
        peaks = ", ".join(f"{peak['rows']}: {peak['bytes'] / GIB:.2f}" for peak in facts["peaks"])
        checked = facts.get("bytes_of_most_rows")
        rows.append(
            [f"`{name}`", peaks, f"{facts['bytes_of_a_row'] / GIB:.4f}", f"{facts['bytes_fixed'] / GIB:.2f}"]
            + [str(facts["most_rows"]), "" if checked is None else f"{checked / GIB:.2f}"]
        )
    return [
        "",
        f"## Memory, rows of {length} tokens",
        "",
        "Peak of two steps (forward, backward, AdamW) in a fresh process, less what the process held with the model "
        "built; a line through the peaks gives the most rows, and the last column is the peak measured with so many. "
        "Nobody compiles here.",
        *table(*rows),
    ]


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people: goals first."""
    settings, data = report["settings"], report["data"]
    lines = [
        f"# Side by side, {report['date']}",
        "",
        f"{settings['batch_size']} rows of {settings['length']} tokens of {data['text']}, vocabulary "
        f"{data['vocabulary']:,}, 15 % masked, {settings['hidden_size']} wide, {settings['layers']} layers, "
        f"{settings['heads']} heads, fused AdamW; {settings['rounds']} rounds of {settings['steps']} steps, in turn, "
        f"each in a process of its own, after {settings['warmup']} steps of warm-up.",
    ]
    if report["goals"]:
        rows = [["goal", "measured", "to be", "reached"]]
        for goal in report["goals"]:
            unit, yes = goal["unit"], "yes" if goal["reached"] else "no"
            rows.append([goal["what"], f"{goal['measured']:.2f} {unit}", f"{goal['goal']:g} {unit}", yes])
        lines += table(*rows)
    for title, measured in report["speed"].items():
        lines += speed_table(title, measured)
    if "share" in report:
        lines += share_table(report["share"])
    if "memory" in report:
        lines += memory_table(report["memory"], length=settings["memory_length"])
    return lines
