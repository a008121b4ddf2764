"""The table of words against the tokenizer itself, on every text that hypothesis thinks of."""

import re
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import regex
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from lacuna.corpus import split_sentences
from lacuna.corpus.store import encoding
from lacuna.corpus.store.encoding import GPT2_PATTERN, SentenceEncoder
from lacuna.corpus.store.pieces import BuildOptions
from lacuna.tokenization.patterns import NORMALIZERS, PATTERNS

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING = [
    "The cat's paw, and we'll say: 12345 times! Straße déjà-vu “quoted” — Привет, Ελλάδα. don't DON'T \r\n x" * 9,
    "cat!\n\n" * 20,
]


def make(pattern: str | None, normalizer: Any = None, added: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    from tokenizers.trainers import BpeTrainer

    trainer = BpeTrainer(
        vocab_size=400, special_tokens=["[MASK]"], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    return tokenizer


TOKENIZERS = {
    "byte_level": make(None),
    **{name: make(pattern) for name, pattern in PATTERNS.items()},
    "llama3": make(LLAMA3),
    "gpt4": make(GPT4),
    "gpt4o": make(GPT4O),
    **{name: make(PATTERNS["modern"], normalizers.Sequence(parts)) for name, parts in NORMALIZERS.items()},
    "bert": make(LLAMA3, normalizers.BertNormalizer()),
    "added": make(PATTERNS["modern"], added=("<tool>", "  ")),
}
ENCODERS = {
    name: SentenceEncoder(tokenizer_json=tokenizer.to_str(), dtype=np.dtype(np.uint16))
    for name, tokenizer in TOKENIZERS.items()
}
PIECES = (
    "'s",
    "'LL",
    "don't",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1234",
    "é",
    "e\u0301",
    "“",
    "—",
    "ſ",
    "\u00a0",
    "\u2003",
)
PIECES += ("a", "B", "cat", "Привет", "[MASK]", "<tool>", "你好", "7", "²", "\x1c", "/")
TEXTS = st.lists(st.text(max_size=20) | st.lists(st.sampled_from(PIECES)).map("".join), max_size=6)


@pytest.mark.parametrize("name", TOKENIZERS)
@examples(80)
@given(texts=TEXTS)
def test_it_gives_the_ids_of_the_tokenizer(name: str, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    encoder, tokenizer = ENCODERS[name], TOKENIZERS[name]
    assert encoder.uses_table
    tokenizer.encode_special_tokens = True
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for _ in range(2):  # new words, and known ones
        tokens, lengths = encoder.encode(texts)
        assert lengths.tolist() == list(map(len, expected))
        assert tokens.tolist() == [id for ids in expected for id in ids]
        assert tokens.dtype == np.uint16


def llama2() -> Tokenizer:
    """BPE of whole texts, which begin with a mark, and whose bytes are tokens too, as SentencePiece makes them."""
    tokenizer = Tokenizer(models.BPE(fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    from tokenizers.trainers import BpeTrainer

    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([" ".join(TRAINING)], trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


OF_OTHERS = ("llama3", "gpt4", "gpt4o", "bert", "added")
WHOLE = {**TOKENIZERS, "llama2": llama2(), "word_piece": word_piece()}
PROSE = st.lists(
    st.sampled_from(("Title", "end.", "No!", "你好。", "世界", " ", "\n", "\n\n", "\r\n", "\t", '"', *PIECES))
)


@pytest.mark.parametrize("name", WHOLE)
@examples(60)
@given(documents=st.lists(PROSE.map("".join), min_size=1, max_size=4))
def test_the_tokens_of_a_document_are_those_of_its_whole_text(name: str, documents: list[str]) -> None:
    tokenizer = WHOLE[name]
    tokenizer.encode_special_tokens = True
    encoder = ENCODERS.get(name) or SentenceEncoder(tokenizer_json=tokenizer.to_str(), dtype=np.dtype(np.uint16))
    assert encoder.by_sentence == (name in ENCODERS and name not in OF_OTHERS)
    found: list[list[int]] = [[] for _ in documents]
    owned: list[int] = []
    for owners, ids, lengths in encoder.documents([text.encode() for text in documents], "en"):
        assert len(owners) == len(lengths) and lengths.sum() == len(ids)
        owned += owners
        for owner, last, length in zip(owners, np.cumsum(lengths), lengths, strict=True):
            found[owner] += ids[last - length : last].tolist()
    assert owned == [number for number, text in enumerate(documents) for _ in split_sentences(text)]
    assert found == [tokenizer.encode(text, add_special_tokens=False).ids for text in documents]


def test_a_token_over_the_end_of_a_sentence_is_of_the_first_one() -> None:
    tokenizer = make(LLAMA3)
    encoder = SentenceEncoder(tokenizer_json=tokenizer.to_str(), dtype=np.dtype(np.uint16))
    ((owners, ids, lengths),) = encoder.documents([b"cat!\n\nDog. Ox"], "en")
    words = [tokenizer.encode(word, add_special_tokens=False).ids for word in ("cat", "!\n\n", "Dog", ".", " Ox")]
    assert ids.tolist() == [token for word in words for token in word]
    assert owners == [0, 0, 0] and lengths.tolist() == [
        sum(map(len, part)) for part in (words[:2], words[2:4], words[4:])
    ]


def check(encoder: SentenceEncoder, sentences: list[str]) -> None:
    expected = [each.ids for each in encoder.backend.encode_batch(sentences, add_special_tokens=False)]
    tokens, lengths = encoder.encode(sentences)
    assert lengths.tolist() == list(map(len, expected))
    assert tokens.tolist() == [token for ids in expected for token in ids]


@pytest.mark.parametrize("path", ["novels/Cbronte_Villette_1853.txt", "multi30k/train.de", "blimp/causative.jsonl"])
def test_real_text(shared_data: Any, path: str) -> None:
    lines = (shared_data / path).read_text(encoding="utf-8-sig")[:15_000].splitlines(keepends=True)
    for name in TOKENIZERS:
        check(ENCODERS[name], lines)


def test_chinese_japanese_and_mixed_text() -> None:
    for name in TOKENIZERS:
        check(
            ENCODERS[name],
            ["天地玄黃。", "I say 你好 to you.", "吾輩は猫である。名前はまだ無い。", "It's 東京.", "Plain."],
        )


def test_the_characters_of_the_table_are_cut_alike() -> None:
    """Each of them between letters, digits, signs and spaces, by all expressions."""
    characters = [chr(code) for code in range(0x3000) if re.fullmatch(f"[{encoding._known_characters()}]", chr(code))]
    assert len(characters) > 7000
    probes = [f"a{it}a 1{it}1 .{it}. {it} {it}{it}\n'{it} B{it}b" for it in characters]
    for pattern in (*PATTERNS.values(), LLAMA3, GPT4, GPT4O):
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        words = regex.compile(pattern).findall
        for probe in probes:
            assert [end for _, (_, end) in split.pre_tokenize_str(probe)] == [*accumulate(map(len, words(probe)))]


def test_words_that_leave_the_table_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_WORDS", 50)
    encoder = SentenceEncoder(tokenizer_json=TOKENIZERS["modern"].to_str(), dtype=np.dtype(np.uint16))
    random = np.random.default_rng(0)
    words = ["".join(map(chr, random.integers(97, 123, size=9))) for _ in range(120)]
    for _ in range(2):
        check(encoder, [" ".join(words[start : start + 3]) for start in range(0, 120, 3)])


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)|[^a]+",
        r"(?i:ss)|.+",
        r"\d+|\D+",
        r"\p{Han}+|.",
        r"\w+|[^\w\s]+",
        r"[a-z&&[^b]]+|\s+",
        r"\p{N}{1,3}+|\P{N}+",
        r"^\s+|\S+|\s",
    ],
)
def test_other_expressions_go_through_the_tokenizer(pattern: str) -> None:
    encoder = SentenceEncoder(tokenizer_json=make(pattern).to_str(), dtype=np.dtype(np.uint16))
    assert not encoder.uses_table
    expected = make(pattern).encode("Some text 12.").ids
    assert encoder.encode(["Some text 12."])[0].tolist() == expected


def test_other_tokenizers_are_left_alone() -> None:
    def table(tokenizer: Tokenizer) -> bool:
        return SentenceEncoder(tokenizer_json=tokenizer.to_str(), dtype=np.dtype(np.uint16)).uses_table

    assert table(make(GPT2_PATTERN))
    assert not table(make(None, normalizers.NFC(), ("<tool>",)))
    other = make(None)
    other.pre_tokenizer = ByteLevel(add_prefix_space=True)
    assert not table(other)
    other.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), ByteLevel(add_prefix_space=False)])
    assert not table(other)
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not table(words)


def test_an_expression_that_leaves_something_out() -> None:
    encoder = SentenceEncoder(tokenizer_json=make(r"\p{L}+").to_str(), dtype=np.dtype(np.uint16))
    for _ in range(2):
        check(encoder, ["Some text 12."])


@pytest.mark.parametrize(("size", "name"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"),
                                            (65537, "uint32")])  # fmt: skip
def test_the_smallest_type(size: int, name: str) -> None:
    assert BuildOptions(text="", tokenizer="", vocab_size=size, language="en").dtype.name == name
