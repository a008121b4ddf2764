"""Tags: the entities of a text, or a tag for each token."""

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
import transformers

from tasks.errors import TaskError
from tasks.features import model_inputs, pad_inputs, pad_like
from tasks.predictor import Predictor
from tasks.rows import Row
from tasks.tagged import TOKEN_COLUMNS, cut_sentences
from tasks.tags import OUTSIDE, PLAIN, entities, find_scheme, write_tags
from tasks.token_classification import spans, word_choices
from tasks.words import TOKENS



class WordPipeline(transformers.TokenClassificationPipeline):
    """That of transformers, where a text is words with blanks between: it need not guess where a word begins.

    Its guess takes a blank that is a token of its own for a word, and so the tag of that for an entity.
    """

    def gather_pre_entities(self, sentence: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Tokens with the chances of their labels; those of nothing but blanks left out."""
        found = []
        for token in super().gather_pre_entities(sentence, *args, **kwargs):
            letters = sentence[token["start"] : token["end"]]
            if letters.strip():
                begin = token["start"] + len(letters) - len(letters.lstrip())
                found.append({**token, "is_subword": begin > 0 and not sentence[begin - 1].isspace()})
        return found


class TagPredictor(Predictor):
    """The entities of a text, or the tag of each of its tokens.

    A text goes through the pipeline of transformers with blanks between its words, as sentences of tokens have them;
    characters are those of the text as it was given. Rows of tokens go the way of training, a tag for each token.
    """

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForTokenClassification"

    def prepare(self, question_pipeline: Any) -> None:
        self.labels = [self.model.config.id2label[number] for number in range(self.model.config.num_labels)]
        self.scheme = self.settings.get("scheme") or find_scheme([self.labels])
        self.tokens_column: str | None = None
        self.tokenizer.model_max_length = self.max_length  # by which the pipeline cuts
        together = self.settings.get("label_all_tokens", False)
        room = self.max_length - self.tokenizer.num_special_tokens_to_add()
        self._pipeline = self.pipeline(
            "token-classification",
            pipeline_class=WordPipeline,
            aggregation_strategy="average" if together else "first",
            stride=max(1, room // 4),
        )

    def choose_columns(self, row: Row) -> None:
        if self.arguments.text_column is None:
            named = [self.settings.get("tokens_column") or TOKEN_COLUMNS[0], *TOKEN_COLUMNS]
            self.tokens_column = next((name for name in named if isinstance(row.fields.get(name), list)), None)
        if self.tokens_column is None:
            super().choose_columns(row)
        elif self.scheme != PLAIN:
            self.columns = ("prediction", "predicted_tags")
        if self.tokens_column is None and self.scheme == PLAIN:
            self.columns = ("prediction", "predicted_tokens")

    def read(self, row: Row) -> tuple[str, list[tuple[int, str]]]:
        """A text (none for rows of tokens), and its words with the characters at which they begin."""
        if self.tokens_column is None:
            text = row.text(self.text_column, option="--text_column")
            return text, [(found.start(), found.group()) for found in TOKENS.finditer(text)]
        words = row.value(self.tokens_column, option="--text_column")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise TaskError(
                f"{row.where}: column '{self.tokens_column}' holds {str(words)[:80]!r}, not a list of tokens: mend "
                "the row, or name a column of texts with --text_column"
            )
        return "", [(0, word) for word in words]

    def size(self, given: Any) -> int:
        return sum(len(word) + 1 for _, word in given[1])

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        if self.tokens_column is None and self.scheme != PLAIN:
            yield from self._entities(given)
            return
        sentences = [[word for _, word in words] for _, words in given]
        for words, tags, sure in zip(sentences, *self._tags(sentences), strict=True):
            if self.scheme == PLAIN:
                more = {"predicted_tokens": words} if self.tokens_column is None else {}
                yield {"prediction": tags, **more}
            else:
                written = write_tags(entities(tags), length=len(tags), scheme=self.scheme)
                yield {"prediction": spans(words, tags, sure), "predicted_tags": written}

    def _entities(self, given: Sequence[tuple[str, list[tuple[int, str]]]]) -> Iterator[dict[str, Any]]:
        sentences = [" ".join(word for _, word in words) for _, words in given]
        with warnings.catch_warnings():  # of the guess that is not needed here
            warnings.simplefilter("ignore", UserWarning)
            found = list(self.through(self._pipeline, sentences))
        for (text, words), sentence, groups in zip(given, sentences, found, strict=True):
            places: list[dict[str, Any]] = []
            starts = [0, *accumulate(len(word) + 1 for _, word in words)]
            for group in groups:
                inside = sentence[group["start"] : group["end"]]
                begin = group["start"] + len(inside) - len(inside.lstrip())
                first, last = (bisect_right(starts, at) - 1 for at in (begin, group["end"] - 1))
                start, end = words[first][0], words[last][0] + len(words[last][1])
                places.append({"type": group["entity_group"], "text": text[start:end], "start": start, "end": end})
                places[-1]["probability"] = round(float(group["score"]), 6)
            yield {"prediction": places}

    @torch.no_grad()
    def _tags(self, sentences: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[float]]]:
        """The tag of each token and its probability, with as much as possible around it where a sentence is long."""
        together = self.settings.get("label_all_tokens", False)
        windows = cut_sentences(
            sentences=sentences, tokenizer=self.tokenizer, max_length=self.max_length, all_tokens=together
        )
        unseen = OUTSIDE if OUTSIDE in self.labels else self.labels[0]
        tags = [[unseen] * len(words) for words in sentences]
        sure = [[0.0] * len(words) for words in sentences]
        for start in range(0, len(windows), self.batch_size):
            part = windows[start : start + self.batch_size]
            batch = pad_inputs(examples=[window.inputs for window in part], tokenizer=self.tokenizer)
            owners = pad_like(values=[window.words for window in part], batch=batch, fill=-1)
            inputs = {name: value.to(self.model.device) for name, value in model_inputs(batch).items()}
            logits = self.model(**inputs).logits.float().cpu()
            for row, word, label, chance in zip(*(x.tolist() for x in word_choices(logits, owners)), strict=True):
                tags[part[row].sentence][word] = self.labels[label]
                sure[part[row].sentence][word] = round(chance, 6)
        return tags, sure
