"""The metrics of all tasks, and functions that compute those of one task together."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from lacuna.tasks.local_metric import LocalMetric, metric_info, optional_module
from lacuna.tasks.squad_scores import Squad, SquadV2
from lacuna.tasks.words import WORDS


def _class_features() -> datasets.Features:
    return datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})


class Accuracy(LocalMetric):
    """Share of predictions that equal their reference."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info("Share of predictions that equal their reference.", "", _class_features())

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}


class F1(LocalMetric):
    """Harmonic mean of precision and recall of each class, averaged over classes (macro) or over decisions (micro).

    The classes are those that occur in the references or the predictions; a class that is never predicted counts 0.
    """

    def _info(self) -> evaluate.MetricInfo:
        return metric_info("F1, macro (mean over classes) and micro (over all decisions).", "", _class_features())

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {
            f"f1_{average}": float(f1_score(references, predictions, average=average, zero_division=0))
            for average in ("macro", "micro")
        }


class MatthewsCorrelation(LocalMetric):
    """Correlation of predicted and true classes; 0 for any constant guess (Gorodkin 2004 for more than two)."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            "Matthews correlation coefficient.",
            "J. Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient, 2004",
            _class_features(),
        )

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        constant = len({*predictions, *references}) == 1  # scikit-learn warns about it, and returns 0 too
        return {"matthews_correlation": 0.0 if constant else float(matthews_corrcoef(references, predictions))}


class MultiLabel(LocalMetric):
    """Scores of label sets: F1 over labels (macro), decisions (micro) and examples (samples), and whole sets right.

    Predictions and references are rows of 0 and 1, one number a label. As for single labels, macro F1 is the mean
    over those labels that occur in the references or the predictions. An example that has no label and gets none is
    right: its F1 is 1.
    """

    def _info(self) -> evaluate.MetricInfo:
        row = datasets.List(datasets.Value("int32"))
        return metric_info(
            "F1 of label sets (macro, micro, samples) and the share of sets that are right as a whole.",
            "",
            datasets.Features({"predictions": row, "references": row}),
        )

    def _compute(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        guessed, wanted = np.asarray(predictions, dtype=bool), np.asarray(references, dtype=bool)
        both, either = (guessed & wanted).astype(int), guessed.astype(int) + wanted.astype(int)
        occurs = either.any(axis=0)
        by_label = 2 * both.sum(axis=0)[occurs] / either.sum(axis=0)[occurs]
        by_example = np.where(either.any(axis=1), 2 * both.sum(axis=1) / np.maximum(either.sum(axis=1), 1), 1.0)
        return {
            "f1_macro": float(by_label.mean()) if occurs.any() else 0.0,
            "f1_micro": float(2 * both.sum() / max(int(either.sum()), 1)),
            "f1_samples": float(by_example.mean()),
            "subset_accuracy": float((guessed == wanted).all(axis=1).mean()),
        }


class Correlation(LocalMetric):
    """Pearson's and Spearman's correlation of numbers; 0 where one side is constant, as a fixed guess is."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return metric_info(
            "Pearson and Spearman correlation.", "", datasets.Features({"predictions": number, "references": number})
        )

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
        if min(len(set(predictions)), len(set(references))) < 2:
            return {"pearson": 0.0, "spearman": 0.0}
        return {
            "pearson": float(stats.pearsonr(predictions, references).statistic),
            "spearman": float(stats.spearmanr(predictions, references).statistic),
        }


class EntityF1(LocalMetric):
    """Precision, recall and F1 of named entities, over all (micro) and `by_type`, and the accuracy of single tags.

    An entity is right when its type and both its ends are. seqeval finds entities as CoNLL's own script does: in IOB1,
    IOB2 and BIOES alike, with an entity also where a tag "I-" follows none.
    """

    def _info(self) -> evaluate.MetricInfo:
        tags = datasets.List(datasets.Value("string"))
        return metric_info(
            "Precision, recall and F1 of entities, by seqeval.",
            "H. Nakayama, seqeval: A Python framework for sequence labeling evaluation, 2018",
            datasets.Features({"predictions": tags, "references": tags}),
        )

    def _compute(self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, Any]:
        seqeval = optional_module("seqeval.metrics")
        report: dict[str, Any] = {}
        if any(tag != "O" for tags in [*predictions, *references] for tag in tags):  # seqeval needs one entity
            report = seqeval.classification_report(
                y_true=references, y_pred=predictions, output_dict=True, zero_division=0
            )
        table = {
            name: {
                "precision": float(row["precision"]),
                "recall": float(row["recall"]),
                "f1": float(row["f1-score"]),
                "number": int(row["support"]),
            }
            for name, row in report.items()
        }
        total = table.get("micro avg", {"precision": 0.0, "recall": 0.0, "f1": 0.0})
        tags = [
            pair for guess, gold in zip(predictions, references, strict=True) for pair in zip(guess, gold, strict=True)
        ]
        return {
            **{name: total[name] for name in ("precision", "recall", "f1")},
            "accuracy": sum(guess == gold for guess, gold in tags) / max(len(tags), 1),
            "by_type": {name: row for name, row in table.items() if not name.endswith(" avg")},
        }


def _text_features() -> datasets.Features:
    text = datasets.Value("string")
    return datasets.Features({"predictions": text, "references": datasets.List(text)})


def _streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """References as sacrebleu wants them: the first of all texts, the second of all; None where a text has fewer."""
    most = max(len(texts) for texts in references)
    return [[texts[n] if n < len(texts) else None for texts in references] for n in range(most)]


class Bleu(LocalMetric):
    """BLEU of whole texts against one or more references each, from 0 to 100, as sacrebleu computes it."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            "BLEU, with sacrebleu's tokenizer 13a.",
            "M. Post, A Call for Clarity in Reporting BLEU Scores, 2018",
            _text_features(),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        found = optional_module("sacrebleu").corpus_bleu(list(predictions), _streams(references))
        return {"bleu": float(found.score)}


class Chrf(LocalMetric):
    """chrF, F-score of character n-grams, from 0 to 100, as sacrebleu computes it."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            "chrF.", "M. Popović, chrF: character n-gram F-score for automatic MT evaluation, 2015", _text_features()
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        found = optional_module("sacrebleu").corpus_chrf(list(predictions), _streams(references))
        return {"chrf": float(found.score)}


class _Words:
    """Words in lower case for rouge_score, whose own tokenizer, equal on ASCII, drops all other letters."""

    def tokenize(self, text: str) -> list[str]:
        return WORDS.findall(text.lower().replace("_", " "))


class Rouge(LocalMetric):
    """F-measures of shared words (1), pairs of words (2) and longest common subsequences (L), from 0 to 100.

    Means over texts of the best score over a text's references; words are not stemmed.
    """

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            "ROUGE-1, ROUGE-2 and ROUGE-L, by rouge_score.",
            "C.-Y. Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004",
            _text_features(),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        kinds = ("rouge1", "rouge2", "rougeL")
        scorer = optional_module("rouge_score.rouge_scorer").RougeScorer(list(kinds), tokenizer=_Words())
        found = [scorer.score_multi(texts, guess) for guess, texts in zip(predictions, references, strict=True)]
        return {kind: 100.0 * sum(scores[kind].fmeasure for scores in found) / len(found) for kind in kinds}


METRICS: dict[str, type[LocalMetric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "matthews_correlation": MatthewsCorrelation,
    "multi_label": MultiLabel,
    "correlation": Correlation,
    "squad": Squad,
    "squad_v2": SquadV2,
    "entity_f1": EntityF1,
    "bleu": Bleu,
    "chrf": Chrf,
    "rouge": Rouge,
}


def classification_metrics(*, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 (macro and micro) and Matthews correlation of class numbers."""
    results: dict[str, float] = {}
    for name in ("accuracy", "f1", "matthews_correlation"):
        results |= METRICS[name]().compute(predictions=list(predictions), references=list(references))
    return results


def multi_label_metrics(
    *, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
) -> dict[str, float]:
    """F1 (macro, micro, samples) and subset accuracy of rows of 0 and 1, [examples, labels]."""
    return MultiLabel().compute(predictions=predictions, references=references)


def correlation_metrics(*, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where one side is constant."""
    return Correlation().compute(predictions=list(predictions), references=list(references))


def entity_metrics(*, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """`precision`, `recall`, `f1` of entities, `accuracy` of tags, and `by_type`: type -> the first three, `number`.

    Raises:
        InputError: seqeval is not installed.
    """
    return EntityF1().compute(predictions=predictions, references=references)


def generation_metrics(*, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """`bleu`, `chrf`, `rouge1`, `rouge2` and `rougeL` of texts, all from 0 to 100; each has at least one reference.

    Raises:
        InputError: sacrebleu or rouge_score is not installed.
    """
    results: dict[str, float] = {}
    for name in ("bleu", "chrf", "rouge"):
        results |= METRICS[name]().compute(predictions=list(predictions), references=[list(r) for r in references])
    return results
