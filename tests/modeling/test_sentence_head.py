"""The sentence relation without a pooler: segments are found, padding does not count, means are compared."""

import torch

from lacuna.modeling import LacunaConfig, LacunaForPreTraining
from lacuna.modeling.modeling_lacuna import find_segments

SEP = 3


def model() -> LacunaForPreTraining:
    torch.manual_seed(0)
    config = LacunaConfig.from_family(
        "modernbert", vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16
    )
    config.sep_token_id = SEP
    return LacunaForPreTraining(config).eval()


def test_segments_are_found_by_the_first_separator() -> None:
    ids = torch.tensor([[2, 9, 8, SEP, 7, 6, SEP], [2, 9, SEP, 7, 7, 6, SEP]])
    found = find_segments(ids, None, sep_token_id=SEP)
    assert found.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    told = torch.zeros_like(ids)
    assert find_segments(ids, told, sep_token_id=SEP) is told


def test_the_answer_is_the_same_with_segments_told_or_found_and_with_padding() -> None:
    ids = torch.tensor([[2, 9, 8, SEP, 7, 6, SEP]])
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    network = model()
    with torch.no_grad():
        told = network(ids, token_type_ids=types).seq_relationship_logits
        found = network(ids).seq_relationship_logits
        padded = network(
            torch.nn.functional.pad(ids, (0, 3)),
            token_type_ids=torch.nn.functional.pad(types, (0, 3)),
            attention_mask=torch.tensor([[1] * 7 + [0] * 3]),
        ).seq_relationship_logits
        moved = network(ids, token_type_ids=1 - types).seq_relationship_logits
    assert torch.equal(told, found)
    assert torch.allclose(told, padded, atol=1e-5)
    assert not torch.allclose(told, moved, atol=1e-5)


def test_logits_follow_from_the_two_means() -> None:
    ids = torch.tensor([[2, 9, 8, SEP, 7, 6, SEP]])
    network = model()
    with torch.no_grad():
        states = network.model(ids).last_hidden_state[0]
        u, v = states[:4].mean(0), states[4:].mean(0)
        head = network.sentence_head
        expected = head.classifier(head.activation(head.dense(torch.cat([u, v, (u - v).abs(), u * v]))))
        assert torch.allclose(network(ids).seq_relationship_logits[0], expected, atol=1e-5)
