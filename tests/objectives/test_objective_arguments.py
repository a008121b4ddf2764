"""Options that are lists of numbers, stages of length, and what cannot be."""

import json
from dataclasses import asdict

import pytest

from lacuna.common.command_line import parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.options import Numbers
from lacuna.objectives import OBJECTIVES, ObjectiveArguments


def parsed(*words: str) -> ObjectiveArguments:
    (arguments,) = parse_arguments((ObjectiveArguments,), words)
    return arguments


def test_the_command_line_is_read() -> None:
    found = parsed("--sequence_length", "128,512", "--sequence_length_at", "0,0.9", "--mask_probability", "0.2")
    assert found.lengths == (128, 512) and found.sequence_length_at == (0, 0.9) and found.mask_probability == 0.2
    assert parsed() == ObjectiveArguments() and parsed().lengths == (128,) and parsed().mask_probability == 0.3


def test_what_is_written_down_equals_what_was_given() -> None:
    """A resumed run compares its options with those that its checkpoint holds as JSON."""
    options = asdict(ObjectiveArguments(sequence_length=Numbers("128,512"), sequence_length_at=Numbers("0,0.9")))
    assert json.loads(json.dumps(options)) == options


MISTAKES = [
    ({"sequence_length": 2}, "--sequence_length must be a whole number from 8 to 1048576, got 2"),
    ({"sequence_length": "inf"}, "--sequence_length must be .* got inf"),
    ({"sequence_length": "nan"}, "--sequence_length must be .* got nan"),
    ({"sequence_length": (128, 9.5), "sequence_length_at": (0, 0.5)}, "--sequence_length must be.*got 9.5"),
    ({"sequence_length": (128, 512)}, "--sequence_length_at 0 must.* for each of --sequence_length 128,512, as in"),
    ({"sequence_length": (8, 9), "sequence_length_at": (0.1, 0.5)}, "--sequence_length_at 0.1,0.5 must begin with 0"),
    ({"sequence_length": (8, 9), "sequence_length_at": (0, 0)}, "--sequence_length_at 0,0 must.* rise"),
    ({"sequence_length": (8, 9), "sequence_length_at": (0, 1)}, "--sequence_length_at 0,1 must.* stay below 1"),
    ({"sequence_length": (8, 9), "sequence_length_at": (0, float("nan"))}, "--sequence_length_at 0,nan must"),
    ({"mask_probability": 0.0}, "--mask_probability.*got 0"),
    ({"mask_probability": 1.5}, "--mask_probability.*1.5"),
    ({"mask_replace_prob": 1.1}, "--mask_replace_prob.*1.1"),
    ({"random_replace_prob": -0.1}, "--random_replace_prob.*-0.1"),
    ({"mask_replace_prob": 0.8, "random_replace_prob": 0.3}, "--mask_replace_prob 0.8 and --random_replace_prob 0.3"),
    ({"hybrid_causal_share": 0.0}, "--hybrid_causal_share must be above 0 and below 1, got 0.0"),
    ({"hybrid_causal_share": 1.0}, "--hybrid_causal_share.*1.0"),
    ({"eval_fraction": 1.0}, "--eval_fraction.*1.0"),
    ({"eval_fraction": -0.1}, "--eval_fraction.*-0.1"),
    ({"max_eval_examples": -1}, "--max_eval_examples.*-1"),
    ({"show_examples": -1}, "--show_examples.*-1"),
]


@pytest.mark.parametrize("options, message", MISTAKES)
def test_options_that_cannot_be_are_refused_by_name(options, message) -> None:
    with pytest.raises(InputError, match=message) as raised:
        ObjectiveArguments(**options)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_options_without_a_use_are_refused(objective: str) -> None:
    """By every objective other than those whose options they are."""
    others = {
        "mask_probability": 0.2,
        "masking": "span",
        "mask_replace_prob": 0.5,
        "random_replace_prob": 0.05,
        "packing": "none",
        "hybrid_causal_share": 0.2,
    }
    ObjectiveArguments(objective=objective).check_used()
    refused = set()
    for name, value in others.items():
        try:
            ObjectiveArguments(objective=objective, **{name: value}).check_used()
        except InputError as error:
            assert str(error).startswith(f"--{name} {value} means nothing to --objective {objective}, only to ")
            refused.add(name)
    masks = {"masking", "mask_replace_prob", "random_replace_prob"}
    assert (
        refused
        == {
            "mlm": {"hybrid_causal_share"},
            "mlm_nsp": {"packing", "hybrid_causal_share"},
            "mlm_sop": {"packing", "hybrid_causal_share"},
            "mlm_contrastive": {"packing", "hybrid_causal_share"},
            "clm": {*others} - {"packing"},
            "hybrid": set(),
            "denoising": {*masks, "hybrid_causal_share"},
            "spans": {*others} - {"packing"},
        }[objective]
    )
