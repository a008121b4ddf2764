"""More tokens for a tokenizer that is there: old ids stay, merges go on."""

import json
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, ByteLevelBPETokenizer, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tokenization import adapt_tokenizer, load_tokenizer, save_tokenizer, train_bpe
from lacuna.tokenization.bpe import extend_tokenizer
from lacuna.tokenization.vocabulary import ALPHABET, token_edges

ENGLISH = "The cat sat on the mat. The dog, too, sat there; it is the mat of the cat, not of the dog. " * 20
GERMAN = "Die Katze saß auf der Matte. Auch der Hund saß dort; es ist die Matte der Katze, nicht des Hundes! " * 20


@pytest.fixture(scope="module")
def old() -> PreTrainedTokenizerFast:
    return train_bpe(documents=[ENGLISH], vocab_size=290, extra_special_tokens=["<user>"])


@pytest.fixture(scope="module")
def new(old: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    return extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=330)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_old_ids_keep_their_meaning_and_new_ones_follow(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> None:
    assert len(old) == 290 and len(new) == 330
    vocabulary = new.get_vocab()
    assert {token: vocabulary[token] for token in old.get_vocab()} == old.get_vocab()
    assert sorted(vocabulary.values()) == list(range(330))
    assert old.all_special_ids == new.all_special_ids
    assert new.extra_special_tokens == ["<user>"]
    assert (token_edges(new)[290:] > 0).all()


def test_old_merges_come_first_and_the_new_ones_only_build_on_them(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> None:
    before, after = (json.loads(each.backend_tokenizer.to_str())["model"]["merges"] for each in (old, new))
    assert after[: len(before)] == before and len(after) > len(before)
    for text in (ENGLISH[:300], GERMAN[:300]):
        rebuilt = [
            token for piece in new.tokenize(text) for token in old.tokenize(new.convert_tokens_to_string([piece]))
        ]
        assert "".join(rebuilt) == "".join(new.tokenize(text))
    assert len(ids_of(new, GERMAN)) < 0.7 * len(ids_of(old, GERMAN))
    assert "ĠKatze" in new.tokenize("die Katze")


def test_it_learns_what_training_on_both_would_go_on_with() -> None:
    """On the text that it was trained on, going on is the same as having trained longer."""
    short, long = (train_bpe(documents=[ENGLISH], vocab_size=size) for size in (280, 289))
    went_on = extend_tokenizer(tokenizer=short, documents=[ENGLISH], vocab_size=289)
    assert went_on.tokenize(ENGLISH) == long.tokenize(ENGLISH)


@examples(100)
@given(text=st.text() | st.sampled_from([GERMAN, ENGLISH]))
def test_every_text_survives_a_round_trip(new: PreTrainedTokenizerFast, text: str) -> None:
    assert new.decode(ids_of(new, text)) == text


def test_it_is_a_tokenizer_like_any_other(new: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer=new, output_dir=tmp_path / "new")
    loaded = load_tokenizer(tmp_path / "new")
    assert loaded("die Katze", "der Hund") == new("die Katze", "der Hund")
    decoder = adapt_tokenizer(tokenizer=loaded, shape="decoder", segments=False, max_length=64)
    assert decoder("die Katze")["input_ids"] == [2, *ids_of(new, "die Katze")]


def test_special_tokens_and_padding_come_with_it(old: PreTrainedTokenizerFast) -> None:
    with pytest.warns(UserWarning, match="--vocab_size"):
        made = extend_tokenizer(
            tokenizer=old,
            documents=[GERMAN],
            vocab_size=3000,
            extra_special_tokens=["<user>", "<end>"],
            pad_to_multiple_of=64,
        )
    assert made.convert_tokens_to_ids(["<user>", "<end>"]) == [5, 290]
    assert len(made) % 64 == 0
    assert made("a<end>", add_special_tokens=False)["input_ids"][-1] == 290
    with pytest.warns(UserWarning, match="--vocab_size"):
        more = extend_tokenizer(
            tokenizer=made, documents=["xyzzy plugh " * 9], vocab_size=len(made) + 50, pad_to_multiple_of=64
        )
    assert len(more) == len(made) + 64  # its reserved tokens have names of their own


def test_tokenizers_from_elsewhere() -> None:
    """As GPT-2's, with added tokens; and as Llama 3's: special tokens behind the vocabulary, whole words first."""
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    llama = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+|[^\s]+"), behavior="isolated")
    llama.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    for backend in (gpt2, llama):
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=ALPHABET, show_progress=False)
        backend.train_from_iterator([ENGLISH], trainer)
        backend.add_special_tokens(["<|begin|>"])
        backend.add_tokens([AddedToken("Katze", special=False)])
        old = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin|>")
        new = extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=310)
        assert {token: new.get_vocab()[token] for token in old.get_vocab()} == old.get_vocab()
        assert sorted(new.get_vocab().values()) == list(range(310))
        assert new.decode(ids_of(new, GERMAN)) == GERMAN
        assert len(ids_of(new, GERMAN)) < len(ids_of(old, GERMAN))
        assert new.bos_token_id == old.bos_token_id == 280
        assert not any("Katze" in token for token, number in new.get_vocab().items() if number > 281)


def test_gpt2_saved_by_transformers_is_extended_and_stays_itself(tmp_path: Path) -> None:
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator([ENGLISH], vocab_size=290, special_tokens=["<|endoftext|>"], show_progress=False)
    learner.save_model(str(tmp_path))
    files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
    GPT2TokenizerFast(**files, model_max_length=1024).save_pretrained(tmp_path / "old")
    old = load_tokenizer(tmp_path / "old")
    new = extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=320)
    save_tokenizer(tokenizer=new, output_dir=tmp_path / "new")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert {token: loaded.get_vocab()[token] for token in old.get_vocab()} == old.get_vocab()
    assert len(loaded) == 320 and loaded.model_max_length == 1024
    assert loaded.bos_token == loaded.eos_token == "<|endoftext|>" and loaded.bos_token_id == old.bos_token_id
    assert loaded.tokenize("the cat") == old.tokenize("the cat") and loaded("the cat") == old("the cat")
    assert "ĠKatze" in loaded.tokenize("die Katze") and loaded.decode(loaded(GERMAN)["input_ids"]) == GERMAN


def test_what_cannot_be_extended_is_an_error(old: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"--vocab_size 290 leaves no room: .* 290 tokens"):
        extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=290)
    with pytest.raises(InputError, match=r"leaves no room: .* 290 tokens and 3 special"):
        extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=293, extra_special_tokens=["<a>", "<b>", "<c>"])
    with pytest.raises(InputError, match="adds no token"):
        extend_tokenizer(tokenizer=old, documents=["The cat sat"], vocab_size=300)
    with pytest.raises(InputError, match="no text"):
        extend_tokenizer(tokenizer=old, documents=[" "], vocab_size=300)
    with pytest.raises(InputError, match="'the' could be a word"):
        extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=330, extra_special_tokens=["the"])
    for option in ("min_frequency", "pad_to_multiple_of"):
        with pytest.raises(InputError, match=f"--{option} must be at least 1, got 0"):
            extend_tokenizer(tokenizer=old, documents=[GERMAN], vocab_size=330, **{option: 0})
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "c": 1}, unk_token="[UNK]"))
    words.decoder = decoders.ByteLevel()
    with pytest.raises(InputError, match="WordLevel"):
        extend_tokenizer(tokenizer=PreTrainedTokenizerFast(tokenizer_object=words), documents=[GERMAN], vocab_size=330)
