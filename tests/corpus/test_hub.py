"""Datasets of the Hub: the real `datasets` streams from a small server on this machine; what goes wrong is said."""

import hashlib
import http.server
import json
import os
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest

from lacuna.common.errors import HubError, InputError
from lacuna.corpus import open_text
from lacuna.corpus.arguments import TextArguments
from lacuna.corpus.read import sources
from lacuna.corpus.read.sources import is_hub_name, open_dataset

ROOM = Path(__file__).resolve().parents[2]
COMMIT = "a" * 40


def lines(split: str, *numbers: int) -> bytes:
    return "".join(json.dumps({"text": f"{split} {number}", "n": number}) + "\n" for number in numbers).encode()


FILES = {
    "data/train-00000-of-00002.jsonl": lines("train", 0, 1, 2),
    "data/train-00001-of-00002.jsonl": lines("train", 3, 4),
    "data/test-00000-of-00001.jsonl": lines("test", 0),
}


class Hub(http.server.BaseHTTPRequestHandler):
    """What of the Hub's interface reading a public dataset needs: about it, its tree, its files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def answer(self, code: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        if "/me/missing" in path:
            return self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if "/me/gated" in path and not path.startswith("/api/"):
            return self.answer(403, {"error": "Access to it is restricted"}, X_Error_Code="GatedRepo")
        if f"/tree/{COMMIT}" in path:
            below = path.split(COMMIT)[1].strip("/")
            folder = [] if below else [{"type": "directory", "path": "data", "size": 0, "oid": "d" * 40}]
            return self.answer(200, folder + [self.entry(name) for name in FILES if below and name.startswith(below)])
        if path.startswith("/api/datasets/me/"):
            files = [{"rfilename": name} for name in FILES]
            return self.answer(
                200, {"id": "/".join(path.split("/")[3:5]), "sha": COMMIT, "siblings": files, "tags": []}
            )
        data = FILES.get(path.split(f"/resolve/{COMMIT}/")[-1])
        if data is None:
            return self.answer(404, {"error": "not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        about = {"X_Repo_Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept_Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if not wanted:
            return self.answer(200, data, **about)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        return self.answer(206, data[start : end + 1], **about, Content_Range=f"bytes {start}-{end}/{len(data)}")

    do_HEAD = do_GET

    def do_POST(self) -> None:  # paths-info
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        paths = json.loads(body)["paths"] if body.startswith("{") else urllib.parse.parse_qs(body).get("paths", [])
        self.answer(200, [self.entry(path) for path in paths if path in FILES])

    def entry(self, path: str) -> dict[str, Any]:
        data = FILES[path]
        return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


FRESH = """
import json, sys
import pyarrow

for size in range(2, 6):
    pyarrow.unregister_extension_type(f"datasets.features.features.Array{size}DExtensionType")
for name in [name for name in sys.modules if name.partition(".")[0] in ("datasets", "huggingface_hub", "lacuna")]:
    del sys.modules[name]  # they read the environment when they are imported
"""


def read_from(endpoint: str, script: str, folder: Path) -> Any:
    """What a script prints at last, as a program of its own in a folder, for which the Hub is a small server."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_TOKEN": "hf_secrets"}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "PYTHONPATH": str(ROOM)}
    (folder / "script.py").write_text(FRESH + script, encoding="utf-8")
    run = processes.run(folder / "script.py", cwd=folder, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "hf_secrets" not in run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


SCRIPT = """
from lacuna.common.errors import LacunaError
from lacuna.corpus import open_text
from lacuna.corpus.arguments import TextArguments

def opened(*data, **options):
    return open_text(TextArguments(data=list(data), **options))

text = opened("me/good:2", "local.txt:2")
documents = [(document.text, document.source, document.place) for document in text.documents()]
results = {"documents": documents, "total": text.total_bytes, "weights": text.weights}
results["names"], results["fingerprint"] = text.names, text.fingerprint
results["test"] = list(opened("me/good", dataset_split="test").texts())
errors = {}
for name, options in [("me/missing", {}), ("me/gated", {}), ("me/good", {"dataset_split": "dev"}),
                      ("me/good", {"dataset_config": "no"}), ("me/good", {"text_column": "body"})]:
    try:
        list(opened(name, **options).texts())
    except LacunaError as error:
        errors[" ".join([name, *options])] = [error.exit_code, str(error)]
print(json.dumps({**results, "errors": errors}))
"""


def test_datasets_streams_from_a_server(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "local.txt").write_text("local")
    results = read_from(endpoint, SCRIPT, tmp_path)
    train = [[f"train {number}", 0, f"me/good (train, part {part} of 2):{row}"] for number, part, row in
             [(0, 1, 1), (1, 1, 2), (2, 1, 3), (3, 2, 1), (4, 2, 2)]]  # fmt: skip
    assert results["documents"] == [*train, ["local", 1, "local.txt:1"]]
    assert [results[key] for key in ("total", "weights", "names")] == [None, [0.5, 0.5], ["me/good", "local.txt"]]
    assert len(results["fingerprint"]) == 64 and results["test"] == ["test 0"]
    errors = results["errors"]
    assert [code for code, _ in errors.values()] == [6, 6, 2, 2, 2]
    assert "me/missing of the Hub cannot be read (RepositoryNotFoundError" in errors["me/missing"][1]
    assert "me/gated of the Hub cannot be read" in errors["me/gated"][1] and "hf auth login" in errors["me/gated"][1]
    assert "has no split 'dev'; name one with --dataset_split: train, test" in errors["me/good dataset_split"][1]
    assert "choose a configuration with --dataset_config" in errors["me/good dataset_config"][1]
    assert "there is no column 'body'; there are: 'text', 'n'" in errors["me/good text_column"][1]
    assert not [file for file in (tmp_path / "home").rglob("*.jsonl")]  # nothing was stored


def test_a_path_is_not_taken_for_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "novels").mkdir()
    assert is_hub_name("stanfordnlp/imdb") and is_hub_name("some-1/name_2.x") and is_hub_name("a/b@refs/pr/1")
    for name in (
        "imdb",
        "texts/novels",
        "texts/novles",
        "a/b/c",
        "./a",
        "/a/b",
        "~/a",
        "a/b.txt",
        "a/b.jsonl.gz",
        "a/*",
        "@a/b",
        "a/b.txt@v1.txt",
    ):
        assert not is_hub_name(name), name


def test_offline_is_said_with_another_code_than_a_missing_file() -> None:
    """The tests run with HF_HUB_OFFLINE=1."""
    with pytest.raises(
        HubError, match=r"me/good of the Hub cannot be read \(OfflineModeIsEnabled.*HF_HUB_OFFLINE"
    ) as caught:
        open_text(TextArguments(data=["me/good"]))
    assert caught.value.exit_code == 6


def test_secrets_are_not_shown() -> None:
    with pytest.raises(HubError) as caught, sources.hub_errors("me/good"):
        raise RuntimeError("no answer from https://user:password@hub.local for hf_abcdefghij")
    assert "https://***hub.local for ***" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_split_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Split:
        num_shards = 0

    class Api:
        def dataset_info(self, name: str, revision: str | None, timeout: float) -> Any:
            asked.append((name, revision))
            return type("Info", (), {"sha": COMMIT})

    asked: list[tuple[str, str | None]] = []

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    splits = {"only": Split()}
    monkeypatch.setattr(sources, "load_hub", lambda name, config, revision: splits)
    assert open_dataset(name="a/b", config=None, split=None).split == "only"
    splits = {"test": Split(), "train": Split()}
    assert open_dataset(name="a/b", config="c", split=None).split == "train"
    opened = open_dataset(name="a/b@v1", config=None, split=None)
    assert (opened.name, opened.revision, asked[-1]) == ("a/b", COMMIT, ("a/b", "v1"))
    splits = {"test": Split(), "valid": Split()}
    with pytest.raises(InputError, match="several splits; name one with --dataset_split: test, valid"):
        open_dataset(name="a/b", config=None, split=None)
