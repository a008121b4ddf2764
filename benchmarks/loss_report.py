"""What `time_to_loss.py` found: a summary, tables for people and a picture."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parts import Budget, finite

from lacuna.training import curves

GOALS = {"bert": 15.0, "modernbert": 3.0, "gpt2": 6.0}
"""How many times as fast as each peer our recipe is meant to reach the peer's loss."""
COLOURS = {
    "bert": curves.VERMILION,
    "modernbert": curves.ORANGE,
    "gpt2": curves.PURPLE,
    "lacuna-mlm": curves.BLUE,
    "lacuna-clm": curves.BLUE,
}
TITLES = {"masked": "masked tokens", "causal": "next tokens"}
_KEPT: tuple[str, ...] = (
    "loss",
    "bits_per_byte",
    "accuracy",
    "steps",
    "tokens",
    "seconds",
    "parameters",
    "curve",
    "precision",
)
_KEPT += ("first_step_seconds", "around_seconds", "compile_seconds", "warmup_seconds", "across_lines")


def summarize(*, found: dict[str, list[dict[str, Any]]], kinds: Mapping[str, str], ours: list[str]) -> dict[str, Any]:
    """The best run of each peer with its largest budget, all of ours, and how much faster these are.

    Args:
        found: parts by contender.
        kinds: of contenders, "masked" or "causal".
        ours: names of contenders that are ours.
    """
    peers = {name: _peer(parts) for name, parts in found.items() if name not in ours and parts}
    runs = {name: [_run(part) for part in found[name]] for name in ours if found.get(name)}
    for of_one in runs.values():
        of_one.sort(key=lambda run: run["minutes"])
    compared = {
        name: _compare(peer, next((runs[own] for own in runs if kinds[own] == kinds[name]), []), GOALS.get(name))
        for name, peer in peers.items()
    }
    return {"peers": peers, "ours": runs, "compared": compared, "kinds": kinds}


def _run(part: dict[str, Any]) -> dict[str, Any]:
    result = {name: part["result"][name] for name in _KEPT if name in part["result"]}
    about = {name: part[name] for name in ("quiet", "busy_cores_before", "busy_cores_during", "commit", "made")}
    return {
        **result,
        "minutes": result["seconds"] / 60,
        "budget": str(Budget(**part["settings"]["budget"])),
        "by_clock": bool(part["settings"]["budget"]["minutes"]),
        **about,
    }


def _peer(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The best of the runs with the largest budget (by the clock if there are such), and what all rates came to."""
    budgets = [Budget(**part["settings"]["budget"]) for part in parts]
    largest = max(budgets, key=lambda budget: (bool(budget.minutes), budget.size))
    best = min(
        (part for part, budget in zip(parts, budgets, strict=True) if budget == largest),
        key=lambda part: finite(part["result"]["loss"]),
    )
    tried = [
        {
            "budget": str(budget),
            "learning_rate": part["settings"]["learning_rate"],
            "loss": part["result"]["loss"],
            "steps": part["result"]["steps"],
        }
        for part, budget in sorted(zip(parts, budgets, strict=True), key=lambda pair: (pair[1].size, pair[0]["name"]))
    ]
    return {**_run(best), "learning_rate": best["settings"]["learning_rate"], "tried": tried}


def _compare(peer: dict[str, Any], runs: list[dict[str, Any]], goal: float | None) -> dict[str, Any]:
    """The shortest of our runs that is at or below a peer's loss, and the ratio of the minutes of both."""
    reached = next((run for run in runs if finite(run["loss"]) <= finite(peer["loss"])), None)
    best = min((finite(run["loss"]) for run in runs), default=None)
    facts: dict[str, Any] = {"goal": goal, "their_loss": peer["loss"], "our_best_loss": best, "reached_by": None}
    if reached is not None:
        ratio = peer["minutes"] / max(reached["minutes"], 1e-9)
        facts |= {"reached_by": reached["budget"], "our_loss": reached["loss"], "our_minutes": reached["minutes"]}
        facts |= {"ratio": ratio, "met": goal is not None and ratio >= goal}
    return facts


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    summary, settings = report["summary"], report["settings"]
    rows = {kind: facts["rows"] for kind, facts in report["held_out"].items()}
    scored = ", ".join(f"{count:,} rows of {TITLES[kind]}" for kind, count in rows.items())
    lines = [
        f"# Time to a held-out loss, {report['date']}",
        "",
        f"Held out: {scored}, {settings['length']} tokens each; masked ones under one mask for all (15 %, 80/10/10). "
        "Minutes are those of training steps; scoring, imports and tokenizing are not in them. Peers: batches of "
        f"{settings['batch_size']}, {report['loop']['optimizer']}, {report['loop']['schedule']}.",
        "",
        *_peer_lines(summary["peers"]),
        *_our_lines(summary["ours"]),
        *_comparison_lines(summary["compared"], summary["peers"]),
        *_tuning_lines(summary["peers"]),
    ]
    options = "; ".join(
        f"{kind}: " + " ".join(f"--{name} {value}" for name, value in recipe.items())
        for kind, recipe in report["recipe"].items()
        if kind in rows
    )
    lines += [f"Options of our recipe: {options}."]
    if report.get("picture"):
        lines += ["", f"![loss against minutes]({report['picture']})"]
    return lines


def _load(run: dict[str, Any]) -> str:
    return "quiet" if run["quiet"] else f"busy ({max(run['busy_cores_before'], run['busy_cores_during']):.1f} cores)"


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _cells(run: dict[str, Any]) -> str:
    """What tables of peers and of ours have in common."""
    return (
        f"{run['minutes']:.2f} | {run['steps']:,} | {run['tokens'] / 1e6:.2f} M | {_loss(run['loss'])} | "
        f"{_loss(run['bits_per_byte'])}"
    )


def _peer_lines(peers: dict[str, Any]) -> list[str]:
    if not peers:
        return []
    lines = [
        "| peer | precision | parameters | learning rate | minutes | steps | tokens | loss (nats) | bits per byte | "
        "first step | machine |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in peers.items():
        lines.append(
            f"| {name} | {run['precision']} | {run['parameters'] / 1e6:.2f} M | {run['learning_rate']:g} | "
            f"{_cells(run)} | {run['first_step_seconds']:.1f} s | {_load(run)} |"
        )
    return [*lines, ""]


def _our_lines(ours: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines: list[str] = []
    for name, runs in ours.items():
        for run in runs:
            set_up = [run[key] for key in ("compile_seconds", "warmup_seconds") if key in run]
            warm = f"{sum(set_up):.1f} s" if set_up else ""
            lines.append(
                f"| {name} | {run['budget']} | {run['parameters'] / 1e6:.2f} M | {_cells(run)} | {warm} | "
                f"{run['around_seconds']:.1f} s | {_load(run)} |"
            )
    if not lines:
        return []
    return [
        "| ours | budget | parameters | minutes | steps | tokens | loss (nats) | bits per byte | compiling | "
        "around training | machine |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *lines,
        "",
        '"Around training" is all else that the command took: imports, the corpus, saving.',
        "",
    ]


def _comparison_lines(compared: dict[str, Any], peers: dict[str, Any]) -> list[str]:
    lines = []
    for name, facts in compared.items():
        theirs, goal = peers[name], f"{facts['goal']:g} x" if facts["goal"] else ""
        met = "met" if facts.get("met") else "missed"
        if facts["reached_by"] is None:
            best = "no run" if facts["our_best_loss"] is None else f"not reached, best {facts['our_best_loss']:.4f}"
            lines.append(f"| {name} | {_loss(facts['their_loss'])} | {theirs['minutes']:.2f} | {best} | | {goal} |")
        else:
            lines.append(
                f"| {name} | {_loss(facts['their_loss'])} | {theirs['minutes']:.2f} | {facts['our_minutes']:.2f} "
                f"(to {facts['our_loss']:.4f}) | {facts['ratio']:.1f} x | {goal}, {met} |"
            )
    if not lines:
        return []
    return [
        "| peer | its loss | its minutes | our shortest run at or below it, minutes | faster by | goal |",
        "|---|---|---|---|---|---|",
        *lines,
        "",
    ]


def _tuning_lines(peers: dict[str, Any]) -> list[str]:
    lines = [
        f"| {name} | {run['budget']} | {run['learning_rate']:g} | {run['steps']:,} | {_loss(run['loss'])} |"
        for name, peer in peers.items()
        for run in peer["tried"]
    ]
    if not lines:
        return []
    head = ["Every run of the peers; their rates were chosen on the held-out rows, which favours them:", ""]
    return [*head, "| peer | budget | learning rate | steps | loss |", "|---|---|---|---|---|", *lines, ""]


def draw(summary: dict[str, Any], *, folder: Path) -> Path | None:
    """Draw DATE-time_to_loss.png: loss on a part of the held-out rows against minutes of training.

    A line of a peer is one run on its way. Ours are the ends of whole runs, each with its schedule complete.

    Returns:
        The file, or None where there is nothing to draw.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = [kind for kind in TITLES if any(summary["kinds"][name] == kind for name in _contenders(summary))]
    if not kinds:
        return None
    style = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
    with matplotlib.rc_context({**style, "grid.color": curves.FAINT, "legend.frameon": False}):
        figure = Figure(figsize=(5.5 * len(kinds), 4.5), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(kinds), squeeze=False)[0]
        for axes, kind in zip(panels, kinds, strict=True):
            _draw_kind(axes, kind, summary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(UTC):%Y-%m-%d}-time_to_loss.png"
        figure.savefig(path, format="png")
    return path


def _contenders(summary: dict[str, Any]) -> list[str]:
    return [*summary["peers"], *summary["ours"]]


def _draw_kind(axes: Any, kind: str, summary: dict[str, Any]) -> None:
    for name in _contenders(summary):
        if summary["kinds"][name] != kind:
            continue
        if name in summary["peers"]:
            run = summary["peers"][name]
            points, label = run["curve"], f"{name}, learning rate {run['learning_rate']:g}"
        else:
            points, label = [run["curve"][-1] for run in summary["ours"][name]], f"{name}, whole runs"
            for run in summary["ours"][name]:  # on their way, where checkpoints were scored
                _line(axes, run["curve"], color=curves.SKY, linewidth=0.9)
        _line(axes, points, color=COLOURS[name], linewidth=1.8, marker="o", markersize=4, label=label)
    axes.set_title(TITLES[kind], loc="left", color=curves.INK)
    axes.set_xlabel("minutes of training", color=curves.QUIET)
    axes.set_ylabel("held-out loss (nats)", color=curves.QUIET)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])  # all minor ones would run into each other
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend()


def _line(axes: Any, points: list[dict[str, float]], **style: Any) -> None:
    axes.plot([point["minutes"] for point in points], [point["loss"] for point in points], **style)
