"""Probes: what a model in training is asked, beside the suites themselves and the library's generation."""

import json
from pathlib import Path

import pytest
import torch

from lacuna.common.errors import InputError
from lacuna.evaluation import LanguageModel, measure_minimal_pairs
from lacuna.evaluation.probing import SAMPLES, Probe, ProbeArguments

ROWS = [
    ({"sentence_good": f"The cats {verb}.", "sentence_bad": f"The cats {verb}s."}, "a/verbs.jsonl", number)
    for number, verb in enumerate(("sit", "run", "see"), start=1)
]


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_it_scores_as_the_suite_does_and_says_what_the_model_says(kind, make_model, tokenizer, tmp_path) -> None:
    model, prompts = make_model(kind), tmp_path / "prompts.txt"
    prompts.write_text("The cats [MASK] on the [MASK].\n\n" if kind == "masked" else "The cats\n\nA dog\n")
    arguments = ProbeArguments(probe=["a"], probe_examples=2, probe_prompts=str(prompts))
    probe = Probe(arguments, rows=ROWS, tokenizer=tokenizer, model=model.train())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    (tmp_path / SAMPLES).write_text(
        '{"step": 3, "prompt": "x", "text": "y"}\n{"step": 8, "prompt": "x", "text": "z"}\n'
    )
    found = probe(model, 7, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    pairs = {"verbs": [(fields["sentence_good"], fields["sentence_bad"]) for fields, _, _ in ROWS[:2]]}
    suite = measure_minimal_pairs(language_model=LanguageModel.of(model=model, tokenizer=tokenizer), pairs=pairs)
    assert found == {"minimal_pairs": suite["accuracy"]} == probe(model, 7, None)
    lines = [json.loads(line) for line in (tmp_path / SAMPLES).read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, *[7] * len(probe.prompts)]  # step 8 was of a run that was killed
    ids = tokenizer(probe.prompts[0], return_tensors="pt").input_ids
    if kind == "causal":
        expected = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None)[0]
    else:
        best = model(ids).logits.argmax(dim=-1)
        expected = torch.where(ids == tokenizer.mask_token_id, best, ids)[0]
        assert (ids == tokenizer.mask_token_id).sum() == 2
    assert lines[1]["prompt"] == probe.prompts[0]
    assert lines[1]["text"] == tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [("The cats sit.\n", r"prompts.txt:1: there is no \[MASK\] to fill in 'The cats sit.'"), ("\n", "has no prompt")],
)
def test_a_prompt_that_cannot_be_asked_is_told_before_training(content, message, make_model, tokenizer, tmp_path):
    model = make_model("masked").train()
    long = {"sentence_good": "The cats sit. " * 500, "sentence_bad": "No."}
    with pytest.raises(InputError, match="is too long for the model"):
        Probe(ProbeArguments(probe=["a"]), rows=[(long, "a/b.jsonl", 1)], tokenizer=tokenizer, model=model)
    (tmp_path / "prompts.txt").write_text(content)
    arguments = ProbeArguments(probe_prompts=str(tmp_path / "prompts.txt"))
    with pytest.raises(InputError, match=message):
        Probe(arguments, rows=[], tokenizer=tokenizer, model=make_model("masked"))
    with pytest.raises(InputError, match="cannot be read"):
        Probe(
            ProbeArguments(probe_prompts=str(tmp_path / "none")),
            rows=[],
            tokenizer=tokenizer,
            model=make_model("causal"),
        )
    with pytest.raises(InputError, match="there are no pairs"):
        Probe(ProbeArguments(probe=["a"]), rows=[], tokenizer=tokenizer, model=make_model("causal"))


def test_other_processes_write_nothing(make_model, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The cats\n")
    arguments = ProbeArguments(probe_prompts=str(tmp_path / "prompts.txt"))
    probe = Probe(arguments, rows=[], tokenizer=tokenizer, model=make_model("causal"))
    assert probe(make_model("causal"), 1, None) == {} and not (tmp_path / SAMPLES).exists()
