"""A small Hub on this machine, for the unmodified `huggingface_hub` (HF_ENDPOINT).

It keeps models in memory, with commits, branches and tags, takes regular and LFS uploads (not Xet: set
HF_HUB_DISABLE_XET=1), serves ranges, and fails on demand:

    with HubServer() as hub:
        hub.fail(r"POST /api/repos/create", status=503)              # the next one; times=N for N of them
        hub.fail(r"PUT /lfs/", cut=True)                             # the connection ends without an answer
"""

import base64
import hashlib
import http.server
import json
import math
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import yaml

TOKEN = "hf_" + "planted0" * 4 + "xx"
"""May write to models of `me`; the one of READER may only read."""
READER = "hf_" + "reading0" * 4 + "xx"


@dataclass
class Model:
    """A repository: the files of each commit, and which commit each branch and tag is at."""

    private: bool
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        digest = hashlib.sha1(repr((branch, len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[digest], self.branches[branch] = files, digest
        return digest

    def find(self, revision: str) -> str | None:
        """The commit of a branch, a tag or itself."""
        found = self.branches.get(revision) or self.tags.get(revision) or revision
        return found if found in self.commits else None


@dataclass
class Failure:
    """Answers to requests of which "METHOD /path" matches."""

    pattern: str
    status: int
    times: int
    cut: bool
    lost: bool
    until: threading.Event | None
    headers: dict[str, str]


class HubServer:
    """Use it in a `with` statement; `endpoint` is its address."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.objects: dict[str, bytes] = {}
        """LFS files by their SHA-256."""
        self.requests: list[str] = []
        """ "METHOD /path" of each."""
        self.ranges: list[str] = []
        self.failures: list[Failure] = []
        self.waits: list[float] = []
        """Seconds that a client in this process would have waited before it asked again."""
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes] | None = None, *, private: bool = True) -> Model:
        """A repository that is there already."""
        model = self.models[name] = Model(private)
        model.commit("main", {".gitattributes": b"", **(files or {})})
        return model

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """What stands there now, without .gitattributes."""
        model = self.models[name]
        commit = model.find(revision)
        assert commit
        return {path: content for path, content in model.commits[commit].items() if path != ".gitattributes"}

    def fail(
        self,
        pattern: str,
        *,
        status: int = 503,
        times: int = 1,
        cut: bool = False,
        lost: bool = False,
        until: threading.Event | None = None,
        **headers: str,
    ) -> None:
        """Let the next requests that match fail.

        Args:
            cut: the connection ends in the middle of the request, or of the answer where that is a file.
            lost: what was asked for is done, and the connection ends in the middle of the answer.
            until: nothing fails, but the answer comes only after this.
        """
        self.failures.append(Failure(pattern, status, times, cut, lost, until, headers))

    @contextmanager
    def environment(self, patch: Any, home: Any, *, token: str | None = TOKEN) -> Iterator[None]:
        """Let this process talk to the server; `huggingface_hub` has read its variables when it was imported.

        Args:
            patch: pytest's `monkeypatch`.
            home: a folder, in place of ~/.cache/huggingface.
        """
        constants = "huggingface_hub.constants"
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        if token:
            patch.setenv("HF_TOKEN", token)
        patch.setattr(f"{constants}.ENDPOINT", self.endpoint)
        patch.setattr("transformers.utils.hub._hf_api", None)  # which would go on asking the server of another test
        patch.setattr(
            f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        patch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
        patch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
        patch.setattr(f"{constants}.HF_TOKEN_PATH", str(home / "token"))
        patch.setattr(f"{constants}.HF_HUB_CACHE", str(home / "hub"))
        quick = SimpleNamespace(**{**vars(time), "sleep": self.waits.append})
        patch.setattr("huggingface_hub.utils._http.time", quick)
        yield

    def variables(self, home: Any, *, token: str | None = TOKEN) -> dict[str, str]:
        """The same for another process."""
        found = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        return found | ({"HF_TOKEN": token} if token else {})


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        self.status, self.message, self.code = status, message, code


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer would wait 40 ms

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        address = urllib.parse.urlparse(self.path)
        path = urllib.parse.unquote(address.path)
        asked = f"{self.command} {path}"
        self.hub.requests.append(asked)
        failure = next((each for each in self.hub.failures if each.times and re.search(each.pattern, asked)), None)
        self._cut = False
        if failure is not None:
            failure.times -= 1
            if failure.until is not None:
                failure.until.wait(60)
                failure = None
        if failure is not None:
            if failure.cut and self.command != "GET":
                self.rfile.read(length // 2)
                return self._hang_up()
            self._cut = failure.cut or failure.lost
        body = self.rfile.read(length)
        if failure is not None and not self._cut:
            said = {"error": f"failing on demand, {failure.status}"}
            headers = {name.replace("_", "-"): value for name, value in failure.headers.items()}
            return self._answer(failure.status, said, **headers)
        try:
            self._route(path, body)
        except _Refused as refused:
            headers = {"X-Error-Message": refused.message} | ({"X-Error-Code": refused.code} if refused.code else {})
            self._answer(refused.status, {"error": refused.message}, **headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._cut:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self._hang_up()
        self.wfile.write(data)

    def _route(self, path: str, body: bytes) -> None:
        if path == "/api/whoami-v2":
            return self._answer(200, {"type": "user", "name": self._user(), "orgs": []})
        if path == "/api/validate-yaml":
            errors = [{"message": each} for each in _mistakes(json.loads(body)["content"])]
            return self._answer(400 if errors else 200, {"errors": errors, "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.startswith("/lfs/"):
            if self.command == "PUT":
                if hashlib.sha256(body).hexdigest() != path.removeprefix("/lfs/"):
                    raise _Refused(400, "not the announced file")
                self.hub.objects[path.removeprefix("/lfs/")] = body
            return self._answer(200, {})
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._model(found[1], write=True)
            return self._answer(200, self._batch(json.loads(body)))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(self._model(found[1], content=True), found[2], found[3])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([\w-]+)(?:/([^/]+))?(?:/(.*))?)?", path):
            name, what, revision, rest = found.groups()
            writes = what in ("preupload", "commit", "branch", "tag")
            return self._api(self._model(name, write=writes), name, what, revision or "main", rest or "", body)
        raise _Refused(404, f"no such address: {path}")

    def _user(self) -> str:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (TOKEN, READER):
            raise _Refused(401, "Invalid credentials in Authorization header")
        return "me" if token == TOKEN else "reader"

    def _model(self, name: str, *, write: bool = False, content: bool = False) -> Model:
        if write and self._user() != name.split("/")[0]:
            raise _Refused(403, f"no right to write to {name}")
        model = self.hub.models.get(name)
        if self.headers.get("Authorization"):
            self._user()
        if model is None or (model.private and not self.headers.get("Authorization")):
            raise _Refused(404 if self.headers.get("Authorization") else 401, "Repository not found", "RepoNotFound")
        if model.gated and content:
            raise _Refused(403, "Access to it is restricted", "GatedRepo")
        return model

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self._user() != asked["organization"]:
            raise _Refused(403, f"no right to create a model under {asked['organization']}")
        if name in self.hub.models:
            return self._answer(
                409, {"error": "You already created this model repo", "url": f"{self.hub.endpoint}/{name}"}
            )
        self.hub.add(name, private=asked.get("visibility") == "private" or bool(asked.get("private")))
        self._answer(200, {"url": f"{self.hub.endpoint}/{name}"})

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for each in asked["objects"]:
            upload = {"href": f"{self.hub.endpoint}/lfs/{each['oid']}"}
            verify = {"href": f"{self.hub.endpoint}/lfs/verify"}
            there = each["oid"] in self.hub.objects
            objects.append({**each, **({} if there else {"actions": {"upload": upload, "verify": verify}})})
        return {"transfer": "basic", "objects": objects}

    def _api(self, model: Model, name: str, what: str | None, revision: str, rest: str, body: bytes) -> None:
        if what == "refs":
            refs = {
                kind: [{"name": each, "ref": f"refs/{each}", "targetCommit": commit} for each, commit in there.items()]
                for kind, there in (("branches", model.branches), ("tags", model.tags))
            }
            return self._answer(200, {**refs, "converts": []})
        if what in ("branch", "tag"):
            there = model.branches if what == "branch" else model.tags
            if self.command == "DELETE":
                if there.pop(revision, None) is None:
                    raise _Refused(404, "Revision not found", "RevisionNotFound")
                return self._answer(200, {})
            name_of = revision if what == "branch" else json.loads(body)["tag"]
            if name_of in there:
                raise _Refused(409, "Reference already exists")
            start = "main" if what == "branch" else revision
            there[name_of] = model.find(json.loads(body or b"{}").get("startingPoint") or start) or ""
            return self._answer(200, {})
        commit = model.find(revision)
        if commit is None:
            raise _Refused(404, "Revision not found", "RevisionNotFound")
        files = model.commits[commit]
        if what == "preupload":
            return self._answer(200, {"files": [_mode(each, files) for each in json.loads(body)["files"]]})
        if what == "commit":
            return self._commit(model, name, revision, body)
        if what == "tree":
            return self._answer(200, [_entry(path, data) for path, data in files.items() if path.startswith(rest)])
        if what == "paths-info":
            text = body.decode()
            asked = json.loads(text)["paths"] if text.startswith("{") else urllib.parse.parse_qs(text).get("paths", [])
            return self._answer(200, [_entry(path, files[path]) for path in asked if path in files])
        about = {"id": name, "modelId": name, "sha": commit, "private": model.private, "tags": []}
        head = re.match(r"---\n(.*?)^---$", files.get("README.md", b"").decode(), re.DOTALL | re.MULTILINE)
        about["cardData"] = (yaml.safe_load(head[1]) if head else None) or {}
        self._answer(200, {**about, "siblings": [{"rfilename": path} for path in files]})

    def _commit(self, model: Model, name: str, branch: str, body: bytes) -> None:
        files = dict(model.commits[model.branches[branch]])
        for line in body.splitlines():
            kind, value = (json.loads(line)[key] for key in ("key", "value"))
            if kind == "header" and value.get("parentCommit") not in (None, model.branches[branch]):
                raise _Refused(412, "A commit has happened since. Please refresh and try again.")
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        commit = model.commit(branch, files)
        self._answer(200, {"commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}", "commitOid": commit})

    def _resolve(self, model: Model, revision: str, path: str) -> None:
        commit = model.find(revision)
        if commit is None:
            raise _Refused(404, "Revision not found", "RevisionNotFound")
        data = model.commits[commit].get(path)
        if data is None:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        about = {"X-Repo-Commit": commit, "ETag": f'"{_oid(path, data)}"', "Accept-Ranges": "bytes"}
        if _is_large(path):
            about |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": about["ETag"]}
        if not (wanted := self.headers.get("Range")):
            return self._answer(200, data, **about)
        self.hub.ranges.append(wanted)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        self._answer(206, data[start : end + 1], **about, **{"Content-Range": f"bytes {start}-{end}/{len(data)}"})


_TASKS = {
    *("feature-extraction", "fill-mask", "multiple-choice", "question-answering", "sentence-similarity"),
    *("text-classification", "text-generation", "text2text-generation", "token-classification", "other"),
}
_LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "gpl-3.0", "bsd-3-clause", "openrail", "other"}


def _mistakes(card: str) -> list[str]:
    """What the Hub refuses in the head of a card: it checks model-index, datasets and license, as
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md says; of some of the rest it only warns."""
    if not (head := re.match(r"---\n(.*?)^---$", card, re.DOTALL | re.MULTILINE)):
        return ["no head"]
    data = yaml.safe_load(head[1]) or {}
    texts = [data[name] for name in ("license", "pipeline_tag", "library_name", "base_model") if name in data]
    rules = {
        '"license" must be one of them': data.get("license", "mit") in _LICENSES,
        '"language" must be a code of two or three letters': re.fullmatch("[a-z]{2,3}", data.get("language", "en")),
        '"pipeline_tag" is not one of them': data.get("pipeline_tag", "other") in _TASKS,
        "names are texts": all(isinstance(text, str) for text in texts),
        '"datasets" are names': all(re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) for name in data.get("datasets", [])),
        '"model-index" is not one': all(map(_is_index, data.get("model-index", []))),
    }
    return [rule for rule, holds in rules.items() if not holds]


def _is_index(model: dict[str, Any]) -> bool:
    metrics = [metric for result in model["results"] for metric in result["metrics"]]
    texts = [model["name"], *(metric["type"] for metric in metrics)]
    texts += [part for each in model["results"] for part in (each["dataset"]["type"], each["dataset"]["name"])]
    values = [metric["value"] for metric in metrics]
    return (
        all(isinstance(text, str) and text for text in texts)
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
        and all(result["task"]["type"] in _TASKS for result in model["results"])
    )


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".png"))


def _oid(path: str, data: bytes) -> str:
    """SHA-256 of an LFS file, the blob's SHA-1 of git for any other."""
    if _is_large(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _mode(file: dict[str, Any], there: dict[str, bytes]) -> dict[str, Any]:
    path = file["path"]
    known = {"oid": _oid(path, there[path])} if path in there else {}
    return {"path": path, "uploadMode": "lfs" if _is_large(path) else "regular", "shouldIgnore": False, **known}


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _oid(path, data)}
    if _is_large(path):
        entry["lfs"] = {"oid": _oid(path, data), "size": len(data), "pointerSize": 134}
    return entry
