"""Byte-level BPE: trained on raw text, saved as a plain fast tokenizer that needs no remote code.

Byte-pair encoding of words as in Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909), over bytes as in GPT-2
(Radford et al. 2019): every string can be written, so there is no unknown token and `decode(encode(x)) == x`.
"""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from tokenizers import AddedToken, Tokenizer, trainers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

from .patterns import NORMALIZERS, PATTERNS, cut_runs, split_pieces, untrained_backend
from .templates import NO_LIMIT, SPECIAL_TOKENS, adapt_tokenizer, wrap
from .vocabulary import ALPHABET

USUAL_SIZES = "4096 to 50000 is usual"


def train_bpe(
    *,
    documents: Iterable[str],
    vocab_size: int = 8192,
    min_frequency: int = 2,
    normalizer: str = "none",
    pattern: str = "modern",
    extra_special_tokens: Sequence[str] = (),
    num_sentinels: int = 0,
    pad_to_multiple_of: int = 1,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE; the template is that of an encoder (`adapt_tokenizer` makes the other ones).

    Args:
        documents: the text to learn from, read once; copies count as often as they come.
        vocab_size: tokens to reach, special tokens and the 256 bytes included.
        normalizer, pattern: what is done to text first and how it is cut into words, of NORMALIZERS and PATTERNS.
        extra_special_tokens, num_sentinels: further special tokens, then <extra_id_0> ... as T5 names gaps.
        pad_to_multiple_of: the vocabulary's size becomes a multiple of this, filled up with [unused0] ...
        show_progress: bars on standard error, where that is a terminal.

    Raises:
        InputError: an option has a value that cannot be, there is no text, or not one pair occurs often enough.
    Warns:
        UserWarning: the text has too few repeated pairs to reach `vocab_size`.
    """
    special = check_options(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        normalizer=normalizer,
        pattern=pattern,
        extra_special_tokens=extra_special_tokens,
        num_sentinels=num_sentinels,
        pad_to_multiple_of=pad_to_multiple_of,
    )
    goal = padded_size(vocab_size, pad_to_multiple_of)
    backend = untrained_backend(normalizer=normalizer, pattern=pattern)
    learn_merges(
        backend=backend,
        documents=documents,
        vocab_size=goal,
        min_frequency=min_frequency,
        special_tokens=special,
        alphabet=ALPHABET,
        show_progress=show_progress,
    )
    # A space before [MASK] belongs to the mask, because a word's token holds the space before it: without this,
    # "the [MASK] sat" would show a lone space token that the model never sees in training.
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
    reached = backend.get_vocab_size()
    if reached == len(special) + len(ALPHABET) < vocab_size:
        raise InputError(
            f"there is nothing to learn: no two neighbours occur {min_frequency} times (--min_frequency) in the text "
            "of --data. Bring more text; a tokenizer wants a million words or so."
        )
    fill_vocabulary(backend=backend, goal=goal, multiple=pad_to_multiple_of, asked=vocab_size, frequency=min_frequency)
    tokenizer = wrap(backend, extra_special_tokens=special[len(SPECIAL_TOKENS) :])
    return adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=True, max_length=NO_LIMIT)


def check_options(
    *,
    vocab_size: int,
    min_frequency: int = 2,
    normalizer: str = "none",
    pattern: str = "modern",
    extra_special_tokens: Sequence[str] = (),
    num_sentinels: int = 0,
    pad_to_multiple_of: int = 1,
) -> list[str]:
    """Check what `train_bpe` is given, before hours go into reading a text.

    Returns:
        All special tokens by id.

    Raises:
        InputError: a name is unknown, a number cannot be, or a special token is one that a text could hold.
    """
    for option, value, known in (("normalizer", normalizer, NORMALIZERS), ("pattern", pattern, PATTERNS)):
        if value not in known:
            raise InputError(f"--{option} {value!r} is unknown; there are: {', '.join(known)}.")
    check_counts(min_frequency=min_frequency, num_sentinels=num_sentinels, pad_to_multiple_of=pad_to_multiple_of)
    words = untrained_backend(normalizer="none", pattern=pattern).pre_tokenizer
    special = [*SPECIAL_TOKENS, *extra_special_tokens, *sentinels(num_sentinels)]
    for token in extra_special_tokens:
        if special.count(token) > 1:
            raise InputError(f"--extra_special_tokens: {token!r} is there twice, or is special anyway; name it once.")
        check_special_token(token, words)
    smallest = len(special) + len(ALPHABET)
    if vocab_size < smallest:
        raise InputError(
            f"--vocab_size {vocab_size} is too small: {len(special)} special tokens and {len(ALPHABET)} bytes "
            f"need {smallest}. Ask for more; {USUAL_SIZES}."
        )
    return special


def check_counts(*, min_frequency: int, num_sentinels: int, pad_to_multiple_of: int) -> None:
    """Raises InputError for a number that counts nothing."""
    if min_frequency < 1:
        raise InputError(f"--min_frequency {min_frequency} makes no sense: it counts occurrences, from 1 on.")
    if num_sentinels < 0:
        raise InputError(f"--num_sentinels {num_sentinels} makes no sense: it is a count, from 0 on.")
    if pad_to_multiple_of < 1:
        raise InputError(f"--pad_to_multiple_of {pad_to_multiple_of} makes no sense: 64 is usual, and 1 pads nothing.")


def sentinels(count: int) -> list[str]:
    """Tokens for the gaps of a text, named as T5 does."""
    return [f"<extra_id_{number}>" for number in range(count)]


def check_special_token(token: str, words: Any) -> None:
    """Raises InputError for a special token that these words of a text could be or become."""
    if token != token.strip() or len(words.pre_tokenize_str(token)) < 2:
        raise InputError(
            f"--extra_special_tokens: {token!r} could be a word of a text and learned as one. Write it with "
            "brackets around letters, such as <tool>, and without space at its ends."
        )


def padded_size(vocab_size: int, multiple: int) -> int:
    """`vocab_size` rounded up to a multiple."""
    return -(-vocab_size // multiple) * multiple


def learn_merges(
    *,
    backend: Tokenizer,
    documents: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    special_tokens: Sequence[str],
    alphabet: Sequence[str],
    show_progress: bool,
) -> None:
    """Train `backend` in place.

    Raises:
        InputError: there is no text.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=list(alphabet),
        show_progress=show_progress,
    )
    source = _Pieces(documents)
    try:
        # The length is for the bars alone.
        backend.train_from_iterator(source, trainer, length=len(documents) if isinstance(documents, Sized) else None)
    except Exception:
        if source.error is not None:  # the library wraps what the source raised: a bad file must keep its own message
            raise source.error from None
        raise
    if not source.visible:
        raise InputError("there is no text to train a tokenizer on: every document is empty. Check --data.")


def fill_vocabulary(*, backend: Tokenizer, goal: int, multiple: int, asked: int, frequency: int) -> None:
    """Where the text ended before the goal, fill up to the next multiple with special tokens; warn if it ended before
    the size that was asked for."""
    reached = backend.get_vocab_size()
    if reached >= goal:
        return
    missing = padded_size(reached, multiple) - reached
    free = (f"[unused{number}]" for number in itertools.count())
    names = itertools.islice((name for name in free if backend.token_to_id(name) is None), missing)
    backend.add_special_tokens(list(names))
    if reached >= asked:
        return
    filled = (
        f" {missing} reserved tokens [unused0], [unused1] ... fill it to a multiple of {multiple}." if missing else ""
    )
    warnings.warn(
        f"the vocabulary has {reached} tokens, not the {asked} of --vocab_size: no further pair occurs "
        f"{frequency} times (--min_frequency) in this text.{filled} Bring more text or ask for fewer tokens.",
        stacklevel=3,
    )


class _Pieces:
    """Iterates over pieces of documents; remembers an error raised on the way and whether anything was visible."""

    def __init__(self, documents: Iterable[str]) -> None:
        self.documents = documents
        self.error: Exception | None = None
        self.visible = False

    def __iter__(self) -> Iterator[str]:
        try:
            for document in self.documents:
                self.visible = self.visible or bool(document and not document.isspace())
                for piece in split_pieces(document):
                    yield from cut_runs(piece)
        except Exception as error:
            self.error = error
            raise
