"""Token classification: every token of a sentence gets a tag, as part of an entity (names) or by itself (verbs).

Whatever scheme the data has, the model's labels are IOB2, which the pipelines of transformers read, and so are
predictions.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lacuna.common.errors import InputError
from lacuna.tasks.base.bag_of_words import MOST_WORDS, tag_words
from lacuna.tasks.base.features import IGNORED, TOKENS, model_inputs, pad_inputs, pad_like, records, stacked
from lacuna.tasks.base.metrics import classification, entity_f1
from lacuna.tasks.base.report import Shown, Table, label_tables
from lacuna.tasks.base.rows import Row, counted, gathered, note_alike, scarce_labels, some_of
from lacuna.tasks.base.task import Batch, Inputs, Task
from lacuna.tasks.predict.predictor import Predictor
from lacuna.tasks.token_classification import reader
from lacuna.tasks.token_classification.reader import OUTSIDE, PLAIN, Sentence, TokenClassificationArguments


class TokenClassification(Task):
    """Learning to tag tokens; held-out sentences are stratified by the rarest type of entity in them."""

    options: TokenClassificationArguments
    name, objective = "token_classification", "fine-tuning for token classification"
    auto_class = "AutoModelForTokenClassification"
    blended_rows = 5_000
    label_names: list[str]
    balance_of = "training tokens"
    probability_note = "The probability is that of the least sure tag: of the sentence, and of each entity."

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        names = self.options.label_names
        self.columns = self.find_columns(reader.TOKEN_CLASSIFICATION, train)
        self.tags_column = self.columns["tags_column"]
        train, held_out = (
            reader.name_numbers(reader.read_sentences(part, **self.columns), names) for part in (train, held_out)
        )
        self._choose_labels(train, names)
        hint = " (an empty line ends one in files of columns)"
        train, held_out = self.divide(
            train, held_out, same=lambda item: item.words, strata=self._strata, what="sentences", hint=hint
        )
        self._train_tags, self._eval_tags = self._normalized(train), self._normalized(held_out)
        self._train_sentences, self._eval_sentences = train, held_out

    def training_texts(self) -> list[str]:
        return gathered([item.text] for item in self._train_sentences)

    def encode(self) -> None:
        train = self._examples(self._train_sentences, self._train_tags)
        self.set_examples(train=train, held_out=self._examples(self._eval_sentences, self._eval_tags))
        self.note_windows([example["sentence"] for example in train], what="training sentences")
        words = sum(map(len, self._train_tags))
        if lost := words - sum(len({*example["words"].tolist()} - {-1}) for example in train):
            self.notes.append(f"{lost:,} tokens are nothing to the tokenizer and get {self.default_tag!r} unseen")
        what = "tokens" if self.scheme == PLAIN else "entities"
        train_counts, held_out = (self._counts(part) for part in (self._train_sentences, self._eval_sentences))
        self.notes += scarce_labels(train=train_counts, held_out=held_out, what=what)
        if words > MOST_WORDS:
            self.notes.append(f"no bag of words beside it: more than {MOST_WORDS:,} training words")

    # Tags and windows

    def _choose_labels(self, train: Sequence[Sentence], given: Sequence[str] | None) -> None:
        """Set `scheme` and `label_names`, and say what was found."""
        names = [*given] if given and not all(name.isdecimal() for name in given) else []
        if len(set(names)) != len(names):
            raise InputError(f"--label_names {' '.join(names)} names a label twice")
        self.scheme = reader.find_scheme([item.tags for item in train])
        self.metric = "accuracy" if self.scheme == PLAIN else "f1"
        tags = {tag: item.where for item in reversed(train) for tag in item.tags}
        if self.scheme == PLAIN:
            found = sorted(tags)
            if len(found) < 2:
                raise InputError(
                    f"{train[0].where}: every tag in column '{self.tags_column}' is {found[0]!r}: at least two are "
                    "needed to learn from; name another column with --tags_column"
                )
            self.label_names = names or found
            if all(name.isdecimal() for name in self.label_names):
                self.label_names = sorted(self.label_names, key=int)
                self.notes.append("tags are numbers; name them in order with --label_names, or they are no entities")
            note = f"{len(self.label_names)} tags without B- or I-: measured by accuracy"
        else:
            found = [*dict.fromkeys(self._split(tag, "--label_names")[1] for tag in names if tag != OUTSIDE)]
            found = found or sorted({self._split(tag, where)[1] for tag, where in tags.items() if tag != OUTSIDE})
            proper = [OUTSIDE, *(reader.join_tag(letter, kind) for kind in found for letter in "BI")]
            self.label_names = names if set(names) == set(proper) else proper
            counts = some_of([f"{kind} ({count:,})" for kind, count in sorted(self._counts(train).items())])
            note = f"entities, which labels and predictions write as IOB2: {counts}"
        self._number_of = {name: number for number, name in enumerate(self.label_names)}
        self.notes += [*note_alike(found), note]

    @staticmethod
    def _split(tag: str, where: str) -> tuple[str, str]:
        try:
            return reader.split_tag(tag)
        except ValueError as error:
            raise InputError(f"{where}: tag {error}, as the other tags are: mend it") from None

    def _normalized(self, sentences: Sequence[Sentence]) -> list[np.ndarray]:
        """The labels of each sentence as the model has them, int32 [words]; InputError for one that it has not."""
        numbers = []
        for item in sentences:
            tags: Sequence[str] = item.tags
            if self.scheme != PLAIN:
                for tag in tags:
                    self._split(tag, item.where)
                tags = reader.write_tags(reader.entities(tags), length=len(tags))
            if unknown := [given for given, tag in zip(item.tags, tags, strict=True) if tag not in self._number_of]:
                raise InputError(
                    f"{item.where}: tag {unknown[0]!r} in column '{self.tags_column}' is not one of the tags "
                    f"[{some_of(list(map(repr, self.label_names)))}]: correct it, or list every tag with --label_names"
                )
            numbers.append(np.array([self._number_of[tag] for tag in tags], dtype=np.int32))
        return numbers

    def _strata(self, sentences: Sequence[Sentence]) -> list[int]:
        """A number for each sentence: of its rarest type of entity, or of none."""
        if self.scheme == PLAIN:
            return [0] * len(sentences)
        kinds = [{entity.type for entity in reader.entities(item.tags)} for item in sentences]
        counts = Counter(kind for found in kinds for kind in found)
        order = {kind: rank for rank, kind in enumerate(sorted(counts, key=lambda kind: (counts[kind], kind)), 1)}
        return [min((order[kind] for kind in found), default=0) for found in kinds]

    def _counts(self, sentences: Sequence[Sentence]) -> Counter[str]:
        """How many entities there are of each type, or words with each tag."""
        if self.scheme == PLAIN:
            return Counter(tag for item in sentences for tag in item.tags)
        return Counter(entity.type or "entity" for item in sentences for entity in reader.entities(item.tags))

    def _examples(self, sentences: Sequence[Sentence], tags: Sequence[np.ndarray]) -> list[Inputs]:
        """A window each: inputs, `labels` and `words` [length], and the number of its `sentence`."""
        texts = [item.words for item in sentences]
        windows = reader.cut_sentences(sentences=texts, tokenizer=self.tokenizer, max_length=self.max_length)
        for window in windows:
            words = window["words"]
            window["labels"] = np.where(words >= 0, tags[window["sentence"]][words], IGNORED).astype(np.int32)
        return windows

    @property
    def default_tag(self) -> str:
        """The label of a token that the model does not see."""
        if self.scheme != PLAIN:
            return OUTSIDE
        return self.label_names[int(np.bincount(np.concatenate(self._train_tags)).argmax())]

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> Batch:
        """Inputs padded to the longest, `labels` [batch, length], -100 for tokens that do not count.

        Held-out examples add `words` [batch, length], -1 for tokens that speak for none, `sentence` and `row` [batch].
        """
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        mask = batch["attention_mask"]
        batch["labels"] = pad_like([item["labels"] for item in examples], mask=mask, fill=IGNORED)
        if "row" not in examples[0]:
            return batch
        batch["words"] = pad_like([item["words"] for item in examples], mask=mask, fill=-1)
        return batch | stacked(examples, "sentence", "row")

    def count_targets(self, batch: Batch) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Cross-entropy and accuracy of tokens, summed over the batch and divided by the tokens of the step."""
        logits = model(**model_inputs(batch)).logits.float()
        labels = batch["labels"]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        correct = (logits.detach().argmax(dim=-1) == labels).sum()
        return loss / num_targets["tokens"], {"accuracy": correct / num_targets["tokens"]}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record a window: row, sentence, nats, tokens, and of each of its words number, label and probability."""
        logits = model(**model_inputs(batch)).logits.float()
        labels = batch["labels"]
        nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").sum(dim=1)
        counts, words = (labels != IGNORED).sum(dim=1), [list[Any]() for _ in labels]
        found = records(row=batch["row"], sentence=batch["sentence"], loss=nats, tokens=counts, words=words)
        for row, *word, sure in zip(*(each.tolist() for each in word_choices(logits, batch["words"])), strict=True):
            found[row]["words"].append((*word, round(sure, 6)))
        return found

    def _predicted(self) -> list[tuple[list[str], list[float]]]:
        """Labels of the words of each held-out sentence, and their probabilities; 0 where the model saw nothing."""
        found = (
            (record["sentence"], word, self.label_names[label], sure)
            for record in self.records
            for word, label, sure in record["words"]
        )
        return tagged([item.words for item in self._eval_sentences], found, unseen=self.default_tag)

    def scores(self) -> dict[str, float]:
        """Of entities precision, recall and F1, over all and `f1_TYPE`; accuracy of tags; without entities also F1."""
        return self._scores([tags for tags, _ in self._predicted()])

    def _gold(self) -> list[list[str]]:
        return [[self.label_names[number] for number in numbers] for numbers in self._eval_tags]

    def _scores(self, predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        if self.scheme == PLAIN:
            return classification(
                [self._number_of[tag] for tags in predictions for tag in tags],
                [int(number) for numbers in self._eval_tags for number in numbers],
            )
        found = entity_f1(predictions, self._gold())
        by_type = found.pop("by_type")
        return {**found, **{f"f1_{kind}": row["f1"] for kind, row in by_type.items()}}

    def baseline(self) -> dict[str, float]:
        """The label that each word has most often in training; the loss: the label frequencies there (plus 1)."""
        seen: dict[str, Counter[int]] = {}
        for item, numbers in zip(self._train_sentences, self._train_tags, strict=True):
            for word, number in zip(item.words, numbers.tolist(), strict=True):
                seen.setdefault(word, Counter())[number] += 1
        usual = {word: self.label_names[counts.most_common(1)[0][0]] for word, counts in seen.items()}
        default = self.default_tag
        guesses = [[usual.get(word, default) for word in item.words] for item in self._eval_sentences]
        counts = np.bincount(np.concatenate(self._train_tags), minlength=len(self.label_names)) + 1
        log_frequency = np.log(counts / counts.sum())
        return {"loss": float(-log_frequency[np.concatenate(self._eval_tags)].mean()), **self._scores(guesses)}

    @cached_property
    def bag_of_words(self) -> dict[str, float]:
        """A linear model of each word and of those around it."""
        known = np.concatenate(self._train_tags)
        if len(known) > MOST_WORDS or len(np.unique(known)) < 2:
            return {}
        sentences, held_out = ([item.words for item in part] for part in (self._train_sentences, self._eval_sentences))
        found = tag_words(sentences, [tags.tolist() for tags in self._train_tags], held_out)
        return self._scores([[self.label_names[number] for number in numbers] for numbers in found])

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Each sentence with its entities, or its tags, as predicted and as they are (see `spans`)."""
        readable = []
        for item, (tags, sure), gold in zip(self._eval_sentences, self._predicted(), self._gold(), strict=True):
            found: dict[str, Any] = {"text": item.text, "tokens": list(item.words), "prediction": tags, "gold": gold}
            found |= {"probability": min(sure), "correct": tags == gold}
            if self.scheme != PLAIN:
                found |= {"prediction": reader.spans(item.words, tags, sure), "gold": reader.spans(item.words, gold)}
                found["correct"] = reader.entities(tags) == reader.entities(gold)
                found["tags"] = reader.write_tags(reader.entities(tags), length=len(tags))
            readable.append(found)
        return readable

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self.columns, "label_names": self.label_names, "scheme": self.scheme}

    def tables(self) -> dict[str, Shown]:
        """Entities by type; of plain tags what was taken for what."""
        tags = [tags for tags, _ in self._predicted()]
        if self.scheme != PLAIN:
            columns = ("type", "precision", "recall", "f1", "number")
            found = entity_f1(tags, self._gold())["by_type"]
            rows = [[kind, *(row[name] for name in columns[1:])] for kind, row in found.items()]
            return {"Entities by type": Table(columns, rows)}
        predicted = [self._number_of[tag] for each in tags for tag in each]
        return label_tables(self.label_names, np.concatenate(self._eval_tags).tolist(), predicted)

    def balance(self) -> Mapping[str, int]:
        return counted(self.label_names, np.concatenate(self._train_tags).tolist())

    def show(self, example: Inputs) -> list[str]:
        pieces = self.tokenizer.convert_ids_to_tokens(example["input_ids"].tolist())
        shown = [
            piece if label == IGNORED else f"{piece}/{self.label_names[label]}"
            for piece, label in zip(pieces, example["labels"].tolist(), strict=True)
        ]
        return [" ".join(shown)]


def word_choices(logits: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The most probable label of each word, by the token that speaks for it.

    Of logits [batch, length, labels] and words [batch, length] (-1 for tokens that speak for none): number in the
    batch, word, label and its probability, each [words of the batch], in the order of the tokens.
    """
    rows, places = torch.nonzero(words >= 0, as_tuple=True)
    best, labels = logits[rows, places].softmax(dim=-1).max(dim=-1)
    return rows, words[rows, places], labels, best


def tagged(
    sentences: Sequence[Sequence[str]], found: Iterable[tuple[int, int, str, float]], *, unseen: str
) -> list[tuple[list[str], list[float]]]:
    """The tags of the words of each sentence and their probabilities; `unseen` and 0 where nothing was found.

    What was found: sentence, word, tag and probability.
    """
    tags = [([unseen] * len(words), [0.0] * len(words)) for words in sentences]
    for sentence, word, tag, sure in found:
        tags[sentence][0][word], tags[sentence][1][word] = tag, sure
    return tags


class TagPredictor(Predictor):
    """The entities of a text, or the tag of each of its tokens, predicted for words as in training.

    The pipeline of transformers would not do: it merges tags by B- and I- of types alone, and takes those of BIOES, or
    of a single type that has no name, for something else.
    """

    auto_class = "AutoModelForTokenClassification"

    def prepare(self) -> None:
        self.labels = [self.model.config.id2label[number] for number in range(self.model.config.num_labels)]
        self.scheme = self.settings.get("scheme") or reader.find_scheme([self.labels])
        self.tokens_column: str | None = None
        if self.scheme != PLAIN and (strange := [label for label in self.labels if not reader.is_tag(label)]):
            self.labels = [OUTSIDE if label in strange else label for label in self.labels]
            self.notes.append(f"labels that are no tags of entities count as {OUTSIDE}: {', '.join(strange)}")

    def choose_columns(self, row: Row) -> None:
        if self.arguments.text_column is None:
            usual = reader.TOKEN_CLASSIFICATION.columns["tokens_column"].names.split()
            named = [str(self.settings.get("tokens_column")), *usual]
            self.tokens_column = next((name for name in named if isinstance(row.fields.get(name), list)), None)
        if self.tokens_column is None:
            super().choose_columns(row)
        more = {(True, True): "predicted_tokens", (False, False): "predicted_tags"}
        also = more.get((self.tokens_column is None, self.scheme == PLAIN))
        self.columns = ("prediction", also) if also else ("prediction",)

    def read(self, row: Row) -> tuple[str, list[tuple[int, str]]]:
        """A text (none for rows of tokens), and its words with the characters at which they begin."""
        if self.tokens_column is None:
            text = row.text(self.text_column, option="--text_column")
            return text, [(found.start(), found.group()) for found in TOKENS.finditer(text)]
        words = row.value(self.tokens_column, option="--text_column")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise InputError(
                f"{row.where}: column '{self.tokens_column}' holds {str(words)[:80]!r}, not a list of tokens: mend "
                "the row, or name a column of texts with --text_column"
            )
        return "", [(0, word) for word in words]

    def size(self, given: Any) -> int:
        return sum(len(word) + 1 for _, word in given[1])

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        sentences = [[word for _, word in words] for _, words in given]
        unseen = OUTSIDE if self.scheme != PLAIN or OUTSIDE in self.labels else self.labels[0]
        found = tagged(sentences, self._found(sentences), unseen=unseen)
        for (text, placed), words, (tags, sure) in zip(given, sentences, found, strict=True):
            if self.scheme == PLAIN:
                more = {"predicted_tokens": words} if self.tokens_column is None else {}
                yield {"prediction": tags, **more}
            elif self.tokens_column is None:
                yield {"prediction": [_in_text(span, text, placed) for span in reader.spans(words, tags, sure)]}
            else:
                written = reader.write_tags(reader.entities(tags), length=len(tags))
                yield {"prediction": reader.spans(words, tags, sure), "predicted_tags": written}

    @torch.no_grad()
    def _found(self, sentences: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, str, float]]:
        """Sentence, word, tag and probability, with as much as possible around it where a sentence is long."""
        windows = reader.cut_sentences(sentences=sentences, tokenizer=self.tokenizer, max_length=self.max_length)
        for start in range(0, len(windows), self.batch_size):
            part = windows[start : start + self.batch_size]
            batch = pad_inputs(examples=part, tokenizer=self.tokenizer)
            owners = pad_like([window["words"] for window in part], mask=batch["attention_mask"], fill=-1)
            logits = self.model(**self.to_model(model_inputs(batch))).logits.float().cpu()
            for row, word, label, chance in zip(*(x.tolist() for x in word_choices(logits, owners)), strict=True):
                yield part[row]["sentence"], word, self.labels[label], round(chance, 6)


def _in_text(span: dict[str, Any], text: str, words: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """An entity of words at its place in the text that these are from."""
    first, last = span["tokens"][0], span["tokens"][1] - 1
    start, end = words[first][0], words[last][0] + len(words[last][1])
    place = {"text": text[start:end], "start": start, "end": end}
    return {"type": span["type"], **place, "probability": span["probability"]}
