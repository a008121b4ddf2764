"""The learning rate where none is asked for, beside rates reckoned by hand."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from lacuna.training import FineTuningArguments, TrainingArguments
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.optimizers.schedules import with_rate


class Wide(nn.Module):
    """Matrices of one size, beside what does not count: embeddings, norms, and a classifier of few labels."""

    def __init__(self, size: float, width: int = 256) -> None:
        super().__init__()
        self.config = type("Config", (), {"hidden_size": width})()
        self.embeddings = nn.Embedding(8, 64, _weight=torch.full((8, 64), 9.0))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.classifier = nn.Linear(64, 2)
        for number, layer in enumerate(self.layers):
            nn.init.constant_(layer.weight, size if number else -size)


def rate(model: nn.Module, **options: Any) -> float:
    return with_rate(FineTuningArguments(output_dir="unused", **options), model).learning_rate


def test_it_is_a_share_of_the_weights() -> None:
    assert rate(Wide(0.02)) == pytest.approx(3e-4)
    assert rate(Wide(0.2)) == pytest.approx(3e-3)
    assert rate(Wide(0.04, width=768)) == pytest.approx(6.7e-5), "BERT-base: 0.015 * 0.04 / 9"
    assert rate(Wide(0.02, width=8192)) == 1e-5
    assert rate(Wide(0.02, width=64)) == pytest.approx(3e-4), "a narrow model wants no more"


def test_a_head_that_pretraining_made_wants_less() -> None:
    model = Wide(0.1)
    model.config.question_aware = True
    assert rate(model) == pytest.approx(0.4 * 1.5e-3)
    assert rate(model, max_steps=10_000) == pytest.approx(3e-4), "that of a new one"
    assert rate(model, lora_rank=4) == rate(Wide(0.1), lora_rank=4), "adapters are new"


def test_many_steps_want_less_down_to_the_rate_of_a_new_model() -> None:
    assert rate(Wide(0.1), max_steps=300) == rate(Wide(0.1), max_steps=10) == pytest.approx(1.5e-3)
    assert rate(Wide(0.1), max_steps=1200) == pytest.approx(7.5e-4), "half of it, after four times the steps"
    assert rate(Wide(0.1), max_steps=300_000) == pytest.approx(3e-4)
    assert rate(Wide(0.02), max_steps=300_000) == rate(Wide(0.02)) == pytest.approx(3e-4)
    assert rate(Wide(0.04, width=768), max_steps=1200) == pytest.approx(3.3e-5), "that of a new one: 0.015 * 0.02 / 9"
    assert rate(Wide(0.01), max_steps=1200) == pytest.approx(1.5e-4), "small weights keep their own"
    assert rate(Wide(0.1), max_steps=1200, lora_rank=4) == pytest.approx(3e-3)


def test_models_that_write_want_twice_as_much_and_no_less_for_many_steps() -> None:
    model = Wide(0.1)
    model.get_output_embeddings = lambda: model.embeddings  # type: ignore[method-assign, assignment]
    assert rate(model) == rate(model, max_steps=300_000) == pytest.approx(3e-3)
    assert rate(model, max_steps=300_000, lora_rank=4) == pytest.approx(3e-3)
    model.config.hidden_size = 512
    assert rate(model, max_steps=300_000) == pytest.approx(3.8e-4), "an eighth of it, rounded"


@pytest.mark.parametrize(
    ("name", "share"),
    [("BartForConditionalGeneration", 0.03), ("BartForSequenceClassification", 0.015)]
    + [("Qwen3ForCausalLM", 0.03), ("Qwen3ForSequenceClassification", 0.015), ("Qwen3ForTokenClassification", 0.015)],
)
def test_which_models_write(name: str, share: float) -> None:
    made = getattr(transformers, name)
    sizes = {"vocab_size": 64, "hidden_size": 64, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "encoder_attention_heads": 2}
    feed_forward = {"intermediate_size": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_hidden_layers": 1}
    model = made(made.config_class(**sizes, **heads, **feed_forward, decoder_attention_heads=2))
    assert rate(model) == pytest.approx(share * 0.02, rel=0.05), "0.02 is how its matrices begin"


def test_what_does_not_learn_does_not_count() -> None:
    model = Wide(0.02)
    model.layers[0].requires_grad_(False).weight.mul_(100)
    assert rate(model) == pytest.approx(3e-4)
    model.layers.requires_grad_(False)
    assert rate(model) == pytest.approx(3e-4), "a head without matrices is taken for new"


def test_matrices_of_32_rows_count_and_smaller_ones_do_not() -> None:
    model = Wide(0.02)
    model.layers.append(nn.Linear(64, 31))
    nn.init.constant_(model.layers[2].weight, 9.0)
    assert rate(model) == pytest.approx(3e-4)
    model.layers.append(nn.Linear(64, 32))
    nn.init.constant_(model.layers[3].weight, 0.2)
    assert rate(model) == pytest.approx(1.4e-3), "0.015 times the root of (4 * 0.02^2 + 0.2^2) / 5"


def test_low_ranks_have_their_own() -> None:
    assert rate(Wide(0.2), lora_rank=4) == pytest.approx(3e-3)
    assert rate(Wide(0.2, width=768), lora_rank=4) == pytest.approx(1e-3)
    assert rate(Wide(0.2), optimizer="muon") == pytest.approx(3e-3)


def test_new_models_have_the_rates_that_were_measured() -> None:
    assert {name: each.learning_rate for name, each in OPTIMIZERS.items()} == {"adamw": 1e-3, "muon": 6e-3}


def test_pretraining_falls_with_the_root_of_layers_times_width_beyond_the_size_that_was_measured() -> None:
    def peak(layers: int, width: int, **options: Any) -> float:
        model = Wide(0.2, width=width)
        model.config.num_hidden_layers = layers
        return with_rate(TrainingArguments(output_dir="unused", **options), model).learning_rate

    assert [peak(3, 256), peak(2, 64), peak(6, 128)] == [6e-3] * 3, "micro, and what is no larger"
    assert peak(12, 256) == pytest.approx(3e-3), "four times the layers: half"
    assert peak(12, 768) == pytest.approx(1.7e-3), "twelve times the size: 0.006 / 3.46"
    assert peak(12, 768, optimizer="adamw") == pytest.approx(2.9e-4)
    assert peak(12, 768, learning_rate=0.01) == 0.01
    assert with_rate(TrainingArguments(output_dir="unused"), nn.Linear(2, 2)).learning_rate == 6e-3, "of unknown size"


def test_a_rate_that_is_asked_for_is_taken() -> None:
    assert rate(Wide(0.2), learning_rate=1e-4) == 1e-4
    assert rate(Wide(0.2), learning_rate=1e-4, lora_rank=4) == 1e-4
