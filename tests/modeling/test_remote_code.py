"""Checkpoints in a process that has never heard of this repository.

One subprocess (its imports alone take seconds) loads the checkpoints that the chosen tests ask for, some through every
Auto class that they offer, and writes down what it found; the tests here read that. It runs isolated (`python -I`),
somewhere else, with our packages blocked: the development environment has an editable install of them.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples import fast
from safetensors.torch import save_file

from lacuna import modeling
from lacuna.modeling import HEADS, LacunaConfig

STRANGER = '''
import importlib, json, sys
from pathlib import Path

ROOMS = {"lacuna", "modeling", "tokenization", "corpus", "objectives", "training", "tasks", "evaluation", "recipes"}


class Absent:
    """Makes the packages of the repository impossible to import, however they are installed."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ROOMS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
for room in sorted(ROOMS):
    try:
        importlib.import_module(room)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{room} can be imported: this process proves nothing")

import tokenizers
import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
root, found = Path(sys.argv[1]), {}
OUTPUTS = ("last_hidden_state", "logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits")


def run(model, inputs):
    given = dict(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
    if "MultipleChoice" in type(model).__name__:
        given = {name: tensor.unsqueeze(0) for name, tensor in given.items()}
    with torch.no_grad():
        outputs = model.eval()(**given)
    return {name: outputs[name] for name in OUTPUTS if outputs.get(name) is not None}


def difference(mine, expected):
    shared = {"logits": "prediction_logits"} if "prediction_logits" in expected else {}
    pairs = [(mine[name], expected.get(name, expected.get(shared.get(name)))) for name in mine]
    pairs = [(a, b) for a, b in pairs if b is not None and a.shape == b.shape]
    return max((float((a - b).abs().max()) for a, b in pairs), default=None)


for folder in sorted(path for path in root.iterdir() if (path / "config.json").exists()):
    inputs, expected = load_file(folder / "inputs.safetensors"), load_file(folder / "outputs.safetensors")
    entry = found[folder.name] = {"heads": {}, "refused": {}}
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    entry["config_module"] = type(config).__module__
    own = {name for name in config.auto_map if config.auto_map[name].endswith("." + config.architectures[0])}
    others = set(config.auto_map) if folder.name in sys.argv[3].split(",") else own | {"AutoModel"}
    for auto_name in sorted(others - {"AutoConfig"}):
        auto_class = getattr(transformers, auto_name)
        model, info = auto_class.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
        outputs = run(model, inputs)
        head = entry["heads"][auto_name] = {
            "class": type(model).__name__,
            "module": type(model).__module__,
            "missing": sorted(info["missing_keys"]),
            "unexpected": sorted(info["unexpected_keys"]),
            "difference": difference(outputs, expected),
        }
        if head["class"] in config.architectures:  # saved by somebody who has nothing of ours, and loaded again
            again = root / "again" / folder.name / auto_name
            model.save_pretrained(again)
            second = auto_class.from_pretrained(again, trust_remote_code=True)
            head["difference_again"] = difference(run(second, inputs), outputs)
            head["files"] = sorted(path.name for path in again.iterdir())
            head["auto_map"] = sorted(json.loads((again / "config.json").read_text())["auto_map"])
        if auto_name in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
            generated = model.generate(inputs["input_ids"][:1, :5], max_new_tokens=8, do_sample=False)
            entry["generated"] = generated[0].tolist()
    for auto_name in ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"):
        if auto_name not in config.auto_map:
            try:
                getattr(transformers, auto_name).from_pretrained(folder, trust_remote_code=True)
            except ValueError as error:
                entry["refused"][auto_name] = str(error)[:200]

try:
    transformers.AutoModel.from_pretrained(folder, trust_remote_code=False)
    found["trusted_unasked"] = True
except ValueError:
    found["trusted_unasked"] = False
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"gap": 0, "[UNK]": 1}, unk_token="[UNK]"))
transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
found["tokens"] = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)("gap").input_ids
found["ours"] = sorted(name for name in sys.modules if name.split(".")[0] in ROOMS)
Path(sys.argv[2]).write_text(json.dumps(found))
'''

CHECKPOINTS = {
    "bert_pretraining": ("bert", "LacunaForPreTraining"),
    "modernbert_pretraining": ("modernbert", "LacunaForPreTraining"),
    "modernbert_masked": ("modernbert", "LacunaForMaskedLM"),
    "modernbert_backbone": ("modernbert", "LacunaModel"),
    "bert_classifier": ("bert", "LacunaForSequenceClassification"),
    "modernbert_answers": ("modernbert", "LacunaForQuestionAnswering"),
    "bert_choice": ("bert", "LacunaForMultipleChoice"),
    "modernbert_tags": ("modernbert", "LacunaForTokenClassification"),
    "gpt2_causal": ("gpt2", "LacunaForCausalLM"),
    "llama_tags": ("llama", "LacunaForTokenClassification"),
    "bart_writer": ("bart", "LacunaForConditionalGeneration"),
    "bart_classifier": ("bart", "LacunaForSequenceClassification"),
    "bart_answers": ("bart", "LacunaForQuestionAnswering"),
    "vaswani_backbone": ("vaswani", "LacunaModel"),
    "qwen3_causal": ("qwen3", "LacunaForCausalLM"),
    "qwen3_backbone": ("qwen3", "LacunaModel"),
    "qwen3_classifier": ("qwen3", "LacunaForSequenceClassification"),
    "qwen3_answers": ("qwen3", "LacunaForQuestionAnswering"),
}
WITH_ALL_HEADS = ("bert_pretraining", "modernbert_pretraining", "qwen3_causal", "bart_writer")
"""Loaded by every Auto class; the others by their own, and as a backbone."""
NAMES = fast(CHECKPOINTS, *WITH_ALL_HEADS)
CODE = {
    f"{name}_lacuna.py"
    for name in [
        "attention",
        "checks",
        "configuration",
        "families",
        "kernels",
        "layers",
        "losses",
        "masks",
        "modeling",
    ]
}


def save_checkpoint(folder: Path, *, family: str, head: str) -> list[int]:
    """Write a checkpoint with random weights, an input, and what the model makes of it; returns a continuation."""
    torch.manual_seed(len(folder.name))
    config = LacunaConfig.from_family(
        family, vocab_size=80, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, sliding_window=4,
        head_dim=16, initializer_range=0.2,
    )  # fmt: skip
    model = getattr(modeling, head)(config).eval()
    model.save_pretrained(folder)
    ids = torch.randint(5, 80, (2, 24))
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if head == "LacunaForMultipleChoice":
        given = {name: tensor.unsqueeze(0) for name, tensor in given.items()}
    with torch.no_grad():
        outputs = model(**given)
    save_file({"input_ids": ids, "attention_mask": mask}, folder / "inputs.safetensors")
    tensors = {name: value.contiguous() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    save_file(tensors, folder / "outputs.safetensors")
    if not model.can_generate():
        return []
    return model.generate(ids[:1, :5], max_new_tokens=8, do_sample=False)[0].tolist()


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[Path, dict[str, list[int]]]:
    root = tmp_path_factory.mktemp("checkpoints")
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {item.callspec.params.get("name") for item in here} or {"qwen3_causal"}
    return root, {
        name: save_checkpoint(root / name, family=family, head=head)
        for name, (family, head) in CHECKPOINTS.items()
        if name in asked
    }


@pytest.fixture(scope="module")
def found(saved, tmp_path_factory) -> dict:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "stranger.py").write_text(STRANGER)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"HF_HOME": str(elsewhere / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "stranger.py", str(saved[0]), "found.json", ",".join(WITH_ALL_HEADS)],
        cwd=elsewhere,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((elsewhere / "found.json").read_text())


def test_the_stranger_had_nothing_of_ours(saved, found: dict) -> None:
    assert found["ours"] == []
    assert found["trusted_unasked"] is False
    assert found["tokens"] == [0]  # a tokenizer runs no code, and is not held back by the model's
    for name in saved[1]:
        assert found[name]["config_module"].startswith("transformers_modules.")
        for head in found[name]["heads"].values():
            assert head["module"].startswith("transformers_modules.")


@pytest.mark.parametrize("name", NAMES)
def test_every_matching_auto_class_loads(name: str, found: dict) -> None:
    family, saved_head = CHECKPOINTS[name]
    shape = LacunaConfig.from_family(family).shape
    heads = found[name]["heads"]
    classes = {auto_name: head["class"] for auto_name, head in heads.items()}
    assert classes == {auto_name: HEADS[shape][auto_name] for auto_name in classes}
    assert saved_head in classes.values() and (len(classes) == len(HEADS[shape]) or name not in WITH_ALL_HEADS)
    for auto_name, head in heads.items():
        if head["class"] == saved_head:
            assert head["missing"] == head["unexpected"] == []
            assert head["difference"] < 1e-6
            assert head["difference_again"] < 1e-6  # weights lie elsewhere in memory, where a kernel rounds otherwise
            assert set(head["files"]) >= CODE | {"config.json", "model.safetensors"}
            assert "conversion.py" not in head["files"]
            assert head["auto_map"] == sorted({"AutoConfig", *HEADS[shape]})
        elif auto_name == "AutoModel":
            assert all(key.startswith("pooler.") for key in head["missing"])


@pytest.mark.parametrize("name", ["bert_pretraining", "modernbert_pretraining"])
def test_masked_lm_takes_the_prediction_head_of_pretraining(name: str, found: dict) -> None:
    head = found[name]["heads"]["AutoModelForMaskedLM"]
    assert head["missing"] == []
    assert head["difference"] < 1e-6


@pytest.mark.parametrize(
    ("name", "auto_name", "new"),
    [
        ("bert_pretraining", "AutoModelForSequenceClassification", {"classifier.weight", "classifier.bias"}),
        ("bert_pretraining", "AutoModelForQuestionAnswering", {"qa_outputs.weight", "qa_outputs.bias"}),
        ("modernbert_pretraining", "AutoModelForSequenceClassification", {"classifier.weight", "classifier.bias"}),
        ("modernbert_pretraining", "AutoModelForQuestionAnswering", {"qa_outputs.weight", "qa_outputs.bias"}),
        ("qwen3_causal", "AutoModelForSequenceClassification", {"classifier.weight"}),
        ("qwen3_causal", "AutoModelForQuestionAnswering", {"qa_outputs.weight", "qa_outputs.bias"}),
    ],
)
def test_fine_tuning_starts_from_everything_but_the_last_projection(
    name: str, auto_name: str, new: set, found: dict
) -> None:
    assert set(found[name]["heads"][auto_name]["missing"]) == new


@pytest.mark.parametrize("name", NAMES)
def test_heads_of_another_shape_are_refused(name: str, found: dict) -> None:
    shape = LacunaConfig.from_family(CHECKPOINTS[name][0]).shape
    own = {
        "encoder": "AutoModelForMaskedLM",
        "decoder": "AutoModelForCausalLM",
        "encoder-decoder": "AutoModelForSeq2SeqLM",
    }
    assert set(found[name]["refused"]) == set(own.values()) - {own[shape]}


@pytest.mark.parametrize("name", fast(["gpt2_causal", "qwen3_causal", "bart_writer"], "qwen3_causal", "bart_writer"))
def test_a_stranger_generates_the_same(name: str, saved, found: dict) -> None:
    assert found[name]["generated"] == saved[1][name] != []


def test_the_code_that_travels_imports_torch_and_transformers_only() -> None:
    folder = Path(modeling.__file__).parent
    for name in CODE:
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and f"{node.module}.py" in CODE, (name, node.lineno)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                allowed = {*sys.stdlib_module_names, "torch", "transformers", "huggingface_hub"}
                assert {str(each).split(".")[0] for each in names} <= allowed, (name, node.lineno)
