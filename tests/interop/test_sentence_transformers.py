"""`sentence-transformers` takes a folder as it is, trains it, and saves what loads again.

It pools the mean of an encoder's states, and for a folder of a causal model the state of the last token.
"""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: pip install -e '.[interop]'"
)


def from_a_folder(model: Any) -> bool:
    return type(model).__module__.startswith("transformers_modules.")


@torch.no_grad()
def pooled_states(model: Any, folder: Path, texts: list[str]) -> torch.Tensor:
    """Pooled hidden states [texts, C], one text at a time, so that no padding takes part."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    states = [model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return torch.stack([each[-1] if model.config.is_decoder else each.mean(0) for each in states])


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("modernbert", "LacunaForMaskedLM"),
        pytest.param("bert", "LacunaForPreTraining", marks=pytest.mark.slow),
        ("qwen3", "LacunaForCausalLM"),
    ],
)
def test_it_encodes_and_comes_back(family: str, head: str, checkpoint, load, texts, tmp_path) -> None:
    folder = checkpoint(family, head)
    encoder = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert from_a_folder(encoder[0].model)
    vectors = encoder.encode(texts, batch_size=4, convert_to_tensor=True)
    expected = pooled_states(load(folder, "AutoModel"), folder, texts)
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)

    encoder.save_pretrained(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert from_a_folder(again[0].model)
    numpy.testing.assert_array_equal(again.encode(texts, batch_size=4), vectors.numpy())


def test_it_trains(checkpoint, texts, tmp_path) -> None:
    """Two halves of one text belong together, and to no other text of the batch."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    folder = checkpoint("modernbert", "LacunaForMaskedLM")
    encoder = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    halves = [{"anchor": text[: len(text) // 2], "positive": text[len(text) // 2 :]} for text in texts]
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        learning_rate=0.003,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=encoder,
        args=arguments,
        train_dataset=Dataset.from_list(halves),
        loss=MultipleNegativesRankingLoss(encoder),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]


@torch.no_grad()
def test_a_classifier_of_pairs_is_a_cross_encoder(checkpoint, load, tmp_path) -> None:
    fields = {"id2label": {0: "fits"}, "label2id": {"fits": 0}}
    folder = checkpoint("bert", "LacunaForSequenceClassification", **fields)
    pairs = [("The dog runs.", "The lazy dog sleeps."), ("The dog runs.", "A gap in the text.")]
    scorer = sentence_transformers.CrossEncoder(str(folder), trust_remote_code=True, device="cpu")
    assert from_a_folder(scorer.model)
    scores = scorer.predict(pairs, activation_fn=torch.nn.Identity())
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder, trust_remote_code=True),
        load(folder, "AutoModelForSequenceClassification").eval(),
    )
    expected = [float(model(**tokenizer(*pair, return_tensors="pt")).logits) for pair in pairs]
    numpy.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)

    scorer.save_pretrained(str(tmp_path))
    again = sentence_transformers.CrossEncoder(str(tmp_path), trust_remote_code=True, device="cpu")
    numpy.testing.assert_array_equal(again.predict(pairs, activation_fn=torch.nn.Identity()), scores)
