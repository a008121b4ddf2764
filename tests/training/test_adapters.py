"""The head alone, or low-rank additions: what learns, and that what is left behind computes the same everywhere."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from huggingface_hub import ModelCard
from loaded_model import IDS, outputs
from processes import REPOSITORY
from processes import run as run_script
from rows_of_tokens import RowsOfTokens
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from toys import PlainTokenizer, make_model
from transformers import (
    AutoModelForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForTokenClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from lacuna import modeling
from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.common.hub import HERE
from lacuna.training import train
from lacuna.training.checkpoints.saving import load_weights
from lacuna.training.optimizers.adapters import Adapter, add_lora, fingerprint_of_frozen, freeze_backbone, num_weights
from lacuna.training.planning.memory import FakeStep
from lacuna.training.reports.card import adapter_card

peft = pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[peft]'")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"vocab_size": 40, "max_position_embeddings": 32}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "pad_token_id": 0}
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
BART = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 40, "max_position_embeddings": 32}
BART |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}


def lacuna(family: str, head: str) -> Any:
    config = modeling.LacunaConfig.from_family(family, **{**SIZES, "head_dim": 8, "num_labels": 3})
    return getattr(modeling, f"LacunaFor{head}")(config)


# A model, how many linear layers its backbone has, and what learns as a whole.
MODELS: dict[str, tuple[Callable[[], Any], int, list[str]]] = {
    "bert": (lambda: BertForSequenceClassification(BertConfig(**SIZES)), 12, ["bert.pooler", "classifier"]),
    "bert mlm": (lambda: BertForMaskedLM(BertConfig(**SIZES)), 12, ["cls.predictions.transform"]),
    "bert untied": (
        lambda: BertForMaskedLM(BertConfig(**SIZES, tie_word_embeddings=False)), 12, ["cls.predictions.transform"],
    ),
    "modernbert": (
        lambda: ModernBertForTokenClassification(ModernBertConfig(**SIZES, pad_token_id=0)), 8, ["head", "classifier"],
    ),
    "gpt2": (lambda: GPT2ForSequenceClassification(GPT2Config(**GPT)), 8, ["score"]),
    "gpt2 lm": (lambda: GPT2LMHeadModel(GPT2Config(**GPT)), 8, []),
    "gpt2 untied": (lambda: GPT2LMHeadModel(GPT2Config(**GPT, tie_word_embeddings=False)), 8, []),
    "bart": (lambda: BartForConditionalGeneration(BartConfig(**BART, pad_token_id=0)), 32, []),
    "t5": (lambda: T5ForConditionalGeneration(T5Config(**T5)), 32, []),
    "lacuna": (lambda: lacuna("lacuna", "SequenceClassification"), 14, ["transform", "classifier"]),
    "lacuna tokens": (lambda: lacuna("lacuna", "TokenClassification"), 14, ["transform", "classifier"]),
    "lacuna answers": (lambda: lacuna("bert", "QuestionAnswering"), 12, ["qa_outputs"]),
    "lacuna pooler": (lambda: lacuna("bert", "SequenceClassification"), 12, ["model.pooler", "classifier"]),
    "lacuna decoder": (lambda: lacuna("qwen3", "SequenceClassification"), 14, ["classifier"]),
    "lacuna lm": (lambda: lacuna("qwen3", "CausalLM"), 14, []),
    "lacuna text to text": (lambda: lacuna("bart", "ConditionalGeneration"), 32, []),
}  # fmt: skip


def names_that_learn(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def moved(model: nn.Module) -> nn.Module:
    """The same model with other values in all that learns."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model


def assert_same(one: dict[str, Any], other: dict[str, Any], **tolerance: float) -> None:
    assert one.keys() == other.keys() and one
    for name in one:
        torch.testing.assert_close(one[name], other[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize(
    "name", fast(MODELS, "bert", "bert mlm", "bert untied", "gpt2", "gpt2 untied", "t5", "lacuna", "lacuna lm")
)
def test_additions_go_into_every_linear_layer_of_the_backbone(name, tmp_path) -> None:
    """Beside `peft` itself: merged by it, saved by it and loaded by it."""
    make, count, heads = MODELS[name]
    torch.manual_seed(0)
    model = make()
    plain, before = outputs(model), copy.deepcopy(model)
    adapter = add_lora(model, rank=4, alpha=10, seed=0)
    layers = {key for key, module in model.named_modules() if hasattr(module, "lora_A")}
    assert len(layers) == count and (adapter.config.modules_to_save or []) == heads
    expected = {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    expected |= {
        f"{head}.modules_to_save.default.{key}" for head in heads for key in before.get_submodule(head).state_dict()
    }
    assert names_that_learn(model) == expected == set(adapter.learned(model.state_dict()))
    assert_same(outputs(model), plain)

    changed = outputs(moved(model))
    assert max(float((changed[key] - plain[key]).abs().max()) for key in plain) > 1e-3
    merged = adapter.merged(model.state_dict())
    assert merged.keys() == before.state_dict().keys()
    other = copy.deepcopy(before)
    other.load_state_dict(merged)
    assert_same(outputs(other), changed, rtol=1e-5, atol=1e-5)

    adapter.save(model.state_dict(), tmp_path / "adapter", tokenizer=PlainTokenizer(), card="its card")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(before), tmp_path / "adapter")
    assert_same(outputs(again), changed)
    again.save_pretrained(tmp_path / "by_peft")
    theirs, ours = (load_file(tmp_path / way / "adapter_model.safetensors") for way in ("by_peft", "adapter"))
    assert_same(ours, theirs)
    by_peft = again.merge_and_unload().state_dict()
    assert_same(by_peft, merged, rtol=1e-5, atol=1e-6)
    assert num_weights(model) == sum(weight.numel() for weight in before.parameters())


LABELS = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
# The head, the model that is its base, what the class of the head is loaded with, and what peft calls it.
HEADS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "AutoModelForSequenceClassification": ("bert mlm", {**LABELS, "problem_type": "regression"}, "SEQ_CLS"),
    "AutoModelForTokenClassification": ("bert mlm", LABELS, "TOKEN_CLS"),
    "AutoModelForQuestionAnswering": ("bert mlm", {}, "QUESTION_ANS"),
    "AutoModelForMaskedLM": ("bert mlm", {}, None),
    "AutoModelForCausalLM": ("gpt2 lm", {}, "CAUSAL_LM"),
    "AutoModelForSeq2SeqLM": ("bart", {}, "SEQ_2_SEQ_LM"),
}


def with_adapter(folder: Path, base: Any, auto_class: str, **options: Any) -> tuple[dict[str, Any], str]:
    """Save a base in the present folder and an adapter for it, as a run with --model base leaves it; what the model
    with the adapter computes, and the code of the adapter's card."""
    torch.manual_seed(0)
    base.save_pretrained("base")
    core = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    model = getattr(transformers, auto_class).from_pretrained("base", **options)
    adapter = add_lora(model, rank=4, alpha=8, seed=0)
    adapter.save(moved(model).state_dict(), folder, tokenizer=tokenizer, card=adapter_card(model, adapter))
    return outputs(model), (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize("auto_class", HEADS)
def test_the_card_of_an_adapter_loads_it_from_any_folder(auto_class, tmp_path, monkeypatch) -> None:
    name, options, task_type = HEADS[auto_class]
    for folder in ("there", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    expected, code = with_adapter(tmp_path / "adapter", MODELS[name][0](), auto_class, **options)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found: dict[str, Any] = {}
    exec(code.replace(HERE, f'path = "{tmp_path}/adapter"'), found)
    assert_same(outputs(found["model"]), expected)
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert told["inference_mode"]
    assert told["task_type"] == task_type and told["base_model_name_or_path"] == str(tmp_path / "there" / "base")
    assert str(tmp_path) not in code
    if options:
        assert found["model"].config.id2label == LABELS["id2label"]


def test_the_code_of_the_page_loads_an_adapter(tmp_path, monkeypatch) -> None:
    """It is that of the card, for a model of Lacuna with two labels."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/reviews/adapter")
    base = lacuna("lacuna", "MaskedLM")
    expected, of_card = with_adapter(folder, base, "AutoModelForSequenceClassification", **LABELS)
    page = (REPOSITORY / "docs" / "fine_tuning.md").read_text(encoding="utf-8")
    (code,) = (block for block in page.split("```python\n")[1:] if "peft" in block.split("```")[0])
    found: dict[str, Any] = {}
    exec(code.split("```")[0], found)
    assert_same(outputs(found["model"]), expected)
    assert code.splitlines()[:6] == of_card.replace(HERE, f'path = "{folder}"').splitlines()[:6]


def test_a_model_of_the_hub_is_named_as_it_was_typed() -> None:
    model = make_model()
    model.name_or_path = "google/bert_uncased"
    adapter = add_lora(model, rank=2, alpha=4, seed=0)
    assert adapter.config.base_model_name_or_path == "google/bert_uncased"
    head = ModelCard(adapter_card(model, adapter)).data
    assert (head.base_model, head.library_name, head.tags) == ("google/bert_uncased", "peft", ["lora", "lacuna"])


def test_a_draws_from_the_seed_and_b_is_zero() -> None:
    first, second, other = ({} for _ in range(3))
    for found, seed in ((first, 0), (second, 0), (other, 1)):
        torch.manual_seed(len(other) + seed + 7)
        model = make_model()
        state = torch.get_rng_state()
        found |= add_lora(model, rank=4, alpha=8, seed=seed).learned(model.state_dict())
        assert torch.equal(torch.get_rng_state(), state), "what is drawn here is drawn for itself"
    assert all(torch.equal(first[name], second[name]) for name in first if "lora_A" in name)
    assert all(not torch.equal(first[name], other[name]) for name in first if "lora_A" in name)
    assert not any(value.any() for name, value in first.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", {"bert.pooler.dense", "classifier"}),
        ("gpt2", {"score"}),
        ("gpt2 untied", {"lm_head"}),
        ("lacuna tokens", {"transform.dense", "transform.norm", "classifier"}),
        ("lacuna pooler", {"model.pooler.dense", "classifier"}),
    ],
)
def test_of_a_frozen_model_the_head_learns(name, expected) -> None:
    model = MODELS[name][0]()
    freeze_backbone(model)
    assert {name.rpartition(".")[0] for name in names_that_learn(model)} == expected


def test_a_head_that_is_tied_to_the_embeddings_is_none() -> None:
    model = MODELS["bert mlm"][0]()
    freeze_backbone(model)
    assert not [name for name in names_that_learn(model) if not name.startswith("cls.predictions.")]
    assert not model.cls.predictions.decoder.weight.requires_grad
    with pytest.raises(InputError, match="GPT2LMHeadModel has no head that is not tied"):
        freeze_backbone(MODELS["gpt2 lm"][0]())
    with pytest.raises(InputError, match="T5ForConditionalGeneration has no backbone"):
        freeze_backbone(MODELS["t5"][0]())
    with pytest.raises(InputError, match="Linear has no backbone"):
        freeze_backbone(nn.Linear(2, 2))


def test_models_without_a_layer_to_add_to_are_refused() -> None:
    with pytest.raises(InputError, match="--lora_rank 2: there is no linear layer"):
        add_lora(nn.LayerNorm(2), rank=2, alpha=4, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_alpha": 4}, "give a --lora_rank"),
        ({"lora_rank": 4, "lora_alpha": -1.0}, "--lora_alpha must be greater than 0"),
        ({"lora_rank": -1}, "--lora_rank must not be negative"),
        ({"lora_rank": 4, "freeze_backbone": True}, "choose one"),
    ],
)
def test_options_that_make_no_sense_are_refused(tuning_options, options, message) -> None:
    with pytest.raises(InputError, match=message):
        tuning_options(**options)


# ------------------------------------------------------------------------------------------------------------ the loop


@pytest.fixture
def base(tmp_path) -> Path:
    """The folder of the model that runs begin with."""
    make_model(hidden_size=32, intermediate_size=64, dropout=0.1).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def run(base, new_work, plain_tokenizer, tuning_options):
    """Trains it; returns the results and the model, and takes the folder to begin with."""

    def start(*, work: Any = None, model: str | Path = base, **overrides: Any):
        loaded = AutoModelForMaskedLM.from_pretrained(model)
        options = {"lora_rank": 4, "eval_steps": 0, **overrides}
        arguments = tuning_options(**options)
        return train(model=loaded, work=work or new_work(), tokenizer=plain_tokenizer, arguments=arguments), loaded

    return start


@pytest.mark.parametrize("optimizer", fast(["adamw", "muon"], "adamw"))
def test_the_merged_model_and_the_adapter_compute_the_same_in_fresh_processes(run, base, tmp_path, optimizer) -> None:
    """Without `peft` for the one; and nothing of the backbone has moved but by what was added."""
    rank = 32 if optimizer == "muon" else 4  # Muon leaves smaller matrices to AdamW
    results, model = run(optimizer=optimizer, lora_rank=rank, lora_alpha=12.0, average="none")
    folder = tmp_path / "run"
    here = outputs(model)
    for name, words in (("merged", [folder]), ("adapter", [base, folder / "adapter"])):
        done = run_script("tests/training/loaded_model.py", "AutoModelForMaskedLM", tmp_path / name, *words)
        assert done.returncode == 0, done.stderr
        assert_same(load_file(tmp_path / name), here, rtol=1e-5, atol=1e-6)
    start = AutoModelForMaskedLM.from_pretrained(base).state_dict()
    for name, value in model.state_dict().items():
        if ".base_layer." in name:
            assert torch.equal(value, start[name.replace(".base_layer", "")])
    told = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(base.resolve())
    assert (told["r"], told["lora_alpha"], told["task_type"]) == (rank, 12, None)
    code = (folder / "adapter" / "README.md").read_text()
    assert "AutoModelForMaskedLM.from_pretrained(base)" in code and "AutoTokenizer.from_pretrained(path)" in code
    assert (folder / "adapter" / "tokenizer_config.json").is_file()
    description = (folder / "README.md").read_text()
    assert f"{num_weights(model) / 1e6:.1f} M" in description and results["eval_loss"] < 4


@pytest.mark.parametrize("optimizer", fast(["adamw", "muon"], "muon"))
@pytest.mark.parametrize("average", fast(["best", "ema"], "best"))
def test_a_stopped_run_goes_on_to_the_bit(run, new_work, tmp_path, optimizer, average) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"save_steps": 2, "optimizer": optimizer, "average": average, "eval_steps": 3, "lora_rank": 32}
    run(output_dir=str(whole), **options)
    with pytest.raises(InterruptedError):
        run(output_dir=str(broken), work=new_work(stop_at=5 * 8), **options)
    run(output_dir=str(broken), resume=True, **options)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert_same(load_file(broken / name), load_file(whole / name))
        assert (whole / name).stat().st_mode & 0o777 == 0o644, "others may read it"


def test_a_checkpoint_is_a_model_folder_without_additions(run, base, tmp_path) -> None:
    _, model = run(save_steps=8, average="none")
    folder = tmp_path / "run" / "checkpoints" / "step-00000008"
    assert load_weights(folder).keys() == load_weights(base).keys()
    assert_same(outputs(AutoModelForMaskedLM.from_pretrained(folder)), outputs(model), rtol=1e-5, atol=1e-6)
    learned = load_file(folder / "training_state" / "learned.safetensors")
    assert learned.keys() == names_that_learn(model)
    optimizer = load_file(folder / "training_state" / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in optimizer} == learned.keys()


def test_resuming_on_another_model_is_refused(run, tmp_path) -> None:
    run(save_steps=4, max_steps=4)
    make_model(hidden_size=32, intermediate_size=64, dropout=0.1, seed=5).save_pretrained(tmp_path / "other")
    for change, message in (
        ({"model": tmp_path / "other"}, "frozen_weights is"),
        ({"lora_rank": 8}, "lora_rank is 8 and was 4"),
        ({"lora_rank": 0}, "frozen_weights is None"),
    ):
        with pytest.raises(InputError, match=message):
            run(resume=True, save_steps=4, **change)
    with pytest.raises(CorruptCheckpointError, match="is not of this model"):
        run(resume=True, save_steps=4, lora_rank=8, allow_change=["lora_rank"])
    results, _ = run(resume=True, save_steps=4)
    assert results["steps"] == 8


@pytest.mark.parametrize("optimizer", fast(["adamw", "muon"], "adamw"))
def test_a_run_with_a_frozen_backbone_moves_the_head_alone(run, new_work, base, tmp_path, optimizer) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"lora_rank": 0, "freeze_backbone": True, "optimizer": optimizer, "save_steps": 3}
    run(output_dir=str(whole), **options)
    start, end = (load_file(folder / "model.safetensors") for folder in (base, whole))
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {name for name in start if name.startswith("cls.predictions.") and ".decoder." not in name}
    with pytest.raises(InterruptedError):
        run(output_dir=str(broken), work=new_work(stop_at=5 * 8), **options)
    run(output_dir=str(broken), resume=True, **options)
    assert_same(load_file(broken / "model.safetensors"), end)


def test_without_peft_the_extra_is_named(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r'--lora_rank needs the package peft: pip install -e "\.\[peft\]"'):
        run()


@pytest.mark.parametrize("shards", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_learn_what_one_learns(tmp_path, shards) -> None:
    words = [
        *("--lora_rank", "4", "--max_steps", "6", "--batch_size", "8", "--learning_rate", "0.01", "--compile", "off"),
        *("--mixed_precision", "no", "--save_steps", "0", "--dropout", "0", "--optimizer", "adamw"),
    ]
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if shards else {}
    found = []
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        folder = tmp_path / str(count) / "run"
        environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **(sharded if count == 2 else {})}
        done = run_script(
            "tests/faults/toy_run.py", *words, "--output_dir", folder, num_processes=count, env=environment
        )
        assert done.returncode == 0, done.stderr
        found.append([load_file(folder / name) for name in ("model.safetensors", "adapter/adapter_model.safetensors")])
    for one, two in zip(*found, strict=True):
        assert_same(two, one, rtol=1e-2, atol=1e-3)


# -------------------------------------------------------------------------------------------------- what is said of it


def flops_per_token(model: Any) -> float:
    step, work = FakeStep(model, precision="no", device_type="cpu"), RowsOfTokens(length=8)
    work.loss = lambda model, batch, counts: (model(batch["input_ids"]).logits.sum(), {})  # type: ignore[method-assign]
    step.run(work, work.batch_for(model, rows=2))
    return step.flops / 16


def test_operations_are_counted_with_the_additions() -> None:
    """Two layers of four projections of 16 x 16 and two of 16 x 32; additions of rank 4 learn, these do not."""
    model = MODELS["bert"][0]()
    before = flops_per_token(model)
    add_lora(model, rank=4, alpha=8, seed=0)
    backbone = 2 * (4 * 16 * 16 + 2 * 16 * 32)
    added = 2 * 4 * (4 * (16 + 16) + 2 * (16 + 32))
    first = 3 * 2 * (16 * 16 + 4 * 16)  # queries, keys, values: nothing before them learns any more
    once_a_row = 16 * 16 / 8  # the pooler, that is there twice now
    found = flops_per_token(model)
    assert found == pytest.approx(before - 2 * backbone + 6 * added - first, rel=0.02, abs=8 * once_a_row)


def test_the_fingerprint_is_of_what_is_frozen() -> None:
    def model(seed: int = 0) -> Any:
        made = make_model(seed=seed)
        add_lora(made, rank=2, alpha=4, seed=seed)
        return made

    assert fingerprint_of_frozen(model()) == fingerprint_of_frozen(moved(model()))
    assert fingerprint_of_frozen(model()) != fingerprint_of_frozen(model(seed=1))
    one, other = (nn.ModuleDict({name: nn.Linear(2, 2).requires_grad_(False)}) for name in ("one", "other"))
    other.other = one["one"]
    assert fingerprint_of_frozen(one) != fingerprint_of_frozen(other)  # by names too
    assert isinstance(add_lora(make_model().bfloat16(), rank=2, alpha=4, seed=0), Adapter)
    assert fingerprint_of_frozen(make_model().bfloat16().requires_grad_(False))
    assert IDS.shape == (2, 6)
