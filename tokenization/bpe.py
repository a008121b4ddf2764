"""Byte-level BPE: trained on raw text, saved as a plain fast tokenizer that needs no remote code.

Byte-pair encoding of words as in Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909), over bytes as in GPT-2
(Radford et al. 2019): every string can be written, so there is no unknown token and `decode(encode(x)) == x`.

A tokenizer that is there is extended with the merges of a domain. BPE applies merges in the order in which they were
learned, so learning can go on: each word of the new text is cut as the old tokenizer cuts it, and pairs of old tokens
are merged as pairs of bytes were before. Behind the old merges, the new ones apply only where no old one does any
more: the very state they were learned in. Old tokens keep their ids.
"""

import itertools
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from lacuna.common.errors import InputError
from lacuna.common.options import check_range

from . import patterns
from .arguments import TokenizerArguments
from .vocabulary import ALPHABET, token_bytes

WORD_END = 0x0A
FIRST_CHARACTER = 0x10000  # old token i is written as the character U+10000 + i while new merges are learned
MOST_TOKENS = 0x110000 - FIRST_CHARACTER


def train_bpe(*, documents: Iterable[str], show_progress: bool = False, **options: Any) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE; the template is that of an encoder (`adapt_tokenizer` makes the other ones).

    Copies of documents count as often as they come. Without a pattern the text is read twice, and an iterator is kept
    in memory. Options are those of `TokenizerArguments`; pad_to_multiple_of is 1 unless given.

    Raises InputError: an option has a value that cannot be, there is no text, or not one pair occurs often enough.
    Warns where the text has too few repeated pairs to reach `vocab_size`.
    """
    asked = TokenizerArguments(**{"pad_to_multiple_of": 1, **options})
    special = check_options(asked)
    if asked.pattern is None and isinstance(documents, Iterator):
        documents = list(documents)
    backend = patterns.untrained_backend(
        normalizer=asked.normalizer, pattern=asked.pattern or patterns.choose_pattern(documents)
    )
    learn_merges(
        backend,
        documents,
        vocab_size=_padded(asked.vocab_size, asked),
        min_frequency=asked.min_frequency,
        special_tokens=special,
        initial_alphabet=ALPHABET,
        show_progress=show_progress,
    )
    # A space before [MASK] belongs to the mask, because a word's token holds the space before it: without this,
    # "the [MASK] sat" would show a lone space token that the model never sees in training.
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
    if backend.get_vocab_size() == len(special) + len(ALPHABET) < asked.vocab_size:
        raise InputError(
            f"there is nothing to learn: no two neighbours occur {asked.min_frequency} times (--min_frequency) in the "
            "text of --data. Bring more text; a tokenizer wants a million words or so."
        )
    fill_vocabulary(backend, asked)
    tokenizer = patterns.wrap(backend, extra_special_tokens=asked.extra_special_tokens)
    return patterns.adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=True, max_length=VERY_LARGE_INTEGER)


def check_options(asked: TokenizerArguments) -> list[str]:
    """All special tokens by id; checks what `train_bpe` is given, before hours go into reading a text.

    Raises InputError: a name is unknown, a number cannot be, or a special token is one that a text could hold.
    """
    for name, known in {"normalizer": [*patterns.NORMALIZERS], "pattern": [*patterns.PATTERNS]}.items():
        if (value := getattr(asked, name)) is not None and value not in known:
            raise InputError(f"--{name} {value!r} is unknown; there are: {', '.join(known)}.")
    special = [*patterns.SPECIAL_TOKENS, *asked.extra_special_tokens]
    for token in asked.extra_special_tokens:
        if special.count(token) > 1:
            raise InputError(f"--extra_special_tokens: {token!r} is there twice, or is special anyway; name it once.")
    _check(asked, patterns.untrained_backend(normalizer="none", pattern=asked.pattern or "gpt2").pre_tokenizer)
    smallest = len(special) + len(ALPHABET)
    if asked.vocab_size < smallest:
        raise InputError(
            f"--vocab_size {asked.vocab_size} is too small: {len(special)} special tokens and {len(ALPHABET)} bytes "
            f"need {smallest}. Ask for more; 4096 to 50000 is usual."
        )
    return special


def _check(asked: TokenizerArguments, words: Any) -> None:
    """Raises InputError for a number that counts nothing, or a special token that these words of a text could be."""
    check_range(asked, "min_frequency", "pad_to_multiple_of", at_least=1)
    for token in asked.extra_special_tokens:
        if token != token.strip() or len(words.pre_tokenize_str(token)) < 2:
            raise InputError(
                f"--extra_special_tokens: {token!r} could be a word of a text and learned as one. Write it with "
                "brackets around letters, such as <tool>, and without space at its ends."
            )


def _padded(size: int, asked: TokenizerArguments) -> int:
    return -(-size // asked.pad_to_multiple_of) * asked.pad_to_multiple_of


def learn_merges(backend: Tokenizer, documents: Iterable[str], **options: Any) -> None:
    """Train `backend` in place, with the options of a `BpeTrainer`; raises InputError where there is no text."""
    failed: Exception | None = None
    is_visible = False

    def pieces() -> Iterator[str]:
        nonlocal failed, is_visible
        try:
            for document in documents:
                is_visible = is_visible or bool(document and not document.isspace())
                for piece in patterns.split_pieces(document):
                    yield from patterns.cut_runs(piece)
        except Exception as error:
            failed = error
            raise

    length = len(documents) if isinstance(documents, Sized) else None  # for the bars alone
    try:
        backend.train_from_iterator(pieces(), trainers.BpeTrainer(**options), length=length)
    except Exception:
        if failed is not None:  # the library wraps what the source raised: a bad file must keep its own message
            raise failed from None
        raise
    if not is_visible:
        raise InputError("there is no text to train a tokenizer on: every document is empty. Check --data.")


def fill_vocabulary(backend: Tokenizer, asked: TokenizerArguments) -> None:
    """If the text gave too few tokens, fill up to the next multiple; warn if there are fewer than requested."""
    reached = backend.get_vocab_size()
    if reached >= _padded(asked.vocab_size, asked):
        return
    missing = _padded(reached, asked) - reached
    free = (f"[unused{number}]" for number in itertools.count())
    names = itertools.islice((name for name in free if backend.token_to_id(name) is None), missing)
    backend.add_special_tokens(list(names))
    if reached >= asked.vocab_size:
        return
    multiple = asked.pad_to_multiple_of
    filled = f" {missing} reserved tokens [unused0] ... fill it to a multiple of {multiple}." if missing else ""
    warnings.warn(
        f"the vocabulary has {reached} tokens, not the {asked.vocab_size} of --vocab_size: no further pair occurs "
        f"{asked.min_frequency} times (--min_frequency) in this text.{filled} Bring more text or ask for less.",
        stacklevel=3,
    )


def extend_tokenizer(
    *, tokenizer: PreTrainedTokenizerFast, documents: Iterable[str], show_progress: bool = False, **options: Any
) -> PreTrainedTokenizerFast:
    """A copy of a byte-level BPE with more tokens, learned from a text that it was not made for.

    Normalizer, pattern, template, special tokens and ids stay; a model needs its embeddings resized to
    len(tokenizer). Arguments and warnings are those of `train_bpe`, without normalizer and pattern; vocab_size counts
    the old tokens too, and special tokens are added first, where they are not there yet.

    Raises InputError: the tokenizer is no byte-level BPE, has `vocab_size` tokens already, or the text adds nothing.
    """
    asked = TokenizerArguments(**{"pad_to_multiple_of": 1, **options})
    special = check_extension(tokenizer, asked)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    room = _padded(asked.vocab_size, asked) - len(tokenizer) - len(special)
    first_new = 1 + max(*tokenizer.get_vocab().values(), len(tokenizer) - 1)
    _append_special(state, special, first_new)
    how: dict[str, Any] = {"min_frequency": asked.min_frequency, "show_progress": show_progress}
    merges = _learn(tokenizer, documents, num_old=first_new, room=room, **how)
    names = {token_id: name for name, token_id in tokenizer.get_vocab().items()}
    if not _append_merges(state, merges, names=names, first_new=first_new + len(special), room=room):
        raise InputError(
            f"the text adds no token to the tokenizer of --extend: no two of its tokens stand together "
            f"{asked.min_frequency} times (--min_frequency) inside a word. Bring more text of the domain."
        )
    backend = Tokenizer.from_str(json.dumps(state))
    fill_vocabulary(backend, asked)
    with tempfile.TemporaryDirectory() as folder:  # all else of the old tokenizer stays as it was
        tokenizer.save_pretrained(folder)
        backend.save(str(Path(folder, "tokenizer.json")))
        named = [*tokenizer.extra_special_tokens, *special]
        return PreTrainedTokenizerFast.from_pretrained(
            folder, extra_special_tokens=named, clean_up_tokenization_spaces=False
        )


def check_extension(tokenizer: PreTrainedTokenizerFast, asked: TokenizerArguments) -> list[str]:
    """The special tokens that are new, by id; checks what `extend_tokenizer` is given, before hours go into reading.

    Raises InputError: the tokenizer cannot be extended or has `vocab_size` tokens already, or a number cannot be.
    """
    token_bytes(tokenizer)  # raises where it is not byte-level
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["model"]["type"] != "BPE":
        raise InputError(f"--extend needs a byte-level BPE, and this is a {state['model']['type']}.")
    if state["model"].get("dropout"):
        raise InputError(
            "--extend: the tokenizer leaves out merges at random (BPE dropout). Set model.dropout to null in its "
            "tokenizer.json."
        )
    _check(asked, tokenizer.backend_tokenizer.pre_tokenizer)
    known = {token["content"] for token in state["added_tokens"]}
    special = [token for token in dict.fromkeys(asked.extra_special_tokens) if token not in known]
    room = _padded(asked.vocab_size, asked) - len(tokenizer) - len(special)
    if room < 1 or asked.vocab_size <= len(tokenizer):
        raise InputError(
            f"--vocab_size {asked.vocab_size} leaves no room: the tokenizer of --extend has {len(tokenizer)} tokens"
            f"{f' and {len(special)} special ones come to it' if special else ''}. Ask for more."
        )
    return special


def _append_special(state: dict[str, Any], special: Sequence[str], first: int) -> None:
    """Add special tokens with ids from `first` on, and all added tokens to the vocabulary, so that it has no holes."""
    for number, token in enumerate(special):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        state["added_tokens"].append({"id": first + number, "content": token, **flags})
    for token in state["added_tokens"]:
        state["model"]["vocab"].setdefault(token["content"], token["id"])


def _learn(
    tokenizer: PreTrainedTokenizerFast, documents: Iterable[str], *, num_old: int, room: int, **options: Any
) -> Iterator[Any]:
    """Pairs to merge, most useful first; each side as the old tokens that it consists of."""
    if num_old > MOST_TOKENS:
        raise InputError(f"--extend takes up to {MOST_TOKENS} tokens, and there are {num_old}.")
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(chr(WORD_END), behavior="removed")
    alphabet = [chr(FIRST_CHARACTER + token_id) for token_id in range(num_old)]
    size = num_old + room + room // 4 + 64  # a pair may spell a token that is there already, and then takes no room
    learn_merges(learner, _old_tokens(tokenizer, documents), vocab_size=size, initial_alphabet=alphabet, **options)
    for sides in json.loads(learner.to_str())["model"]["merges"]:
        yield tuple([ord(character) - FIRST_CHARACTER for character in side] for side in sides)


def _append_merges(
    state: dict[str, Any], merges: Iterable[Any], *, names: dict[int, str], first_new: int, room: int
) -> int:
    """Put merges behind the old ones, and their tokens into the vocabulary while there is room; how many are new."""
    vocabulary, rules = state["model"]["vocab"], state["model"]["merges"]
    known = {tuple(rule) for rule in rules}
    count = 0
    for left_ids, right_ids in merges:
        left, right = ("".join(names[token_id] for token_id in ids) for ids in (left_ids, right_ids))
        if (left, right) in known:  # one pair of texts can be several pairs of runs of old tokens
            continue
        if left + right not in vocabulary:
            if count == room:
                break
            vocabulary[left + right] = first_new + count
            count += 1
        known.add((left, right))
        rules.append([left, right])
    return count


def _old_tokens(tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> Iterator[str]:
    """Documents as the learner reads them: a character for each old token, and a line for each word."""
    backend = patterns.copy_backend(tokenizer, special_is_text=True)
    added = np.array(sorted(backend.get_added_tokens_decoder()), dtype=np.uint32)
    texts = (document for document in documents if not document.isspace())
    for batch in patterns.batches(piece for document in texts for piece in patterns.split_pieces(document)):
        for encoding in backend.encode_batch(batch, add_special_tokens=False):  # the fast one knows no words
            ids = np.array(encoding.ids, dtype=np.uint32)
            if len(ids):
                # Added tokens take no part in merges; they are never inside a word.
                words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
                ends = np.flatnonzero((words[1:] != words[:-1]) | np.isin(ids[1:], added)) + 1
                characters = np.insert(ids + np.uint32(FIRST_CHARACTER), ends, WORD_END)
                yield characters.astype("<u4").tobytes().decode("utf-32-le")
