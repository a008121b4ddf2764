"""trl trains a native decoder on conversations of one text each, and what it saves is one still."""

import json

import pytest
import torch
import transformers
from datasets import Dataset

from lacuna import modeling

trl = pytest.importorskip("trl", reason="trl is not installed: pip install -e '.[trl]'")


def test_sft_of_a_native_decoder(checkpoint, texts, tmp_path) -> None:
    folder = tmp_path / "native"
    ours = checkpoint("qwen3", "LacunaForCausalLM")
    modeling.LacunaForCausalLM.from_pretrained(ours).to_native().save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ours)
    tokenizer.save_pretrained(folder)
    options = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.01, "max_length": 32}
    options |= {"report_to": "none", "use_cpu": True, "bf16": False, "logging_steps": 1, "save_strategy": "no"}
    trainer = trl.SFTTrainer(
        model=str(folder),
        args=trl.SFTConfig(output_dir=str(tmp_path / "out"), **options),
        train_dataset=Dataset.from_dict({"text": texts}),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]
    trainer.save_model(str(tmp_path / "tuned"))
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and "auto_map" not in config
    tuned = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    with torch.no_grad():
        ids = tokenizer(texts[0], return_tensors="pt")["input_ids"]
        torch.testing.assert_close(tuned(ids).logits, trainer.model.eval()(ids).logits.float(), rtol=1e-3, atol=1e-3)
