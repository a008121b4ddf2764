"""Where the targets are, told by the caller: no loss and no gradient changes."""

import copy

import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_models import assert_agree, assert_same_gradients, configurations, make_model
from random_models import random_ids as random_tokens

from lacuna.modeling import LacunaConfig, LacunaForPreTraining
from lacuna.modeling.losses_lacuna import shifted
from lacuna.objectives.data import target_positions

SEEDS = st.integers(0, 2**20)


@examples(40)
@given(
    config=configurations(("encoder", "decoder")),
    seed=SEEDS,
    share=st.sampled_from([0.0, 0.2, 1.0]),
    skip_logits=st.booleans(),
)
def test_positions_of_targets_change_no_loss(config: LacunaConfig, seed: int, share: float, skip_logits: bool) -> None:
    model = make_model(config, seed=seed).train()
    other = copy.deepcopy(model)
    ids = random_tokens(3, 7, seed=seed)
    labels = ids.masked_fill(torch.rand(3, 7, generator=torch.Generator().manual_seed(seed)) >= share, -100)
    positions = target_positions(labels if config.shape == "encoder" else shifted(labels))
    losses = [
        model(ids, labels=labels, skip_logits=skip_logits).loss,
        other(ids, labels=labels, skip_logits=skip_logits, target_positions=positions).loss,
    ]
    for loss in losses:
        loss.backward()
    assert_agree(losses[1], losses[0], tolerance=1e-6)
    assert_same_gradients(other, model, tolerance=1e-6)


def test_positions_of_targets_with_pairs_too() -> None:
    config = LacunaConfig(shape="encoder", vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = make_model(config, "LacunaForPreTraining").train()
    assert isinstance(model, LacunaForPreTraining)
    ids = random_tokens(2, 6, seed=3)
    labels = ids.masked_fill(torch.arange(6) % 2 == 0, -100)
    arguments = {"labels": labels, "next_sentence_label": torch.tensor([0, 1])}
    expected = model(ids, **arguments)
    actual = model(ids, **arguments, target_positions=target_positions(labels))
    torch.testing.assert_close(actual.loss, expected.loss)
    torch.testing.assert_close(actual.prediction_logits, expected.prediction_logits)
