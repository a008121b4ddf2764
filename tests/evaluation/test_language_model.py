"""Loading: which way a model reads, and what is refused because its numbers would mean nothing."""

from dataclasses import replace

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from lacuna import modeling
from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.evaluation import LanguageModel, load_language_model, score_sentences
from lacuna.evaluation.language_model import logits_at
from lacuna.modeling.conversion import as_ours

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def lacuna(family: str, head: str, vocab_size: int):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = modeling.LacunaConfig.from_family(family, **sizes, vocab_size=vocab_size, max_position_embeddings=64)
    return getattr(modeling, head)(config).eval()


@pytest.mark.parametrize(
    "family, head, kind",
    [
        ("modernbert", "LacunaForMaskedLM", "masked"),
        ("bert", "LacunaForPreTraining", "masked"),
        ("qwen3", "LacunaForCausalLM", "causal"),
    ],
)
def test_lacuna_checkpoints(tokenizer, tmp_path, family, head, kind):
    model = lacuna(family, head, len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_language_model(model=str(tmp_path))
    assert (loaded.kind, loaded.max_length) == (kind, 64)
    sentences = ["The cats sit.", "Who sees the dog?"]
    found, _ = score_sentences(language_model=loaded, sentences=sentences)
    in_memory = LanguageModel.of(model=model, tokenizer=tokenizer)
    expected, _ = score_sentences(language_model=in_memory, sentences=sentences)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_native_models_are_scored_alike_by_our_trunk(tokenizer, make_model, kind):
    native = LanguageModel.of(model=make_model(kind), tokenizer=tokenizer)
    ours = replace(native, model=as_ours(native.model))
    assert type(ours.model).__name__.startswith("Lacuna")
    sentences = ["The cats sit.", "Who sees the dog?", "The dog"]
    expected, _ = score_sentences(language_model=native, sentences=sentences)
    found, _ = score_sentences(language_model=ours, sentences=sentences)
    assert found == pytest.approx(expected, rel=1e-5)


def test_chosen_positions_equal_dense_logits(tokenizer, make_model):
    ids = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    rows, positions = torch.tensor([1, 0, 0]), torch.tensor([2, 4, 0])
    for kind in ("causal", "masked"):
        model = make_model(kind)
        with torch.no_grad():
            expected = model(**inputs).logits[rows, positions]
            found = logits_at(model, inputs, rows=rows, positions=positions)
            torch.testing.assert_close(found, expected)
        assert not model.base_model._forward_hooks


def test_an_encoder_saved_as_a_causal_model_is_refused(tokenizer):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.3, **SMALL)
    with pytest.raises(InputError, match="sees the tokens that follow"):
        LanguageModel.of(model=BertLMHeadModel(config), tokenizer=tokenizer)
    config.is_decoder = True
    assert LanguageModel.of(model=BertLMHeadModel(config), tokenizer=tokenizer).kind == "causal"


TIED = {"tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 16}  # no weight of its head is missing


@pytest.mark.parametrize(
    "head, config, message",
    [
        (BertModel, BertConfig(**SMALL), "was saved without cls."),
        (BertForSequenceClassification, BertConfig(**SMALL), "a BertForSequenceClassification predicts no tokens"),
        (Qwen3ForSequenceClassification, Qwen3Config(**SMALL, **TIED), "a Qwen3ForSequenceClassification predicts no"),
    ],
)
def test_a_model_without_a_pretrained_head_is_refused(tokenizer, tmp_path, head, config, message):
    config.vocab_size = len(tokenizer)
    head(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message):
        load_language_model(model=str(tmp_path))


def test_native_pretraining_head_is_a_masked_model(tokenizer, tmp_path):
    BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_language_model(model=str(tmp_path)).kind == "masked"


def test_mistakes(tokenizer, tmp_path):
    with pytest.raises(InputError, match="--model"):
        load_language_model(model=None)
    with pytest.raises(InputError, match="there is no folder"):
        load_language_model(model=str(tmp_path / "nothing"))
    model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **SMALL))
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="tokenizer"):
        load_language_model(model=str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CorruptCheckpointError, match="weights cannot be read"):
        load_language_model(model=str(tmp_path))
    small = BertForPreTraining(BertConfig(vocab_size=len(tokenizer) - 1, **SMALL))
    with pytest.raises(InputError, match="embeds only"):
        LanguageModel.of(model=small, tokenizer=tokenizer)
