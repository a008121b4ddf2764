"""Folders that others made: a canary in each place that a library might open, refused with a message and never run."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.common.foreign import MOST_GROWTH, PICKLES, check_foreign
from lacuna.common.loading import load_configuration, load_exported, load_model, load_tokenizer
from lacuna.corpus.read.sources import saved_files
from lacuna.corpus.store.token_store import FILES, FORMAT_VERSION, MANIFEST, open_store
from lacuna.modeling import LacunaConfig, LacunaForSequenceClassification
from lacuna.tokenization import load_tokenizer as load_tokenizer_files

CLASSIFIER = "AutoModelForSequenceClassification"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "gap", "."]


class Touch:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A small native model with its tokenizer."""
    folder = tmp_path_factory.mktemp("original")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForSequenceClassification(BertConfig(vocab_size=8, **sizes)).save_pretrained(folder)
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to plant things in."""
    return Path(shutil.copytree(original, tmp_path / "model"))


@pytest.fixture
def canary(tmp_path: Path) -> Any:
    """What must not be there after a test; source code and a pickle that make it."""
    place = tmp_path / "canary"
    yield Touch(place)
    assert not place.exists(), "something ran"


def change(path: Path, **keys: Any) -> None:
    """Set keys in a file of JSON."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | keys))


def open_all(folder: Path | str, **options: Any) -> None:
    """Everything that recipes do with a model."""
    load_configuration(str(folder), **options)
    load_tokenizer(str(folder), **options)
    load_model(str(folder), auto_class=CLASSIFIER, **options)


def test_what_is_good_is_opened(folder: Path, tmp_path: Path) -> None:
    """Keys that libraries write, notes of other tools, links inside, pickles that nobody opens, labels of any name."""
    change(folder / "config.json", _name_or_path="/home/x", _num_labels=2, note={"by": "a/b"})
    change(folder / "config.json", label2id={"_other": 0, "b": 1}, id2label={"0": "_other", "1": "b"})
    change(folder / "tokenizer_config.json", tokenizer_file="/somewhere/else/tokenizer.json")
    (folder / "training_args.bin").write_bytes(pickle.dumps(1))
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "model.safetensors").symlink_to("weights.safetensors")
    (tmp_path / "linked").symlink_to(folder)
    open_all(tmp_path / "linked")
    assert load_tokenizer_files(folder)("A gap.").input_ids == [5, 6, 7]


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00001.bin",
        "consolidated.00.pth",
        "tf_model.h5",
        "flax_model.msgpack",
        *(f"model{ending}" for ending in sorted(PICKLES)),
    ],
)
def test_pickles_are_never_weights(folder: Path, canary: Touch, name: str) -> None:
    os.remove(folder / "model.safetensors")
    (folder / name).write_bytes(pickle.dumps(canary))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    with pytest.raises(InputError, match=rf"{name}, whose like can run code when opened: convert it to safetensors"):
        load_model(str(folder), auto_class=CLASSIFIER)


def test_a_canary_sings(tmp_path: Path) -> None:
    """What the other tests plant does run where it is opened."""
    pickle.loads(pickle.dumps(Touch(tmp_path / "canary")))  # noqa: S301
    assert (tmp_path / "canary").is_dir()


def test_a_pickle_under_the_name_of_safetensors(folder: Path, canary: Touch) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(canary))
    with pytest.raises(CorruptCheckpointError, match="its weights cannot be read"):
        load_model(str(folder), auto_class=CLASSIFIER)


def test_the_weights_of_an_adapter_are_no_pickle(folder: Path, canary: Touch) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    torch.save({"a": canary}, folder / "adapter_model.bin")
    with pytest.raises(InputError, match=r"adapter_model\.bin, whose like can run code"):
        load_model(str(folder), auto_class=CLASSIFIER)
    os.remove(folder / "adapter_model.bin")
    change(folder / "adapter_config.json", _internal=1)
    with pytest.raises(InputError, match=r"adapter_config\.json: _internal is '1', and sets what is inside"):
        load_model(str(folder), auto_class=CLASSIFIER)


PATHS = ["../out.safetensors", "/out.safetensors", "a/b.safetensors", "..\\out.safetensors", "C:out.safetensors", ".."]


@pytest.mark.parametrize("name", [*PATHS, "pytorch_model.bin", "x.json", ".safetensors"])
def test_an_index_names_files_beside_it(folder: Path, canary: Touch, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "out.safetensors")
    for each in ("pytorch_model.bin", "x.json"):
        (folder / each).write_bytes(pickle.dumps(canary))
    index = {"metadata": {}, "weight_map": {"_a": "model-1.safetensors", "b": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json: weight_map is .* no plain name of a file"):
        load_model(str(folder), auto_class=CLASSIFIER)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "transformers_weights", "../out.safetensors"),
        ("config.json", "transformers_weights", "adapter_model.bin"),
        ("config.json", "configuration_files", ["config.4.0.0.json", "config.4.0.0/../../x.json"]),
        ("tokenizer_config.json", "fast_tokenizer_files", ["/tmp/tokenizer.4.0.0.json"]),
    ],
)
def test_a_configuration_names_files_beside_it(folder: Path, file: str, key: str, value: Any) -> None:
    change(folder / file, **{key: value})
    with pytest.raises(InputError, match=f"{file}: {key} is '.*', no plain name of a file"):
        open_all(folder)


def test_another_configuration_is_looked_through_too(folder: Path) -> None:
    change(folder / "config.json", configuration_files=["config.4.0.0.json"])
    change(folder / "config.4.0.0.json", model_type="bert", _attn_implementation="a")
    with pytest.raises(InputError, match=r"config\.4\.0\.0\.json: _attn_implementation is"):
        open_all(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"export_format": "dynamo", "components": {"model": {"file": "model.pt2"}}}, "export_format is 'dynamo'"),
        ({"export_format": "onnx", "components": {"model": {"file": "../out.onnx"}}}, r"file is '\.\./out\.onnx'"),
        ({"export_format": "onnx", "components": {"model": {"file": "model.pt2"}}}, "file is 'model.pt2'"),
    ],
)
def test_an_export_is_onnx_beside_its_list(folder: Path, canary: Touch, content: dict[str, Any], said: str) -> None:
    (folder / "export.json").write_text(json.dumps(content))
    (folder / "model.pt2").write_bytes(pickle.dumps(canary))
    with pytest.raises(InputError, match=f"export.json: {said}"):
        load_exported(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "custom_generate", "x.py"])
def test_links_lead_nowhere_else(folder: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "elsewhere"
    (folder / name).rename(target) if (folder / name).exists() else target.mkdir()
    (folder / name).symlink_to(target)
    with pytest.raises(InputError, match=f"{name} is a link out of its folder: put a copy of the file in its place"):
        open_all(folder)


def test_the_cache_of_the_hub_is_made_of_links(original: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--me--x" / "snapshots" / "0a1b", tmp_path / "models--me--x" / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(original, blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    open_all(snapshot)
    (snapshot / "more.json").symlink_to("../../../elsewhere.json")
    with pytest.raises(InputError, match=r"more\.json is a link out of its folder"):
        open_all(snapshot)


@pytest.mark.parametrize(
    ("file", "keys", "said"),
    [
        ("config.json", {"_attn_implementation_internal": "eager"}, "_attn_implementation_internal is 'eager', and"),
        ("config.json", {"_attn_implementation": "evil/kernel"}, "_attn_implementation is 'evil/kernel', and sets"),
        ("config.json", {"text_config": {"layers": [{"_auto_class": "X"}]}}, "_auto_class is 'X', and sets"),
        ("config.json", {"attn_implementation": "evil/kernel@v1:run"}, "is 'evil/kernel@v1:run', code of the Hub"),
        ("config.json", {"attn_implementation": {"text": "evil/kernel"}}, "'evil/kernel'}\", code of the Hub"),
        ("config.json", {"sub": {"experts_implementation": "a/b"}}, "experts_implementation is 'a/b', code of the"),
        ("tokenizer_config.json", {"_processor_class": "X"}, "tokenizer_config.json: _processor_class is 'X'"),
        ("generation_config.json", {"_x": 1}, "generation_config.json: _x is '1'"),
    ],
)
def test_keys_for_the_inside_of_libraries(folder: Path, file: str, keys: dict[str, Any], said: str) -> None:
    change(folder / file, **keys)
    with pytest.raises(InputError) as caught:
        open_all(folder)
    assert said in str(caught.value) and f"{folder / file}: " in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "7", "\xff"])
def test_what_is_no_json(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"config\.json cannot be read as JSON: mend or remove it"):
        open_all(folder)


# Code


def code_of(canary: Touch) -> str:
    return f"import os\nos.mkdir({str(canary.path)!r})\nclass Mine: pass\n"


def test_altered_code_of_ours_does_not_run(tmp_path: Path, original: Path, canary: Touch) -> None:
    """The classes of this installation stand in for it, whether it was altered or not."""
    folder = tmp_path / "ours"
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8, "head_dim": 8}
    LacunaForSequenceClassification(LacunaConfig.from_family("lacuna", **sizes)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(original / name, folder)
    assert "auto_map" in json.loads((folder / "config.json").read_text())
    open_all(folder)
    for path in folder.glob("*.py"):
        path.write_text(path.read_text() + code_of(canary))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code_of(canary))
    open_all(folder)


def test_code_of_others_runs_when_asked_for(folder: Path, canary: Touch, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "mine.py").write_text(code_of(canary))
    change(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine", CLASSIFIER: "mine.Mine"})
    with pytest.raises(InputError, match=r"contains custom code .* Allow that with --trust_remote_code"):
        load_configuration(str(folder))
    with pytest.raises(InputError, match="Allow that with --trust_remote_code"):
        load_model(str(folder), auto_class=CLASSIFIER)
    assert not canary.path.exists()
    with pytest.raises(AttributeError):  # it is no configuration
        load_configuration(str(folder), trust_remote_code=True)
    canary.path.rmdir()  # it ran


def test_code_of_a_tokenizer_does_not_run(folder: Path, canary: Touch) -> None:
    (folder / "mine.py").write_text(code_of(canary))
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", "mine.Mine"]})
    change(folder / "tokenizer_config.json", tokenizer_class="Mine")
    change(folder / "config.json", custom_pipelines={"text-classification": {"impl": "mine.Mine"}})
    open_all(folder)  # by the classes of transformers


def test_what_is_tried_brings_neither_code_nor_pickles(folder: Path, canary: Touch, run_recipe, monkeypatch) -> None:
    """The recipe looks through the folder where Lacuna is installed, and asks transformers for safetensors anyway."""
    (folder / "model.safetensors").rename(folder / "kept")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(canary))
    (folder / "predictions.jsonl").write_text('{"text": "a"}\n')
    code, said = run_recipe("try_models", "--model", folder)
    assert code == 2 and "the weights are in " in said
    monkeypatch.setitem(sys.modules, "lacuna.common.foreign", None)  # as on a machine without Lacuna
    code, said = run_recipe("try_models", "--model", folder)
    assert code == 2 and "no file named model.safetensors" in said
    monkeypatch.undo()
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "../out/x.safetensors"})
    code, said = run_recipe("try_models", "--model", folder)
    assert code == 2 and "no plain name of a file" in said
    (folder / "model.safetensors.index.json").unlink()
    (folder / "kept").rename(folder / "model.safetensors")
    (folder / "mine.py").write_text(code_of(canary))
    change(folder / "config.json", auto_map={"AutoConfig": "mine.Mine", CLASSIFIER: "mine.Mine"}, model_type="mine")
    code, said = run_recipe("try_models", "--model", folder)
    assert code == 2 and "contains custom code" in said


# sentence-transformers


@pytest.fixture
def encoder(folder: Path) -> Callable[..., None]:
    """Plants modules and opens them."""
    pytest.importorskip("sentence_transformers")
    from lacuna.tasks.embeddings.encoders import load_encoder

    def run(*changes: dict[str, Any], **options: Any) -> None:
        names = [("", "Transformer"), ("1_Pooling", "Pooling")]
        modules = [
            {"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in names
        ]
        for module, changed in zip(modules, changes, strict=False):
            module |= changed
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        change(folder / "1_Pooling" / "config.json", word_embedding_dimension=8, pooling_mode_mean_tokens=True)
        load_encoder(model=str(folder), **options)

    return run


def test_modules_are_their_own(folder: Path, encoder: Callable[..., None], canary: Touch, monkeypatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "evil.py").write_text(code_of(canary))
    encoder()
    with pytest.raises(InputError, match=r"the module class 'evil\.Mine'"):
        encoder({}, {"type": "evil.Mine"})
    with pytest.raises(InputError, match=r"modules\.json: type is 'sentence_transformers\..*\.torch', no module"):
        encoder({}, {"type": "sentence_transformers.base.model.torch"})
    for path in ("../1_Pooling", "/1_Pooling", "Pooling", "1_Pooling/.."):
        with pytest.raises(InputError, match=r"modules\.json: path is '.*', no name of a module's folder"):
            encoder({}, {"path": path})


def test_modules_hold_no_pickles_and_no_orders(folder: Path, encoder: Callable[..., None], canary: Touch) -> None:
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    (folder / "2_Dense").mkdir()
    torch.save({"linear.weight": canary}, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"2_Dense/pytorch_model\.bin, whose like can run code"):
        encoder({}, dense)
    shutil.rmtree(folder / "2_Dense")
    change(folder / "sentence_bert_config.json", model_args={"weights_only": False, "use_safetensors": False})
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(canary))
    with pytest.raises(InputError, match=r"sentence_bert_config\.json: model_args is .* of which only attn_impl"):
        encoder()
    change(folder / "sentence_bert_config.json", model_args={"torch_dtype": "float32"})
    with pytest.raises(InputError, match=r"no file named model\.safetensors"):
        encoder()


# Tokenizers


def plant(folder: Path, **parts: Any) -> None:
    change(folder / "tokenizer.json", **parts)


SPLIT_IN_NOTHING = {"type": "FixedLength", "length": 0}
NO_SUCH_TOKEN = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
NO_SUCH_TOKEN |= {"single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}]}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"pre_tokenizer": SPLIT_IN_NOTHING},
        {"post_processor": NO_SUCH_TOKEN},
    ],
    ids=["when it is read", "when it reads", "at the end"],
)
def test_a_panic_is_a_message(folder: Path, parts: dict[str, Any]) -> None:
    plant(folder, **parts)
    with pytest.raises(InputError, match=r"cannot load the tokenizer of --model .* tokenizers library fail"):
        load_tokenizer(str(folder))
    with pytest.raises(InputError, match=r"does not hold a tokenizer that can be read .* tokenizers library fail"):
        load_tokenizer_files(folder)


def test_words_that_no_merge_can_make_are_a_message(folder: Path) -> None:
    broken = {"type": "BPE", "vocab": {"a": 0, "ab": 1}, "merges": [["a", "b"]]}
    plant(folder, model=broken)
    with pytest.raises(InputError, match=r"tokenizers library fail .*out of vocabulary"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", {"hidden_size": "many"}, "cannot be read: .*hidden_size"),
        ("tokenizer_config.json", [], "tokenizer_config.json cannot be read as JSON"),
        ("model.safetensors.index.json", {"weight_map": {"a": 3}}, "weight_map is '3', no plain name"),
    ],
)
def test_values_of_a_wrong_kind_are_a_message(folder: Path, name: str, content: Any, said: str) -> None:
    if isinstance(content, dict):
        change(folder / name, **content)
    else:
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        open_all(folder)


TWICE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ANYWHERE = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 40}
BOTH = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2, "pair": []}
GROWING = {
    "replacements": {"normalizer": {"type": "Sequence", "normalizers": [TWICE] * 40}},
    "anywhere": {"normalizer": {"type": "Sequence", "normalizers": [ANYWHERE] * 3}},
    "nested": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [TWICE] * 20}]}},
    "prefix": {"normalizer": {"type": "Prepend", "prepend": "a" * 10_000}},
    "bytes of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 30}},
    "copies": {"post_processor": {"type": "Sequence", "processors": [{**BOTH, "special_tokens": {}}] * 30}},
    "decoder": {"decoder": {"type": "Sequence", "decoders": [TWICE] * 40}},
}


@pytest.mark.parametrize("name", GROWING)
def test_text_that_would_grow_without_end(folder: Path, name: str) -> None:
    (part,) = GROWING[name]
    plant(folder, **GROWING[name])
    with pytest.raises(InputError, match=rf"tokenizer\.json: its {part} makes up to .* of one, and 1,000 are allowed"):
        load_tokenizer(str(folder))
    with pytest.raises(InputError, match=rf"tokenizer\.json: its {part} makes up to"):
        load_tokenizer_files(folder)


def test_tokenizers_that_are_in_use_grow_little(folder: Path) -> None:
    """As in BERT, RoBERTa, Llama, T5 and what fine-tuning makes of ours."""
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [("[CLS]", 2), ("[SEP]", 3)]
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    for normalizer, pre_tokenizer, decoder in (
        (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
        (normalizers.NFKC(), pre_tokenizers.ByteLevel(), decoders.ByteLevel()),
        (
            normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
            None,
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        ),
        (
            normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents()]),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
            decoders.Metaspace(),
        ),
        (normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")]), pre_tokenizers.ByteLevel(), None),
    ):
        core.normalizer, core.pre_tokenizer, core.decoder = normalizer, pre_tokenizer, decoder
        core.post_processor = processors.Sequence([processors.ByteLevel(), template])
        core.save(str(folder / "tokenizer.json"))
        check_foreign(folder, tokenizer=True)


def test_the_bound_is_the_one_that_is_told(folder: Path) -> None:
    plant(folder, normalizer={"type": "Prepend", "prepend": "a" * (MOST_GROWTH - 1)})
    load_tokenizer(str(folder))
    plant(folder, normalizer={"type": "Prepend", "prepend": "a" * MOST_GROWTH})
    with pytest.raises(InputError, match="makes up to 1e"):
        load_tokenizer(str(folder))


# The Hub


def test_a_model_of_the_hub_is_looked_through_before_it_is_opened(
    folder: Path, canary: Touch, tmp_path: Path, monkeypatch
) -> None:
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path / "home"):
        model = hub.add("me/model", good)
        open_all("me/model")
        config = json.loads(good["config.json"]) | {"_attn_implementation_internal": "evil/kernel"}
        planted = model.commit("main", {**good, "config.json": json.dumps(config).encode()})
        with pytest.raises(InputError, match=r"config\.json: _attn_implementation_internal is"):
            load_configuration("me/model", revision=planted)
        index = json.dumps({"metadata": {}, "weight_map": {"a": "../../../out.safetensors"}}).encode()
        planted = model.commit("main", {**good, "model.safetensors.index.json": index})
        with pytest.raises(InputError, match="weight_map is"):
            load_model("me/model", auto_class=CLASSIFIER, revision=planted)
        pickled = {name: data for name, data in good.items() if name != "model.safetensors"}
        planted = model.commit("main", {**pickled, "pytorch_model.bin": pickle.dumps(canary)})
        with pytest.raises(InputError, match=r"no.* model\.safetensors.* Weights in other files can run code"):
            load_model("me/model", auto_class=CLASSIFIER, revision=planted)
        adapter = json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(folder)}).encode()
        adapted = {"adapter_config.json": adapter, "adapter_model.bin": pickle.dumps(canary)}
        planted = model.commit("main", {**good, **adapted})
        with pytest.raises(InputError, match="--model me/model has an adapter, which names another model"):
            load_model("me/model", auto_class=CLASSIFIER, revision=planted)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what is in the cache is looked through
        hub.models.clear()
        (index_file,) = tmp_path.glob("home/hub/*/snapshots/*/model.safetensors.index.json")
        for _ in ("all that is asked for", "not all"):
            with pytest.raises(InputError, match="weight_map is"):
                load_model("me/model", auto_class=CLASSIFIER, revision=index_file.parent.name)
            (index_file.parent / "tokenizer.json").unlink(missing_ok=True)


# Text


def test_what_was_saved_by_datasets_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    for name in ("out.arrow", "inside/in.arrow"):
        (tmp_path / name).write_bytes(b"")
    change(tmp_path / "inside" / "state.json", _data_files=[{"filename": "in.arrow"}])
    assert [path.name for path in saved_files(tmp_path / "inside", None)] == ["in.arrow"]
    for name in ("../out.arrow", str(tmp_path / "out.arrow")):
        change(tmp_path / "inside" / "state.json", _data_files=[{"filename": name}])
        with pytest.raises(InputError, match=r"inside/out\.arrow is missing"):
            saved_files(tmp_path / "inside", None)
    change(tmp_path / "state.json", _data_files=[{"filename": "out.arrow"}])
    change(tmp_path / "inside" / "dataset_dict.json", splits=[".."])
    os.remove(tmp_path / "inside" / "state.json")
    with pytest.raises(InputError, match="inside is no longer there"):
        saved_files(tmp_path / "inside", None)


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "..", ""])
def test_the_files_of_a_store_are_in_it(tmp_path: Path, name: str) -> None:
    about = {"bytes": 0, "sha256": ""}
    content = {"format_version": FORMAT_VERSION, "shards": [{"name": name, "files": dict.fromkeys(FILES, about)}]}
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(InputError, match="has other parts than 00000"):
        open_store(tmp_path)
