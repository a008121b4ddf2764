"""Minimal pairs against a loop over single sentences; ties, constant models and BLiMP's own files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lacuna.common.errors import InputError
from lacuna.evaluation import LanguageModel, group_pairs, measure_minimal_pairs, score_sentences
from lacuna.evaluation.minimal_pairs import judge
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM

SENTENCES = ["The cats sit.", "The cats sits on the mat.", "Who sees the dogs?", "A 🦊 runs to the river.", "She"]


@torch.no_grad()
def slow_score(kind: str, model, tokenizer, sentence: str) -> float:
    ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    total = 0.0
    for place, token in enumerate(ids):
        if kind == "causal":
            logits = model(input_ids=torch.tensor([[2, *ids[:place]]])).logits[0, -1]
        else:
            row = [2, *ids[:place], 4, *ids[place + 1 :], 3]
            logits = model(input_ids=torch.tensor([row])).logits[0, place + 1]
        total += float(logits.double().log_softmax(dim=-1)[token])
    return total


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_scores_equal_the_slow_way(tokenizer, make_model, kind, batch_size):
    model = make_model(kind)
    language_model = replace(LanguageModel.of(model=model, tokenizer=tokenizer), batch_size=batch_size)
    scores, lengths = score_sentences(language_model=language_model, sentences=[*SENTENCES, SENTENCES[0]])
    expected = [slow_score(kind, model, tokenizer, sentence) for sentence in SENTENCES]
    assert scores[:-1] == pytest.approx(expected, rel=1e-5)
    assert scores[-1] == scores[0]
    assert lengths[0] == len(tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_core_scores_a_batch_of_its_own(tokenizer, is_compiled):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = LacunaForMaskedLM(LacunaConfig(shape="encoder", vocab_size=len(tokenizer), **sizes))
    language_model = replace(LanguageModel.of(model=model, tokenizer=tokenizer), batch_size=1)
    wanted, _ = score_sentences(language_model=language_model, sentences=SENTENCES)
    cores: list[int] = []
    model.register_forward_pre_hook(lambda *given: cores.append(torch.get_num_threads()))
    if is_compiled:  # compiled code is asked from one thread at a time
        model.base_model.compile(backend="eager")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found, _ = score_sentences(language_model=language_model, sentences=SENTENCES)
        assert set(cores) == {3 if is_compiled else 1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert found == pytest.approx(wanted, rel=1e-5)


def test_accuracy_is_the_mean_over_paradigms_and_a_tie_is_half(tokenizer, make_model):
    model = make_model("causal")
    order = sorted(SENTENCES, key=lambda sentence: -slow_score("causal", model, tokenizer, sentence))
    best, worst = order[0], order[-1]
    pairs = {"small": [(best, worst)], "large": [(worst, best), (best, best), (best, worst), (worst, worst)]}
    results = measure_minimal_pairs(language_model=LanguageModel.of(model=model, tokenizer=tokenizer), pairs=pairs)
    intervals = {name: results.pop(name) for name in list(results) if name.endswith(("_low", "_high"))}
    assert (intervals["accuracy_small_low"], intervals["accuracy_small_high"]) == (1, 1)  # drawn within paradigms
    assert intervals["accuracy_low"] == (1 + intervals["accuracy_large_low"]) / 2 < results["accuracy"]
    assert results == {
        "accuracy": (1.0 + 0.5) / 2,
        "baseline_accuracy": 0.5,
        "pairs": 5,
        "paradigms": 2,
        "ties": 2,
        "accuracy_small": 1.0,
        "accuracy_large": 0.5,
    }


def test_judge_by_hand():
    good, bad = np.array([-1.0, -2.0, -3.0, -100.0]), np.array([-2.0, -1.0, -3.0, -100.00001])
    assert judge(good=good, bad=bad).tolist() == [1.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_a_constant_model_is_an_error_and_not_perfect(tokenizer, make_model, kind):
    model = make_model(kind)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.zeros_like(head.weight))
    if getattr(head, "bias", None) is not None:
        torch.nn.init.zeros_(head.bias)
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    same_length = {"a": [("zq zq", "qz qz"), ("qqzz", "zzqq")]}
    with pytest.raises(InputError, match=r"every sentence gets the same score|every token is as likely"):
        measure_minimal_pairs(language_model=language_model, pairs=same_length)
    with pytest.raises(InputError, match="every token is as likely"):
        measure_minimal_pairs(language_model=language_model, pairs={"a": [("She", "The cats sits on the mat, zq")]})


def test_pairs_are_grouped_by_uid_or_file():
    rows = [
        ({"sentence_good": "a", "sentence_bad": "b", "UID": "island"}, "x/one.jsonl", 1),
        ({"sentence_good": "c", "sentence_bad": "d"}, "x/two.jsonl", 1),
        ({"sentence_good": "e", "sentence_bad": "f"}, "x/two.jsonl", 2),
    ]
    assert group_pairs(rows=rows) == {"island": [("a", "b")], "two": [("c", "d"), ("e", "f")]}
    assert group_pairs(rows=rows, max_examples=1) == {"island": [("a", "b")], "two": [("c", "d")]}
    for fields in ({"sentence_good": "a"}, {"sentence_good": "a", "sentence_bad": " "}, {"text": "a"}):
        with pytest.raises(InputError, match=r"two\.jsonl:7"):
            group_pairs(rows=[(fields, "two.jsonl", 7)])
    with pytest.raises(InputError, match="no pairs"):
        group_pairs(rows=[])


def test_a_sentence_that_is_too_long_is_named(tokenizer, make_model):
    language_model = LanguageModel.of(model=make_model("masked"), tokenizer=tokenizer)
    with pytest.raises(InputError, match="too long for the model, which takes 64"):
        measure_minimal_pairs(language_model=language_model, pairs={"a": [("zq" * 40, "z")]})


def test_blimp(tokenizer, make_model, shared_data):
    """Two of BLiMP's own files, four pairs each, against the slow way."""
    names = ["anaphor_number_agreement", "adjunct_island"]
    lines = [(shared_data / "blimp" / f"{name}.jsonl").read_text().splitlines()[:4] for name in names]
    rows = [(json.loads(line), f"{name}.jsonl", number) for name, some in zip(names, lines, strict=True)
            for number, line in enumerate(some, start=1)]  # fmt: skip
    pairs = group_pairs(rows=rows)
    assert list(pairs) == names
    for kind in ("causal", "masked"):
        model = make_model(kind)
        results = measure_minimal_pairs(language_model=LanguageModel.of(model=model, tokenizer=tokenizer), pairs=pairs)
        for name in names:
            wins = [
                slow_score(kind, model, tokenizer, good) > slow_score(kind, model, tokenizer, bad)
                for good, bad in pairs[name]
            ]
            assert results[f"accuracy_{name}"] == pytest.approx(np.mean(wins))
