"""lm-evaluation-harness reads a decoder of ours as any other model, and counts the bits that we count."""

import json
import math

import pytest
from small_models import TEXTS
from transformers import AutoTokenizer

from lacuna.modeling import LacunaForCausalLM

lm_eval = pytest.importorskip("lm_eval", reason="pip install -e .[harness]")


def test_bits_per_byte_are_those_of_the_harness(folder_of, run_recipe, tmp_path) -> None:
    """We score a document after [CLS]; the harness scores a second one, unless `add_bos_token=False`."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    folder, ours = tmp_path / "native", folder_of("qwen3", "LacunaForCausalLM")
    LacunaForCausalLM.from_pretrained(ours).to_native().save_pretrained(folder)
    AutoTokenizer.from_pretrained(ours).save_pretrained(folder)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = ["--model", folder, "--data", tmp_path / "rows.jsonl", "--output_file", tmp_path / "found.json"]
    assert run_recipe("evaluate_language_model", *words)[0] == 0
    model = HFLM(pretrained=str(folder), add_bos_token=False, device="cpu", dtype="float32")
    asked = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(TEXTS)]
    nats = -sum(model.loglikelihood_rolling(asked))
    bits = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert json.loads((tmp_path / "found.json").read_text())["bits_per_byte"] == pytest.approx(bits, abs=1e-4)
