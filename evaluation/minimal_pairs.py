"""Minimal pairs: does the model find the grammatical sentence likelier than its ungrammatical twin?

Warstadt et al. 2020 (BLiMP, https://arxiv.org/abs/1912.00582). A causal model's score is the log-probability of the
sentence behind a start token, not divided by its length; a masked model's is the pseudo-log-likelihood of Salazar et
al. 2020 (https://arxiv.org/abs/1910.14659): each token masked in turn, one copy of the sentence per token.

A tie counts as half. Scorers that take the first of two equal scores give 100 % to a model that returns a constant,
because the good sentence comes first; here that is an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lacuna.common.errors import InputError

from .baselines import with_intervals
from .language_model import LanguageModel, Request, score

GOOD, BAD = "sentence_good", "sentence_bad"
TIE = 1e-6  # relative: scores are sums of float32 log-probabilities, and what lies below their precision is no answer

Pair = tuple[str, str]


def group_pairs(
    *, rows: Iterable[tuple[Mapping[str, Any], str, int]], max_examples: int | None = None
) -> dict[str, list[Pair]]:
    """The first `max_examples` pairs (good, bad) of each paradigm: the row's UID as in BLiMP, else its file's name.

    `rows` are fields, path and line. InputError, with both, where one is missing or all pairs are of equal ones.
    """
    pairs: dict[str, list[Pair]] = {}
    for fields, path, line in rows:
        for column in (GOOD, BAD):
            value = fields.get(column)
            if not isinstance(value, str) or not value.strip():
                there = f"it is {value!r}" if column in fields else f"there are: {', '.join(map(str, fields))}"
                raise InputError(
                    f"{path}:{line}: no sentence in the column {column!r} ({there}); minimal pairs are rows with "
                    f"{GOOD} and {BAD}"
                )
        name = path.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
        group = pairs.setdefault(str(fields.get("UID") or name), [])
        if max_examples is None or len(group) < max_examples:
            group.append((fields[GOOD], fields[BAD]))
    if not pairs:
        raise InputError(f"there are no pairs: name files of rows with {GOOD} and {BAD}")
    if all(good == bad for group in pairs.values() for good, bad in group):  # a few of BLiMP's are, and count as ties
        raise InputError(f"{path}:{line}: {GOOD} and {BAD} are the same, as in all pairs: there is nothing to choose")
    return pairs


def measure_minimal_pairs(*, language_model: LanguageModel, pairs: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """Share of pairs, (good, bad) sentences by paradigm, in which the good one gets the higher score.

    `accuracy` is the mean over the paradigms, `accuracy_PARADIGM` that of each of several. Raises InputError: scores
    do not depend on the sentences, or one is too long for the model; NumericsError: a score is not a finite number.
    """
    sentences = [sentence for group in pairs.values() for pair in group for sentence in pair]
    scores, lengths = score_sentences(language_model=language_model, sentences=sentences)
    _refuse_constant_scores(scores, lengths)
    points = judge(good=scores[0::2], bad=scores[1::2])
    sizes = {name: len(group) for name, group in pairs.items()}
    return {
        **with_intervals(name="accuracy", statistic=lambda units: points[units].mean(), groups=sizes),
        "baseline_accuracy": 0.5,
        "pairs": len(points),
        "paradigms": len(pairs),
        "ties": int((points == 0.5).sum()),
    }


def judge(*, good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """1 where the good sentence has the higher score, 0.5 where the scores are equal, 0 elsewhere; float64 [pairs]."""
    equal = np.abs(good - bad) <= TIE * np.maximum(np.abs(good), np.abs(bad))
    return np.where(equal, 0.5, (good > bad).astype(np.float64))


def score_sentences(*, language_model: LanguageModel, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Scores in nats (log-probability or pseudo-log-likelihood), float64 [sentences], and their numbers of tokens.

    Sentences of the same tokens are scored once and get exactly the same score. Raises InputError: a sentence has no
    token, or more than the model takes.
    """
    owners, texts = encode_sentences(language_model, sentences)
    lengths = np.asarray([len(ids) for ids in texts], dtype=np.int64)
    scores = np.zeros(len(texts), dtype=np.float64)
    asked: dict[str, Any] = {"requests": _requests(language_model, texts), "total": int(lengths.sum())}
    for request, nats, _ in score(language_model=language_model, **asked, description="minimal pairs"):
        scores[request.owner] -= nats.sum()
    return scores[owners], lengths[owners]


def encode_sentences(
    language_model: LanguageModel, sentences: Sequence[str]
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Which text each sentence is, int64 [sentences], and the ids of the texts; InputError as in `score_sentences`."""
    numbers: dict[tuple[int, ...], int] = {}
    owners = np.empty(len(sentences), dtype=np.int64)
    edges = len(language_model.prefix) + len(language_model.suffix)
    for index, sentence in enumerate(sentences):
        ids = tuple(language_model.encode(sentence, where=f"the sentence {sentence!r}")[0].tolist())
        if not ids:
            raise InputError(f"the tokenizer makes no tokens of the sentence {sentence!r}")
        if language_model.max_length is not None and len(ids) + edges > language_model.max_length:
            raise InputError(
                f"a sentence of {len(ids)} tokens is too long for the model, which takes {language_model.max_length} "
                f"with special tokens: {sentence[:80]!r}"
            )
        owners[index] = numbers.setdefault(ids, len(numbers))
    return owners, list(numbers)


def _requests(language_model: LanguageModel, texts: Iterable[tuple[int, ...]]) -> Iterator[Request]:
    prefix, suffix, mask = language_model.prefix, language_model.suffix, language_model.tokenizer.mask_token_id
    for owner, text in enumerate(texts):
        targets, whole = np.asarray(text, dtype=np.int64), np.asarray([*prefix, *text, *suffix], dtype=np.int64)
        places = np.arange(len(text)) + len(prefix)
        if language_model.kind == "causal":
            yield Request(whole, places - 1, targets, owner, len(text))
            continue
        for place in places.tolist():
            masked = whole.copy()
            masked[place] = mask
            yield Request(masked, np.asarray([place]), whole[place : place + 1], owner)


def _refuse_constant_scores(scores: np.ndarray, lengths: np.ndarray) -> None:
    """Raise for a model to which all sentences, or all tokens, are alike."""
    by_token = scores / lengths
    for values, alike in ((scores, "sentence gets the same score"), (by_token, "token is as likely as another")):
        if np.ptp(values) <= TIE * np.abs(values).max():
            raise InputError(
                f"every {alike} ({values[0]:.6g} nats): the model does not read its input, and its choice between two "
                "sentences means nothing. Are its weights those of a trained model?"
            )
