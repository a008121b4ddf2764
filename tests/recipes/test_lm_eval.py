"""lm-evaluation-harness reads a decoder of ours as any other model, and counts the bits that we count."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import TEXTS
from transformers import AutoTokenizer

from lacuna.modeling import LacunaForCausalLM

lm_eval = pytest.importorskip("lm_eval", reason="pip install -e .[harness]")
TASK = """\
task: my_task
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""


@pytest.fixture(params=["native", "with its own code"])
def folder(request: pytest.FixtureRequest, folder_of, tmp_path: Path) -> Path:
    """A decoder as a class of transformers, or as ours with the code beside it; and its text, `rows.jsonl`."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    ours = folder_of("qwen3", "LacunaForCausalLM")
    if request.param != "native":
        return ours
    LacunaForCausalLM.from_pretrained(ours).to_native().save_pretrained(tmp_path / "native")
    AutoTokenizer.from_pretrained(ours).save_pretrained(tmp_path / "native")
    return tmp_path / "native"


@pytest.fixture
def our_bits(folder: Path, run_recipe, tmp_path: Path) -> float:
    words = ["--model", folder, "--data", tmp_path / "rows.jsonl", "--output_file", tmp_path / "found.json"]
    assert run_recipe("evaluate_language_model", *words)[0] == 0
    return json.loads((tmp_path / "found.json").read_text())["bits_per_byte"]


def test_bits_per_byte_are_those_of_the_harness(folder: Path, our_bits: float) -> None:
    """We score a document after [CLS]; the harness scores a second one, unless `add_bos_token=False`."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    options = {"add_bos_token": False, "device": "cpu", "dtype": "float32", "trust_remote_code": True}
    model = HFLM(pretrained=str(folder), **options)
    asked = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(TEXTS)]
    nats = -sum(model.loglikelihood_rolling(asked))
    bits = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert our_bits == pytest.approx(bits, abs=1e-4)


def test_its_command_finds_the_same(folder: Path, our_bits: float, tmp_path: Path) -> None:
    """A local task, from a folder where nothing of ours can be imported; code that a model brings is run."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "my_task.yaml").write_text(TASK.replace("ROWS", str(tmp_path / "rows.jsonl")))
    given = f"pretrained={folder},trust_remote_code=True,add_bos_token=False,dtype=float32"
    words = ["--model", "hf", "--model_args", given, "--tasks", "my_task", "--include_path", tmp_path / "tasks"]
    words += ["--device", "cpu", "--output_path", tmp_path / "results"]
    caches = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | caches
    command = [sys.executable, "-m", "lm_eval", *map(str, words)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "results").rglob("results_*.json")
    found = json.loads(path.read_text())["results"]["my_task"]
    assert our_bits == pytest.approx(found["bits_per_byte,none"], abs=1e-4)
    assert "|my_task|" in done.stdout
