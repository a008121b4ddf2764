"""One predictor a task: what it reads of a row, and what it answers."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.common.loading import first_line, missing_folder
from lacuna.tasks.choices import Columns, Problem, read_problem
from lacuna.tasks.columns import MULTIPLE_CHOICE, TOKEN_CLASSIFICATION
from lacuna.tasks.features import model_inputs, pad_inputs, pad_like, tokenizer_inputs
from lacuna.tasks.local_metric import optional_module
from lacuna.tasks.multiple_choice import MultipleChoice
from lacuna.tasks.pairs import unfold
from lacuna.tasks.predictor import PipelinePredictor, Predictor
from lacuna.tasks.questions import check_columns, flat_rows
from lacuna.tasks.rows import Row
from lacuna.tasks.tagged import cut_sentences
from lacuna.tasks.tags import OUTSIDE, PLAIN, entities, find_scheme, is_tag, write_tags
from lacuna.tasks.token_classification import spans, word_choices
from lacuna.tasks.words import TOKENS
from lacuna.tasks.writing import Writer, resolve_lengths, writes_with

NEW_TOKENS = 64


class ClassificationPredictor(PipelinePredictor):
    """The label of a text or a pair; where several can hold, these and the probabilities of all; or a number."""

    task, auto_class, takes_pairs = "text-classification", "AutoModelForSequenceClassification", True

    def options(self) -> dict[str, Any]:
        return {**self.cut, "top_k": None}

    def prepare(self) -> None:
        config = self.model.config
        guess = "regression" if config.num_labels == 1 else "single_label_classification"
        # By this the pipeline chooses between softmax, sigmoid and neither.
        config.problem_type = self.settings.get("problem_type") or config.problem_type or guess
        self.problem = config.problem_type
        if self.problem != "regression":
            several = self.problem == "multi_label_classification"
            self.columns = ("prediction", "probability", *(("probabilities",) if several else ()))
        super().prepare()

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        scores = {each["label"]: each["score"] for each in found}
        if self.problem == "regression":
            numbers = {name: round(score, 6) for name, score in scores.items()}
            return {"prediction": next(iter(numbers.values())) if len(numbers) == 1 else numbers}
        if self.problem != "multi_label_classification":
            return {"prediction": found[0]["label"], "probability": round(found[0]["score"], 6)}
        chances = {name: scores[name] for _, name in sorted(self.model.config.id2label.items())}
        chosen = [name for name, chance in chances.items() if chance > self.settings.get("threshold", 0.5)]
        whole = math.prod(chance if name in chosen else 1 - chance for name, chance in chances.items())
        rounded = {name: round(chance, 6) for name, chance in chances.items()}
        return {"prediction": chosen, "probability": round(whole, 6), "probabilities": rounded}


class QuestionPredictor(PipelinePredictor):
    """The piece of a context that answers a question; nothing where the model says that there is no answer."""

    columns = ("prediction", "probability", "start", "end")
    auto_class = "AutoModelForQuestionAnswering"

    def prepare(self) -> None:
        assert self.question_pipeline is not None
        options = {"max_length": self.arguments.max_length} if self.arguments.max_length else {}
        self.pipeline = self.question_pipeline(
            model=self.model, tokenizer=self.tokenizer, device=self.model.device, **options
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from flat_rows(row)

    def choose_columns(self, row: Row) -> None:
        check_columns(row, answered=False)

    def read(self, row: Row) -> dict[str, str]:
        check_columns(row, answered=False)
        return {name: row.text(name, option=None) for name in ("question", "context")}

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        place = {name: found[name] if found["answer"] else None for name in ("start", "end")}
        return {"prediction": found["answer"], "probability": round(found["score"], 6), **place}


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


class ChoicePredictor(Predictor):
    """The best of several choices, its number from 0, and what the model believes of each."""

    columns = ("prediction", "prediction_number", "probability", "probabilities")
    auto_class = "AutoModelForMultipleChoice"

    def choose_columns(self, row: Row) -> None:
        named = {name.partition("_")[0]: self.settings.get(name) for name in ("context_column", "question_column")}
        named["choices"] = self.settings.get("choices_columns")
        there = [name for name in (named["context"], named["question"], *(named["choices"] or ())) if name]
        trained = named["choices"] is not None and all(name in row.fields for name in there)
        layout = MULTIPLE_CHOICE.only("context", "question", "choices")
        self._places = Columns(*layout.find([row], **(named if trained else {})))
        if not trained:
            there = [name for name in (self._places.context, self._places.question, *self._places.choices) if name]
            self.notes.append(f"question and choices from columns {', '.join(there)} (guessed)")

    def read(self, row: Row) -> Problem:
        return read_problem(row, self._places)

    def size(self, given: Any) -> int:
        return max(sum(map(len, given.pair(choice))) for choice in given.choices)

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        firsts, seconds = zip(*(problem.pair(choice) for problem in given for choice in problem.choices), strict=True)
        encoding = self.tokenizer(list(firsts), list(seconds), **self.cut, return_attention_mask=False)
        examples = [tokenizer_inputs(encoding, number) for number in range(len(firsts))]
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        batch["choices"] = torch.tensor([len(problem.choices) for problem in given])
        chances = MultipleChoice.logits(self.model, self.to_model(batch)).softmax(dim=1).tolist()
        for problem, row in zip(given, chances, strict=True):
            believed = [round(chance, 6) for chance in row[: len(problem.choices)]]
            best = max(range(len(believed)), key=row.__getitem__)
            numbers = {"prediction_number": best, "probability": believed[best], "probabilities": believed}
            yield {"prediction": problem.choices[best], **numbers}


class WritingPredictor(Predictor):
    """A text written from another one, and the mean probability of its tokens."""

    columns = ("prediction", "probability")
    trained_column = "source_column"

    @classmethod
    def head(cls, config: Any) -> str:
        return writes_with(config, model=config.name_or_path)

    def prepare(self) -> None:
        source, target = resolve_lengths(
            source=self.arguments.max_length or self.settings.get("max_length"),
            target=self.arguments.max_new_tokens or self.settings.get("max_target_length"),
            config=self.model.config,
            tokenizer=self.tokenizer,
            default=(256, NEW_TOKENS),
        )
        self._writer = Writer(
            tokenizer=self.tokenizer,
            config=self.model.config,
            max_length=source,
            max_target_length=target,
            num_beams=self.settings.get("num_beams", 1),
            source_prefix=self.settings.get("source_prefix", ""),
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from unfold([row])

    def read(self, row: Row) -> str:
        return row.text(self.text_column, option="--text_column").strip()

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        sources, _ = self._writer.sources(given)
        written = self._writer.write(self.model, self.to_model(self._writer.prompts(sources)))
        for ids, sure in zip(written, self._writer.sureness(self.model, sources, written), strict=True):
            yield {"prediction": self._writer.text(ids), "probability": round(sure, 6)}


class EmbeddingPredictor(Predictor):
    """The vector of a text, by sentence-transformers."""

    def prepare(self) -> None:
        library = optional_module("sentence_transformers", extra="embeddings")
        name = self.arguments.model
        try:
            self._encoder = library.SentenceTransformer(name, trust_remote_code=self.arguments.trust_remote_code)
        except (OSError, ValueError) as error:
            message = f"--model {name} cannot be loaded by sentence-transformers: {first_line(error)}"
            raise InputError(missing_folder(name) or message) from error
        if self.arguments.max_length:
            self._encoder.max_seq_length = self.arguments.max_length

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for vector in self._encoder.encode(list(given), batch_size=len(given), show_progress_bar=False).tolist():
            yield {"prediction": [round(value, 6) for value in vector]}


class FillMaskPredictor(PipelinePredictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    task, auto_class = "fill-mask", "AutoModelForMaskedLM"
    columns = ("prediction", "tokens")

    def options(self) -> dict[str, Any]:
        return {"top_k": self.arguments.top_k, "tokenizer_kwargs": self.cut}

    def prepare(self) -> None:
        if self.tokenizer.mask_token is None:
            raise InputError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        super().prepare()

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self.cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise InputError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
        return text

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        masks = [found] if isinstance(found[0], dict) else found
        parts = given.split(self.tokenizer.mask_token)
        best = [choices[0]["token_str"] for choices in masks] + [""] * len(parts)
        filled = ""
        for part, token in zip(parts, best, strict=False):
            filled += part  # a token brings the blank before it along
            filled += token.lstrip() if filled[-1:].isspace() else token
        tokens = [[[each["token_str"], round(each["score"], 6)] for each in choices] for choices in masks]
        return {"prediction": filled, "tokens": tokens}


class GenerationPredictor(PipelinePredictor):
    """What follows a text: the likeliest token each time."""

    task, auto_class = "text-generation", "AutoModelForCausalLM"

    def options(self) -> dict[str, Any]:
        self.tokenizer.truncation_side = "left"  # of a long text the end is what goes on
        new = self.arguments.max_new_tokens or NEW_TOKENS
        room = self.max_length - new
        if room < 1:
            raise InputError(
                f"--max_new_tokens {new} leaves no room for a text: the model takes {self.max_length} tokens in all"
            )
        cut = {"truncation": True, "max_length": room}
        how = {"max_new_tokens": new, "do_sample": False, "return_full_text": False}
        return {**how, "tokenizer_encode_kwargs": cut}

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        return {"prediction": found[0]["generated_text"]}


PREDICTORS: dict[str, type[Predictor]] = {
    "classification": ClassificationPredictor,
    "question_answering": QuestionPredictor,
    "token_classification": TagPredictor,
    "multiple_choice": ChoicePredictor,
    "sequence_to_sequence": WritingPredictor,
    "embeddings": EmbeddingPredictor,
    "fill_mask": FillMaskPredictor,
    "text_generation": GenerationPredictor,
}
