"""More tokens for a tokenizer that is there: the merges of a domain, learned on top of the old ones.

Byte-pair encoding applies merges in the order in which they were learned. So learning can go on: every word of the new
text is cut as the old tokenizer cuts it, and pairs of old tokens are merged as pairs of bytes were before. Appended to
the old merges, the new ones apply only where no old one does any more: exactly the state they were learned in. Old
tokens keep their ids, and what comes out is a byte-level BPE like any other.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

from .bpe import check_counts, check_special_token, fill_vocabulary, learn_merges, padded_size, sentinels
from .patterns import split_pieces
from .vocabulary import token_bytes

BATCH_CHARACTERS = 1 << 20
WORD_END = 0x0A
FIRST_CHARACTER = 0x10000  # old token i is written as the character U+10000 + i while new merges are learned
MOST_TOKENS = 0x110000 - FIRST_CHARACTER


def extend_tokenizer(
    *,
    tokenizer: PreTrainedTokenizerFast,
    documents: Iterable[str],
    vocab_size: int,
    min_frequency: int = 2,
    extra_special_tokens: Sequence[str] = (),
    num_sentinels: int = 0,
    pad_to_multiple_of: int = 1,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """A copy with more tokens, learned from a text that the tokenizer was not made for.

    Args:
        tokenizer: a byte-level BPE, from here or from elsewhere (GPT-2's, Llama 3's ...).
        documents: the text to learn from, read once.
        vocab_size: tokens to reach, the old ones included.
        min_frequency, pad_to_multiple_of, show_progress: as in `train_bpe`.
        extra_special_tokens, num_sentinels: special tokens that are added first, where they are not there yet.

    Returns:
        A tokenizer with the normalizer, pattern, template and special tokens of the old one, in which every old id
        means what it meant. A model needs its embeddings resized to len(tokenizer).

    Raises:
        InputError: the tokenizer is no byte-level BPE, has `vocab_size` tokens already, or the text adds nothing.
    Warns:
        UserWarning: the text has too few repeated pairs to reach `vocab_size`.
    """
    special = check_extension(
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        extra_special_tokens=extra_special_tokens,
        num_sentinels=num_sentinels,
        pad_to_multiple_of=pad_to_multiple_of,
    )
    old_size = len(tokenizer)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    goal = padded_size(vocab_size, pad_to_multiple_of)
    room = goal - old_size - len(special)
    first_new = 1 + max(max(tokenizer.get_vocab().values()), old_size - 1)
    _append_special(state, special, first_new)
    merges = _learn(
        tokenizer=tokenizer,
        documents=documents,
        first_new=first_new,
        room=room,
        frequency=min_frequency,
        bars=show_progress,
    )
    if not _append_merges(state, merges, names=_names(tokenizer), first_new=first_new + len(special), room=room):
        raise InputError(
            f"the text adds no token to the tokenizer of --extend: no two of its tokens stand together "
            f"{min_frequency} times (--min_frequency) inside a word. Bring more text of the domain."
        )
    backend = Tokenizer.from_str(json.dumps(state))
    fill_vocabulary(backend=backend, goal=goal, multiple=pad_to_multiple_of, asked=vocab_size, frequency=min_frequency)
    return _like(tokenizer, backend, special)


def check_extension(
    *,
    tokenizer: PreTrainedTokenizerFast,
    vocab_size: int,
    min_frequency: int = 2,
    extra_special_tokens: Sequence[str] = (),
    num_sentinels: int = 0,
    pad_to_multiple_of: int = 1,
) -> list[str]:
    """Check what `extend_tokenizer` is given, before hours go into reading a text.

    Returns:
        The special tokens that are new, in the order of their ids.

    Raises:
        InputError: the tokenizer cannot be extended or has `vocab_size` tokens already, or a number cannot be.
    """
    check_counts(min_frequency=min_frequency, num_sentinels=num_sentinels, pad_to_multiple_of=pad_to_multiple_of)
    token_bytes(tokenizer)  # raises where it is not byte-level
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["model"]["type"] != "BPE":
        raise InputError(f"--extend needs a byte-level BPE, and this is a {state['model']['type']}.")
    if state["model"].get("dropout"):
        raise InputError(
            "--extend: the tokenizer leaves out merges at random (BPE dropout), so that its tokens are not the same "
            "each time. Set model.dropout to null in its tokenizer.json."
        )
    known = {token["content"] for token in state["added_tokens"]}
    wanted = dict.fromkeys([*extra_special_tokens, *sentinels(num_sentinels)])
    special = [token for token in wanted if token not in known]
    for token in extra_special_tokens:
        check_special_token(token, tokenizer.backend_tokenizer.pre_tokenizer)
    room = padded_size(vocab_size, pad_to_multiple_of) - len(tokenizer) - len(special)
    if room < 1 or vocab_size <= len(tokenizer):
        raise InputError(
            f"--vocab_size {vocab_size} leaves no room: the tokenizer of --extend has {len(tokenizer)} tokens"
            f"{f' and {len(special)} special ones come to it' if special else ''}. Ask for more."
        )
    return special


def _like(tokenizer: PreTrainedTokenizerFast, backend: Tokenizer, special: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with another backend and all else as it was."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        backend.save(str(Path(folder, "tokenizer.json")))
        named = [*tokenizer.extra_special_tokens, *special]
        return PreTrainedTokenizerFast.from_pretrained(
            folder, extra_special_tokens=named, clean_up_tokenization_spaces=False
        )


def _names(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """How the BPE writes each token, by id; empty for unused ids."""
    names = [""] * (1 + max(tokenizer.get_vocab().values()))
    for name, token_id in tokenizer.get_vocab().items():
        names[token_id] = name
    return names


def _append_special(state: dict[str, Any], special: Sequence[str], first: int) -> None:
    """Special tokens with the ids from `first` on. All added tokens become part of the vocabulary too, as the ones
    that `train_bpe` makes are: the library complains about a vocabulary with holes in it."""
    for number, token in enumerate(special):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        state["added_tokens"].append({"id": first + number, "content": token, **flags})
    for token in state["added_tokens"]:
        state["model"]["vocab"].setdefault(token["content"], token["id"])


def _learn(
    *,
    tokenizer: PreTrainedTokenizerFast,
    documents: Iterable[str],
    first_new: int,
    room: int,
    frequency: int,
    bars: bool,
) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of neighbours to merge, most useful first; each side as the old tokens that it consists of."""
    if first_new > MOST_TOKENS:
        raise InputError(f"--extend takes up to {MOST_TOKENS} tokens, and there are {first_new}.")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    added = np.array(sorted(backend.get_added_tokens_decoder()), dtype=np.uint32)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(chr(WORD_END), behavior="removed")
    words = _Words(backend, (document for document in documents if not document.isspace()), added)
    alphabet = [chr(FIRST_CHARACTER + token_id) for token_id in range(first_new)]
    # A pair may spell a token that is there already, and then takes no room.
    size = len(alphabet) + room + room // 4 + 64
    learn_merges(
        backend=learner,
        documents=words,
        vocab_size=size,
        min_frequency=frequency,
        special_tokens=[],
        alphabet=alphabet,
        show_progress=bars,
    )
    for merge in json.loads(learner.to_str())["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield _to_ids(left), _to_ids(right)


def _to_ids(text: str) -> list[int]:
    return [ord(character) - FIRST_CHARACTER for character in text]


def _append_merges(
    state: dict[str, Any],
    merges: Iterable[tuple[list[int], list[int]]],
    *,
    names: list[str],
    first_new: int,
    room: int,
) -> int:
    """Put merges behind the old ones, and their tokens into the vocabulary until there is no room.

    Returns:
        How many tokens are new.
    """
    vocabulary, rules = state["model"]["vocab"], state["model"]["merges"]
    as_text = bool(rules) and isinstance(rules[0], str)  # as older versions of the library write them
    known = {tuple(rule.split(" ")) if as_text else tuple(rule) for rule in rules}
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
        rules.append(f"{left} {right}" if as_text else [left, right])
    return count


class _Words:
    """The documents as the learner reads them: a character for each old token, and a line for each word."""

    def __init__(self, backend: Tokenizer, documents: Iterable[str], added: np.ndarray) -> None:
        self.backend = backend
        self.documents = documents
        self.added = added

    def __iter__(self) -> Iterator[str]:
        batch: list[str] = []
        size = 0
        for document in self.documents:
            for piece in split_pieces(document):
                batch.append(piece)
                size += len(piece)
                if size >= BATCH_CHARACTERS:
                    yield from self._write(batch)
                    batch, size = [], 0
        yield from self._write(batch)

    def _write(self, batch: list[str]) -> Iterator[str]:
        for encoding in self.backend.encode_batch(batch, add_special_tokens=False):  # the fast one knows no words
            ids = np.array(encoding.ids, dtype=np.uint32)
            if len(ids):
                # Added tokens take no part in merges; they are never inside a word.
                words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
                ends = np.flatnonzero((words[1:] != words[:-1]) | np.isin(ids[1:], self.added)) + 1
                characters = np.insert(ids + np.uint32(FIRST_CHARACTER), ends, WORD_END)
                yield characters.astype("<u4").tobytes().decode("utf-32-le")
