"""Pretraining goes on with a tokenizer that has learned new words: new rows, and what they begin as."""

import json
import random

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
)

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM
from lacuna.tokenization import extend_tokenizer, save_tokenizer, train_bpe
from lacuna.training.starting_model import fit_vocabulary

OLD = " ".join(
    random.Random(0).choices(["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "tree"], k=600)
)
NEW = " ".join(
    random.Random(1).choices(["myocardial", "infarction", "and", "the", "stenosis", "of", "arteries"], k=600)
)
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
MODELS = {
    "bert": lambda rows: BertForMaskedLM(BertConfig(vocab_size=rows, **SIZES)),
    "modernbert": lambda rows: ModernBertForMaskedLM(ModernBertConfig(vocab_size=rows, pad_token_id=0, **SIZES)),
    "gpt2, untied": lambda rows: GPT2LMHeadModel(
        GPT2Config(vocab_size=rows, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False)
    ),
    "ours": lambda rows: LacunaForCausalLM(LacunaConfig.from_family("qwen3", "micro", vocab_size=rows, **SIZES)),
}


@pytest.fixture(scope="module")
def tokenizers():
    old = train_bpe(documents=[OLD], vocab_size=280, pad_to_multiple_of=1)
    new = extend_tokenizer(
        tokenizer=old, documents=[NEW], vocab_size=len(old) + 30, extra_special_tokens=["<patient>"]
    )
    return old, new


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("spare", [0, 200])
def test_new_rows_are_the_mean_of_what_they_replace(tokenizers, kind, spare) -> None:
    """Also where the table has rows to spare; a special token replaces nothing, and old rows stay."""
    old, new = tokenizers
    torch.manual_seed(0)
    model = MODELS[kind](len(old) + spare)
    before = model.get_output_embeddings().weight.detach().clone()
    assert fit_vocabulary(model, old=old, new=new) == len(new) - len(old)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert layer.weight.shape[0] >= len(new)
        for number in range(len(old), len(new)):
            token = new.convert_ids_to_tokens(number)
            text = new.convert_tokens_to_string([token])
            if token != "<patient>" and "\N{REPLACEMENT CHARACTER}" not in text:
                pieces = layer.weight[old(text, add_special_tokens=False)["input_ids"]]
                assert torch.allclose(layer.weight[number], pieces.mean(dim=0), atol=1e-6), token
    assert torch.equal(model.get_output_embeddings().weight[: len(old)], before[: len(old)])
    ids = new("the myocardial infarction", return_tensors="pt")["input_ids"]
    assert ids.max() >= len(old) and torch.isfinite(model(input_ids=ids).logits).all()


def test_the_same_tokenizer_changes_nothing_and_another_is_refused(tokenizers) -> None:
    old, _ = tokenizers
    model = MODELS["ours"](320)
    before = model.get_input_embeddings().weight.detach().clone()
    assert fit_vocabulary(model, old=old, new=old) == 0
    assert torch.equal(model.get_input_embeddings().weight, before)
    other = train_bpe(documents=[NEW], vocab_size=280, pad_to_multiple_of=1)
    with pytest.raises(InputError, match="leave --tokenizer out, or extend that one"):
        fit_vocabulary(model, old=old, new=other)


def test_one_command_goes_on_with_new_words_and_shows_the_loss_before_and_after(recipe, tmp_path, tokenizers) -> None:
    old, new = tokenizers
    for name, each in (("old", old), ("new", new)):
        save_tokenizer(tokenizer=each, output_dir=tmp_path / name)
    for name, text in (("old.txt", OLD), ("new.txt", NEW)):
        (tmp_path / name).write_text("\n\n".join(text[start : start + 300] for start in range(0, len(text), 300)))
    common = ["--document_boundary=blank_line", "--objective=clm", "--sequence_length=32", "--batch_size=8"]
    common += ["--save_steps=0", "--mixed_precision=no", "--eval_steps=0", "--optimizer=adamw"]
    for kind, more in (("old", ["--num_hidden_layers", 1]), ("new", ["--model", tmp_path / "model of old"])):
        paths = ["--data", tmp_path / f"{kind}.txt", "--tokenizer", tmp_path / kind]
        output = ["--output_dir", tmp_path / f"model of {kind}", "--max_steps", 8]
        code, said = recipe("pretrain", *paths, *output, *common, *more)
        assert code == 0, said
    output_dir = tmp_path / "model of new"
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = {line["step"]: line["eval_bits_per_byte"] for line in lines if "eval_bits_per_byte" in line}
    assert list(evaluations) == [0, 8] and evaluations[8] < evaluations[0]
    config = json.loads((output_dir / "config.json").read_text())
    assert config["model_type"] == "qwen3" and config["vocab_size"] >= len(new)
