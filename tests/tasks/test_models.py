"""The model a task starts from: what is loaded, what is refused, and whether it is the same for the same seed."""

import copy
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)

from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.common.loading import longest_input, missing_folder
from lacuna.modeling import LacunaConfig, LacunaForCausalLM
from lacuna.tasks.base.features import mask_of, model_inputs, pad_inputs
from lacuna.tasks.base.models import check_tokenizer, load_base, load_model, read_first_words, resolve_max_length
from lacuna.tasks.classification.reader import ClassificationArguments
from lacuna.tasks.classification.task import Classification
from lacuna.tokenization import adapt_tokenizer, train_bpe
from lacuna.tokenization.patterns import wrap

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def checkpoint(tmp_path, tokenizer):
    """A native BERT, pretrained in name, with its tokenizer; in bf16, as large checkpoints are."""
    folder = tmp_path / "model"
    config = BertConfig(vocab_size=320, max_position_embeddings=128, **SIZES)
    BertForMaskedLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def first_token(tokenizer):
    return tokenizer.convert_ids_to_tokens(tokenizer("quick", add_special_tokens=False)["input_ids"])[0]


def test_own_tokenizers_begin_each_text_with_one_space(tmp_path):
    """As words stand inside sentences; in pairs, in files, and not twice. Others stay as they came."""
    trained = train_bpe(documents=["the quick fox is quick"] * 9, vocab_size=270)
    own = adapt_tokenizer(tokenizer=trained, shape="encoder", segments=True, max_length=64)
    plain = own.backend_tokenizer.to_str()
    assert not first_token(own).startswith("Ġ")
    for _ in range(2):
        read_first_words(own)
        assert first_token(own).startswith("Ġ")
        for text in ("quick fox", " quick fox", "  quick fox"):
            assert own(text)["input_ids"] == own("quick fox")["input_ids"]
        tokens = own.convert_ids_to_tokens(own("fox", "quick")["input_ids"])
        assert tokens[tokens.index("[SEP]") + 1].startswith("Ġ")
    assert own.backend_tokenizer.to_str().count("Prepend") == 1
    own.save_pretrained(tmp_path)
    assert first_token(AutoTokenizer.from_pretrained(tmp_path)).startswith("Ġ")

    named = wrap(Tokenizer.from_str(plain))
    named.add_tokens(["Prepend"])  # a token of this name is no normalizer
    read_first_words(named)
    assert first_token(named).startswith("Ġ")

    core = Tokenizer(models.BPE(unk_token="[UNK]"))  # like DeBERTa's: the same special tokens at other ids
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    core.train_from_iterator(["the quick fox"], trainers.BpeTrainer(vocab_size=300, special_tokens=special))
    deberta = wrap(core)
    before = deberta.backend_tokenizer.to_str()
    read_first_words(deberta)
    assert deberta.backend_tokenizer.to_str() == before


def test_a_native_model_gets_a_head_with_label_names(checkpoint):
    config, tokenizer = load_base(model=str(checkpoint))
    assert resolve_max_length(asked=None, default=256, config=config, tokenizer=tokenizer) == 128
    assert resolve_max_length(asked=64, default=256, config=config, tokenizer=tokenizer) == 64
    options = {"auto_class": "AutoModelForSequenceClassification", "model": str(checkpoint), "tokenizer": tokenizer}
    model = load_model(**options, label_names=["no", "maybe", "yes"], seed=1)
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    assert model.config.label2id == {"no": 0, "maybe": 1, "yes": 2}
    number = load_model(**options, label_names=["score"], problem_type="regression")
    assert (number.num_labels, number.config.problem_type, number.config.id2label) == (1, "regression", {0: "score"})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    again, other = (load_model(**options, label_names=["no", "maybe", "yes"], seed=seed) for seed in (1, 2))
    assert torch.equal(model.classifier.weight, again.classifier.weight)
    assert not torch.equal(model.classifier.weight, other.classifier.weight)
    body = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(
        model.state_dict()[body], BertForMaskedLM.from_pretrained(checkpoint).state_dict()[body].float()
    )


def test_a_text_begins_as_words_do_inside_of_one(checkpoint, tmp_path):
    plain = AutoTokenizer.from_pretrained(checkpoint)
    assert load_base(model=str(checkpoint))[1]("the fox")["input_ids"] == plain("the fox")["input_ids"]  # not Lacuna's
    plain.bos_token, plain.eos_token = plain.cls_token, plain.sep_token
    plain.save_pretrained(checkpoint)
    _, tokenizer = load_base(model=str(checkpoint))
    inside = plain(" the fox", add_special_tokens=False)["input_ids"]
    tokenizer.save_pretrained(tmp_path / "tuned")
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "tuned"), load_base(model=str(checkpoint))[1]):
        for text in ("the fox", " the fox", "\n  the fox"):
            assert each(text, add_special_tokens=False)["input_ids"] == inside != plain("the fox")["input_ids"][1:-1]
        assert each("", add_special_tokens=False)["input_ids"] == []
        pair = each("the fox", "the fox", add_special_tokens=False)["input_ids"]
        assert pair == [*inside, *inside]
    found = tokenizer("the fox", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    assert (found[0][0], found[-1][1]) == (0, 7) and tokenizer.decode(inside).strip() == "the fox"
    assert tokenizer("the [MASK] fox")["input_ids"] == plain(" the [MASK] fox")["input_ids"]
    assert load_base(model=str(checkpoint), writes=True)[1]("the fox")["input_ids"] == plain("the fox")["input_ids"]


def test_a_head_of_another_size_is_replaced_and_a_body_is_not(checkpoint, tmp_path):
    _, tokenizer = load_base(model=str(checkpoint))
    options = {"auto_class": "AutoModelForSequenceClassification", "tokenizer": tokenizer}
    load_model(**options, model=str(checkpoint), label_names=["a", "b"]).save_pretrained(tmp_path / "two")
    assert load_model(**options, model=str(tmp_path / "two"), label_names=["a", "b", "c"]).num_labels == 3
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    (tmp_path / "two" / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(InputError, match="disagree on the shape of bert"):
        load_model(**options, model=str(tmp_path / "two"), label_names=["a", "b"])


def test_a_decoder_learns_where_padding_is(tmp_path, tokenizer):
    GPT2LMHeadModel(GPT2Config(vocab_size=320, n_positions=64, n_embd=32, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    head = {"auto_class": "AutoModelForSequenceClassification", "label_names": ["a", "b"]}
    for pad in (None, 7):  # is none, or not what will be padded with
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": pad}))
        model = load_model(**head, model=str(tmp_path), tokenizer=tokenizer)
        assert model.config.pad_token_id == tokenizer.pad_token_id
    batch = {name: torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8]]) for name in ("input_ids",)}
    assert model(**batch).logits.shape == (2, 2)


@pytest.mark.parametrize("kind", ["gpt2", "native gpt2"])
def test_a_decoder_that_reads_sees_the_same_beside_a_longer_text(tmp_path, tokenizer, kind):
    save_decoder(tmp_path, tokenizer, kind)
    left, right = (load_base(model=str(tmp_path), writes=writes)[1] for writes in (True, False))
    assert (left.padding_side, right.padding_side) == ("left", "right")
    right.save_pretrained(tmp_path / "tuned")
    assert AutoTokenizer.from_pretrained(tmp_path / "tuned").padding_side == "right"
    model = load_model(
        auto_class="AutoModelForSequenceClassification",
        model=str(tmp_path),
        tokenizer=right,
        label_names=["a", "b"],
    ).eval()
    rows = [{"text": text, "label": label} for text, label in (("the fox", "a"), ("the lazy dog " * 9, "b"))]
    work = Classification(ClassificationArguments(max_length=64), train_rows=rows, eval_rows=rows, tokenizer=right)
    with torch.no_grad():
        alone, both = (
            model(**model_inputs(work.collate([work.example(row, row) for row in part]))).logits
            for part in ([0], [0, 1])
        )
    torch.testing.assert_close(alone[0], both[0])


def save_decoder(folder, tokenizer, kind):
    """One with a vector for each position, whose tokenizer pads on the left, as pretraining leaves it."""
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
        config = LacunaConfig.from_family(
            "gpt2", vocab_size=320, intermediate_size=64, max_position_embeddings=64, initializer_range=0.5, **sizes
        )
        model = LacunaForCausalLM(config)
    else:
        config = GPT2Config(
            vocab_size=320, n_positions=64, n_embd=32, n_layer=1, n_head=2, initializer_range=0.5, pad_token_id=0
        )
        model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    left = copy.deepcopy(tokenizer)
    left.padding_side, left.model_input_names = "left", ["input_ids", "attention_mask"]
    left.init_kwargs["padding_side"] = "left"
    left.save_pretrained(folder)


@pytest.mark.parametrize(("positions", "expected"), [(52, 52), (600, 512)])
def test_the_tokenizer_knows_how_long_a_text_the_model_takes(tmp_path, tokenizer, positions, expected):
    BertConfig(vocab_size=320, max_position_embeddings=positions, **SIZES).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    _, found = load_base(model=str(tmp_path))
    assert found.model_max_length == expected
    examples = [{"input_ids": np.ones(50, dtype=np.int32)}]
    assert pad_inputs(examples=examples, tokenizer=found)["input_ids"].shape[1] == min(56, expected)


@pytest.mark.parametrize(("longest", "length"), [(1, 4), (29, 32), (33, 40), (121, 128), (129, 144)])
def test_batches_come_in_few_lengths(longest, length):
    assert mask_of([longest, 1], most=512).sum(dim=1).tolist() == [longest, 1]
    assert mask_of([longest, 1], most=512).shape == (2, length)


def test_positions_that_begin_behind_padding_are_fewer(tmp_path, tokenizer):
    config = RobertaConfig(vocab_size=320, max_position_embeddings=66, pad_token_id=1, **SIZES)
    tokenizer.model_max_length, before = 10**30, tokenizer.model_max_length
    try:
        assert longest_input(config=config, tokenizer=tokenizer) == 64
    finally:
        tokenizer.model_max_length = before
    model = RobertaModel(config).eval()
    assert model(torch.full((1, 64), 5)).last_hidden_state.shape == (1, 64, 32)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, 65), 5))


def test_a_model_that_counts_positions_from_its_padding_keeps_it(tmp_path, tokenizer):
    """Saved with another number it would be read as another model."""
    large = {"initializer_range": 0.5}  # so that other positions make other logits
    config = RobertaConfig(vocab_size=320, max_position_embeddings=66, pad_token_id=1, **SIZES, **large)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    head = {"auto_class": "AutoModelForSequenceClassification", "label_names": ["a", "b"]}
    model = load_model(**head, model=str(tmp_path), tokenizer=tokenizer).eval()
    model.save_pretrained(tmp_path / "tuned")
    again = load_model(**head, model=str(tmp_path / "tuned"), tokenizer=tokenizer).eval()
    ids = torch.tensor([[2, 9, 8, 7, 3]])
    assert tokenizer.pad_token_id != 1 == again.config.pad_token_id
    torch.testing.assert_close(model(ids).logits, again(ids).logits)


def test_a_body_that_is_not_whole_is_told_and_a_new_head_is_not(checkpoint, capfd, recwarn):
    _, tokenizer = load_base(model=str(checkpoint))
    options = {"auto_class": "AutoModelForQuestionAnswering", "model": str(checkpoint), "tokenizer": tokenizer}
    load_model(**options)
    assert "MISSING" not in capfd.readouterr().err and not [w for w in recwarn if "--model" in str(w.message)]
    weights = load_file(checkpoint / "model.safetensors")
    weights.pop("bert.encoder.layer.0.output.dense.weight")
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptCheckpointError, match=r"is incomplete: 'bert.encoder.layer.0.output.dense.weight'"):
        load_model(**options)


def test_pooling_is_a_choice_where_the_configuration_has_it(tmp_path, tokenizer, checkpoint):
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = ModernBertConfig(vocab_size=320, **sizes, **ids)
    ModernBertForMaskedLM(config).save_pretrained(tmp_path / "modern")
    options = {"auto_class": "AutoModelForSequenceClassification", "tokenizer": tokenizer, "label_names": ["a", "b"]}
    for pooling, own in (("auto", "cls"), ("first", "cls"), ("mean", "mean")):
        model = load_model(**options, model=str(tmp_path / "modern"), pooling=pooling)
        assert model.config.classifier_pooling == own
    with pytest.raises(InputError, match=r"--pooling mean: the classifier .*\(bert\) always reads the same token"):
        load_model(**options, model=str(checkpoint), pooling="mean")


@pytest.mark.parametrize("name", [None, "", "no/such-folder-here", "/"])
def test_a_missing_model_is_named(name):
    with pytest.raises(InputError, match="--model"):
        load_base(model=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/absent", "--model: there is no folder runs/absent."),
        ("./absent", "--model: there is no folder ./absent."),
        ("../absent", "--model: there is no folder ../absent."),
        ("/absent/modl", "--model: there is no folder /absent/modl."),
        ("a/b/c", "--model: there is no folder a/b/c."),
        ("models/modl", "--model: there is no folder models/modl. Did you mean models/model?"),
        ("models/modl/", "--model: there is no folder models/modl/. Did you mean models/model?"),
        ("models/notes.txt", "--model: there is no folder models/notes.txt. It is a file; pass the"),
    ],
)
def test_a_path_without_a_folder_is_told_first(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "model").mkdir(parents=True)
    (tmp_path / "models" / "notes.txt").touch()
    hub = Mock(side_effect=OSError("not there"))
    monkeypatch.setattr(AutoConfig, "from_pretrained", hub)
    with pytest.raises(InputError) as caught:
        load_base(model=name)
    assert not hub.called
    assert str(caught.value).startswith(message) and caught.value.exit_code == 2


def test_names_of_the_hub_are_not_taken_for_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert [missing_folder(name) for name in ("bert-base-uncased", "owner/name", "there")] == [None] * 3
    assert missing_folder("there/name")  # nothing is asked of it before the Hub has said that it has none


def test_a_folder_without_a_model_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adapter = tmp_path / "runs" / "mine" / "adapter"
    adapter.mkdir(parents=True)
    with pytest.raises(InputError, match="--model runs/mine/adapter is not a model: the folder has no"):
        load_base(model="runs/mine/adapter")
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"runs/mine/adapter holds only an adapter .*: merge it"):
        load_base(model="runs/mine/adapter")
    (adapter.parent / "config.json").write_text("{}")
    with pytest.raises(InputError, match="pass runs/mine, which has the adapter merged in") as caught:
        load_base(model="runs/mine/adapter")
    assert caught.value.exit_code == 2
    monkeypatch.chdir(adapter)
    with pytest.raises(InputError, match=f"pass {adapter.parent}, which has the adapter merged in"):
        load_base(model=".")


def test_a_missing_tokenizer_is_named(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="tokenizer"):
        load_base(model=str(checkpoint))


def test_damaged_weights_are_another_exit_code(checkpoint):
    _, tokenizer = load_base(model=str(checkpoint))
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptCheckpointError) as caught:
        load_model(auto_class="AutoModelForQuestionAnswering", model=str(checkpoint), tokenizer=tokenizer)
    assert caught.value.exit_code == 3


def test_a_model_without_such_a_head_is_refused(tmp_path, tokenizer):
    from transformers import T5Config

    T5Config(vocab_size=320, d_model=32).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot be loaded as AutoModelForMaskedLM"):
        load_model(auto_class="AutoModelForMaskedLM", model=str(tmp_path), tokenizer=tokenizer)


def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer):
    def model(rows: int) -> Any:
        return SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(rows, 1))

    check_tokenizer(tokenizer=tokenizer, model=model(len(tokenizer)))
    with pytest.raises(InputError, match=rf"{len(tokenizer)} ids but the model embeds only 300"):
        check_tokenizer(tokenizer=tokenizer, model=model(300))
    with pytest.raises(InputError, match="no padding token"):
        check_tokenizer(tokenizer=_Unpadded(), model=model(10))


class _Unpadded:
    pad_token_id = None

    def __len__(self) -> int:
        return 10


def test_lengths():
    model, tokenizer = SimpleNamespace(max_position_embeddings=512), SimpleNamespace(model_max_length=10**30)
    assert resolve_max_length(asked=None, default=384, config=model, tokenizer=tokenizer) == 384
    assert resolve_max_length(asked=None, default=384, config=SimpleNamespace(), tokenizer=tokenizer) == 384
    with pytest.raises(InputError, match="--max_length 513 is more than the 512"):
        resolve_max_length(asked=513, default=384, config=model, tokenizer=tokenizer)
