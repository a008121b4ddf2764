"""recipes/push_model.py and --push_to_hub: what is pushed is loaded elsewhere by its name; failures cost no model."""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from accelerate.state import AcceleratorState
from hub_server import READER, TOKEN, HubServer
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from small_models import TEXTS
from transformers import AutoModelForMaskedLM, AutoTokenizer

from lacuna import tokenization
from lacuna.common.hub import push_model

REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = "the a cat dog bird sat ran sang on under over mat tree house and but then when it was so very old new"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, rows with labels, pairs, and a tokenizer."""
    folder, chance = tmp_path_factory.mktemp("home"), random.Random(0)
    texts = [f"{' '.join(chance.choices(WORDS.split(), k=40)).capitalize()}." for _ in range(60)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "train.csv").write_text("text,label\n" + "".join(f"{text},{len(text) % 2}x\n" for text in texts))
    pairs = [json.dumps({"anchor": text, "positive": text[:40]}) + "\n" for text in texts]
    (folder / "pairs.jsonl").write_text("".join(pairs))
    tokenizer = tokenization.train_bpe(documents=texts, vocab_size=300)
    tokenization.save_tokenizer(tokenizer=tokenizer, output_dir=folder / "tokenizer")
    return folder


@pytest.fixture(autouse=True)
def other_trainers() -> Iterator[None]:
    """What accelerate keeps for the whole process is not that of the tests before, nor is ours that of those after."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server, server.environment(monkeypatch, tmp_path / "hub_home"):
        yield server


# A process that finds the libraries but not the links to this repository among them.
STRANGER = """
import importlib.util, sys
sys.path.append(sys.argv[1])
assert importlib.util.find_spec("lacuna") is None and importlib.util.find_spec("modeling") is None
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer
for name, revision in zip(("ours", "native"), sys.argv[3:], strict=True):
    how = {"revision": revision} | ({"trust_remote_code": True} if name == "ours" else {})
    tokenizer = AutoTokenizer.from_pretrained(f"me/{name}", **how)
    model = AutoModelForMaskedLM.from_pretrained(f"me/{name}", **how).eval()
    assert type(model).__module__.startswith("transformers_modules." if name == "ours" else "transformers.models.")
    logits = model(**tokenizer(sys.argv[2], return_tensors="pt")).logits.detach()
    save_file({"logits": logits}, f"{name}.safetensors")
"""


def test_what_is_pushed_is_loaded_by_its_name_in_a_process_without_the_repository(
    hub: HubServer, typed, folder_of, tmp_path: Path
) -> None:
    folders = {"ours": folder_of("modernbert", "LacunaForMaskedLM"), "native": tmp_path / "native"}
    ours, tokenizer = (auto.from_pretrained(folders["ours"]) for auto in (AutoModelForMaskedLM, AutoTokenizer))
    ours.to_native().save_pretrained(folders["native"])
    tokenizer.save_pretrained(folders["native"])
    commits = []
    for name, folder in folders.items():
        (folder / "README.md").write_text("---\ntags:\n- lacuna\n---\n")
        (folder / "run.json").write_text("/home/anna")
        (folder / "training_state").mkdir()
        (folder / "training_state" / "optimizer.safetensors").write_text("large")
        pushed = f"me/{name}"
        code, out, err = typed("push_model", "--model", folder, "--to", pushed)
        assert code == 0 and TOKEN not in out + err, err
        commits.append(hub.models[pushed].branches["main"])
        assert f"to {hub.endpoint}/{pushed}/tree/{commits[-1]} (only its owner sees it)" in out
        code_files = {path.name for path in folder.glob("*_lacuna.py")}
        files = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
        assert hub.models[pushed].private and hub.files(pushed).keys() == files | code_files
        assert len(code_files) > 5 if name == "ours" else not code_files
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    environment = plain | {"OMP_NUM_THREADS": "1"} | hub.variables(tmp_path / "pulling", token=READER)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    command = [sys.executable, "-I", "-S", "-c", STRANGER, libraries, TEXTS[2], *commits]
    pull = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert pull.returncode == 0, pull.stderr[-3000:]
    for name, folder in folders.items():
        with torch.no_grad():
            inputs = AutoTokenizer.from_pretrained(folder)(TEXTS[2], return_tensors="pt")
            expected = AutoModelForMaskedLM.from_pretrained(folder).eval()(**inputs).logits
        assert torch.equal(load_file(tmp_path / f"{name}.safetensors")["logits"], expected)


def test_mistakes_are_one_line_and_nothing_is_pushed(
    hub: HubServer, folder_of, run_recipe, monkeypatch, capsys
) -> None:
    folder = folder_of("bert", "LacunaForMaskedLM")
    capsys.readouterr()
    words = ["--model", folder, "--to", "me/gaps"]
    for given, said in (
        ([], "name the folder of a model with --model"),
        (words[:2], "--to OWNER/NAME"),
        (["--model", "nowhere", *words[2:]], "there is no folder nowhere"),
        ([*words[:2], "--to", "gaps"], "--to gaps is not OWNER/NAME"),
        ([*words, "--token", TOKEN[:9]], "unknown option '--token'"),
    ):
        code, shown = run_recipe("push_model", *given)
        assert code == 2 and shown.startswith("error: ") and said in shown and shown.count("\n") == 1, shown
    (folder / "README.md").write_text(f"---\n---\nexport HF_TOKEN={TOKEN}\n")
    code, shown = run_recipe("push_model", *words)
    assert code == 2 and "README.md:3 holds an access token" in shown and TOKEN not in shown
    (folder / "README.md").write_text("---\n---\n")
    monkeypatch.delenv("HF_TOKEN")
    code, shown = run_recipe("push_model", *words)
    assert code == 2 and "nobody is logged in to the Hub" in shown and "hf auth login" in shown
    assert hub.requests == []
    Path(huggingface_hub.constants.HF_TOKEN_PATH).parent.mkdir(exist_ok=True)
    Path(huggingface_hub.constants.HF_TOKEN_PATH).write_text(TOKEN)  # what `hf auth login` leaves
    assert run_recipe("push_model", *words, "--public", "--revision", "v1", "--license", "mit")[0] == 0
    assert ModelCard(hub.files("me/gaps", "v1")["README.md"].decode()).data.license == "mit"
    assert not hub.models["me/gaps"].private and hub.files("me/gaps") == {} and hub.files("me/gaps", "v1")
    hub.fail("commit/", status=403)
    code, shown = run_recipe("push_model", *words, "--public")
    assert code == 6 and "error: me/gaps: the Hub (HTTP 403)" in shown and "Traceback" not in shown


def tuned(home: Path, base: Path, output: Path) -> list[object]:
    return [
        *("--model", base, "--train_file", "train.csv", "--output_dir", output, "--max_steps", 1, "--batch_size", 8),
        *("--push_to_hub", "me/judge"),
    ]


def test_a_run_that_the_hub_fails_keeps_its_model_and_says_how_to_push_it(
    hub: HubServer, home, recipe, run_recipe, folder_of, tmp_path
) -> None:
    hub.fail("", status=503, times=999)
    output = tmp_path / "judge"
    options = tuned(home, folder_of("modernbert", "LacunaForMaskedLM"), output)
    code, said = recipe("finetune_classification", *options, "--save_steps", 1, "--push_steps", 1)
    assert code == 6 and "Traceback" not in said and TOKEN not in said
    assert said.count("warning: pushing step-1 failed: me/judge: the Hub (HTTP 503) has trouble") == 1
    assert f"error: the model is in {output}, but not on the Hub: me/judge: the Hub (HTTP 503) has trouble" in said
    again = f"to push it: python recipes/push_model.py --model {output} --to me/judge\n"
    assert again in said and hub.models == {}
    written = {"config.json", "model.safetensors", "README.md", "results.json", "report.md", "task.json", "run.json"}
    assert written <= {path.name for path in output.iterdir()}
    hub.failures.clear()
    assert run_recipe("push_model", *again.split()[5:])[0] == 0
    found = hub.files("me/judge").keys()
    assert {"config.json", "model.safetensors", "README.md", "results.json", "task.json"} <= found
    assert (
        not {"run.json", "metrics.jsonl", "predictions.jsonl", "report.md"} & found and hub.models["me/judge"].private
    )


def loaded(card: str | Path) -> dict[str, float]:
    """What the code of a card loads as it stands, as a sum of each weight; of a file in the folder where it is."""
    found: dict[str, Any] = {}
    place = card.parent if isinstance(card, Path) else Path()
    text = card.read_text() if isinstance(card, Path) else card
    ModelCard(text).validate()
    with contextlib.chdir(place):
        exec(text.split("```python\n")[1].split("```")[0], found)
    weights = found["encoder" if "encoder" in found else "model"].state_dict()
    return {name: float(weight.double().sum()) for name, weight in weights.items()}


def test_every_recipe_that_trains_pushes_at_its_end(hub: HubServer, home, recipe, folder_of, tmp_path) -> None:
    options = ["--data", "a.jsonl", "--tokenizer", "tokenizer", "--objective", "mlm", "--sequence_length", 32]
    options += ["--max_steps", 2, "--batch_size", 8, "--save_steps", 1, "--output_dir", tmp_path / "gaps"]
    options += ["--optimizer", "adamw", "--num_hidden_layers", 1]
    hub.fail("refs", status=500)
    code, said = recipe("pretrain", *options, "--push_to_hub", "me/gaps", "--push_steps", 1)
    assert code == 0 and said.count("warning: ") == said.count("warning: pushing step-") == 1, said
    assert [*hub.models["me/gaps"].tags] == ["step-2"] and len(hub.models["me/gaps"].commits) == 4
    cards = [hub.files("me/gaps", revision)["README.md"].decode() for revision in ("main", "step-2")]
    assert loaded(cards[0]) == loaded(cards[1]) == loaded(tmp_path / "gaps" / "README.md")
    assert 'revision="step-2"' in cards[1] and "revision" not in cards[0]
    assert {"config.json", "model.safetensors", "results.json"} <= hub.files("me/gaps").keys()
    assert not any("/" in path for path in hub.files("me/gaps"))
    code, said = recipe("finetune_classification", *tuned(home, tmp_path / "gaps", tmp_path / "judge"), "--seeds", 2)
    assert code == 0, said
    assert (tmp_path / "judge" / "model.safetensors").read_bytes() == hub.files("me/judge")["model.safetensors"]
    pytest.importorskip("sentence_transformers")
    options = ["--model", tmp_path / "gaps", "--train_file", "pairs.jsonl", "--output_dir", tmp_path / "near"]
    code, said = recipe("finetune_embeddings", *options, "--max_steps", 1, "--push_to_hub", "me/near")
    assert code == 0, said
    assert {"modules.json", "1_Pooling/config.json", "config.json"} <= hub.files("me/near").keys()
    assert loaded(hub.files("me/near")["README.md"].decode()) == loaded(tmp_path / "near" / "README.md")
    assert all(model.private for model in hub.models.values()) and len(hub.models) == 3


@pytest.mark.parametrize("name", ["pretrain", "finetune_classification", "finetune_embeddings"])
def test_what_could_never_be_pushed_is_told_before_training(
    hub: HubServer, home, recipe, folder_of, tmp_path, monkeypatch, name: str
) -> None:
    output, base = tmp_path / "out", folder_of("bert", "LacunaForMaskedLM")
    options = ["--output_dir", output]
    options += [] if name == "pretrain" else ["--model", base, "--train_file", home / "train.csv"]
    code, said = recipe(name, *options, "--push_to_hub", "judge")
    assert code == 2 and "--push_to_hub judge is not OWNER/NAME" in said
    monkeypatch.delenv("HF_TOKEN")
    code, said = recipe(name, *options, "--push_to_hub", "me/judge")
    assert code == 2 and "--push_to_hub me/judge: nobody is logged in to the Hub: log in with `hf auth login`" in said
    assert not output.exists() and hub.requests == []


def test_a_model_of_the_hub_is_taken_at_one_commit(hub: HubServer, home, recipe, folder_of, tmp_path) -> None:
    first = push_model(folder=folder_of("modernbert", "LacunaForMaskedLM"), name="me/gaps").commit
    model = hub.models["me/gaps"]
    model.tags["v1"] = first
    model.commit("main", {"config.json": b"broken since"})
    start = ["--model", "me/gaps", "--revision", "v1"]
    steps = ["--max_steps", 1, "--batch_size", 8]
    options = ["--train_file", "train.csv", "--push_to_hub", "me/judge"]
    code, said = recipe("finetune_classification", *start, *options, *steps, "--output_dir", tmp_path / "judge")
    assert code == 0, said
    options = ["--data", "a.jsonl", "--objective", "mlm", "--sequence_length", 32, "--save_steps", 0]
    code, said = recipe("pretrain", *start, *options, *steps, "--output_dir", tmp_path / "more")
    assert code == 0, said
    for name in ("judge", "more"):
        about = json.loads((tmp_path / name / "run.json").read_text())
        assert (about["model"], about["revision"]) == ("me/gaps", first)
    assert "base_model: me/gaps" in (tmp_path / "judge" / "README.md").read_text()
    options = ["--data", "a.jsonl", "--max_examples", 2, "--output_file", tmp_path / "found.json"]
    code, said = recipe("evaluate_language_model", *start, *options)
    assert code == 0, said
    assert json.loads((tmp_path / "found.json").read_text())["revision"] == first
    options = ["--input", "train.csv", "--output", tmp_path / "answers.csv"]
    code, said = recipe("predict", "--model", "me/judge", *options)  # its task.json is on the Hub
    assert code == 0, said
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 61
    assert not [asked for asked in hub.requests if "/resolve/main/" in asked and "me/gaps" in asked]
    code, said = recipe("predict", *start[:2], *options, "--overwrite", "--revision", "v2")
    assert code == 6 and "error: --model me/gaps --revision v2: the Hub (HTTP 404) knows no such model" in said
    code, said = recipe("predict", "--model", tmp_path / "judge", *options, "--overwrite", "--revision", "v1")
    assert code == 2 and "--revision v1 is for a --model of the Hub" in said
    pytest.importorskip("sentence_transformers")
    options = ["--train_file", "pairs.jsonl", "--output_dir", tmp_path / "near", "--push_to_hub", "me/near"]
    code, said = recipe("finetune_embeddings", *start, *options, "--max_steps", 1)
    assert code == 0, said
    card = (tmp_path / "near" / "README.md").read_text()
    assert "from `me/gaps`" in card and "base_model: me/gaps" in card and f"| revision | `{first}` |" in card
    code, said = recipe("predict", "--model", "me/near", "--input", "a.jsonl", "--output", tmp_path / "vectors.jsonl")
    assert code == 0, said


def test_a_model_of_the_hub_is_tried_as_a_folder_is(hub: HubServer, typed, folder_of) -> None:
    """Once all is fetched; a repository that is not there is one line."""
    folder = folder_of("modernbert", "LacunaForMaskedLM")
    (folder / "README.md").write_text("---\n---\n")
    push_model(folder=folder, name="me/gaps")
    (folder / "mine.txt").write_text("A window here.\n")
    texts = ("--examples", folder / "mine.txt")
    found = typed("try_models", "--model", "me/gaps", "--revision", "main", *texts)
    assert found[:2] == typed("try_models", "--model", folder, *texts)[:2] and found[0] == 0
    code, _, said = typed("try_models", "--model", "me/nothing")
    said = said.splitlines()[-1]
    assert code == 6 and said.startswith("error: --model me/nothing: no such folder") and TOKEN not in said
