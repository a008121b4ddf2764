"""Every `pipeline` of transformers that fits our heads runs on a folder, and answers what a forward pass says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from torch import Tensor
from transformers import AutoTokenizer, Pipeline

from lacuna import modeling


def named(*labels: str) -> dict[str, Any]:
    """Fields of a configuration with these classes; the zero-shot pipeline needs both directions."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}


INFERENCE = ("contradiction", "neutral", "entailment")


@pytest.fixture
def run() -> Callable[[str, Path], Pipeline]:
    """Makes the pipeline of a task from nothing but a folder."""

    def make(task: str, folder: Path) -> Pipeline:
        made = transformers.pipeline(task, model=str(folder), trust_remote_code=True)
        assert type(made.model).__module__.startswith("transformers_modules.")
        return made

    return make


@pytest.fixture
def forward(load) -> Callable[..., Any]:
    """Outputs of the folder's model for one text, or for a pair."""

    @torch.no_grad()
    def make(folder: Path, auto_name: str, *texts: str) -> Any:
        encoded = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)(*texts, return_tensors="pt")
        return load(folder, auto_name).eval()(**encoded)

    return make


def probabilities(logits: Tensor) -> list[float]:
    return logits.softmax(-1).tolist()


@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_fill_mask(family: str, checkpoint, run, forward) -> None:
    folder = checkpoint(family, "LacunaForPreTraining")
    text = "The lazy [MASK] sleeps in the garden."
    found = run("fill-mask", folder)(text, top_k=3)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    place = tokenizer(text).input_ids.index(tokenizer.mask_token_id)
    expected = forward(folder, "AutoModelForMaskedLM", text).logits[0, place].softmax(-1).topk(3)
    assert [answer["token"] for answer in found] == expected.indices.tolist()
    assert [answer["score"] for answer in found] == pytest.approx(expected.values.tolist(), rel=1e-5)
    assert all("sleeps in the garden." in answer["sequence"] for answer in found)


def test_text_generation(checkpoint, run, load) -> None:
    folder = checkpoint("qwen3", "LacunaForCausalLM")
    prompts = ["The dog", "The quick brown fox jumps over"]
    generator = run("text-generation", folder)
    options = {"max_new_tokens": 8, "do_sample": False, "return_tensors": True}
    apart = [generator(prompt, **options)[0]["generated_token_ids"] for prompt in prompts]
    # Prompts of one batch are padded on the left, where they must not disturb.
    together = [answers[0]["generated_token_ids"] for answers in generator(prompts, batch_size=2, **options)]
    pad = generator.tokenizer.pad_token_id
    assert [[token for token in row if token != pad] for row in together] == apart

    model, end = load(folder, "AutoModelForCausalLM").eval(), generator.tokenizer.eos_token_id
    for prompt, tokens in zip(prompts, apart, strict=True):
        ids = generator.tokenizer(prompt).input_ids
        while len(ids) < len(tokens) and ids[-1] != end:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert tokens == ids and len(tokens) > len(generator.tokenizer(prompt).input_ids)
    text = generator(prompts[0], max_new_tokens=8, do_sample=False)[0]["generated_text"]
    assert text == generator.tokenizer.decode(apart[0], skip_special_tokens=True)
    assert text.startswith(prompts[0])


@pytest.mark.parametrize("family", fast(["modernbert", "bert", "qwen3", "bart"], "bert", "qwen3", "bart"))
def test_text_classification(family: str, checkpoint, run, forward) -> None:
    folder = checkpoint(family, "LacunaForSequenceClassification", **named(*INFERENCE))
    texts = ["The fox is gone.", "A tokenizer learns the pieces of words."]
    found = run("text-classification", folder)(texts, top_k=None, batch_size=2)
    for text, answers in zip(texts, found, strict=True):
        expected = probabilities(forward(folder, "AutoModelForSequenceClassification", text).logits[0])
        scores = {answer["label"]: answer["score"] for answer in answers}
        assert scores == pytest.approx(dict(zip(INFERENCE, expected, strict=True)), rel=1e-4)


@pytest.mark.parametrize("family", fast(["modernbert", "bert"], "bert"))
def test_zero_shot_classification(family: str, checkpoint, run, forward) -> None:
    """Each label becomes the second text of a pair, and its score is how much the pair is an entailment."""
    folder = checkpoint(family, "LacunaForSequenceClassification", **named(*INFERENCE))
    text, labels = "The river runs through the city.", ["garden", "city", "dog"]
    found = run("zero-shot-classification", folder)(text, candidate_labels=labels)
    pairs = [
        forward(folder, "AutoModelForSequenceClassification", text, f"This example is {label}.").logits[0, 2]
        for label in labels
    ]
    expected = dict(zip(labels, probabilities(torch.stack(pairs)), strict=True))
    assert dict(zip(found["labels"], found["scores"], strict=True)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_token_classification(family: str, checkpoint, run, forward) -> None:
    names = ("O", "B-ANIMAL", "I-ANIMAL")
    folder = checkpoint(family, "LacunaForTokenClassification", **named(*names))
    text = "The quick brown fox jumps over the lazy dog."
    tagger = run("token-classification", folder)
    found = tagger(text, ignore_labels=[])
    encoded = tagger.tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    scores = forward(folder, "AutoModelForTokenClassification", text).logits[0].softmax(-1)
    places = [place for place, special in enumerate(encoded["special_tokens_mask"]) if not special]
    assert [answer["index"] for answer in found] == places
    for answer, place in zip(found, places, strict=True):
        assert answer["entity"] == names[int(scores[place].argmax())]
        assert answer["score"] == pytest.approx(float(scores[place].max()), rel=1e-4)
        assert (answer["start"], answer["end"]) == encoded["offset_mapping"][place]
    grouped = tagger(text, aggregation_strategy="first", ignore_labels=["O"])
    assert all(answer["entity_group"] == "ANIMAL" and answer["word"].strip() in text for answer in grouped)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("modernbert", "LacunaForMaskedLM"),
        pytest.param("bert", "LacunaForPreTraining", marks=pytest.mark.slow),
        ("qwen3", "LacunaForCausalLM"),
        ("bart", "LacunaForConditionalGeneration"),
    ],
)
def test_feature_extraction(family: str, head: str, checkpoint, run, forward) -> None:
    folder, text = checkpoint(family, head), "A lacuna is a gap in a text."
    found = run("feature-extraction", folder)(text, return_tensors=True)
    torch.testing.assert_close(found, forward(folder, "AutoModel", text).last_hidden_state)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}),
        ("qwen3", {"hybrid": True}),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_a_decoder_writes_in_batches_that_never_end(family: str, fields: dict, implementation: str, native) -> None:
    """Continuous batching, the entry of servers: the tokens of `generate`, row by row."""
    if native and fields.get("hybrid"):
        pytest.skip("a hybrid decoder has no twin")
    torch.manual_seed(7)
    sizes = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.4}
    config = modeling.LacunaConfig.from_family(family, **sizes, tie_word_embeddings=False, **fields)
    model = modeling.LacunaForCausalLM(config)
    model = (model.to_native() if native else model).eval()
    model.set_attn_implementation(implementation)
    how = transformers.GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=319)
    prompts = [[5, 6, 7, 8, 11, 13], [9, 10, 11], [3, 4]]
    found = model.generate_batch(inputs=prompts, generation_config=how)
    for given, answer in zip(prompts, found.values(), strict=True):
        expected = model.generate(torch.tensor([given]), generation_config=how)[0, len(given) :].tolist()
        assert len(set(expected)) > 1  # or a model that repeats itself would prove nothing
        assert answer.generated_tokens == expected
