"""Extractive question answering: the answer to a question is a piece of its context.

A context longer than the model is cut into windows that overlap. A window that does not hold the answer is taught to
point at its first token, so each window also says how much it believes that the answer is elsewhere.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.errors import TaskError
from tasks.features import by_length, model_inputs, pad_inputs
from tasks.questions import Question, Window, cut_windows, drop_misaligned, read_questions
from tasks.rows import as_rows, write_predictions
from tasks.squad_scores import best_over_answers, exact_match, squad_metrics, token_f1

_LONGEST_BASELINE = 10  # words
_BASELINE_QUESTIONS = 2000


def split_by_context(*, questions: Sequence[Question], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Hold out whole contexts, so that no held-out question is about a context that was trained on.

    Returns:
        Numbers of the training questions and of the held-out ones; where there is one context, questions are held out.
    """
    contexts = list(dict.fromkeys(item.context for item in questions))
    groups: list[Any] = [item.context for item in questions] if len(contexts) > 1 else list(range(len(questions)))
    kinds = list(dict.fromkeys(groups))
    count = min(max(1, round(fraction * len(kinds))), len(kinds) - 1)
    chosen = {kinds[i] for i in np.random.default_rng(seed).permutation(len(kinds))[:count].tolist()}
    held_out = [number for number, group in enumerate(groups) if group in chosen]
    return [number for number, group in enumerate(groups) if group not in chosen], held_out


def best_spans(
    *, start: Tensor, end: Tensor, allowed: Tensor, null: Tensor, max_answer_length: int, num_best: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best spans of every window, exactly: all spans up to the longest are scored, not only pairs of good ends.

    The score of a span is the sum of the logits of its ends, minus that sum at the first token of the window: how
    much more the model believes in this span than in "not in this window". That makes windows comparable.

    Args:
        start: start logits [batch, length].
        end: end logits [batch, length].
        allowed: bool [batch, length], tokens at which a span may start and end.
        null: int64 [batch], the position that stands for "not in this window".
        max_answer_length: most tokens of a span.
        num_best: how many spans to return.

    Returns:
        Scores, first tokens and last tokens, each [batch, at most num_best], best first; a score is -inf where a
        window has fewer spans.
    """
    length = start.shape[1]
    width = min(max_answer_length, length)
    nothing = start.gather(1, null[:, None]) + end.gather(1, null[:, None])
    start, end = start.masked_fill(~allowed, -math.inf), end.masked_fill(~allowed, -math.inf)
    ends = F.pad(end, (0, width - 1), value=-math.inf).unfold(1, width, 1)  # [batch, length, width]
    scores = (start[:, :, None] + ends).flatten(1)
    best, places = scores.topk(min(num_best, scores.shape[1]), dim=1)
    first = places // width
    return best - nothing, first, first + places % width


class QuestionAnswering:
    """Learning to mark the answer to a question in its context; implements the loop's `Work`.

    Args:
        train_rows: SQuAD 1.1 JSON or flat rows (see `read_questions`), as mappings or as records with `fields`,
            `path` and `line`.
        eval_rows: the same, held out; empty: a seeded part of the training contexts is held out.
        tokenizer: a fast tokenizer with a template for pairs and a padding token.
        max_length: tokens of one window, question and special tokens included.
        stride: tokens that neighbouring windows share; None: a third of `max_length`.
        max_answer_length: most tokens of a predicted answer. With a vocabulary of 4096 made for another kind of text,
            a model that knew everything would reach 97.2 exact match on eight articles of SQuAD with the usual 30,
            and 99.6 with 48.
        seed: decides the held-out part.
        eval_fraction: share of the contexts to hold out.
        num_best: spans that are kept of each window.

    Raises:
        TaskError: a row that cannot be used (the message has its file and line), or lengths that leave no room.
    """

    metric = "f1"
    greater_is_better = True
    mixture: list[tuple[int, float]] = []

    def __init__(
        self,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        max_length: int = 384,
        stride: int | None = None,
        max_answer_length: int = 48,
        seed: int = 0,
        eval_fraction: float = 0.1,
        num_best: int = 5,
    ) -> None:
        self.notes: list[str] = []
        self.tokenizer = tokenizer
        self.max_answer_length, self.num_best = max_answer_length, num_best
        train = read_questions(as_rows(train_rows, part="training"))
        held_out = read_questions(as_rows(eval_rows, part="evaluation"))
        if not train:
            raise TaskError("there are no training questions: name a file that has some with --train_file")
        train, note = drop_misaligned(train)
        if note:
            self.notes.append(note)
        if not held_out:
            kept, out = split_by_context(questions=train, fraction=eval_fraction, seed=seed)
            self.notes.append(f"held out {len(out)} of {len(train)} training questions for evaluation, by context")
            train, held_out = [train[i] for i in kept], [train[i] for i in out]
        self._train_questions, self._eval_questions = train, held_out
        stride = max_length // 3 if stride is None else stride
        self._train, self._eval = (
            cut_windows(questions=part, tokenizer=tokenizer, max_length=max_length, stride=stride)
            for part in (train, held_out)
        )
        self._eval_order = by_length([window.inputs for window in self._eval])
        self.num_examples, self.num_eval_examples = len(self._train), len(self._eval)
        self.notes.append(
            f"{len(train)} questions in {len(self._train)} windows to learn from, "
            f"{len(held_out)} in {len(self._eval)} to evaluate on (--max_length {max_length}, --stride {stride})"
        )
        self._records: list[dict[str, Any]] = []

    # What the loop asks for

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """Training window `row`; nothing in it is random, so `index` does not matter."""
        return self._features(self._train[row])

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out window `row`, counted from the shortest; its "row" is its number in the order of the data.

        "allowed" tells the tokens of the context at which an answer may start or end.
        """
        number = self._eval_order[row]
        window = self._eval[number]
        allowed = np.zeros(len(window.inputs["input_ids"]), dtype=bool)
        allowed[window.first : window.first + len(window.offsets)] = window.offsets[:, 0] < window.offsets[:, 1]
        return {**self._features(window), "allowed": allowed, "row": number}

    @staticmethod
    def _features(window: Window) -> dict[str, Any]:
        return {**window.inputs, "start": window.start, "end": window.end}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Inputs padded to the longest [batch, length], `start_positions` and `end_positions` [batch].

        Held-out windows add `allowed` (bool [batch, length]) and `row` [batch].
        """
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        first = batch["attention_mask"].argmax(dim=1)  # of all tokens; not 0 where padding stands on the left
        for side in ("start", "end"):
            batch[f"{side}_positions"] = first + torch.tensor([example[side] for example in examples])
        if "row" in examples[0]:
            batch["row"] = torch.tensor([example["row"] for example in examples])
            batch["allowed"] = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
            for number, example in enumerate(examples):
                place = slice(int(first[number]), int(first[number]) + len(example["allowed"]))
                batch["allowed"][number, place] = torch.from_numpy(example["allowed"])
        return batch

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """One target a window."""
        return {"examples": len(batch["start_positions"])}

    @staticmethod
    def _logits(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Start and end logits [batch, length] in float32; -inf at padding, so that padding never weighs in."""
        output = model(**model_inputs(batch))
        padding = batch["attention_mask"] == 0
        start, end = (logits.float() for logits in (output.start_logits, output.end_logits))
        return start.masked_fill(padding, -math.inf), end.masked_fill(padding, -math.inf)

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean cross-entropy of start and end, and the share of windows with both right, over the step's windows."""
        start, end = self._logits(model, batch)
        wanted_start, wanted_end = batch["start_positions"], batch["end_positions"]
        losses = F.cross_entropy(start, wanted_start, reduction="sum") + F.cross_entropy(
            end, wanted_end, reduction="sum"
        )
        right = (start.detach().argmax(dim=1) == wanted_start) & (end.detach().argmax(dim=1) == wanted_end)
        return losses / 2 / num_targets["examples"], {"accuracy": right.sum() / num_targets["examples"]}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record a window: row, question number, loss, and the best spans as [score, first, end] in characters."""
        start, end = self._logits(model, batch)
        losses = [
            F.cross_entropy(logits, batch[f"{side}_positions"], reduction="none")
            for side, logits in (("start", start), ("end", end))
        ]
        null = batch["attention_mask"].argmax(dim=1)
        best = best_spans(
            start=start,
            end=end,
            allowed=batch["allowed"],
            null=null,
            max_answer_length=self.max_answer_length,
            num_best=self.num_best,
        )
        scores, firsts, lasts = (best[0], best[1] - null[:, None], best[2] - null[:, None])
        columns = (batch["row"], (losses[0] + losses[1]) / 2, scores, firsts, lasts)
        records = []
        for row, loss, *spans in zip(*(column.tolist() for column in columns), strict=True):
            window = self._eval[row]
            characters = [
                [score, *window.characters(first, last)]
                for score, first, last in zip(*spans, strict=True)
                if score > -math.inf
            ]
            records.append({"row": row, "question": window.question, "loss": loss, "spans": characters})
        return records

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Loss over all windows; exact match and F1 in percent over the questions that they belong to."""
        self._records = sorted(records, key=lambda record: record["row"])
        answered = {prediction["id"]: prediction for prediction in self._answers()}
        return {
            "loss": math.fsum(record["loss"] for record in self._records) / len(self._records),
            **self._scores({number: answered[number]["prediction"] for number in answered}),
        }

    def _answers(self) -> list[dict[str, Any]]:
        """The best span over all windows of each question in the records, with blanks around it removed."""
        best: dict[int, list[Any]] = {}
        for record in self._records:
            for span in record["spans"]:
                if record["question"] not in best or span[0] > best[record["question"]][0]:
                    best[record["question"]] = span
        answers = []
        for number in dict.fromkeys(record["question"] for record in self._records):
            score, start, end = best.get(number, [-math.inf, 0, 0])
            text = self._eval_questions[number].context[start:end]
            start += len(text) - len(text.lstrip())
            text = text.strip()
            answers.append(
                {"id": number, "prediction": text, "start": start, "end": start + len(text), "score": score}
            )
        return answers

    def _scores(self, predictions: dict[int, str]) -> dict[str, float]:
        return squad_metrics(
            predictions={str(number): text for number, text in predictions.items()},
            answers={str(number): self._eval_questions[number].answers for number in predictions},
        )

    def baseline(self) -> dict[str, float]:
        """For each metric the better of two guesses that need no model.

        One is the most frequent answer of the training questions. The other is the first words of the context, as
        many as score best on the training questions.
        """
        if not self._eval_questions:
            return {}
        frequent = Counter(item.answers[0] for item in self._train_questions).most_common(1)[0][0]
        sample = self._train_questions[:_BASELINE_QUESTIONS]
        count = max(
            range(1, _LONGEST_BASELINE + 1), key=lambda words: _mean_f1(sample, (_opening(q, words) for q in sample))
        )
        guesses = (lambda _: frequent, lambda question: _opening(question, count))
        results = [self._scores({n: guess(q) for n, q in enumerate(self._eval_questions)}) for guess in guesses]
        return {name: max(result[name] for result in results) for name in results[0]}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """What was last summarized, readable: question, prediction and its place in the context, answers, score."""
        readable = []
        for answer in self._answers():
            question = self._eval_questions[answer["id"]]
            readable.append(
                {
                    "id": question.id,
                    "question": question.question,
                    "context": question.context,
                    "prediction": answer["prediction"],
                    "answers": list(dict.fromkeys(question.answers)),
                    "score": round(answer["score"], 4) if math.isfinite(answer["score"]) else None,
                    "start": answer["start"],
                    "end": answer["end"],
                    "correct": bool(best_over_answers(exact_match, answer["prediction"], question.answers)),
                }
            )
        return readable

    def write_predictions(self, path: Path) -> int:
        """Write the last evaluation's predictions, one JSON object a line; returns how many."""
        return write_predictions(predictions=self.predictions(), path=path)


def _opening(question: Question, words: int) -> str:
    return " ".join(question.context.split(maxsplit=words)[:words])


def _mean_f1(questions: Sequence[Question], predictions: Iterable[str]) -> float:
    scores = [
        best_over_answers(token_f1, text, item.answers) for item, text in zip(questions, predictions, strict=True)
    ]
    return math.fsum(scores) / len(scores)
