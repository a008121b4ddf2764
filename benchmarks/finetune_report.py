"""The tables of `finetune.py`."""

import statistics
from typing import Any

ORDER = ("native", "new", "pretrained")
TITLES = {
    "baseline": "no model",
    "native": "native, first weights",
    "new": "Lacuna, first weights",
    "pretrained": "Lacuna, pretrained",
}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and what pretraining adds over the same seeds.

    Args:
        rows: of each task its metrics and, by kind of model, its parts.
    """
    summarized = []
    for row in rows:
        facts = {name: value for name, value in row.items() if name != "parts"}
        done = {kind: [part for part in parts if "scores" in part["result"]] for kind, parts in row["parts"].items()}
        facts["too_long"] = [kind for kind, parts in row["parts"].items() if len(parts) > len(done[kind])]
        facts["scores"] = {metric: _scores(done, metric) for metric in row["metrics"]}
        facts["runs"] = {kind: [_facts(part) for part in parts] for kind, parts in done.items()}
        facts["commits"] = sorted({part["commit"] for parts in done.values() for part in parts})
        facts["busy"] = sorted(kind for kind, parts in done.items() if not all(part["quiet"] for part in parts))
        summarized.append(facts)
    return summarized


def _scores(parts: dict[str, list[dict[str, Any]]], metric: str) -> dict[str, Any]:
    values = {
        kind: {part["settings"]["options"]["seed"]: part["result"]["scores"][metric] for part in found}
        for kind, found in parts.items()
    }
    guesses = [part["result"]["baseline"][metric] for found in parts.values() for part in found]
    guesses = [guess for guess in guesses if guess is not None]
    shared = [seed for seed in values.get("pretrained", {}) if seed in values.get("new", {})]
    differences = [values["pretrained"][seed] - values["new"][seed] for seed in shared]
    return {
        "baseline": statistics.fmean(guesses) if guesses else None,
        **{kind: statistics.fmean(found.values()) if found else None for kind, found in values.items()},
        "by_seed": values,
        "added": statistics.fmean(differences) if differences else None,
        "differences": differences,
    }


def _facts(part: dict[str, Any]) -> dict[str, Any]:
    names = ("wall_seconds", "parameters", "steps", "train_tokens")
    options = part["settings"]["options"]
    facts = {name: part["result"].get(name) for name in names}
    return facts | {name: options.get(name) for name in ("seed", "max_minutes", "learning_rate")}


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = report["settings"]
    long = f"{settings['steps']} steps" if settings["steps"] else "for the minutes of training steps in the last table"
    seeds = ", ".join(map(str, settings["seeds"]))
    seeds += ", means of those that the last table names" if len(settings["seeds"]) > 1 else ""
    lines = [
        f"# Fine-tuning, {report['date']}",
        "",
        f"Each run trains {long}, then is evaluated once; seeds {seeds}. More is better in every column. What "
        "pretraining adds is the difference between Lacuna's two columns, smallest..largest where there are several "
        "seeds. What has no entry was not measured yet.",
        "",
        *_pretraining(report),
        "",
        "| task | metric | " + " | ".join(TITLES.values()) + " | pretraining adds |",
        "|---" * (len(TITLES) + 3) + "|",
    ]
    for row in report["rows"]:
        for place, metric in enumerate(row["metrics"]):
            scores = row["scores"][metric]
            digits = 3 if _is_share(scores) else 1
            cells = ["" if scores.get(name) is None else f"{scores[name]:.{digits}f}" for name in TITLES]
            lines.append(f"| {row['what'] if not place else ''} | {metric} | {' | '.join(cells)} | {_added(scores)} |")
    lines += ["", "No model: " + "; ".join(f"{row['task']}: {row['baseline_is']}" for row in report["rows"]) + "."]
    lines += ["", *_runs(report)]
    return lines


def _pretraining(report: dict[str, Any]) -> list[str]:
    lines = []
    for shape, part in report["pretraining"].items():
        if part is None:
            lines.append(f"- {shape}: not pretrained yet.")
            continue
        settings, result = part["settings"]["pretraining"], part["result"]
        options = ", ".join(f"{name} {value}" for name, value in settings["options"].items())
        found = ", ".join(f"{name} {value:,.4g}" for name, value in result.items() if name != "seconds" and value)
        lines.append(
            f"- {shape}: pretrained by {settings['objective']} on novels ({options}), {result['seconds'] / 60:.1f} "
            f"minutes in all; {found}."
        )
    return lines


def _runs(report: dict[str, Any]) -> list[str]:
    """Time and size of the runs."""
    lines = [
        "| task | model | seeds | parameters | learning rate | minutes | steps | tokens | minutes in all, at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        for kind in ORDER:
            runs = row["runs"].get(kind)
            if runs:
                minutes = max(run["wall_seconds"] for run in runs) / 60
                steps, tokens = (statistics.fmean(run[name] for run in runs) for name in ("steps", "train_tokens"))
                mark = " (busy)" if kind in row["busy"] else ""
                first = runs[0]
                seeds = ", ".join(str(run["seed"]) for run in runs)
                size = f"{first['parameters'] / 1e6:.2f} M | {first['learning_rate']:g} | {first['max_minutes'] or ''}"
                lines.append(
                    f"| {row['task']} | {TITLES[kind]} | {seeds} | {size} | {steps:,.0f} | {tokens / 1e6:.2f} M | "
                    f"{minutes:.1f}{mark} |"
                )
            elif kind in row["too_long"]:
                limit = report["settings"]["limit_minutes"]
                lines.append(f"| {row['task']} | {TITLES[kind]} | | | | | | | ended after {limit:g} |")
    commits = sorted({commit for row in report["rows"] for commit in row["commits"]})
    return [*lines, "", f"Runs were made at: {', '.join(commits) or 'no commit yet'}."]


def _is_share(scores: dict[str, Any]) -> bool:
    """Whether a metric goes up to 1, and not to 100."""
    return all(abs(scores[name]) <= 1 for name in TITLES if scores.get(name) is not None)


def _added(scores: dict[str, Any]) -> str:
    if scores["added"] is None:
        return ""
    digits = 3 if _is_share(scores) else 1
    low, high = min(scores["differences"]), max(scores["differences"])
    spread = f" ({low:+.{digits}f}..{high:+.{digits}f})" if len(scores["differences"]) > 1 else ""
    return f"{scores['added']:+.{digits}f}{spread}"
