"""Models in other forms, run by the programs that these are for, beside the models that they were made of."""

import contextlib
import csv
import json
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from huggingface_hub import ModelCard

from lacuna import modeling
from lacuna.common.errors import CorruptCheckpointError, InputError, StorageError
from lacuna.exporting import ExportArguments, export_model, formats
from lacuna.modeling import LacunaConfig
from lacuna.recipes import export_model as export_recipe
from lacuna.tasks.predict.predictor import PredictionArguments, Predictor
from lacuna.tasks.question_answering.reader import flat_rows
from lacuna.tokenization import adapt_tokenizer, save_tokenizer, train_bpe

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A lacuna is a gap in a text.",
    "In 1984 the river ran through the city of the north, and 12 dogs slept in the garden.",
    "def find(self, name):\n    return self.names.get(name)  # None if it isn't there",
    "Der Fluß fließt — ganz langsam — durch Köln; Москва стоит на реке. हिन्दी 日本語 👍🏽",
    "  blanks   before,\tand tabs\n\n\nand lines  ",
]
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 16}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.2}
SLIDING = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 4}
LABELS = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """The folder of a small random model with a tokenizer; a decoder is saved as a Qwen3ForCausalLM."""

    def make(
        family: str,
        head: str,
        *,
        pattern: str = "gpt2",
        normalizer: str = "none",
        native: bool = False,
        **overrides: Any,
    ) -> Path:
        tokenizer = train_bpe(documents=TEXTS * 4, vocab_size=330, pattern=pattern, normalizer=normalizer)
        torch.manual_seed(0)
        config = LacunaConfig.from_family(family, **{**SMALL, **overrides, "vocab_size": len(tokenizer)})
        model = getattr(modeling, head)(config)
        folder = tmp_path / "model"
        (model.to_native() if native or head == "LacunaForCausalLM" else model).save_pretrained(folder)
        shape = "decoder" if config.shape == "decoder" else "encoder"
        segments = bool(config.type_vocab_size)
        adapted = adapt_tokenizer(tokenizer=tokenizer, shape=shape, segments=segments, max_length=128)
        save_tokenizer(tokenizer=adapted, output_dir=folder)
        return folder

    return make


def export(model: Path, form: str, **options: Any) -> tuple[dict[str, Any], Path]:
    output = model.parent / f"{form}-{options.get('quantize')}"
    arguments = ExportArguments(model=str(model), format=form, output_dir=str(output), **options)  # type: ignore[arg-type]
    found = export_model(arguments, TEXTS)
    assert json.loads((output / "export_check.json").read_text()) == found and found["texts"] == len(TEXTS)
    assert [path.name for path in model.parent.iterdir() if path.name.startswith(".")] == []
    return found, output


# Native


@pytest.mark.parametrize(
    ("family", "head", "native"),
    [
        ("modernbert", "LacunaForSequenceClassification", "ModernBertForSequenceClassification"),
        ("modernbert", "LacunaForPreTraining", "ModernBertForMaskedLM"),
        ("bert", "LacunaForMultipleChoice", "BertForMultipleChoice"),
        ("bart", "LacunaForConditionalGeneration", "BartForConditionalGeneration"),
    ],
)
def test_a_model_leaves_as_the_class_of_transformers_that_it_equals(saved, family, head, native) -> None:
    folder = saved(family, head, **(LABELS if "Classification" in head else {}))
    found, output = export(folder, "native")
    assert found["largest_difference"] < 1e-4 < found["largest_logit"] and found["same_answer"] == 1.0
    config = json.loads((output / "config.json").read_text())
    assert config["architectures"] == [native] and "auto_map" not in config
    assert {path.suffix for path in output.iterdir()} == {".json", ".safetensors", ".md"}
    model = getattr(transformers, native).from_pretrained(output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    batch = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    ours = formats.loading.load_model(
        str(folder), auto_class=formats._class_of(formats.loading.load_configuration(str(folder)), "")
    )[0]
    if "MultipleChoice" in native:
        batch = {name: tensor[None] for name, tensor in batch.items()}
    with torch.no_grad():
        mine, theirs = ours.eval()(**batch), model.eval()(**batch)
    mine, theirs = (each.get("logits", each.get("prediction_logits")) for each in (mine, theirs))
    keep = batch["attention_mask"].bool() if mine.shape[:2] == batch["attention_mask"].shape else slice(None)
    torch.testing.assert_close(theirs[keep], mine[keep], rtol=0, atol=1e-4)


def test_what_stands_in_the_way_is_named(saved) -> None:
    folder = saved("lacuna", "LacunaForMaskedLM")
    with pytest.raises(ValueError, match=r"no native family can express.*qk_norm=True.* --format onnx") as caught:
        export(folder, "native")
    assert caught.value.exit_code == 2 and [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_native_model_needs_no_export(saved) -> None:
    with pytest.raises(InputError, match="a Qwen3ForCausalLM is a class of transformers already"):
        export(saved("qwen3", "LacunaForCausalLM"), "native")


# GGUF


def test_gguf_has_the_weights_and_the_tokens_at_their_places(saved) -> None:
    gguf = pytest.importorskip("gguf")
    folder = saved("qwen3", "LacunaForCausalLM", num_key_value_heads=1, tie_word_embeddings=False)
    found, output = export(folder, "gguf")
    assert found["largest_difference"] < 1e-5 and found["same_answer"] == 1.0
    reader = gguf.GGUFReader(output / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "qwen3" and fields["tokenizer.ggml.pre"] == "gpt-2"
    assert (fields["qwen3.attention.head_count"], fields["qwen3.attention.head_count_kv"]) == (2, 1)
    assert fields["qwen3.rope.freq_base"] == 1_000_000 and fields["qwen3.attention.key_length"] == 16
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert fields["tokenizer.ggml.tokens"] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert fields["tokenizer.ggml.token_type"][:6] == [3, 3, 3, 3, 3, 1]
    assert (
        fields["tokenizer.ggml.bos_token_id"] == tokenizer.bos_token_id == 2 and fields["tokenizer.ggml.add_bos_token"]
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    assert torch.equal(tensors["blk.2.attn_k.weight"], model.model.layers[2].self_attn.k_proj.weight)
    assert torch.equal(tensors["output.weight"], model.lm_head.weight) and len(tensors) == len(model.state_dict())


@pytest.mark.parametrize(("quantize", "most", "share"), [("f16", 0.05, 0.6), ("q8_0", 1.0, 0.4)])
def test_gguf_in_fewer_bits(saved, quantize: str, most: float, share: float) -> None:
    pytest.importorskip("gguf")
    folder = saved("qwen3", "LacunaForCausalLM")
    found, output = export(folder, "gguf", quantize=quantize)
    assert 0 < found["largest_difference"] < most
    size = (folder / "model.safetensors").stat().st_size
    vocabulary = (output / "tokenizer.json").stat().st_size
    assert (output / "model.gguf").stat().st_size < share * size + vocabulary


@pytest.mark.parametrize(
    ("family", "head"), [("qwen3", "LacunaForCausalLM"), ("modernbert", "LacunaForSequenceClassification")]
)
def test_llama_cpp_writes_four_bits(saved, family: str, head: str) -> None:
    gguf, llama_cpp = pytest.importorskip("gguf"), pytest.importorskip("llama_cpp")
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
    folder = saved(family, head, native=True, **wide, **(LABELS if family == "modernbert" else {}))
    found, output = export(folder, "gguf", quantize="q4_k")
    assert 0 < found["largest_difference"] < found["largest_logit"]
    assert [path.name for path in output.iterdir() if "gguf" in path.name] == ["model.gguf"]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(output / "model.gguf").tensors}
    up, layers = tensors["blk.1.ffn_up.weight"], transformers.AutoModel.from_pretrained(folder).layers
    weight = (layers[1].mlp.Wi if family == "modernbert" else layers[1].mlp.up_proj).weight.detach()
    read = torch.from_numpy(gguf.quants.dequantize(up.data, up.tensor_type))
    assert up.tensor_type.name == "Q4_K" and tensors["output_norm.weight"].tensor_type.name == "F32"
    assert 0.01 < float((read - weight).norm() / weight.norm()) < 0.1
    llama = llama_cpp.Llama(str(output / "model.gguf"), n_ctx=64, embedding=family == "modernbert", verbose=False)
    assert llama.embed("a cat") if family == "modernbert" else llama("a cat", max_tokens=1)["choices"]


def test_four_bits_without_llama_cpp_name_what_is_missing(saved, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    folder = saved("qwen3", "LacunaForCausalLM")
    with pytest.raises(InputError, match=r"--quantize q4_k is made by llama.cpp: pip install -e '\.\[llama\]'"):
        export(folder, "gguf", quantize="q4_k")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("head", ["LacunaForMaskedLM", "LacunaForSequenceClassification"])
def test_gguf_has_the_encoder_of_a_modernbert(saved, head: str) -> None:
    gguf = pytest.importorskip("gguf")
    folder = saved("modernbert", head, native=True, **(LABELS if "Classification" in head else {}))
    found, output = export(folder, "gguf")
    assert found["largest_difference"] < 1e-5 and found["same_answer"] == 1.0
    reader = gguf.GGUFReader(output / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = json.loads((folder / "config.json").read_text())
    assert fields["general.architecture"] == "modern-bert" and not fields["modern-bert.attention.causal"]
    assert fields["modern-bert.attention.sliding_window"] == config["local_attention"]
    assert fields["modern-bert.attention.sliding_window_pattern"] == [False, True, True]
    for name, kind in (("freq_base", "full_attention"), ("freq_base_swa", "sliding_attention")):
        assert fields[f"modern-bert.rope.{name}"] == config["rope_parameters"][kind]["rope_theta"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert fields["tokenizer.ggml.bos_token_id"] == tokenizer.cls_token_id and fields["tokenizer.ggml.add_bos_token"]
    assert fields["tokenizer.ggml.eos_token_id"] == tokenizer.sep_token_id and fields["tokenizer.ggml.add_eos_token"]
    trunk = transformers.AutoModel.from_pretrained(folder)
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    assert torch.equal(tensors["blk.2.ffn_up.weight"], trunk.layers[2].mlp.Wi.weight)
    assert len(tensors) == len(trunk.state_dict())


def test_llama_cpp_makes_the_same_vectors_of_a_text(saved) -> None:
    """A window of 8 tokens, so that layers that see few neighbours are told from those that see all."""
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = saved("modernbert", "LacunaForMaskedLM", native=True, sliding_window=4)
    _, output = export(folder, "gguf")
    how: dict[str, Any] = {"embedding": True, "pooling_type": llama_cpp.LLAMA_POOLING_TYPE_NONE, "verbose": False}
    llama = llama_cpp.Llama(str(output / "model.gguf"), n_ctx=128, n_ubatch=128, **how)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trunk = transformers.AutoModel.from_pretrained(folder).eval()
    for text in TEXTS[:5]:
        with torch.no_grad():
            expected = trunk(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        found = torch.tensor(llama.embed(text))
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("family", "head", "options", "reason"),
    [
        ("qwen3", "LacunaForCausalLM", {"pattern": "modern"}, "does not know how this tokenizer cuts.*--pattern gpt2"),
        ("qwen3", "LacunaForCausalLM", {"normalizer": "nfkc"}, "normalizes text first.*--normalizer none"),
        ("modernbert", "LacunaForMaskedLM", {}, "family modernbert, saved natively, and this is a LacunaForMaskedLM"),
        ("qwen3", "LacunaForCausalLM", SLIDING, "no place for use_sliding_window of this Qwen3"),
        ("qwen3", "LacunaForCausalLM", {"attention_bias": True}, "no place for attention_bias of this Qwen3"),
    ],
)
def test_what_llama_cpp_would_read_differently_is_refused(saved, family, head, options, reason) -> None:
    pytest.importorskip("gguf")
    folder = saved(family, head, **options)
    with pytest.raises(InputError, match=reason):
        export(folder, "gguf")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_the_table_of_families_and_heads(tmp_path: Path) -> None:
    """docs/interoperability.md says which leave without our code, and which llama.cpp runs; each cell is tried."""
    pytest.importorskip("gguf")
    page = (Path(__file__).parents[2] / "docs/interoperability.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "`Lacuna" in line or "| `bert`" in line]
    (_, *families), *rows = [[cell.strip("`") for cell in row] for row in rows]
    table = {(head, family): what for head, *cells in rows for family, what in zip(families, cells, strict=True)}
    tokenizer = train_bpe(documents=TEXTS, vocab_size=300, pattern="gpt2")
    found = {}
    for family in modeling.FAMILIES:
        config = LacunaConfig.from_family(family, **SMALL, vocab_size=len(tokenizer))
        shape = "decoder" if config.shape == "decoder" else "encoder"
        adapted = adapt_tokenizer(tokenizer=tokenizer, shape=shape, segments=False, max_length=128)
        for head in {head for heads in modeling.HEADS.values() for head in heads.values()}:
            if head not in config.heads.values():
                found[head, family] = "none"
                continue
            model = getattr(modeling, head)(config)
            found[head, family] = "ours"
            with contextlib.suppress(modeling.ConversionError):
                model = model.to_native()
                found[head, family] = "native"
            with contextlib.suppress(InputError):
                formats.write_gguf(model=model, tokenizer=adapted, folder=tmp_path, quantize=None)
                found[head, family] += ", GGUF"
    assert table == found


SCRIPTS = [(0xA1, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x905, 0x96F)]
SCRIPTS += [(0xE01, 0xE5B), (0x10D0, 0x10FF), (0x3041, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F5FF)]
"""Letters, marks, digits and signs: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai, Georgian, Kana, Chinese,
Korean, pictures."""


def test_llama_cpp_sees_the_same_tokens_and_computes_the_same(saved) -> None:
    """`pip install -e ".[llama]"` builds it; 10,000 lines: of the standard library, and words of twelve scripts."""
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = saved("qwen3", "LacunaForCausalLM", num_key_value_heads=1)
    _, output = export(folder, "gguf")
    llama = llama_cpp.Llama(str(output / "model.gguf"), n_ctx=128, logits_all=True, verbose=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sources = sorted(Path(json.__file__).parents[1].glob("*.py"))
    lines = [line for path in sources for line in path.read_text(encoding="utf-8").splitlines()][:7_000]
    chance = random.Random(0)
    for first, last in chance.choices(SCRIPTS, k=3_000):
        letters = [chr(point) for point in range(first, last + 1) if unicodedata.category(chr(point))[0] in "LMNPS"]
        words = ["".join(chance.choices(letters, k=chance.randint(1, 9))) for _ in range(chance.randint(1, 9))]
        lines.append(chance.choice(" .,-1").join(words))
    assert len(lines) == 10_000
    for line in [*TEXTS, *lines]:
        if line:
            found = llama.tokenize(line.encode(), add_bos=True, special=False)
            assert found == tokenizer(line, split_special_tokens=True)["input_ids"], line
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"][:64]
        llama.reset()
        llama.eval(ids)
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        found = torch.from_numpy(llama.scores[: len(ids)].copy())
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float(expected.abs().max()))
    answer = llama(TEXTS[1], max_tokens=8, temperature=0)
    ids = torch.tensor([tokenizer(TEXTS[1])["input_ids"]])
    written = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert answer["usage"]["prompt_tokens"] == ids.shape[1], "nothing stands behind the prompt"
    expected_text = tokenizer.decode(written, skip_special_tokens=True).replace("\ufffd", "")  # parts of characters
    assert answer["choices"][0]["text"] == expected_text


@pytest.mark.parametrize("head", ["---\n: [\n---\n", b"\xff\xfe"])
def test_a_card_that_cannot_be_read_is_told(saved, head: str | bytes) -> None:
    folder = saved("modernbert", "LacunaForMaskedLM")
    (folder / "README.md").write_bytes(head.encode() if isinstance(head, str) else head)
    with pytest.raises(InputError, match=r"README\.md, or its head, cannot be read: mend it"):
        export(folder, "native")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_architecture_that_is_no_class_is_told(saved) -> None:
    folder = saved("bert", "LacunaForMaskedLM", native=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["set_seed"]}))
    with pytest.raises(InputError, match="names no class of transformers under architectures"):
        export(folder, "onnx")


@pytest.mark.parametrize("known", [True, False])
def test_an_export_has_the_card_of_its_model_and_says_how_to_run_it(saved, known: bool) -> None:
    folder = saved("qwen3", "LacunaForCausalLM")
    if known:
        head = "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- lacuna\n---\n"
        (folder / "README.md").write_text(head + "\n# My decoder\n\nIt knows 3.5 bits.\n")
    pytest.importorskip("gguf")
    found, output = export(folder, "gguf", quantize="q8_0")
    card = ModelCard.load(output / "README.md")
    assert card.data.library_name == "llama.cpp" and card.data.tags == ["lacuna", "gguf"]
    assert (card.data.to_dict().get("license"), card.data.to_dict().get("pipeline_tag")) == (
        ("mit", "text-generation") if known else (None, None)
    )
    assert "# Qwen3ForCausalLM as gguf, weights in q8_0" in card.text and "llama-server -m model.gguf" in card.text
    assert f"{found['same_answer']:.1%}" in card.text and ("It knows 3.5 bits." in card.text) == known
    head = "---\npipeline_tag: fill-mask\n---\n"
    without_head = formats.make_card(head, found | {"model": "ModernBertForMaskedLM"})
    assert ModelCard(without_head).data.pipeline_tag == "feature-extraction"


def rows_of(folder: Path, **row: list[str]) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


# ONNX

HEADS = [
    ("bert", "LacunaForTokenClassification"),
    ("lacuna", "LacunaForSequenceClassification"),
    ("lacuna", "LacunaForMaskedLM"),
    ("modernbert", "LacunaForPreTraining"),
    ("modernbert", "LacunaForQuestionAnswering"),
    ("modernbert", "LacunaForMultipleChoice"),
    ("modernbert", "LacunaModel"),
    ("qwen3", "LacunaForCausalLM"),
    ("bart", "LacunaForConditionalGeneration"),
    ("gpt2", "LacunaForSequenceClassification"),
    ("llama", "LacunaForTokenClassification"),
    ("bart", "LacunaForQuestionAnswering"),
    ("vaswani", "LacunaForSequenceClassification"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), HEADS)
def test_onnx_computes_the_same_for_any_batch_and_length(saved, family: str, head: str) -> None:
    pytest.importorskip("onnxruntime")
    found, output = export(saved(family, head), "onnx")
    assert found["largest_difference"] < 1e-4 and found["same_answer"] == 1.0
    assert (output / "model.onnx").is_file() and (output / "tokenizer.json").is_file()


def test_an_onnx_folder_answers_rows_like_the_model_that_it_was_made_of(saved, run_recipe, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = saved("lacuna", "LacunaForSequenceClassification", num_hidden_layers=1, **LABELS)
    task = {"name": "classification", "problem_type": "single_label_classification", "label_column": "kind"}
    (folder / "task.json").write_text(json.dumps(task))
    (tmp_path / "new.csv").write_text("text\nThe dog\nA lacuna is a gap\n")
    (tmp_path / "test.csv").write_text("text,kind\nThe dog,no\nThe dog,yes\nThe dog,perhaps\n")
    (tmp_path / "one.txt").write_text("A lacuna is a gap in a text.")  # one text must not make a graph for one row
    answers = []
    words = ("--model", folder, "--format", "onnx", "--output_dir", tmp_path / "onnx", "--data", tmp_path / "one.txt")
    code, said = run_recipe("export_model", *words, "--eval_file", tmp_path / "new.csv")
    assert code == 2 and "has no column 'kind', which held the labels" in said and not (tmp_path / "onnx").exists()
    code, said = run_recipe("export_model", *words, "--eval_file", tmp_path / "test.csv")
    assert code == 0, said
    check = json.loads((tmp_path / "onnx" / "export_check.json").read_text())
    assert check["accuracy_before"] == check["accuracy"] == pytest.approx(1 / 3) and check["same_answer"] == 1.0
    shutil.copytree(tmp_path / "onnx", tmp_path / "lost", ignore=shutil.ignore_patterns("tokenizer*"))
    lost = ("--model", tmp_path / "lost", "--input", tmp_path / "new.csv", "--output", tmp_path / "lost.csv")
    code, said = run_recipe("predict", *lost)
    assert code == 2 and "tokenizer" in said and "ONNX" not in said
    for place in (folder, tmp_path / "onnx"):
        words = ("--model", place, "--input", tmp_path / "new.csv", "--output", tmp_path / f"{place.name}.csv")
        code, said = run_recipe("predict", *words)
        assert code == 0, said
        answers.append(list(csv.DictReader((tmp_path / f"{place.name}.csv").open())))
    assert [row["prediction"] for row in answers[0]] == [row["prediction"] for row in answers[1]]
    for one, two in zip(*answers, strict=True):
        assert float(one["probability"]) == pytest.approx(float(two["probability"]), abs=1e-4)


@pytest.mark.parametrize("form", fast(["of torch", "of ONNX"], "of torch"))
def test_the_tokens_that_a_tagger_gets_right_are_counted(saved, run_recipe, tmp_path: Path, form: str) -> None:
    folder = saved("bert", "LacunaForTokenClassification", **LABELS)
    task = {"name": "token_classification", "tokens_column": "words", "tags_column": "kinds", "scheme": "plain"}
    (folder / "task.json").write_text(json.dumps(task))
    words = ["The", "dog", "sleeps", "."]
    files = ("--input", rows_of(tmp_path, words=words), "--output", tmp_path / "tagged.jsonl")
    code, said = run_recipe("predict", "--model", folder, *files)
    assert code == 0, said
    tags = json.loads((tmp_path / "tagged.jsonl").read_text())["prediction"]
    other = next(name for name in LABELS["id2label"].values() if name != tags[0])
    rows = rows_of(tmp_path, words=words, kinds=[other, *tags[1:]])
    more = ("--format", "onnx", "--output_dir", tmp_path / "onnx", "--eval_file", rows)
    if form == "of torch":
        arguments = ExportArguments(model=str(folder), format="onnx", output_dir="not/there", eval_file=str(rows))
        assert export_recipe.score(export_recipe.open_tuned(arguments, str(folder))) == ("accuracy", 0.75)
        return
    pytest.importorskip("onnxruntime")
    code, said = run_recipe("export_model", "--model", folder, *more)
    check = json.loads((tmp_path / "onnx" / "export_check.json").read_text())
    assert code == 0 and check["accuracy_before"] == check["accuracy"] == 0.75, said


def answering(answers: list[dict[str, Any]], rows: Path, **settings: Any) -> Any:
    """What gives these answers, one after the other, to the rows of a file."""

    class Told(Predictor):
        columns = tuple(answers[0])

        def choose_columns(self, row: Any) -> None: ...

        def expand(self, row: Any) -> Any:
            return flat_rows(row)

        def read(self, row: Any) -> str:
            return "alike"

        def answer(self, given: Any) -> Any:
            return iter(answers)

    model = SimpleNamespace(config=SimpleNamespace(id2label={1: "good", 0: "bad"}))
    return Told(model=model, settings=settings, arguments=PredictionArguments(input=str(rows), output="a.jsonl"))


def test_answers_are_right_that_are_labelled_so(tmp_path: Path) -> None:
    """Counted by hand: two of three choices, one of two sets of labels, two of three questions."""
    rows = tmp_path / "rows.jsonl"

    def score(answers: list[dict[str, Any]], records: list[dict[str, Any]], **settings: Any) -> Any:
        rows.write_text("".join(json.dumps(record) + "\n" for record in records))
        return export_recipe.score(answering(answers, rows, **settings))

    choices = [{"ask": "Who?", "some": ["he", "she"], "right": letter} for letter in "ABB"]
    names = {"question_column": "ask", "choices_columns": ["some"], "label_column": "right"}
    found = [{"prediction": "he", "prediction_number": 0}] * 2 + [{"prediction": "she", "prediction_number": 1}]
    assert score(found, choices, name="multiple_choice", **names) == ("accuracy", pytest.approx(2 / 3))
    sets = [{"kinds": "b|a"}, {"kinds": "a|c"}]
    several = {"problem_type": "multi_label_classification", "label_column": "kinds", "label_separator": "|"}
    assert score([{"prediction": ["a", "b"]}, {"prediction": ["a"]}], sets, **several) == ("accuracy", 0.5)
    hot = {"problem_type": "multi_label_classification", "label_column": "kinds"}
    found = [{"prediction": ["good"]}, {"prediction": ["bad", "good"]}]
    assert score(found, [{"kinds": [0, 1]}, {"kinds": [0, 1]}], **hot) == ("accuracy", 0.5)
    found = [{"prediction": "good"}, {"prediction": "bad"}]  # whose labels are numbers in the data
    assert score(found, [{"label": 1.0}, {"label": "0"}], label_column="label") == ("accuracy", 1.0)
    assert score(found, [{"label": "good"}, {"label": "good"}], label_column="label") == ("accuracy", 0.5)
    tags = {"name": "token_classification", "tags_column": "tags", "scheme": "IOB2"}
    found = [{"prediction": [], "predicted_tags": ["B-a", "I-a", "O", "B-a"]}]
    assert score(found, [{"tags": ["B-a", "E-a", "O", "S-a"]}], **tags) == ("accuracy", 1.0)  # BIOES
    context = {"question": "Where?", "context": "In the house."}
    there = {"answers": {"text": ["the house", "In the house"], "answer_start": [3, 0]}}
    questions = [{**context, **there}, {**context, "answers": []}, {**context, **there}]
    found = [{"prediction": text} for text in ("in the house", "", "In")]
    assert score(found, questions, name="question_answering") == ("exact match", pytest.approx(2 / 3))


@pytest.mark.slow
def test_onnx_in_eight_bits_is_smaller_and_near(saved) -> None:
    pytest.importorskip("onnxruntime")
    folder = saved("modernbert", "LacunaForMaskedLM", hidden_size=128, intermediate_size=256, vocab_size=330)
    found, output = export(folder, "onnx", quantize="int8")
    size = sum(path.stat().st_size for path in output.glob("model.onnx*"))
    assert size < 0.5 * (folder / "model.safetensors").stat().st_size
    assert found["same_answer"] > 0.85 and 0 < found["largest_difference"] < 0.5 * found["largest_logit"]


@pytest.mark.slow
def test_a_decoder_in_onnx_is_not_asked_to_write(saved, run_recipe, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    _, output = export(saved("qwen3", "LacunaForCausalLM"), "onnx")
    (tmp_path / "new.csv").write_text("text\nThe dog\n")
    words = ("--model", output, "--input", tmp_path / "new.csv", "--output", tmp_path / "answers.csv")
    code, said = run_recipe("predict", *words)
    assert code == 2 and "is an ONNX export, which keeps no cache and cannot generate" in said


# Whatever the form


def test_what_computes_something_else_is_not_kept(saved, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved("modernbert", "LacunaForMaskedLM")
    write = formats.write_native

    def wrong(**given: Any) -> Any:
        native = write(**given)
        with torch.no_grad():
            native.model.layers[1].mlp.Wo.weight[0] += 0.1
        return native

    monkeypatch.setitem(formats.WRITERS, "native", wrong)
    with pytest.raises(CorruptCheckpointError, match=r"differs from .*model by up to .* it is not kept"):
        export(folder, "native")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_numbers_that_are_none_are_never_the_same(saved, monkeypatch: pytest.MonkeyPatch, value, quantize) -> None:
    folder = saved("qwen3", "LacunaForCausalLM")

    def wrong(*, model: Any, **_: Any) -> Callable[..., Any]:
        def run(**batch: Any) -> Any:
            output = model(**batch)
            return type(output)(logits=output.logits.index_fill(2, torch.tensor([3]), value))

        return run

    monkeypatch.setitem(formats.WRITERS, "gguf", wrong)
    with pytest.raises(CorruptCheckpointError, match=r"differs from .* by up to inf in its logits"):
        export(folder, "gguf", quantize=quantize)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("add", "given"), [("add_rope_freq_base", 1e4), ("add_layer_norm_rms_eps", 0.5), ("add_head_count_kv", 2)]
)
def test_a_fact_of_the_model_that_is_wrong_in_gguf_is_found(saved, monkeypatch, add: str, given: float) -> None:
    gguf = pytest.importorskip("gguf")
    folder = saved("qwen3", "LacunaForCausalLM", num_key_value_heads=1)
    write = getattr(gguf.GGUFWriter, add)
    monkeypatch.setattr(gguf.GGUFWriter, add, lambda self, value: write(self, given))
    with pytest.raises((CorruptCheckpointError, RuntimeError)):
        export(folder, "gguf")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_padding_is_not_compared_and_everything_else_is(saved) -> None:
    model = formats.loading.load_model(
        str(saved("modernbert", "LacunaForMaskedLM")), auto_class="AutoModelForMaskedLM"
    )[0].eval()
    batch = {"input_ids": torch.tensor([[2, 9, 3], [2, 3, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}

    def shifted(*places: tuple[int, int]) -> Callable[..., Any]:
        def run(**given: Any) -> Any:
            output = model(**given)
            for row, column in places:
                output.logits[row, column, 7] += 100.0
            return output

        return run

    assert formats.compare(model, shifted((1, 2)), [batch])["largest_difference"] == 0.0
    found = formats.compare(model, shifted((0, 1)), [batch])
    assert found["largest_difference"] == pytest.approx(100.0, abs=1e-3) and found["same_answer"] == 0.8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": "gguf", "quantize": "int8"}, "int8 is not for --format gguf: choose f16 or q8_0"),
        ({"format": "native", "quantize": "f16"}, "its weights are float32"),
        ({"format": "onnx", "output_dir": str(Path(__file__).parent)}, "is there already; name a new folder"),
        ({"max_examples": 0}, "--max_examples must be greater than 0"),
    ],
)
def test_options_that_do_not_go_together(options, reason) -> None:
    with pytest.raises(InputError, match=reason):
        ExportArguments(**{"output_dir": "not/there", **options})


def test_a_package_that_is_missing_is_named(saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install -e '\.\[gguf\]'"):
        export(saved("qwen3", "LacunaForCausalLM"), "gguf")


def test_a_novel_is_compared_in_pieces(saved, tmp_path: Path) -> None:
    folder, novel = saved("modernbert", "LacunaForMaskedLM"), " \n".join(TEXTS * 40)
    arguments = ExportArguments(model=str(folder), output_dir=str(tmp_path / "native"), max_examples=8)
    assert len(novel) > 8 * formats.PIECE
    found = export_model(arguments, [novel])
    assert found["texts"] == 8 and found["tokens"] > 8 * 40


def test_a_folder_that_cannot_be_made_is_told(saved, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "native"
    arguments = ExportArguments(model=str(saved("modernbert", "LacunaForMaskedLM")), output_dir=str(place))
    with pytest.raises(StorageError, match=f"--output_dir {place} cannot be written: .*File exists"):
        export_model(arguments, TEXTS)


def test_without_text_nothing_can_be_compared(saved) -> None:
    arguments = ExportArguments(model=str(saved("modernbert", "LacunaForMaskedLM")), output_dir="not/there")
    with pytest.raises(InputError, match="--data has no text to compare on"):
        export_model(arguments, ["", "  "])
