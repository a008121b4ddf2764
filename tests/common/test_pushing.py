"""Pushing to a small Hub on this machine, with the unmodified `huggingface_hub`."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hub_server import READER, TOKEN, HubServer
from huggingface_hub import ModelCard

from lacuna.common.errors import HubError, InputError
from lacuna.common.hub import (
    HERE,
    BackgroundPush,
    Pushed,
    check_login,
    files_to_push,
    push_model,
    push_trained,
)
from lacuna.common.private import leak

NAME = "me/model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server, server.environment(monkeypatch, tmp_path / "home"):
        yield server


PUSHED = {
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("modeling_lacuna.py", "README.md", "curves.png", "results.json", "task.json"),
}
KEPT = {
    *(
        "run.json",
        "metrics.jsonl",
        "predictions.jsonl",
        "report.md",
        "confusion.png",
        "notes.txt",
        "train.py",
        ".lock",
    ),
    *("checkpoints/step-00000002/model.safetensors", "checkpoints/step-00000002/config.json"),
    *("training_state/optimizer.safetensors", "adapter/adapter_model.safetensors", "optimizer.safetensors"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run leaves behind, of a few bytes each."""
    made = tmp_path / "run"
    for name in PUSHED | KEPT:
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"of": "{name}", "auto_map": {{}}}}')
    (made / "model.safetensors").write_bytes(bytes(range(256)) * 400)
    (made / "README.md").write_text("---\ntags:\n- lacuna\n---\n\n![](curves.png)\n![](../x.png) ![](sub/x.png)\n")
    (made / "run.json").write_text('{"output_dir": "/home/anna/run"}')
    return made


def test_a_model_is_pushed_in_one_private_commit_without_its_run(hub: HubServer, folder: Path) -> None:
    pushed = push_model(folder=folder, name=NAME)
    assert hub.files(NAME).keys() == PUSHED == {*pushed.files}
    assert all(content == (folder / name).read_bytes() for name, content in hub.files(NAME).items())
    model = hub.models[NAME]
    assert model.private and pushed.private and len(model.commits) == 2  # the first is that of the new repository
    assert pushed.commit == model.branches["main"] and pushed.url == f"{hub.endpoint}/me/model/tree/{pushed.commit}"
    assert "PUT /lfs/" in " ".join(hub.requests)
    again = push_model(folder=folder, name=NAME)
    assert again.commit == pushed.commit and len(model.commits) == 2


def test_code_goes_only_with_a_configuration_that_names_it(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    assert PUSHED - {*files_to_push(folder)} == {"modeling_lacuna.py"}
    (folder / "config.json").write_text('{"custom_pipelines": {}}')
    assert {*files_to_push(folder)} == PUSHED


def test_modules_of_sentence_transformers_and_adapters_are_models(folder: Path, tmp_path: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"path": path} for path in ("", "1_Pooling", "../x", "/etc")]))
    (folder / "1_Pooling").mkdir()
    for path in (folder / "1_Pooling" / "config.json", folder / "1_Pooling" / "run.json", tmp_path / "x"):
        path.write_text("{}")
    assert {*files_to_push(folder)} - PUSHED == {"modules.json", "1_Pooling/config.json"}
    (tmp_path / "adapter").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "README.md"):
        (tmp_path / "adapter" / name).write_text("{}")
    assert len(files_to_push(tmp_path / "adapter")) == 3


@pytest.mark.parametrize(
    "names",
    [("model.gguf", "export_check.json"), ("config.json", "export.json", "model.onnx", "model.onnx.data")],
    ids=["gguf", "onnx"],
)
def test_what_was_exported_can_be_pushed(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in (*names, "run.json"):
        (tmp_path / name).write_text("{}")
    assert files_to_push(tmp_path) == sorted(names)


def test_a_folder_without_a_model_is_refused(hub: HubServer, folder: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        push_model(folder=folder / "nowhere", name=NAME)
    (folder / "config.json").write_text("[")
    with pytest.raises(InputError, match=r"config.json cannot be read as JSON"):
        push_model(folder=folder, name=NAME)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"is not a model: it needs config.json and model.safetensors"):
        push_model(folder=folder, name=NAME)
    assert hub.requests == []


def test_a_link_out_of_the_folder_is_refused(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "private.json").write_text("{}")
    (folder / "results.json").unlink(missing_ok=True)
    (folder / "results.json").symlink_to(tmp_path / "private.json")
    with pytest.raises(InputError, match=r"results\.json is a link out of its folder"):
        push_model(folder=folder, name="me/gaps")
    assert hub.requests == []


def test_a_head_that_cannot_be_read_is_found_before_anything_is_sent(hub: HubServer, folder: Path) -> None:
    (folder / "README.md").write_text("---\n: [\n---\nA gap.\n")
    with pytest.raises(InputError, match=r"README\.md, or its head, cannot be read: mend it"):
        push_model(folder=folder, name="me/gaps")
    assert hub.requests == []


def test_public_is_said(hub: HubServer, folder: Path) -> None:
    assert not push_model(folder=folder, name=NAME, public=True).private
    with pytest.raises(InputError, match="me/model is there already, and everybody sees it: add --public") as caught:
        push_model(folder=folder, name=NAME)
    assert caught.value.exit_code == 2 and len(hub.models[NAME].commits) == 2
    hub.add("me/closed")
    assert push_model(folder=folder, name="me/closed", public=True).private  # nothing is opened behind its owner


def test_a_branch_and_weights_of_an_earlier_push(hub: HubServer, folder: Path) -> None:
    old = {"model-00001-of-00002.safetensors": b"1", "model.safetensors.index.json": b"{}", "LICENSE": b"MIT"}
    hub.add(NAME, old)
    pushed = push_model(folder=folder, name=NAME, revision="v2")
    assert hub.files(NAME) == old and pushed.commit == hub.models[NAME].branches["v2"]
    assert hub.files(NAME, "v2").keys() == {*PUSHED, "LICENSE"}
    push_model(folder=folder, name=NAME, revision="v2")
    push_model(folder=folder, name=NAME, revision="main")
    assert hub.files(NAME).keys() == {*PUSHED, "LICENSE"}


def test_the_card_on_the_hub_says_where_the_model_is_and_its_licence(hub: HubServer, folder: Path) -> None:
    code = f"{HERE}\ntokenizer = T.from_pretrained(path)\nmodel = P.from_pretrained(model, path, trust=True)\n"
    text = f"---\ntags:\n- lacuna\n---\n{code}on the path, as ever\r\n"
    (folder / "README.md").write_bytes(text.encode())
    push_model(folder=folder, name=NAME)
    assert hub.files(NAME)["README.md"].decode() == text.replace(HERE, f'path = "{NAME}"')
    push_model(folder=folder, name=NAME, license="apache-2.0", revision="v2")
    card = ModelCard(hub.files(NAME, "v2")["README.md"].decode())
    assert card.data.to_dict() == {"tags": ["lacuna"], "license": "apache-2.0"}
    push_model(folder=folder, name=NAME, revision="v2")  # a licence that somebody chose stays
    assert ModelCard(hub.files(NAME, "v2")["README.md"].decode()).data.license == "apache-2.0"
    for line in (
        f'path = "{NAME}"',
        'T.from_pretrained(path, revision="v2")',
        'P.from_pretrained(model, path, revision="v2", trust=True)',
        "on the path, as ever",
    ):
        assert line in card.text
    assert (folder / "README.md").read_bytes() == text.encode()
    with pytest.raises(HubError, match=r"HTTP 400.*head of README.md: mend that. It says: .license. must be one of"):
        push_model(folder=folder, name=NAME, license="whatever")
    (folder / "README.md").write_text("---\n- a\n---\n")
    with pytest.raises(InputError, match=r"README.md, or its head, cannot be read: mend it"):
        push_model(folder=folder, name=NAME, license="mit")
    (folder / "README.md").unlink()
    push_model(folder=folder, name=NAME, license="mit")
    assert ModelCard(hub.files(NAME)["README.md"].decode()).data.license == "mit"


def test_a_tag_is_moved_to_the_newest_push_of_its_name(hub: HubServer, folder: Path, monkeypatch) -> None:
    first = push_model(folder=folder, name=NAME, tag="step-4").commit
    assert hub.models[NAME].tags == {"step-4": first} and hub.models[NAME].branches["main"] == first
    assert push_model(folder=folder, name=NAME, tag="step-4").commit == first  # nothing has changed
    (folder / "model.safetensors").write_bytes(b"other")
    second = push_model(folder=folder, name=NAME, tag="step-4").commit
    assert hub.models[NAME].tags == {"step-4": second} and second != first
    assert push_model(folder=folder, name=NAME, tag="step-8").commit == second

    def overtaken(*given: Any, **named: Any) -> Any:
        hub.models[NAME].commit("main", {"model.safetensors": b"final"})
        return preupload(*given, **named)

    preupload = huggingface_hub.HfApi.preupload_lfs_files
    monkeypatch.setattr(huggingface_hub.HfApi, "preupload_lfs_files", overtaken)
    (folder / "model.safetensors").write_bytes(b"late")
    with pytest.raises(HubError, match="HTTP 412"):
        push_model(folder=folder, name=NAME, tag="step-12")
    assert hub.files(NAME) == {"model.safetensors": b"final"} and "step-12" not in hub.models[NAME].tags


def test_only_the_newest_of_those_that_wait_is_pushed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on, pushed, said = threading.Event(), list[str](), list[str]()

    def push(*, folder: Path, name: str, tag: str) -> Pushed:
        pushed.append(f"{folder.name} {name} {tag}")
        goes_on.wait(10)
        return Pushed("there", "c", [], True)

    monkeypatch.setattr("lacuna.common.hub.push_model", push)
    background = BackgroundPush(name=NAME, say=said.append)
    steps = [tmp_path / f"step-{number:08d}" for number in (2, 4, 6)]
    background.offer(steps[0])
    while not pushed:
        time.sleep(0.001)
    background.offer(steps[1])
    background.offer(steps[2])
    assert background.held == {steps[0], steps[2]}
    assert said == [f"{steps[1]} is not pushed: the Hub was still taking the one before"]
    goes_on.set()
    background.close(patience=0)
    assert pushed == [f"step-00000002 {NAME} step-2", f"step-00000006 {NAME} step-6"] and not background.held
    assert said[1] == "waiting for the Hub to take the last checkpoint" or len(said) == 3


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("README.md", f"---\n---\nlogin {TOKEN}\n", "an access token"),
        ("README.md", "---\n---\nlogin hf_abcdefghijklmnopqrstuvwxyz12345678\n", "an access token"),
        ("results.json", '{\n"a": 1,\n"b": "https://anna:pass@host/x"}', "a password"),
        ("config.json", '{\n\n"a": "hf\\u005fabcdefghijklmnopqrstuvwxyz12345678"}', "an access token"),
        ("tokenizer_config.json", '{\n"a": 1,\n"name_or_path": "/home/anna/run"}', "a path of a home folder"),
        ("config.json", '{\n"auto_map": {},\n"_name": "C:\\\\Users\\\\anna"}', "a path of a home folder"),
        ("modeling_lacuna.py", '\n\nX = "file:///Users/anna/x"\n', "a path of a home folder"),
        ("task.json", '{\n"a": 1,\n"train_file": "/data/people/anna/train.csv"}', "a path of a home folder"),
    ],
)
def test_what_is_private_is_refused_and_not_shown(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, what: str
) -> None:
    monkeypatch.setenv("HOME", "/data/people/anna")
    (folder / name).write_text(text)
    with pytest.raises(InputError) as caught:
        push_model(folder=folder, name=NAME)
    assert str(caught.value) == f"{folder / name}:3 holds {what}: remove it; nothing was pushed"
    assert "anna" not in str(caught.value).replace(str(folder), "") and hub.requests == []


def test_what_is_not_private_may_be_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    for text in (
        "pip install hf_transfer, hf_hub_download",
        '"/home": 3, "/home/": 4, "/Users/": 5, "user": 6',
        "python recipes/pretrain.py --data ~/texts runs/home/x",
        "https://example.com/home/index.html and https://example.com/@anna",
        "/opt/data/x",
    ):
        assert leak(text) is None, text
    assert leak("a\nb\nsecretword", secrets=["secretword", "a"]) == (3, "an access token")


@pytest.mark.parametrize(
    ("pattern", "failure", "said"),
    [
        ("repos/create", {"status": 401}, "HTTP 401.*hf auth login.*HF_TOKEN"),
        ("repos/create", {"status": 403}, "HTTP 403.*permission to write"),
        ("commit/main", {"status": 404}, "HTTP 404.*check the name"),
        ("commit/main", {"status": 409}, "HTTP 409.*try again"),
        ("commit/main", {"status": 412}, "HTTP 412.*try again"),
        ("commit/main", {"status": 422}, "HTTP 422.*refuses it.*failing on demand, 422"),
        ("repos/create", {"status": 429, "Retry_After": "77"}, "HTTP 429.*try again in 77 seconds"),
        ("repos/create", {"status": 503}, "HTTP 503.*has trouble of its own.*later"),
        ("objects/batch", {"status": 500, "times": 99}, "HTTP 500.*has trouble of its own"),
        ("PUT /lfs", {"status": 502, "times": 99}, "HTTP 502.*has trouble of its own"),
        ("PUT /lfs", {"cut": True, "times": 99}, "the connection broke.*check the network"),
        ("commit/main", {"cut": True}, "the connection broke.*check the network"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_and_mended_by_the_same_command(
    hub: HubServer, folder: Path, capfd: pytest.CaptureFixture[str], pattern: str, failure: dict, said: str
) -> None:
    hub.fail(pattern, **failure)
    with pytest.raises(HubError, match=f"^me/model: .*{said}") as caught:
        push_model(folder=folder, name=NAME)
    assert caught.value.exit_code == 6 and caught.value.__cause__ is None and "\n" not in str(caught.value)
    shown = "".join([str(caught.value), *capfd.readouterr()])
    assert TOKEN not in shown and "Traceback" not in shown
    if NAME in hub.models:
        assert hub.files(NAME) == {}  # all or nothing
    hub.failures.clear()
    push_model(folder=folder, name=NAME)
    assert hub.files(NAME).keys() == PUSHED


def test_the_client_waits_as_long_as_it_is_asked_to(hub: HubServer, folder: Path) -> None:
    hub.fail("preupload", status=429, Retry_After="7")
    hub.fail("PUT /lfs", cut=True)
    push_model(folder=folder, name=NAME)
    assert hub.waits[0] == 8 and len(hub.waits) == 2


def test_a_commit_of_which_the_answer_was_lost_is_not_made_twice(hub: HubServer, folder: Path) -> None:
    hub.fail("commit/main", lost=True)
    with pytest.raises(HubError, match="the connection broke"):
        push_model(folder=folder, name=NAME)
    assert hub.files(NAME).keys() == PUSHED
    assert push_model(folder=folder, name=NAME).commit == hub.models[NAME].branches["main"]
    assert len(hub.models[NAME].commits) == 2


def test_logins_that_may_not_write(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for token, said in ((READER, "HTTP 403.*no right to create a model under me"), ("hf_unknown", "HTTP 401")):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubError, match=said) as caught:
            push_model(folder=folder, name=NAME)
        assert token not in str(caught.value)
    assert hub.models == {}


def test_a_card_that_the_hub_refuses(hub: HubServer, folder: Path) -> None:
    (folder / "README.md").write_text("no head")
    with pytest.raises(
        HubError, match=r"HTTP 400.*perhaps --license or the head of README.md: mend that. It says: no head"
    ):
        push_model(folder=folder, name=NAME)


def test_no_network(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:  # a port on which nobody listens
        listener.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    with pytest.raises(HubError, match=r"cannot be reached.*ConnectError.*check the network and HF_ENDPOINT"):
        push_model(folder=folder, name=NAME)


def test_the_token_is_never_said(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "unusual-token")

    def fail(*_: object, **__: object) -> None:
        raise OSError("unusual-token hf_abcdefgh https://a:b@host/x?X-Amz-Signature=12345")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    with pytest.raises(HubError) as caught:
        push_model(folder=folder, name=NAME)
    assert "*** *** https://***host/x)" in str(caught.value)


def test_a_run_says_where_its_model_is_and_how_to_push_it(hub: HubServer, folder: Path, capsys) -> None:
    push_trained(folder=str(folder), name=None)
    assert hub.requests == [] and capsys.readouterr().out == ""
    push_trained(folder=str(folder), name=NAME)
    said = capsys.readouterr().out
    commit = hub.models[NAME].branches["main"]
    assert said == f"pushed 10 files to {hub.endpoint}/me/model/tree/{commit} (only its owner sees it)\n"
    (folder / "README.md").write_text(TOKEN)
    spaced = folder.rename(folder.with_name("a run"))
    with pytest.raises(HubError) as caught:
        push_trained(folder=str(spaced), name=NAME)
    first, last = str(caught.value).splitlines()
    assert first.startswith(f"the model is in {spaced}, but not on the Hub: {spaced / 'README.md'}:1 holds an access")
    assert last == f"to push it: python recipes/push_model.py --model '{spaced}' --to me/model"


def test_what_could_never_be_pushed_is_told_at_once(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    check_login(NAME, asked_with="--to")
    for name in ("model", "a/b/c", "me/", "/x", "me/a b", "me/x.git", "me/a--b", ".me/x", f"me/{'x' * 97}"):
        with pytest.raises(InputError, match=r"^--to .*(is not OWNER/NAME|the Hub has no such names)") as caught:
            check_login(name, asked_with="--to")
        assert caught.value.exit_code == 2
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match=r"--push_to_hub me/model: nobody is logged in.*hf auth login.*HF_TOKEN"):
        check_login(NAME, asked_with="--push_to_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE forbids every connection: unset it"):
        check_login(NAME, asked_with="--to")
    assert hub.requests == []


def test_a_file_that_cannot_be_read_costs_no_model_either(hub: HubServer, folder: Path, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lacuna.common.hub.leak", fail)
    with pytest.raises(HubError, match=r"Permission denied\nto push it: python recipes"):
        push_trained(folder=str(folder), name=NAME)
