"""Byte-level BPE: trained on raw text, saved as a plain fast tokenizer that needs no remote code.

Byte-pair encoding of words as in Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909), over bytes as in GPT-2
(Radford et al. 2019): every string can be written, so there is no unknown token and `decode(encode(x)) == x`.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .errors import TokenizerError, TokenizerStorageError
from .vocabulary import ALPHABET

# Ids 0 to 4, in this order. [CLS] also begins a document of a decoder and [SEP] ends it.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + len(ALPHABET)

# The pattern of GPT-2 with two changes. Digits come in groups of three at most, so that the vocabulary is not filled
# with years and page numbers. Combining marks (\p{M}) stay with their letters: GPT-2 tears Hindi and Thai words apart.
# No token reaches over the edge from visible text to white space, which is what lets sentences be encoded one by one.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"

# What each shape adds around a single text and around a pair; ":1" is the segment. A decoder only gets a beginning:
# an end would tell a prompt that it is over. A pair given to a decoder is parted by the end of a document.
TEMPLATES = {
    "encoder": ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"),
    "decoder": ("[CLS]:0 $A:0", "[CLS]:0 $A:0 [SEP]:0 $B:1"),
}

NO_LIMIT = int(1e30)  # how transformers writes that no model has set a maximum length yet

# Training works in parallel over the strings it is given, so that one large file would keep all cores but one idle:
# 13 MB of novels take 2.8 s whole and 2.1 s in pieces of this many characters on two cores.
PIECE_CHARACTERS = 65536
PIECE_EDGE = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")  # Python alone takes \x1c to \x1f for white space


def train_bpe(*, documents: Iterable[str], vocab_size: int = 8192, min_frequency: int = 2) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE vocabulary.

    Args:
        documents: the text to learn from, read once.
        vocab_size: tokens to reach, special tokens and the 256 bytes included.
        min_frequency: pairs of tokens seen fewer times than this are not merged.

    Returns:
        A tokenizer with the template of an encoder (`adapt_tokenizer` makes the other ones).

    Raises:
        TokenizerError: the vocabulary is smaller than the alphabet, or there is no text.
    Warns:
        UserWarning: the text has too few repeated pairs to reach `vocab_size`.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise TokenizerError(
            f"--vocab_size {vocab_size} is too small: {len(SPECIAL_TOKENS)} special tokens and {len(ALPHABET)} bytes "
            f"need {SMALLEST_VOCABULARY}. Ask for more; 4096 to 50000 is usual."
        )
    if min_frequency < 1:
        raise TokenizerError(f"--min_frequency {min_frequency} makes no sense: it counts occurrences, from 1 on.")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=ALPHABET,
        show_progress=False,
    )
    source = _Pieces(documents)
    try:
        backend.train_from_iterator(source, trainer)
    except Exception:
        if source.error is not None:  # the library wraps what the source raised: a bad file must keep its own message
            raise source.error from None
        raise
    if not source.visible:
        raise TokenizerError("there is no text to train a tokenizer on: every document is empty. Check --data.")
    # A space before [MASK] belongs to the mask, because a word's token holds the space before it: without this,
    # "the [MASK] sat" would show a lone space token that the model never sees in training.
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
    reached = backend.get_vocab_size()
    if reached < vocab_size:
        warnings.warn(
            f"the vocabulary has {reached} tokens, not the {vocab_size} of --vocab_size: no further pair occurs "
            f"{min_frequency} times (--min_frequency) in this text. Bring more text or ask for fewer tokens.",
            stacklevel=2,
        )
    return adapt_tokenizer(tokenizer=_wrap(backend), shape="encoder", segments=True, max_length=NO_LIMIT)


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
                yield from _split_pieces(document)
        except Exception as error:
            self.error = error
            raise


def _split_pieces(document: str) -> Iterator[str]:
    """Cut a long document where no token can reach across, so that the counts stay those of the whole."""
    start = 0
    while len(document) - start > PIECE_CHARACTERS:
        edge = PIECE_EDGE.search(document, start + PIECE_CHARACTERS)
        if edge is None:
            break
        yield document[start : edge.start()]
        start = edge.start()
    yield document[start:]


def _wrap(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    names |= {"bos": "[CLS]", "eos": "[SEP]"}
    tokens: dict[str, Any] = {f"{role}_token": token for role, token in names.items()}
    tokens["mask_token"] = AddedToken("[MASK]", lstrip=True, special=True, normalized=False)
    options = {"model_input_names": ["input_ids", "attention_mask"], **options}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,  # it would take the space out of "a , b" when decoding
        **tokens,
        **options,
    )


def adapt_tokenizer(
    *, tokenizer: PreTrainedTokenizerFast, shape: str, segments: bool, max_length: int
) -> PreTrainedTokenizerFast:
    """A copy that adds the special tokens a model of this shape expects; ids of the text itself do not change.

    Args:
        tokenizer: one made by `train_bpe`.
        shape: "encoder" ("[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]"; pads right) or
            "decoder" ("[CLS] A", "[CLS] A [SEP] B"; pads left, so that generation continues the text).
        segments: whether the model has token_type_ids (1 for B); without, they are not returned.
        max_length: tokens the model can read at once.

    Raises:
        TokenizerError: the shape is unknown, or the tokenizer lacks [CLS] or [SEP].
    """
    if shape not in TEMPLATES:
        raise TokenizerError(f"no template for a model of shape {shape!r}; there are: {', '.join(TEMPLATES)}.")
    single, pair = TEMPLATES[shape]
    if not segments:
        pair = pair.replace(":1", ":0")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    ids = {token: backend.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    missing = [token for token, token_id in ids.items() if token_id is None]
    if missing:
        raise TokenizerError(
            f"the tokenizer has no {' and no '.join(missing)}: it was not made by recipes/train_tokenizer.py. "
            "Models made from other tokenizers keep the template that those came with."
        )
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))
    # Trimmed offsets leave out the space before a word: an answer's first token starts where the answer starts.
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    names = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    side = "left" if shape == "decoder" else "right"
    return _wrap(backend, model_input_names=names, model_max_length=max_length, padding_side=side)


def save_tokenizer(*, tokenizer: PreTrainedTokenizerFast, output_dir: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, which transformers 4.57 reads as well as 5.

    transformers 5 names its own class "TokenizersBackend", unknown to older versions: the older name is written.
    Each file appears whole or not at all. Other files in `output_dir` are left alone.

    Raises:
        TokenizerError: `output_dir` is a file, or (TokenizerStorageError) cannot be written.
    """
    output_dir = Path(output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise TokenizerError(f"{output_dir} is a file, not a folder; choose another --output_dir.")
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}.saving-", dir=output_dir.parent))
    except OSError as error:
        raise TokenizerStorageError(f"cannot write {output_dir}: {error}. Choose another --output_dir.") from error
    try:
        tokenizer.save_pretrained(temporary)
        config = json.loads((temporary / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        for key in ("backend", "is_local", "local_files_only"):  # how it came here, not what it is
            config.pop(key, None)
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (temporary / "tokenizer_config.json").write_text(text, encoding="utf-8")
        os.chmod(temporary, 0o755)  # mkdtemp makes a folder for its owner alone
        if not output_dir.exists():
            os.rename(temporary, output_dir)
            return
        for name in ("tokenizer.json", "tokenizer_config.json"):
            os.replace(temporary / name, output_dir / name)
    except OSError as error:
        raise TokenizerStorageError(f"cannot write {output_dir}: {error}. Choose another --output_dir.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Read a folder that holds tokenizer.json, from here or from any fast tokenizer of transformers.

    Raises:
        TokenizerError: the folder or its tokenizer.json is missing, or does not hold a tokenizer.
    """
    folder = Path(path)
    if not (folder / "tokenizer.json").is_file():
        what = "there is no tokenizer.json in it" if folder.is_dir() else "there is no such folder"
        raise TokenizerError(
            f"cannot load a tokenizer from {folder}: {what}. "
            f"Train one: python recipes/train_tokenizer.py --output_dir {folder}"
        )
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # the Rust library raises bare Exception
        raise TokenizerError(
            f"{folder} does not hold a tokenizer that can be read ({type(error).__name__}: {str(error)[:200]}). "
            "Train it again with recipes/train_tokenizer.py."
        ) from error


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 (hexadecimal) of what decides the ids of a text.

    That is the normalizer, the pre-tokenizer, the model (vocabulary and merges) and the added tokens. Templates,
    padding and maximum length do not count: the same text gets the same ids under `adapt_tokenizer`.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    merges = parts["model"].get("merges")
    if merges:  # written "a b" by older versions of the library and ["a", "b"] by newer ones
        parts["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
