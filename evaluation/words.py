"""Word knowledge: what the vectors of words say of analogies (paris - france + italy) and of similarity.

A model has vectors of its embeddings and, given a text, of words in context. Beside them stand random embeddings and
skip-gram vectors of that text (Mikolov et al. 2013, https://arxiv.org/abs/1310.4546). All are asked the same, with
words that each of them has. A word is looked up as it is written, with the blank before it that byte-level tokens
begin with; of several tokens the mean is taken.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from lacuna.common.errors import InputError, NumericsError, progress_bar

from .baselines import SEED, Statistic, with_intervals
from .language_model import LanguageModel, Request, batches, inputs_of

WORD = re.compile(r"\w+")  # in a text
CONTEXT = 64  # tokens that a word is read among
MOST_OCCURRENCES, LEAST_OCCURRENCES = 20, 5  # of a word in a text: that are averaged; without which it has no vector
QUESTIONS_AT_ONCE = 512
EPSILON = 0.001  # of 3CosMul

Vectors = Mapping[str, np.ndarray]
Items = list[tuple[Any, ...]]  # of four words, or of two and a number
About = dict[str, float | str]
FORMS: dict[str, tuple[type, ...]] = {"analogies": (str, str, str, str), "similarity": (str, str, float)}


def read_questions(lines: Iterable[tuple[str, str]], *, suite: str) -> dict[str, Items]:
    """Analogies by section, which a line `: name` begins, or pairs of words and their similarity by file.

    `lines` are texts and their places, file:line. InputError, with the place: a line is of another form.
    """
    groups: dict[str, Items] = defaultdict(list)
    sections: dict[str, str] = {}  # the present one of each file
    for text, place in lines:
        file = place.rpartition(":")[0]
        parts = [part.strip() for part in text.split("\t" if "\t" in text else None)]
        if suite == "analogies" and text.startswith(":"):
            sections[file] = text[1:].strip()
            continue
        try:
            item = tuple(kind(part) for kind, part in zip(FORMS[suite], parts, strict=True))
            if item[-1] != item[-1] or not all(parts):
                raise ValueError
        except ValueError:
            what = "two words and a number with tabs" if suite == "similarity" else "four words with blanks"
            raise InputError(f"{place}: expected {what} between, without titles, not {text.strip()[:80]!r}") from None
        groups[sections.get(file) or file.replace("\\", "/").rsplit("/", 1)[-1].split(".txt")[0]].append(item)
    if not groups:
        raise InputError(f"--suite {suite}: there are names of sections, and no questions below them")
    return dict(groups)


def collect_vectors(
    *, language_model: LanguageModel, words: Iterable[str], documents: list[str]
) -> tuple[dict[str, Vectors], dict[str, str]]:
    """Vectors by kind, and why one is missing. Scores begin with the kind, which is "" for those of embeddings."""
    table = language_model.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    random = np.random.default_rng(SEED).standard_normal(table.shape, dtype=np.float32)
    pieces = {word: ids for word in dict.fromkeys(words) if len(ids := _pieces(language_model, word))}
    found: dict[str, Vectors] = {
        kind: {word: rows[ids].mean(axis=0, dtype=np.float64) for word, ids in pieces.items()}
        for kind, rows in (("", table), ("baseline_random_", random))
    }
    if not documents:
        return found, {f"missing_{kind}": "needs a text: --occurrences" for kind in ("contextual", "skip_gram")}
    found["contextual_"] = contextual_vectors(language_model=language_model, words=pieces, documents=documents)
    try:
        found["baseline_skip_gram_"] = skip_gram_vectors(words=pieces, documents=documents, size=table.shape[1])
    except ImportError:
        return found, {"missing_skip_gram": "needs gensim: pip install -e '.[vectors]'"}
    return found, {}


def _pieces(language_model: LanguageModel, word: str) -> np.ndarray:
    """Tokens of a word behind a blank; none if the tokenizer does not know one of them."""
    ids, offsets = language_model.encode(f" {word}", where=f"the word {word!r}")
    ids = ids[offsets[:, 1] > 1] if offsets.shape[1] else ids  # without a token of the blank alone
    return ids[:0] if language_model.tokenizer.unk_token_id in ids else ids


def contextual_vectors(
    *, language_model: LanguageModel, words: Iterable[str], documents: Iterable[str]
) -> dict[str, np.ndarray]:
    """Means of the last hidden states where each word stands in a text, the first `MOST_OCCURRENCES` times.

    The text is read in pieces of `CONTEXT` tokens; a word that two of them share is passed over.
    """
    if not language_model.tokenizer.is_fast:
        raise InputError("the tokenizer is not a fast one (tokenizer.json), which maps tokens to characters")
    prefix, suffix, wanted = language_model.prefix, language_model.suffix, set(words)
    room = min(CONTEXT, language_model.max_length or CONTEXT) - len(prefix) - len(suffix)
    counts: Counter[str] = Counter()
    requests: list[Request] = []
    inside: list[list[tuple[str, int, int]]] = []  # words of a request, their first tokens, ends
    for number, text in enumerate(documents, start=1):
        ids, offsets = language_model.encode(text, where=f"document {number} of --occurrences")
        places: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        for match in WORD.finditer(text):
            if (word := match[0]) in wanted and counts[word] < MOST_OCCURRENCES:
                first = int(np.searchsorted(offsets[:, 1], match.start(), side="right"))
                end = int(np.searchsorted(offsets[:, 0], match.end(), side="left"))
                begin = first - first % room
                if first < end <= begin + room:
                    counts[word] += 1
                    places[begin].append((word, first - begin + len(prefix), end - begin + len(prefix)))
        for begin, found in places.items():
            row = np.asarray([*prefix, *ids[begin : begin + room], *suffix])
            requests.append(Request(row, row[:0], row[:0], owner=len(inside)))
            inside.append(found)
    sums: dict[str, np.ndarray] = {}
    of_one_length = batches(iter(requests), batch_size=language_model.batch_size, vocab_size=1)
    for batch in progress_bar(of_one_length, doing="words in text", unit="batch"):
        with torch.no_grad():
            output = language_model.model.base_model(**inputs_of(language_model, batch))
        for states, request in zip(output.last_hidden_state.cpu().double().numpy(), batch, strict=True):
            for word, first, end in inside[request.owner]:
                sums[word] = sums.get(word, 0.0) + states[first:end].mean(axis=0)
    return {word: total / counts[word] for word, total in sums.items() if counts[word] >= LEAST_OCCURRENCES}


def skip_gram_vectors(*, words: Iterable[str], documents: Sequence[str], size: int) -> dict[str, np.ndarray]:
    """What gensim learns with its defaults, in one thread: the same each time. ImportError: it is not installed."""
    from gensim.models import Word2Vec

    texts = ([sys.intern(word) for word in WORD.findall(text)] for text in documents)
    runs = [text[begin : begin + 1000] for text in texts for begin in range(0, len(text), 1000)]  # it cuts at 10,000
    model = Word2Vec(sg=1, vector_size=size, min_count=LEAST_OCCURRENCES, workers=1, seed=SEED)
    model.build_vocab(runs)
    if len(model.wv):
        model.train(runs, total_examples=model.corpus_count, epochs=model.epochs)
    return {word: model.wv[word] for word in words if word in model.wv}


def unit_vectors(vectors: Vectors, words: Sequence[str]) -> np.ndarray:
    """Vectors at length 1, float64 [words, size]. InputError: all are the same. NumericsError: one is not finite."""
    rows = np.stack([vectors[word] for word in words]).astype(np.float64)
    if not np.isfinite(rows).all():
        raise NumericsError("vectors of words are not finite numbers: the model's weights are damaged")
    if len(rows) > 1 and not np.ptp(rows, axis=0).any():
        raise InputError("all words have the same vector: are the weights those of a trained model?")
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def nearest_neighbours(*, vectors: Vectors, word: str, count: int = 5) -> list[tuple[str, float]]:
    """The other words with the largest cosines to a word, and these; none for a word without a vector."""
    if word not in vectors:
        return []
    words = [word, *(other for other in vectors if other != word)]
    cosines = np.inner((unit := unit_vectors(vectors, words))[1:], unit[0])
    return [(words[place + 1], float(cosines[place])) for place in np.argsort(-cosines, kind="stable")[:count]]


def answer_analogies(*, vectors: Vectors, questions: Items, words: Sequence[str]) -> dict[str, list[str]]:
    """The one of `words`, but not of its own, that each question finds: a is to b as c is to d, and d is not read.

    `3cosadd`: of the largest cos(d, b) - cos(d, a) + cos(d, c); `3cosmul`: cos(d, b) cos(d, c) / (cos(d, a) + 0.001),
    with cosines moved to 0 to 1 (Levy and Goldberg 2014, https://aclanthology.org/W14-1618).
    """
    unit, places = unit_vectors(vectors, words), {word: place for place, word in enumerate(words)}
    found: dict[str, list[str]] = {"3cosadd": [], "3cosmul": []}
    for begin in range(0, len(questions), QUESTIONS_AT_ONCE):
        asked = [[places[word] for word in question[:3]] for question in questions[begin : begin + QUESTIONS_AT_ONCE]]
        a, b, c = (unit[column] @ unit.T for column in np.transpose(asked))
        for rule, score in (("3cosadd", b - a + c), ("3cosmul", (b + 1) * (c + 1) / (a + 1 + 2 * EPSILON))):
            np.put_along_axis(score, np.asarray(asked), -np.inf, axis=1)
            found[rule] += [words[place] for place in score.argmax(axis=1)]
    return found


def measure_words(*, suite: str, vectors: Mapping[str, Vectors], questions: Mapping[str, Items]) -> About:
    """For each kind of vectors the share of analogies solved, or Spearman's correlation of cosines and given scores.

    Means over sections or files, and by them. An answer is looked for among the words of all questions and nowhere
    else. InputError: no question has words with vectors, or no file three such pairs of more than one score.
    """
    asked, sizes, words, about = _known(vectors, questions, least=1 if suite == "analogies" else 3)
    results: About = {"asked": len(asked), **about, **({"chosen_among": len(words)} if suite == "analogies" else {})}
    for kind, of_kind in vectors.items():
        scores = {"analogies": _solved, "similarity": _correlated}[suite](of_kind, asked, words)
        for name, statistic in scores.items():
            results |= with_intervals(name=f"{kind}{name}", statistic=statistic, groups=sizes)
    return results


def _solved(vectors: Vectors, asked: Items, words: Sequence[str]) -> dict[str, Statistic]:
    found = answer_analogies(vectors=vectors, questions=asked, words=words)
    right = {rule: np.equal(some, [question[3] for question in asked]) for rule, some in found.items()}
    mean = lambda values, units: float(values[units].mean())  # noqa: E731
    return {f"accuracy_{rule}": partial(mean, values) for rule, values in right.items()}


def _correlated(vectors: Vectors, asked: Items, words: Sequence[str]) -> dict[str, Statistic]:
    unit = dict(zip(words, unit_vectors(vectors, words), strict=True))
    cosines, people = np.transpose([(unit[first] @ unit[second], score) for first, second, score in asked])
    return {"spearman": lambda units: spearman(cosines[units], people[units])}


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of the ranks; not a number if one of them is constant, as in a sample drawn from few pairs."""
    from scipy.stats import rankdata  # a tenth of the time that a recipe takes to start

    ranks = rankdata([first, second], axis=1) - (len(first) + 1) / 2
    return float(ranks[0] @ ranks[1] / norm) if (norm := np.linalg.norm(ranks, axis=1).prod()) else np.nan


def words_of(groups: Mapping[str, Items]) -> list[str]:
    """The words of questions or pairs, each once."""
    parts = (part for some in groups.values() for item in some for part in item)
    return list(dict.fromkeys(part for part in parts if isinstance(part, str)))


def _known(
    vectors: Mapping[str, Vectors], groups: Mapping[str, Items], *, least: int
) -> tuple[Items, dict[str, int], list[str], About]:
    """What all kinds have the words for, the sizes of its groups (those of `least` or more), these words, the rest."""
    every = words_of(groups)
    known = [word for word in every if all(word in of_kind for of_kind in vectors.values())]
    unknown = set(every) - set(known)
    known_of = {name: [item for item in some if unknown.isdisjoint(item)] for name, some in groups.items()}
    can_be_ranked = {name: least == 1 or len({item[-1] for item in some}) > 1 for name, some in known_of.items()}
    kept = {name: some for name, some in known_of.items() if len(some) >= least and can_be_ranked[name]}
    flat = [item for some in kept.values() for item in some]
    about: About = {"left_out": sum(map(len, groups.values())) - len(flat)}
    about |= {"words": len(every), "out_of_vocabulary": len(unknown)}
    about |= {"out_of_vocabulary_words": ", ".join(word for word in every if word in unknown)} if unknown else {}
    if not flat:
        needs = "a question" if least == 1 else f"a file with {least} pairs, not all of the same score,"
        raise InputError(
            f"nothing is left to ask: it takes {needs} whose words have vectors, and {len(unknown)} of {len(every)} "
            f"words have no vector. In --occurrences a word must stand {LEAST_OCCURRENCES} times as it is written; "
            "--max_examples must leave enough"
        )
    return flat, {name: len(some) for name, some in kept.items()}, known, about
