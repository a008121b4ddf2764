"""Pretrained parts: positions, vocabularies and errors; tests/tasks/test_models.py has what tasks make of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, RobertaConfig

from lacuna.common.errors import InputError
from lacuna.common.loading import (
    COUNT_POSITIONS_FROM_PADDING,
    check_vocabulary,
    load_configuration,
    load_model,
    load_tokenizer,
    longest_input,
    num_positions,
)


@pytest.mark.parametrize("config, expected", [(RobertaConfig(max_position_embeddings=514), 512), (BertConfig(), 512)])
def test_positions_behind_the_padding_id_do_not_count(config: object, expected: int) -> None:
    assert num_positions(config) == expected
    assert longest_input(config=config, tokenizer=SimpleNamespace(model_max_length=10**30)) == expected
    assert longest_input(config=config, tokenizer=SimpleNamespace(model_max_length=128)) == 128


def test_a_roberta_of_514_positions_takes_512_tokens() -> None:
    """The model itself is the reference: its position ids begin behind that of the padding token."""
    from transformers import RobertaModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=34, **sizes))
    longest = num_positions(model.config)
    assert longest == 32 and model.config.model_type in COUNT_POSITIONS_FROM_PADDING
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))


def test_a_tokenizer_with_more_ids_than_rows_is_refused() -> None:
    embedding = torch.nn.Embedding(10, 2)
    model = SimpleNamespace(get_input_embeddings=lambda: embedding)
    check_vocabulary(tokenizer=range(10), model=model)
    with pytest.raises(InputError, match="has 11 ids"):
        check_vocabulary(tokenizer=range(11), model=model)


def test_a_folder_that_is_not_there_is_told_before_the_hub_is_asked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"there is no folder .*/modle\. Did you mean .*/model\?"):
        load_configuration(str(tmp_path / "modle"))
    with pytest.raises(InputError, match="the folder has no config"):
        load_configuration(str(tmp_path / "model"))
    BertConfig().save_pretrained(tmp_path / "model")
    assert load_configuration(str(tmp_path / "model")).model_type == "bert"
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(str(tmp_path / "model"))
    with pytest.raises(InputError, match="cannot be loaded as AutoModelForMaskedLM"):
        load_model(str(tmp_path / "model"), auto_class="AutoModelForMaskedLM")
