"""Tags of new texts or tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.tasks.base.features import TOKENS, model_inputs, pad_inputs, pad_like
from lacuna.tasks.base.rows import Row
from lacuna.tasks.predict.predictor import Predictor
from lacuna.tasks.token_classification.reader import TOKEN_CLASSIFICATION, cut_sentences
from lacuna.tasks.token_classification.tags import OUTSIDE, PLAIN, entities, find_scheme, is_tag, write_tags
from lacuna.tasks.token_classification.task import spans, word_choices


class TagPredictor(Predictor):
    """The entities of a text, or the tag of each of its tokens.

    Both go the way of training, a tag for each word: a text is parted into words, and what is found in these stands
    at its place in the text as it was given. The pipeline of transformers would not do: it merges tags by B- and I- of
    types alone, and takes those of BIOES, or of a single type that has no name, for something else.
    """

    auto_class = "AutoModelForTokenClassification"

    def prepare(self) -> None:
        self.labels = [self.model.config.id2label[number] for number in range(self.model.config.num_labels)]
        self.scheme = self.settings.get("scheme") or find_scheme([self.labels])
        self.tokens_column: str | None = None
        self._read_as = {label: label for label in self.labels}
        if self.scheme != PLAIN and (strange := [label for label in self.labels if not is_tag(label)]):
            self._read_as |= dict.fromkeys(strange, OUTSIDE)
            self.notes.append(f"labels that are no tags of entities count as {OUTSIDE}: {', '.join(strange)}")

    def choose_columns(self, row: Row) -> None:
        if self.arguments.text_column is None:
            named = [str(self.settings.get("tokens_column")), *TOKEN_CLASSIFICATION.columns["tokens"].names.split()]
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
        for (text, placed), words, tags, sure in zip(given, sentences, *self._tags(sentences), strict=True):
            if self.scheme == PLAIN:
                more = {"predicted_tokens": words} if self.tokens_column is None else {}
                yield {"prediction": tags, **more}
            elif self.tokens_column is None:
                yield {"prediction": [_in_text(span, text, placed) for span in spans(words, tags, sure)]}
            else:
                written = write_tags(entities(tags), length=len(tags), scheme=self.scheme)
                yield {"prediction": spans(words, tags, sure), "predicted_tags": written}

    @torch.no_grad()
    def _tags(self, sentences: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[float]]]:
        """The tag of each token and its probability, with as much as possible around it where a sentence is long."""
        together = self.settings.get("label_all_tokens", False)
        windows = cut_sentences(
            sentences=sentences, tokenizer=self.tokenizer, max_length=self.max_length, all_tokens=together
        )
        unseen = OUTSIDE if self.scheme != PLAIN or OUTSIDE in self.labels else self.labels[0]
        tags = [[unseen] * len(words) for words in sentences]
        sure = [[0.0] * len(words) for words in sentences]
        for start in range(0, len(windows), self.batch_size):
            part = windows[start : start + self.batch_size]
            batch = pad_inputs(examples=[window.inputs for window in part], tokenizer=self.tokenizer)
            owners = pad_like(values=[window.words for window in part], batch=batch, fill=-1)
            logits = self.model(**self.to_model(model_inputs(batch))).logits.float().cpu()
            for row, word, label, chance in zip(*(x.tolist() for x in word_choices(logits, owners)), strict=True):
                tags[part[row].sentence][word] = self._read_as[self.labels[label]]
                sure[part[row].sentence][word] = round(chance, 6)
        return tags, sure


def _in_text(span: dict[str, Any], text: str, words: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """An entity of words at its place in the text that these are from."""
    first, last = span["tokens"][0], span["tokens"][1] - 1
    start, end = words[first][0], words[last][0] + len(words[last][1])
    place = {"text": text[start:end], "start": start, "end": end}
    return {"type": span["type"], **place, "probability": span["probability"]}
