"""What stands around byte-pair encoding: how text is normalized and cut before it, and what is added after it."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

# Ids 0 to 4, in this order. [CLS] also begins a document of a decoder and [SEP] ends it.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# Around a single text and around a pair; ":1" is the segment. A decoder gets only a beginning: an end would tell it
# that the prompt is over, and in training the objective writes both ends of each document. An encoder-decoder starts
# to write at [CLS] and stops at [SEP].
_BOTH_ENDS = ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
TEMPLATES = {
    "encoder": _BOTH_ENDS,
    "decoder": ("[CLS]:0 $A:0", "[CLS]:0 $A:0 [SEP]:0 $B:1"),
    "encoder-decoder": _BOTH_ENDS,
}

# The words of a text. A word takes the space before it, and none reaches from visible text into the white space after
# it, which lets sentences be encoded one by one.
# modern: GPT-2's with two changes. Digits come in groups of three at most, so that years and page numbers do not fill
# the vocabulary. Combining marks (\p{M}) stay with their letters: GPT-2 tears Hindi and Thai words apart.
# code: as modern, but a line end and the indentation after it are one word, so that a line begins with the same token
# at every depth. (As two words they took 8 % more tokens for Python.)
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "modern": r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+",
    "code": r"\s*[\r\n]\s*| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+",
}

MARKS = regex.compile(r"\p{M}")
MOST_MARKS = 0.002  # of the characters; where there are more, words are kept whole


def choose_pattern(texts: Iterable[str]) -> str:
    """`gpt2`, which llama.cpp knows, or `modern` for a text in which that would tear letters from their marks."""
    marks = characters = 0
    for text in texts:
        characters += len(text)
        marks += 0 if text.isascii() else len(MARKS.findall(text))
    return "modern" if marks > MOST_MARKS * characters else "gpt2"


def pattern_of(backend: Tokenizer) -> str:
    """The name of the pattern that a tokenizer cuts text by; `other` where it is none of ours."""
    state = backend.to_str()
    return next((name for name, pattern in PATTERNS.items() if json.dumps(pattern) in state), "other")


# Of Latin, Greek and Cyrillic; `normalizers.StripAccents` would take the vowels of Hindi and Thai.
_STRIP_ACCENTS = [normalizers.NFD(), normalizers.Replace(Regex(r"[\x{0300}-\x{036F}]"), ""), normalizers.NFC()]
NORMALIZERS: dict[str, list[Any]] = {
    "none": [],
    "nfc": [normalizers.NFC()],
    "nfkc": [normalizers.NFKC()],
    "lowercase": [normalizers.Lowercase()],
    "strip_accents": _STRIP_ACCENTS,
    "lowercase_strip_accents": [normalizers.Lowercase(), *_STRIP_ACCENTS],
}

# The library works in parallel over the strings it is given: one large file would keep all cores but one idle. Pieces
# of 16,384 characters take 12 % less processor time in training than pieces of 65,536, and 15 % less in encoding.
PIECE_CHARACTERS = 16384
BATCH_CHARACTERS = 1 << 20
PIECE_EDGE = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")  # Python alone takes \x1c to \x1f for white space
RUN = re.compile(r"\S+")
RUN_CHARACTERS = 1024  # 1 MB of DNA without a space took 8.3 s of processor time, and takes 1.3 s so cut
LATEST_EDGE = 4096  # characters behind PIECE_CHARACTERS: what has no white space for so long is cut anywhere


def untrained_backend(*, normalizer: str, pattern: str) -> Tokenizer:
    """A byte-level BPE that has learned nothing yet."""
    backend = Tokenizer(models.BPE())
    if steps := NORMALIZERS[normalizer]:
        backend.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    words = pre_tokenizers.Split(Regex(PATTERNS[pattern]), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def split_pieces(document: str) -> Iterator[str]:
    """Cut a long document into pieces of about PIECE_CHARACTERS, where no word can reach across.

    A run without white space is cut anywhere: memory and time for one word grow with its length.
    """
    start = 0
    while len(document) - start > PIECE_CHARACTERS + LATEST_EDGE:  # so that a piece is not cut again
        aim = start + PIECE_CHARACTERS
        edge = PIECE_EDGE.search(document, aim, aim + LATEST_EDGE)
        end = edge.start() if edge else aim
        yield document[start:end]
        start = end
    yield document[start:]


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts of about BATCH_CHARACTERS, so that memory does not grow with the corpus."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def cut_runs(piece: str) -> Iterator[str]:
    """Cut what has no white space for more than RUN_CHARACTERS (DNA, base64), where most of a piece is such.

    A merge goes through the whole of each word that it changes; a cut costs one pair.
    """
    start = 0
    if piece.count(" ") + piece.count("\n") < len(piece) // 16:  # ordinary text has more, and is not looked at
        for run in RUN.finditer(piece):
            for end in range(run.start() + RUN_CHARACTERS, run.end(), RUN_CHARACTERS):
                yield piece[start:end]
                start = end
    yield piece[start:]


def copy_backend(tokenizer: PreTrainedTokenizerFast, *, special_is_text: bool = False) -> Tokenizer:
    """The tokenizer of `tokenizers` inside, without padding and truncation; "[SEP]" in a text may be text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = special_is_text
    return backend


def adapt_tokenizer(
    *, tokenizer: PreTrainedTokenizerFast, shape: str, segments: bool, max_length: int
) -> PreTrainedTokenizerFast:
    """A copy that adds the special tokens a model of this shape expects; ids of the text itself do not change.

    An "encoder" or "encoder-decoder" gets "[CLS] A [SEP] B [SEP]" and pads right, a "decoder" "[CLS] A [SEP] B" and
    pads left, so that generation continues the text. With `segments` it returns token_type_ids (1 for B).

    Raises InputError: the shape is unknown, or the tokenizer lacks [CLS] or [SEP].
    """
    if shape not in TEMPLATES:
        raise InputError(f"no template for a model of shape {shape!r}; there are: {', '.join(TEMPLATES)}.")
    single, pair = TEMPLATES[shape]
    if not segments:
        pair = pair.replace(":1", ":0")
    backend = copy_backend(tokenizer)
    ids = {token: backend.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    missing = [token for token, token_id in ids.items() if token_id is None]
    if missing:
        raise InputError(
            f"the tokenizer has no {' and no '.join(missing)}: it was not made by recipes/train_tokenizer.py. "
            "Models with other tokenizers keep the template that these came with."
        )
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))
    # Trimmed offsets leave out the space before a word: an answer's first token starts where the answer starts.
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    names = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    side = "left" if shape == "decoder" else "right"
    how: dict[str, Any] = {"model_input_names": names, "model_max_length": max_length, "padding_side": side}
    return wrap(backend, **how, extra_special_tokens=list(tokenizer.extra_special_tokens))


def wrap(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    """The tokenizer of transformers around one of `tokenizers` that has the five SPECIAL_TOKENS."""
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "bos": "[CLS]", "eos": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,  # it would take the space out of "a , b" when decoding
        mask_token=AddedToken("[MASK]", lstrip=True, special=True, normalized=False),
        **{f"{role}_token": token for role, token in names.items()},
        **{"model_input_names": ["input_ids", "attention_mask"], **options},
    )
