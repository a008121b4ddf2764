"""Models that cannot learn an objective are refused before training, and those that can are not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from lacuna.common.errors import InputError
from lacuna.modeling import (
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaForMaskedLM,
    LacunaForQuestionAnswering,
)
from lacuna.objectives import OBJECTIVES

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32}
SIZES = {"max_position_embeddings": 64}


@pytest.fixture
def make(store_of, parts):
    generator = np.random.default_rng(0)
    store = store_of([[generator.integers(5, 60, size=20).tolist()] for _ in range(20)])
    return lambda name, **options: OBJECTIVES[name](**parts(store, objective=name, **options))


def lacuna(kind: Any, family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(LacunaConfig.from_family(family, **SMALL, **SIZES, **options))


def test_models_that_keep_documents_apart_are_taken(make) -> None:
    for name, model in (
        ("mlm", lacuna(LacunaForMaskedLM, "modernbert")),
        ("mlm", lacuna(LacunaForMaskedLM, "bert")),
        ("clm", lacuna(LacunaForCausalLM, "qwen3")),
        ("clm", GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64))),
        ("hybrid", lacuna(LacunaForCausalLM, "qwen3", hybrid=True)),
        ("denoising", lacuna(LacunaForConditionalGeneration, "bart")),
        ("spans", lacuna(LacunaForQuestionAnswering, "modernbert", question_aware=True)),
    ):
        model.train()
        make(name).check_model(model)
        assert model.training


def test_an_encoder_that_reads_across_documents_is_refused_where_rows_hold_several(make) -> None:
    model = BertForMaskedLM(BertConfig(**SMALL, **SIZES))
    with pytest.raises(InputError, match=r"BertForMaskedLM reads across.*use --packing none"):
        make("mlm").check_model(model)
    make("mlm", packing="none").check_model(model)


def test_decoders_of_the_wrong_kind_are_refused(make) -> None:
    with pytest.raises(InputError, match=r"causal only.*--objective clm"):
        make("hybrid").check_model(lacuna(LacunaForCausalLM, "qwen3"))
    foreign = SimpleNamespace(config=SimpleNamespace(), forward=lambda input_ids, is_causal: None)
    with pytest.raises(InputError, match="causal only"):
        make("hybrid").check_model(foreign)
    with pytest.raises(InputError, match="use --objective hybrid"):
        make("mlm").check_model(lacuna(LacunaForCausalLM, "qwen3", hybrid=True))
