"""ONNX: a model exported with one batch runs in onnxruntime on any other, with the logits that torch computes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[interop]'")
import onnxruntime  # noqa: E402

# What torch and onnxruntime say about each other during an export is not ours to mend.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]

CASES = {
    "modernbert": ("LacunaForPreTraining", "AutoModelForMaskedLM"),
    "qwen3": ("LacunaForCausalLM", "AutoModelForCausalLM"),
    "bart": ("LacunaForConditionalGeneration", "AutoModelForSeq2SeqLM"),
}


class Logits(nn.Module):
    """Tensors in, logits out: what an ONNX graph is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor | None = None) -> Tensor:
        decoder = {} if decoder_input_ids is None else {"decoder_input_ids": decoder_input_ids}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **decoder).logits


def encode(folder: Path, texts: list[str], answers: list[str] | None = None) -> dict[str, Tensor]:
    """Padded ids and masks [B, T]; with `answers` also what the decoder of an encoder-decoder has said, [B, S]."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    if answers is None:
        return inputs
    return inputs | {"decoder_input_ids": tokenizer(answers, padding=True, return_tensors="pt").input_ids}


def run(path: Path, inputs: dict[str, Tensor]) -> Tensor:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return torch.from_numpy(session.run(None, {name: inputs[name].numpy() for name in names})[0])


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_export(family: str, checkpoint, load, texts, tmp_path) -> None:
    head, auto_name = CASES[family]
    folder = checkpoint(family, head, sliding_window=4)
    model = load(folder, auto_name).eval()
    model.config.use_cache = False
    answers = texts[::-1] if model.config.is_encoder_decoder else None

    def inputs_of(rows: slice) -> dict[str, Tensor]:
        return encode(folder, texts[rows], answers and answers[rows])

    batch, length, answer_length = (torch.export.Dim(name) for name in ("batch", "length", "answer_length"))
    axes = {"input_ids": length, "attention_mask": length, "decoder_input_ids": answer_length}
    example = inputs_of(slice(0, 2))
    torch.onnx.export(
        Logits(model).eval(),
        (),
        str(tmp_path / "model.onnx"),
        kwargs=example,
        dynamo=True,
        dynamic_shapes={name: {0: batch, 1: axes[name]} for name in example},
        verbose=False,
    )
    for rows in (slice(None), slice(6, 7), slice(2, 5)):
        inputs = inputs_of(rows)
        assert all(inputs[name].shape != example[name].shape for name in inputs)
        expected, found = model(**inputs).logits, run(tmp_path / "model.onnx", inputs)
        if answers is None:  # what stands in the padding is nobody's concern
            real = inputs["attention_mask"].bool()
            expected, found = expected[real], found[real]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_exporters_of_transformers(checkpoint, load, texts, tmp_path) -> None:
    """The same through the library's own way, whose folder keeps the configuration and runs by `from_pretrained`."""
    from transformers.exporters import ExportedModel
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    folder = checkpoint("modernbert", "LacunaForSequenceClassification", num_labels=3)
    model = load(folder, "AutoModelForSequenceClassification").eval()
    exported = OnnxExporter().export(model, encode(folder, texts[:2]), config=OnnxConfig(dynamic=True))
    exported.save_pretrained(tmp_path)
    again = ExportedModel.from_pretrained(tmp_path, trust_remote_code=True)
    inputs = encode(folder, texts)
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits, rtol=0, atol=1e-4)
