"""Extractive question answering as a pipeline: `pipeline("question-answering", model=FOLDER)`.

transformers has had no such pipeline since version 5. This file travels beside the weights of any model for question
answering and is named in its config.json, so that `trust_remote_code=True` finds it where nothing else is installed.
"""

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Pipeline
from transformers.pipelines.base import ChunkPipeline
from transformers.utils.hub import cached_file

TASK = "question-answering"
QUESTION_PIPELINE = {
    TASK: {"impl": "pipeline_lacuna.QuestionAnsweringPipeline", "pt": ["AutoModelForQuestionAnswering"]}
}
"""What `custom_pipelines` of a configuration says of the class below."""
SETTINGS = "task.json"
"""What fine-tuning has left beside the model: the lengths it was trained with, and when to answer nothing."""
DEFAULTS = {"max_length": 384, "stride": None, "max_answer_length": 48, "threshold": None}
SPANS_OF_A_WINDOW = 5
SHORTEST_QUESTION = 8  # tokens
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def add_question_pipeline(folder: str | os.PathLike[str]) -> None:
    """Put this file into the folder of a model, and name it in its config.json, which must be there."""
    source, config = Path(__file__), Path(folder, "config.json")
    content = json.loads(config.read_text(encoding="utf-8"))
    if source.resolve() != Path(folder, source.name).resolve():
        shutil.copyfile(source, Path(folder, source.name))
    content["custom_pipelines"] = {**(content.get("custom_pipelines") or {}), **QUESTION_PIPELINE}
    temporary = config.with_name(f".{config.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(config)


def read_settings(model: Any) -> dict[str, Any]:
    """`task.json` of the folder or Hub id that a model was loaded from; empty where there is none for this task."""
    config = model.config
    name = getattr(config, "name_or_path", "")
    if not name:
        return {}
    try:
        path = cached_file(
            name,
            SETTINGS,
            revision=getattr(config, "_commit_hash", None),
            local_files_only=os.path.isdir(name),
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # a folder that is no longer there
        path = None
    if path is None:
        return {}
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return content if content.get("name") == "question_answering" else {}


def best_spans(
    *, start: Tensor, end: Tensor, allowed: Tensor, max_answer_length: int, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best spans of each row: every span is scored by the sum of the logits of its ends.

    `best_spans` of tasks/question_answering/task.py is the same, which cannot travel.

    Args:
        start, end, allowed: logits [B, T], and bool [B, T], tokens at which a span may begin and end.
        max_answer_length, count: most tokens of a span; how many spans to return.

    Returns:
        Scores, first and last tokens [B, at most count], best first; a score is -inf where a row has fewer spans. And
        the rest [B]: the logarithm of the sum of the exponentials of the scores of all other spans.
    """
    start, end = start.masked_fill(~allowed, -math.inf), end.masked_fill(~allowed, -math.inf)
    length = start.shape[1]
    # One row for each length of a span: shifted to its first token, the last one stands under it.
    scores = torch.full((len(start), min(max_answer_length, length), length), -math.inf, device=start.device)
    for further in range(scores.shape[1]):
        scores[:, further, : length - further] = start[:, : length - further] + end[:, further:]
    scores = scores.flatten(1)
    best, places = scores.topk(min(count, scores.shape[1]), dim=1)
    rest = torch.logsumexp(scores.scatter(1, places, -math.inf), dim=1)
    first = places % length
    return best, first, first + places // length, rest


class QuestionAnsweringPipeline(ChunkPipeline):
    """Marks the answer to a question in its context, however long the context is.

        answer = pipeline("question-answering", model=FOLDER, trust_remote_code=True)
        answer(question="Who wrote it?", context="It was written by Mary Shelley.")
        answer([{"question": ..., "context": ...}, ...], batch_size=32)

    Each answer is a dictionary with `answer`, its place in the context (`start`, `end`, in characters) and `score`,
    its probability among all spans of all windows and "the context has no answer", by a softmax over the sums of the
    logits of their ends. An answer of no characters at 0 says that the context has none; it is given where the model
    learnt that from such questions, or where `handle_impossible_answer` is set.

    Options, of the pipeline or of a call; the defaults are those that the model was fine-tuned with (`task.json`):
        top_k: how many answers; more than one gives a list for each question, best first.
        max_length: tokens of one window, question and special tokens included.
        stride: tokens that neighbouring windows of a long context share; a third of `max_length` by default.
        max_answer_length: most tokens of an answer.
        handle_impossible_answer: whether a question may have no answer.
        threshold: in nats; by how much "no answer" must be better than the best span to be given.
    The names that transformers used (max_seq_len, doc_stride, max_answer_len) are understood too.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    default_input_names = "question,context"

    def __init__(self, model: Any, tokenizer: Any = None, **kwargs: Any) -> None:
        """A pipeline of a model with start and end logits and a fast tokenizer; a slow one is a `ValueError`."""
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError("answers are pieces of the text, which only a fast tokenizer (tokenizer.json) can find")
        settings = read_settings(model)
        self.settings: dict[str, Any] = {name: settings.get(name, value) for name, value in DEFAULTS.items()}
        super().__init__(model=model, tokenizer=tokenizer, **kwargs)

    def _sanitize_parameters(
        self,
        top_k: int | None = None,
        max_length: int | None = None,
        stride: int | None = None,
        max_answer_length: int | None = None,
        handle_impossible_answer: bool | None = None,
        threshold: float | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Options by who takes them: `preprocess`, `_forward`, `postprocess`. None is below 1 (`ValueError`)."""
        cut = {"max_length": max_length or max_seq_len, "stride": doc_stride if stride is None else stride}
        found = {"max_answer_length": max_answer_length or max_answer_len, "top_k": top_k}
        chosen = {"handle_impossible_answer": handle_impossible_answer, "threshold": threshold, "top_k": top_k}
        for name, value in {**cut, **found}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        return tuple({k: v for k, v in part.items() if v is not None} for part in (cut, found, chosen))  # type: ignore[return-value]

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **kwargs: Any) -> Any:
        """Answer one question with a dictionary (with `top_k` above 1, several), a list of questions with a list.

        Args:
            inputs: {"question": ..., "context": ...}, or a list or an iterator of such, which is read as it is needed.
            question, context: the same apart: two texts, or two lists of them, or questions about one context.
            kwargs: options as above, `batch_size` and `num_workers`.

        Raises:
            ValueError: a question or a context is missing or has nothing but blanks.
        """
        if inputs is None:
            inputs = _paired(question, context)
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__(inputs, **kwargs)

    # From a question to windows

    def preprocess(
        self, example: Mapping[str, str], max_length: int | None = None, stride: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The windows of a context: inputs [1, T], `allowed` [1, T], `offsets` [1, T, 2] in characters, `is_last`."""
        question, context = _checked(example)
        length, stride, longest_question = self._lengths(max_length, stride)
        encoding = self.tokenizer(
            self._shortened(question, longest_question),
            context,
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=True,
        )
        names = [name for name in MODEL_INPUTS if name in encoding]
        number = len(encoding["input_ids"])
        for window in range(number):
            offsets = torch.tensor(encoding["offset_mapping"][window]).reshape(1, -1, 2)
            of_context = torch.tensor([[part == 1 for part in encoding.sequence_ids(window)]])
            yield {
                **{name: torch.tensor([encoding[name][window]]) for name in names},
                "allowed": of_context & (offsets[..., 0] < offsets[..., 1]),
                "offsets": offsets,
                "context": context,
                "is_last": window == number - 1,
            }

    def _lengths(self, max_length: int | None, stride: int | None) -> tuple[int, int, int]:
        """Tokens of a window, of what two windows share, and of the longest question; no room is a `ValueError`."""
        limits = [getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length]
        length = max_length or min([self.settings["max_length"], *(limit for limit in limits if limit)])
        stride = stride or (self.settings["stride"] if max_length is None else None) or length // 3
        longest = (length - self.tokenizer.num_special_tokens_to_add(pair=True) - stride) // 2
        if longest < SHORTEST_QUESTION:
            raise ValueError(
                f"max_length={length} with stride={stride} leaves {max(longest, 0)} tokens for a question"
            )
        return length, stride, longest

    def _shortened(self, question: str, longest: int) -> str:
        """The question, cut after so many tokens."""
        offsets = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return question if len(offsets) <= longest else question[: offsets[longest - 1][1]]

    # From windows to spans

    def _forward(self, inputs: dict[str, Any], max_answer_length: int | None = None, top_k: int = 1) -> dict[str, Any]:
        """Of each window the best spans: scores and characters, each [B, spans]; and the scores of "not here", which
        stands at the first token, and of all other spans together."""
        model_inputs = {name: inputs[name] for name in MODEL_INPUTS if name in inputs}
        output = self.model(**model_inputs)
        null = inputs["attention_mask"].argmax(dim=1)[:, None]  # not 0 where padding stands on the left
        start, end = output["start_logits"].float(), output["end_logits"].float()
        scores, first, last, rest = best_spans(
            start=start,
            end=end,
            allowed=inputs["allowed"].bool(),
            max_answer_length=max_answer_length or self.settings["max_answer_length"],
            count=max(top_k, SPANS_OF_A_WINDOW),
        )
        return {
            "scores": scores,
            "starts": inputs["offsets"][..., 0].gather(1, first),
            "ends": inputs["offsets"][..., 1].gather(1, last.clamp(max=start.shape[1] - 1)),
            "null": (start.gather(1, null) + end.gather(1, null))[:, 0],
            "rest": rest,
            "context": inputs["context"],
            "is_last": inputs["is_last"],
        }

    # From spans to answers

    def postprocess(
        self,
        windows: list[dict[str, Any]],
        handle_impossible_answer: bool | None = None,
        threshold: float | None = None,
        top_k: int = 1,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The best spans over all windows of a question, each once."""
        context = windows[0]["context"]
        leads: dict[tuple[int, int], float] = {}
        rests = [0.0]  # that of "no answer", and of the spans of each window that were not kept
        for window in windows:
            # Windows are compared by how much more they believe in a span than in "not here".
            rests.append(float(window["rest"][0] - window["null"][0]))
            columns = (window["scores"][0] - window["null"][0], window["starts"][0], window["ends"][0])
            for lead, start, end in zip(*(column.tolist() for column in columns), strict=True):
                if lead > -math.inf:
                    place = _trimmed(context, start, end)
                    leads[place] = max(lead, leads.get(place, -math.inf))
        whole = _log_sum([*rests, *leads.values()])
        best = sorted(leads, key=lambda place: leads[place], reverse=True)[:top_k]
        answers = [_answer(context, *place, leads[place] - whole) for place in best]
        answers = answers or [_answer(context, 0, 0, -math.inf)]
        if threshold is None:
            threshold = self.settings["threshold"]
        may_have_none = threshold is not None if handle_impossible_answer is None else handle_impossible_answer
        if may_have_none:
            lead = leads[best[0]] if best else -math.inf
            nothing = _answer(context, 0, 0, -whole)
            answers.insert(0 if -lead > (threshold or 0.0) else 1, nothing)
        return answers[0] if top_k == 1 else answers[:top_k]

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save model, tokenizer, this file and the settings; the folder works like the one that they came from."""
        Pipeline.save_pretrained(self, save_directory, **kwargs)
        settings = json.dumps({"name": "question_answering", **self.settings}, indent=2)
        Path(save_directory, SETTINGS).write_text(settings + "\n", encoding="utf-8")
        add_question_pipeline(save_directory)


def _paired(question: Any, context: Any) -> Any:
    """Questions with their contexts, from two texts or two lists."""
    if isinstance(question, str):
        return {"question": question, "context": context}
    if not isinstance(question, Iterable):
        raise ValueError('give {"question": ..., "context": ...}, a list of such, or question=..., context=...')
    questions = list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context or [])
    if len(contexts) != len(questions):
        raise ValueError(f"there are {len(questions)} questions and {len(contexts)} contexts")
    return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]


def _checked(example: Mapping[str, str]) -> tuple[str, str]:
    """Question and context of an example; one that is missing or blank is a `ValueError`."""
    for name in ("question", "context"):
        value = example.get(name) if isinstance(example, Mapping) else None
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
    return example["question"].strip(), example["context"]


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) without blanks at either end."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def _log_sum(values: list[float]) -> float:
    """The logarithm of the sum of exponentials, of which one is that of a finite number."""
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values))


def _answer(context: str, start: int, end: int, log_probability: float) -> dict[str, Any]:
    return {"score": math.exp(log_probability), "start": start, "end": end, "answer": context[start:end]}
