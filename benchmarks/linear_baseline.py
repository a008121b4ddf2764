"""What a linear model reaches on the classification tasks: TF-IDF of words and pairs of words, logistic regression.

    python benchmarks/linear_baseline.py                   # SST-2, 2,000 sentences of it, the built-in task; seconds

The built-in task is split as `recipes/finetune_classification.py` splits it. SST-2 comes from --data (LACUNA_DATA).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from finetune import FEW
from harness import DATA, Report, make_parser, table

from lacuna.corpus import builtin_classification, read_labelled
from lacuna.tasks.base.bag_of_words import fit_and_predict, tfidf
from lacuna.tasks.base.rows import stratified_split

Part = tuple[Sequence[str], Sequence[Any]]  # texts and their labels


def sst2(folder: Path, name: str) -> Part:
    """A part of SST-2."""
    rows = [record.fields for record in read_labelled(folder / "sst2" / f"{name}.tsv")]
    text, label = list(rows[0])
    return [row[text] for row in rows], [row[label] for row in rows]


def builtin() -> tuple[Part, Part]:
    """Training and held-out part of the built-in task, seed 0."""
    rows = builtin_classification()
    names = sorted({row["label"] for row in rows})
    parts = stratified_split(labels=[names.index(row["label"]) for row in rows], fraction=0.1, seed=0)
    return tuple(([rows[n]["text"] for n in part], [rows[n]["label"] for n in part]) for part in parts)  # type: ignore[return-value]


def score(train: Part, held_out: Part) -> float:
    """Accuracy on the held-out part."""
    texts, others = ([(text,) for text in part[0]] for part in (train, held_out))
    features = tfidf(texts, others)
    assert features is not None
    found = fit_and_predict("single_label_classification", features[0], train[1], features[1])
    return float(np.mean([guess == label for guess, label in zip(found, held_out[1], strict=True)]))


def main() -> None:
    """Fit and score each task, report."""
    options = make_parser(__doc__, ("data", str(DATA), "folder with sst2/train.tsv and dev.tsv")).parse_args()
    report, folder = Report(options), Path(options.data)
    train, dev = sst2(folder, "train"), sst2(folder, "dev")
    tasks = {
        "SST-2": (train, dev),
        f"SST-2, {FEW:,} sentences": ((train[0][:FEW], train[1][:FEW]), dev),
        "built-in: module family of a docstring": builtin(),
    }
    rows = []
    for name, (learnt, held_out) in tasks.items():
        sizes = {"training rows": len(learnt[0]), "held-out rows": len(held_out[0])}
        rows.append({"task": name, **sizes, "accuracy": score(learnt, held_out)})
    report.body["rows"] = rows
    report.write("TF-IDF with logistic regression", table(rows))


if __name__ == "__main__":
    main()
