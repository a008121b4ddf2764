"""LoRA of `peft` wraps our models, trains, and comes back from its folder, also merged into the weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import fast
from transformers import AutoTokenizer

peft = pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[interop]'")

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

CLASSES = "AutoModelForSequenceClassification"
PROJECTIONS = ["q_proj", "v_proj", "down_proj"]
# Family and head of the folder, the Auto class to load it with, the task in terms of peft and what is adapted.
CASES: dict[str, tuple[str, str, str, str, str | list[str]]] = {
    "masked": ("modernbert", "LacunaForPreTraining", "AutoModelForMaskedLM", "FEATURE_EXTRACTION", "all-linear"),
    "masked, named": ("bert", "LacunaForPreTraining", "AutoModelForMaskedLM", "FEATURE_EXTRACTION", PROJECTIONS),
    "causal": ("qwen3", "LacunaForCausalLM", "AutoModelForCausalLM", "CAUSAL_LM", "all-linear"),
    "causal, named": ("qwen3", "LacunaForCausalLM", "AutoModelForCausalLM", "CAUSAL_LM", PROJECTIONS),
    "class": ("modernbert", "LacunaForPreTraining", CLASSES, "SEQ_CLS", "all-linear"),
    "class by pooler": ("bert", "LacunaForPreTraining", CLASSES, "SEQ_CLS", PROJECTIONS),
    "class by decoder": ("qwen3", "LacunaForCausalLM", CLASSES, "SEQ_CLS", "all-linear"),
    "text to text": ("bart", "LacunaForConditionalGeneration", "AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM", "all-linear"),
    # peft 0.21 trains these two heads whole, counts them to "all-linear" as well, and fails: with native models too.
    "answer": ("bert", "LacunaForPreTraining", "AutoModelForQuestionAnswering", "QUESTION_ANS", PROJECTIONS),
    "tokens": ("modernbert", "LacunaForPreTraining", "AutoModelForTokenClassification", "TOKEN_CLS", PROJECTIONS),
}


@pytest.fixture
def batch(texts) -> Callable[[Path, str], dict[str, Any]]:
    """Two texts, with the labels that a task of peft trains on."""

    def make(folder: Path, task: str) -> dict[str, Any]:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        encoded = dict(tokenizer(texts[:2], padding=True, return_tensors="pt"))
        if task == "SEQ_CLS":
            return encoded | {"labels": torch.tensor([0, 2])}
        if task == "QUESTION_ANS":
            return encoded | {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 3])}
        labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
        return encoded | {"labels": labels % 3 if task == "TOKEN_CLS" else labels}

    return make


@torch.no_grad()
def score(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    outputs = model.eval()(**batch)
    return torch.cat([outputs[name].flatten() for name in ("logits", "start_logits", "end_logits") if name in outputs])


@pytest.mark.parametrize("name", fast(CASES, *list(CASES)[::3]))
def test_lora(name: str, checkpoint, load, batch, tmp_path) -> None:
    family, head, auto_name, task, targets = CASES[name]
    folder = checkpoint(family, head)
    options = {"num_labels": 3} if task in ("SEQ_CLS", "TOKEN_CLS") else {}
    inputs = batch(folder, task)
    torch.manual_seed(0)
    model = load(folder, auto_name, **options)
    plain = score(model, inputs)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type=task, r=4, target_modules=targets))
    torch.testing.assert_close(score(wrapped, inputs), plain)

    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    assert sum(map(torch.numel, trained)) < sum(map(torch.numel, wrapped.parameters())) / 2
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    losses = []
    for _ in range(4):
        loss = wrapped.train()(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in trained)
    adapted = score(wrapped, inputs)
    assert float((adapted - plain).abs().max()) > 1e-2

    wrapped.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(load(folder, auto_name, **options), tmp_path / "adapter")
    torch.testing.assert_close(score(again, inputs), adapted, rtol=0, atol=0)

    merged = again.merge_and_unload()
    torch.testing.assert_close(score(merged, inputs), adapted, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(score(load(tmp_path / "merged", auto_name), inputs), adapted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [{"target_modules": ["q_proj", "embed_tokens"]}, {"trainable_token_indices": [5, 6]}])
def test_embeddings_are_adapted(how, checkpoint, load, batch) -> None:
    """By matrices beside them, or row by row: what a domain's new words need."""
    folder = checkpoint("qwen3", "LacunaForCausalLM")
    inputs = batch(folder, "CAUSAL_LM")
    model = load(folder, "AutoModelForCausalLM")
    plain = score(model, inputs)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": ["q_proj"], **how})
    wrapped = peft.get_peft_model(model, config)
    torch.testing.assert_close(score(wrapped, inputs), plain)
    wrapped.train()(**inputs).loss.backward()
    of_embeddings = {name: weight for name, weight in wrapped.named_parameters() if "embed_tokens" in name}
    trained = {name: weight for name, weight in of_embeddings.items() if weight.requires_grad}
    assert trained and all(weight.grad is not None for weight in trained.values())
    assert sum(map(torch.numel, trained.values())) < sum(map(torch.numel, of_embeddings.values())) / 2
    with torch.no_grad():
        for weight in trained.values():
            weight += 0.5
    assert float((score(wrapped, inputs) - plain).abs().max()) > 1e-2


def test_an_adapter_finds_its_own_base(checkpoint, load, batch, tmp_path) -> None:
    """`AutoPeftModel...` reads the name of the base from the adapter, and needs nothing else."""
    folder = checkpoint("qwen3", "LacunaForCausalLM")
    inputs = batch(folder, "CAUSAL_LM")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
    wrapped = peft.get_peft_model(load(folder, "AutoModelForCausalLM"), config)
    wrapped.save_pretrained(tmp_path / "adapter")
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", trust_remote_code=True)
    torch.testing.assert_close(score(again, inputs), score(wrapped, inputs), rtol=0, atol=0)
    ids = inputs["input_ids"][:, :6]
    generated = again.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    assert generated[:, :6].tolist() == ids.tolist() and generated.shape[1] > 6
