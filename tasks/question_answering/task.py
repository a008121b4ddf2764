"""Extractive question answering: the answer to a question is a span of its context, or there is none.

A context longer than the model is cut into windows that overlap. A window without the answer learns to point at its
first token, so each window also says how likely the answer is elsewhere. Where all windows of a question say so, by
more than a threshold that is tuned on the held-out questions, there is no answer.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lacuna.common.errors import InputError
from lacuna.tasks.base import metrics
from lacuna.tasks.base.bag_of_words import words_in_common
from lacuna.tasks.base.features import model_inputs, pad_inputs, pad_like, records, stacked
from lacuna.tasks.base.rows import Row, gathered
from lacuna.tasks.base.task import Batch, Inputs, Task
from lacuna.tasks.predict.predictor import Predictor
from lacuna.tasks.question_answering import reader
from lacuna.tasks.question_answering.reader import Question, QuestionAnsweringArguments, Window

_LONGEST_BASELINE = 10  # words
_BASELINE_QUESTIONS = 2000


class QuestionAnswering(Task):
    """Learning to mark the answer to a question in its context; whole contexts are held out."""

    options: QuestionAnsweringArguments
    num_best = 5  # spans that are kept of each window
    name, metric = "question_answering", "f1"
    objective = "fine-tuning for question answering"
    least_examples = 25_000  # to find in the context what the question names takes a small model many passes
    auto_class = "AutoModelForQuestionAnswering"
    default_length = 384
    probability_note = (
        'The probability is that of the answer among all pieces of the context that could be one and "no answer" (an '
        "empty prediction), by a softmax over the sums of the logits of their ends."
    )

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        train, held_out = reader.read_questions(train), reader.read_questions(held_out)
        if line := reader.misaligned(train):
            self.notes.append(f"left out: {line}")
        if line := reader.misaligned(held_out, option="--eval_file"):
            self.notes.append(f"evaluated by their text alone: {line}")
        kept = [item for item in train if item.is_aligned]
        if not any(item.answers for item in kept):
            raise InputError(
                f"{kept[0].where if kept else 'training'}: no training question has an answer: "
                "name a file where some have with --train_file"
            )
        train, held_out = self.divide(
            kept,
            held_out,
            same=lambda item: (item.question, item.context),
            group=lambda item: item.context,
            what="questions",
            how=", by context",
        )
        self._train_questions, self._eval_questions = train, held_out
        self.threshold: float | None = None
        """Above it a question's lead of "no answer", in nats, makes the prediction empty; None: never."""
        parts = {"training": train, "held-out": held_out}
        none = {name: sum(not item.answers for item in part) for name, part in parts.items()}
        self.may_have_none = any(none.values())
        if self.may_have_none:
            said = " and ".join(f"{none[name]:,} of {len(part):,} {name} questions" for name, part in parts.items())
            self.notes.append(f"{said} have no answer; the threshold for it is tuned on the held-out ones")
            if not none["training"]:
                self.notes.append("warning: no training question is without an answer, so that cannot be learnt")

    def training_texts(self) -> list[str]:
        return gathered((item.context, item.question) for item in self._train_questions)

    def encode(self) -> None:
        self.max_answer_length = self.options.max_answer_length
        self.stride = self.max_length // 3 if self.options.stride is None else self.options.stride
        train, held_out = self._train_questions, self._eval_questions
        self.note_pairs()
        how = {"tokenizer": self.tokenizer, "max_length": self.max_length, "stride": self.stride}
        self._train_windows, self._eval_windows = (
            reader.cut_windows(questions=part, **how) for part in (train, held_out)
        )
        self.set_examples(
            train=[window.features for window in self._train_windows],
            held_out=[{**window.features, "allowed": window.allowed} for window in self._eval_windows],
        )
        self.note_windows([one.question for one in self._train_windows], what="training questions with their contexts")
        self.notes.append(
            f"{len(train)} questions in {len(self._train_windows)} training windows, "
            f"{len(held_out)} in {len(self._eval_windows)} to evaluate on "
            f"(--max_length {self.max_length}, --stride {self.stride})"
        )

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> Batch:
        return collate_windows(examples, tokenizer=self.tokenizer)

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Mean cross-entropy of start and end, and the share of windows with both right, over the step's windows."""
        start, end = span_logits(model, batch)
        first, last = batch["start_positions"], batch["end_positions"]
        losses = F.cross_entropy(start, first, reduction="sum") + F.cross_entropy(end, last, reduction="sum")
        right = (start.detach().argmax(dim=1) == first) & (end.detach().argmax(dim=1) == last)
        return losses / 2 / num_targets["examples"], {"accuracy": right.sum() / num_targets["examples"]}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record a window: row, question number, loss, spans and rest (see `read_windows`)."""
        how = {"max_answer_length": self.max_answer_length, "num_best": self.num_best}
        return read_windows(model, batch, self._eval_windows, **how)

    def scores(self) -> dict[str, float]:
        """Exact match and F1 in percent over the questions of the records.

        Where some have no answer: with the threshold tuned on these questions, also for those with and without an
        answer apart, with F1 at an untuned threshold of 0 and the threshold itself.
        """
        found = best_answers(self.records, self._eval_questions)
        texts = [answer["prediction"] for answer in found]
        answers = [self._eval_questions[answer["id"]].answers for answer in found]
        if not self.may_have_none:
            return metrics.squad(texts, answers)
        no_answer = [-answer["score"] for answer in found]
        self.threshold = metrics.tuned_threshold(texts, answers, no_answer=no_answer)
        judge = partial(metrics.squad_v2, texts, answers, no_answer=no_answer)
        tuned, untuned = (judge(threshold=at) for at in (self.threshold, 0.0))
        return {**tuned, "untuned_f1": untuned["f1"], "no_answer_threshold": self.threshold}

    def _guessed(self, predictions: Sequence[str]) -> dict[str, float]:
        """Exact match and F1 of a guess for every held-out question."""
        return metrics.squad(predictions, [item.answers for item in self._eval_questions])

    def baseline(self) -> dict[str, float]:
        """For each metric the best of these guesses: the most frequent answer in training; the first words of the
        context, as many as score best in training; where questions may have no answer, none for all."""
        answered = [item for item in self._train_questions if item.answers]
        frequent = Counter(item.answers[0] for item in answered).most_common(1)[0][0]
        sample = answered[:_BASELINE_QUESTIONS]
        count = max(
            range(1, _LONGEST_BASELINE + 1), key=lambda words: _mean_f1(sample, (_opening(q, words) for q in sample))
        )
        guesses = [[frequent] * len(self._eval_questions), [_opening(item, count) for item in self._eval_questions]]
        if self.may_have_none:
            guesses.append([""] * len(self._eval_questions))
        results = [self._guessed(guess) for guess in guesses]
        return {name: max(result[name] for result in results) for name in results[0]}

    @cached_property
    def bag_of_words(self) -> dict[str, float]:
        """The sentence with most words of the question, or its longest run of others: what is better in training."""
        sample = [item for item in self._train_questions if item.answers][:_BASELINE_QUESTIONS]

        def guess(questions: Sequence[Question], whole: bool) -> list[str]:
            return [words_in_common(item.question, item.context, whole=whole) for item in questions]

        whole = max((False, True), key=lambda each: _mean_f1(sample, guess(sample, each)))
        return self._guessed(guess(self._eval_questions, whole))

    # For people

    @property
    def num_judged(self) -> int:
        return len(self._eval_questions)

    def predictions(self) -> list[dict[str, Any]]:
        """What was last summarized, readable: question, gold, prediction, its place in the context, probability."""
        readable = []
        for answer in best_answers(self.records, self._eval_questions, threshold=self.threshold):
            asked = self._eval_questions[answer["id"]]
            given = {"id": asked.id, "question": asked.question, "context": asked.context}
            found = {name: answer[name] for name in ("prediction", "start", "end")}
            sure = {"probability": round(answer["probability"], 6)}
            answers = metrics.answers_or_none(asked.answers) if self.may_have_none else asked.answers
            right = bool(metrics.best_over_answers(metrics.exact_match, answer["prediction"], answers))
            gold = list(dict.fromkeys(asked.answers))
            readable.append({**given, "gold": gold, **found, **sure, "correct": right})
        return readable

    def settings(self) -> dict[str, Any]:
        more = {name: getattr(self, name) for name in ("stride", "max_answer_length", "threshold")}
        return {**super().settings(), **more}

    def balance(self) -> Mapping[str, int]:
        held = sum(window.end > 0 for window in self._train_windows)
        return {"window with the answer": held, "window without": len(self._train_windows) - held}

    def show(self, example: Inputs) -> list[str]:
        start, end = example["start"], example["end"]
        answer = self.tokenizer.decode(example["input_ids"][start : end + 1]).strip() if end else "not in this window"
        return [f"answer: {answer}", *(f"    {line}" for line in super().show(example))]


def _opening(question: Question, words: int) -> str:
    return " ".join(question.context.split(maxsplit=words)[:words])


def _mean_f1(questions: Sequence[Question], predictions: Iterable[str]) -> float:
    pairs = zip(questions, predictions, strict=True)
    return fmean(metrics.best_over_answers(metrics.token_f1, text, question.answers) for question, text in pairs)


def collate_windows(examples: list[Inputs], *, tokenizer: Any) -> Batch:
    """Inputs padded to the longest [batch, length], `start_positions` and `end_positions` [batch]. Held-out windows
    add `row` [batch] and `allowed` (bool [batch, length]): tokens of the context at which an answer may start or
    end."""
    batch = pad_inputs(examples=examples, tokenizer=tokenizer)
    first = batch["attention_mask"].argmax(dim=1)  # of all tokens; not 0 where padding stands on the left
    for side in ("start", "end"):
        batch[f"{side}_positions"] = first + stacked(examples, side)[side]
    if "row" in examples[0]:
        allowed = [example["allowed"] for example in examples]
        batch["allowed"] = pad_like(allowed, mask=batch["attention_mask"], fill=0).bool()
    return batch | stacked(examples, "row")


def span_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Start and end logits [batch, length] in float32; -inf at padding, so that padding never weighs in."""
    output = model(**model_inputs(batch))
    padding = batch["attention_mask"] == 0
    start, end = (logits.float() for logits in (output.start_logits, output.end_logits))
    return start.masked_fill(padding, -math.inf), end.masked_fill(padding, -math.inf)


def read_windows(model: nn.Module, batch: Batch, windows: Sequence[Window], **how: int) -> list[dict[str, Any]]:
    """One record for each window of a batch, `row` of which is its place in `windows`: row, question number, loss, the
    best spans as [score, first, end] in characters, and the rest of what is believed (see `best_spans`).

    `how`: its `max_answer_length` and `num_best`.
    """
    start, end = span_logits(model, batch)
    losses = F.cross_entropy(start, batch["start_positions"], reduction="none")
    losses += F.cross_entropy(end, batch["end_positions"], reduction="none")
    null = batch["attention_mask"].argmax(dim=1)
    scores, first, last, rest = best_spans(start=start, end=end, allowed=batch["allowed"], null=null, **how)
    tokens = torch.stack([first, last], dim=2) - null[:, None, None]
    found = records(row=batch["row"], loss=losses / 2, rest=rest, scores=scores, tokens=tokens)
    for record in found:
        window = windows[record["row"]]
        best = zip(record.pop("scores"), record.pop("tokens"), strict=True)
        record["question"] = window.question
        record["spans"] = [[score, *window.characters(*ends)] for score, ends in best if score > -math.inf]
    return found


def best_answers(
    found: Iterable[Mapping[str, Any]], questions: Sequence[Question], *, threshold: float | None = None
) -> list[dict[str, Any]]:
    """The best span over all windows of each question in the records, with blanks around it removed.

    Its score is its lead over "no answer", in nats; above `threshold` "no answer" wins, and the text is empty. Its
    probability is that among all spans of all windows and "no answer"; a place in several windows counts once.
    """
    places: dict[int, dict[tuple[int, int], float]] = {}
    rests: dict[int, list[float]] = {}
    for record in found:
        number = record["question"]
        scores = places.setdefault(number, {})
        rests.setdefault(number, [0.0]).append(record["rest"])  # 0: "no answer"
        for score, *ends in record["spans"]:
            place = reader.trimmed(questions[number].context, *ends)
            scores[place] = max(score, scores.get(place, -math.inf))
    answers: list[dict[str, Any]] = []
    for number, scores in places.items():
        (start, end), score = max(scores.items(), key=lambda item: item[1], default=((0, 0), -math.inf))
        whole = float(np.logaddexp.reduce([*rests[number], *scores.values()]))
        probability = math.exp(score - whole)
        if threshold is not None and -score > threshold:
            start = end = 0
            score, probability = -score, math.exp(-whole)
        text = questions[number].context[start:end]
        found_at = {"start": start, "end": end} if text else {"start": None, "end": None}
        answers.append({"id": number, "prediction": text, **found_at, "score": score, "probability": probability})
    return answers


def best_spans(
    *, start: Tensor, end: Tensor, allowed: Tensor, null: Tensor, max_answer_length: int, num_best: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best spans of every window, exactly: all spans up to the longest are scored, not only pairs of good ends.

    Of start and end logits [batch, length], tokens that are `allowed` as ends, bool [batch, length], and the position
    that is `null`, "not in this window", int64 [batch]. The score of a span is the sum of the logits of its ends,
    minus that sum at `null`: its lead in nats. With "no answer" at a score of 0, a softmax over all spans of all
    windows of a question says how probable an answer is.

    Returns scores (-inf where a window has fewer spans), first and last tokens, each [batch, at most num_best], best
    first; and the log-sum-exp of the scores of all other spans [batch].
    """
    length = start.shape[1]
    width = min(max_answer_length, length)
    nothing = start.gather(1, null[:, None]) + end.gather(1, null[:, None])
    start, end = start.masked_fill(~allowed, -math.inf), end.masked_fill(~allowed, -math.inf)
    ends = F.pad(end, (0, width - 1), value=-math.inf).unfold(1, width, 1)  # [batch, length, width]
    scores = (start[:, :, None] + ends).flatten(1)
    best, places = scores.topk(min(num_best, scores.shape[1]), dim=1)
    rest = torch.logsumexp(scores.scatter(1, places, -math.inf), dim=1) - nothing[:, 0]
    first = places // width
    return best - nothing, first, first + places % width, rest


class QuestionPredictor(Predictor):
    """The piece of a context that answers a question; nothing where the model says that there is no answer."""

    columns = ("prediction", "probability", "start", "end")
    auto_class = "AutoModelForQuestionAnswering"

    def prepare(self) -> None:
        asked, trained = self.arguments.max_length, self.settings
        if not asked and "max_length" not in trained:
            self.max_length = min(self.max_length, QuestionAnswering.default_length)
        self.stride = (None if asked else trained.get("stride")) or self.max_length // 3
        self.longest = trained.get("max_answer_length") or QuestionAnsweringArguments().max_answer_length

    def expand(self, row: Row) -> Iterator[Row]:
        yield from reader.flat_rows(row)

    def choose_columns(self, row: Row) -> None:
        reader.check_columns(row, answered=False)

    def read(self, row: Row) -> dict[str, str]:
        reader.check_columns(row, answered=False)
        return {name: row.text(name, option=None) for name in ("question", "context")}

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        questions = [Question("", row["question"].strip(), row["context"], (), (), "") for row in given]
        windows = reader.cut_windows(
            questions=questions, tokenizer=self.tokenizer, max_length=self.max_length, stride=self.stride
        )
        found: list[dict[str, Any]] = []
        how = {"max_answer_length": self.longest, "num_best": QuestionAnswering.num_best}
        every = [{**window.features, "allowed": window.allowed, "row": row} for row, window in enumerate(windows)]
        for first in range(0, len(every), self.batch_size):
            examples = every[first : first + self.batch_size]
            batch = self.to_model(collate_windows(examples, tokenizer=self.tokenizer))
            found += read_windows(self.model, batch, windows, **how)
        for answer in best_answers(found, questions, threshold=self.settings.get("threshold")):
            yield {name: answer[name] for name in self.columns} | {"probability": round(answer["probability"], 6)}
