"""The tables of `ablations.py`."""

import statistics
from typing import Any

from variants import NOTHING


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and differences from the base with the same seeds.

    Args:
        rows: of each variant its parts at equal steps and at equal time.
    """
    bases = {row["study"]: _losses(row["equal_steps"]) for row in rows if row["variant"] == NOTHING}
    summarized = []
    for row in rows:
        facts = {name: value for name, value in row.items() if name not in ("equal_steps", "equal_time")}
        for name in ("equal_steps", "equal_time"):
            facts[name] = _compare(row[name], bases[row["study"]])
        parts = row["equal_steps"]
        results = [part["result"] for part in parts]
        facts |= {
            "parameters": results[0]["parameters"] if results else None,
            "tokens": results[0]["tokens"] if results else None,
            "commits": sorted({part["commit"] for part in parts + row["equal_time"]}),
        }
        summarized.append(facts)
    return summarized


def _losses(parts: list[dict[str, Any]]) -> dict[int, float]:
    return {part["settings"]["seed"]: part["result"]["loss"] for part in parts}


def _compare(parts: list[dict[str, Any]], base: dict[int, float]) -> dict[str, Any] | None:
    """Mean loss, and mean difference from the base over the seeds that both have; None without a part."""
    losses = _losses(parts)
    if not losses:
        return None
    differences = [loss - base[seed] for seed, loss in losses.items() if seed in base]
    return {
        "loss": statistics.fmean(losses.values()),
        "bits_per_byte": statistics.fmean(part["result"]["bits_per_byte"] for part in parts),
        "losses": losses,
        "difference": statistics.fmean(differences) if differences else None,
        "differences": differences,
    }


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = report["settings"]
    seeds = ", ".join(map(str, settings["seeds"]))
    lines = [
        f"# Ablations, {report['date']}",
        "",
        f"Runs of {settings['steps']:,} steps, seeds {seeds}; loss in nats on the held-out rows, less is better. "
        "Differences are from the base with the same seeds, smallest..largest where there are several.",
        "",
        f"At equal time: a variant whose step takes more than 3 % longer or shorter was trained once more, for the "
        f"steps that fit into the time of {settings['steps']:,} steps of the base; where the times are nearly equal, "
        'the run of equal steps is meant. "=" marks step times that are equal because the work is, "busy" those that '
        "were measured beside other programs. What has no entry was not measured yet.",
    ]
    for study, base in report["bases"].items():
        lines += ["", f"## {study}", "", _describe(base), ""]
        lines += _table([row for row in report["rows"] if row["study"] == study])
    commits = sorted({commit for row in report["rows"] for commit in row["commits"]})
    return [*lines, "", f"Runs were made at: {', '.join(commits) or 'no commit yet'}."]


def _describe(base: dict[str, Any]) -> str:
    options = {**base["config"], **base["training"], **base["objective"]}
    words = ", ".join(f"{name} {value}" for name, value in options.items())
    return f"Base: {base['family']} {base['size']}, {words}; documents are each {base['document_boundary']}."


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Base first, then from the best variant to the worst, at equal time where that is known."""
    lines = [
        "| variant | what is changed | parameters | tokens | loss at equal steps | difference | step time | steps in "
        "equal time | loss at equal time | difference |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=_rank):
        at_steps, at_time = row["equal_steps"], row["equal_time"]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f} x" if row["ratio_is_measured"] else "="
        ratio += " (busy)" if row["timed"] and not row["timed"]["quiet"] else ""
        cells = [
            row["variant"],
            row["changes"],
            f"{row['parameters'] / 1e6:.2f} M" if row["parameters"] else "",
            f"{row['tokens'] / 1e6:.2f} M" if row["tokens"] else "",
            *_cells(at_steps),
            ratio,
            f"{row['steps_in_time']:,}" if row["steps_in_time"] else "",
            *_cells(at_time),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    known = row["equal_time"] or row["equal_steps"]
    return row["variant"] != NOTHING, known["loss"] if known else float("inf")


def _cells(facts: dict[str, Any] | None) -> list[str]:
    """Loss and difference."""
    if facts is None:
        return ["", ""]
    if facts["difference"] is None:
        return [f"{facts['loss']:.4f}", ""]
    low, high = min(facts["differences"]), max(facts["differences"])
    spread = f" ({low:+.4f}..{high:+.4f})" if len(facts["differences"]) > 1 else ""
    return [f"{facts['loss']:.4f}", f"{facts['difference']:+.4f}{spread}"]
