"""Push the folder of a model to the Hugging Face Hub: what may go there, and what went wrong in plain words."""

import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

import huggingface_hub
import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard, constants

from .errors import HubError, InputError, LacunaError
from .foreign import check_foreign, read_json
from .options import Arguments, essential
from .private import leak, without_secrets

HERE = 'path = "."  # this folder'
"""Where the code of a card finds the model; on the Hub it is the name of the repository."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEIGHTS = re.compile(
    r"(?:adapter_)?model(?:-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|model\.gguf|model\.onnx(?:\.data)?"
)
_FILES = {
    *("config.json", "generation_config.json", "adapter_config.json", "README.md", "results.json", "task.json"),
    *("export.json", "export_check.json", "bag_of_words.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja"),
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
}
_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-][\w.-]*\.(?:png|jpe?g|svg))\)")
_NO_TEXT = {".safetensors", ".gguf", ".onnx", ".data", ".png", ".jpg", ".jpeg"}
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_ADVICE = {
    400: "cannot use what it was sent, perhaps --license or the head of README.md: mend that",
    401: f"does not know this login: {_LOG_IN} to a token that is valid and may write",
    403: "does not let this login write there: give its token the permission to write, or name an owner that you are "
    "or belong to",
    404: "knows no such repository or revision, or does not show it to this login: check the name",
    409: "is busy with another upload to it: try again",
    412: "has taken another upload to it meanwhile: try again",
    429: "takes no more requests for now: try again",
}
"""By the status of an answer: what the Hub does, and what to do."""
READING = _ADVICE | {
    401: f"does not show it to this login, and there is no such folder: check the name, or {_LOG_IN}",
    403: f"shows it only to those whom its owner lets in: ask for that on its page, and {_LOG_IN}",
    404: "knows no such model or revision, or does not show it to this login, and there is no such folder: check the "
    "name",
}
"""The same where nothing is written."""


@dataclass
class PushArguments(Arguments):
    """Which model goes where."""

    model: str | None = essential(None, "Folder of the model to push.", metavar="DIR")
    to: str | None = essential(None, "Repository on the Hub; it is made if it is not there.", metavar="OWNER/NAME")
    public: bool = essential(False, "Let everybody see it; otherwise only its owner does.")
    revision: str | None = essential(None, "Branch to push to, made if it is absent. Default: main.", metavar="NAME")
    license: str = essential("", "Licence for the model card on the Hub, such as apache-2.0.", metavar="ID")


@dataclass(frozen=True)
class Pushed:
    """What a push has left on the Hub."""

    url: str  # of the files, as of this commit
    commit: str
    files: list[str]
    private: bool

    def __str__(self) -> str:
        seen = "only its owner sees it" if self.private else "everybody sees it"
        return f"pushed {len(self.files)} files to {self.url} ({seen})"


def check_login(name: str, *, asked_with: str) -> None:
    """Refuse what could never be pushed, without asking the Hub; `asked_with` is the option that named the repository.

    Raises InputError: it is not OWNER/NAME, nobody is logged in, or the network is turned off.
    """
    try:
        huggingface_hub.utils.validate_repo_id(name)
    except huggingface_hub.errors.HFValidationError as error:
        raise InputError(f"{asked_with} {name}: the Hub has no such names: {error}") from None
    if not HUB_NAME.fullmatch(name):
        raise InputError(f"{asked_with} {name} is not OWNER/NAME, as in me/my-model")
    if constants.is_offline_mode():
        raise InputError(f"{asked_with} {name}: HF_HUB_OFFLINE forbids every connection: unset it")
    if not huggingface_hub.get_token():
        raise InputError(f"{asked_with} {name}: nobody is logged in to the Hub: {_LOG_IN}")


def files_to_push(folder: Path) -> list[str]:
    """Names of the files of a model that others need, none of its training. InputError: there is no model."""
    if not folder.is_dir():
        raise InputError(f"--model: there is no folder {folder}")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    found = {name for name in names if name in _FILES or _WEIGHTS.fullmatch(name)}
    has_weights = any(name.endswith((".safetensors", ".onnx")) for name in found)
    if "model.gguf" not in found and not (has_weights and found & {"config.json", "adapter_config.json"}):
        raise InputError(f"--model {folder} is not a model: it needs config.json and model.safetensors")
    about, modules = folder / "config.json", folder / "modules.json"
    if about.is_file() and {"auto_map", "custom_pipelines"} & read_json(about, dict).keys():
        found |= {name for name in names if name.endswith("_lacuna.py")}
    if "README.md" in found:
        found |= names & {*_PICTURE.findall((folder / "README.md").read_text(encoding="utf-8", errors="replace"))}
    # Modules of sentence-transformers, each in a folder of its own.
    for module in read_json(modules, list) if modules.is_file() else ():
        name = str(module.get("path", "")) if isinstance(module, dict) else ""
        inside = [folder / name / each for each in ("config.json", "model.safetensors")]
        if re.fullmatch(r"\w+", name):
            found |= {f"{name}/{path.name}" for path in inside if path.is_file()}
    return sorted(found)


def _refuse_private(folder: Path, names: Sequence[str]) -> None:
    """InputError where a token, a password or a path of a home folder stands in a file; it names the line only."""
    secrets = [token] if (token := huggingface_hub.get_token()) else []
    for name in (name for name in names if Path(name).suffix not in _NO_TEXT):
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)  # as JSON may write it
        if found := leak(text, secrets=secrets):
            line, what = found
            raise InputError(f"{folder / name}:{line} holds {what}: remove it; nothing was pushed")


def _card_for_hub(folder: Path, *, name: str, revision: str | None, license: str) -> bytes:
    """README.md with the place of the model in its code, and the licence in its head."""
    path = folder / "README.md"
    try:
        text = path.read_bytes().decode() if path.is_file() else "---\n\n---\n"
        if revision and HERE in text:
            text = re.sub(r"(\w\((?:model, )?path)(?=[,)])", rf'\1, revision="{revision}"', text)
        text = text.replace(HERE, f'path = "{name}"')
        card = ModelCard(text)
        if license:
            card.data["license"] = license
            text = str(card)
    except (ValueError, yaml.YAMLError):
        raise InputError(f"{path}, or its head, cannot be read: mend it") from None
    return text.encode()


def push_model(
    *, folder: Path, name: str, public: bool = False, revision: str | None = None, license: str = "", tag: str = ""
) -> Pushed:
    """Push the model in a folder in one commit; where that broke off, the same again does the rest.

    The repository, `name`, is made if it is not there, for everybody if `public`. Weights there that are not in the
    folder go, since `from_pretrained` might prefer them. The branch `revision` is made, too. A `tag` is moved to the
    commit, which then never follows one that came meanwhile; `license`, or else the one there, goes into the card.

    Raises InputError: there is no model, something private is in it, nobody is logged in, or everybody sees the
    repository and `public` is not given; HubError: the Hub refuses, fails or is out of reach.
    """
    names = files_to_push(folder)
    _refuse_private(folder, names)
    check_foreign(folder)
    parts: dict[str, Any] = {file: folder / file for file in names}
    if license or "README.md" in names:
        parts["README.md"] = _card_for_hub(folder, name=name, revision=tag or revision, license=license)
    api = huggingface_hub.HfApi(token=True)  # whatever HF_HUB_DISABLE_IMPLICIT_TOKEN says
    with hub_errors(name):
        api.create_repo(name, private=not public, exist_ok=True)
        info = api.model_info(name)
        if not (info.private or public):
            raise InputError(f"{name} is there already, and everybody sees it: add --public, or name another one")
        if revision:
            api.create_branch(name, branch=revision, exist_ok=True)
            info = api.model_info(name, revision=revision)
        known = getattr(info.card_data, "license", None)
        if known and not license and b"\nlicense:" not in parts.get("README.md", b"\nlicense:"):
            parts["README.md"] = _card_for_hub(folder, name=name, revision=tag or revision, license=known)
        there = [file.rfilename for file in info.siblings or []]
        stale = [file for file in there if _WEIGHTS.fullmatch(file) and file not in names]
        changes: list[Any] = [CommitOperationAdd(file, part) for file, part in parts.items()]
        for change in changes if tag else []:  # several at once take threads, for which the end of a process waits
            api.preupload_lfs_files(name, [change], free_memory=False)
        changes += [CommitOperationDelete(file) for file in stale]
        what, parent = f"Push {tag or 'a model'} with Lacuna", info.sha if tag else None
        commit = api.create_commit(name, changes, commit_message=what, revision=revision, parent_commit=parent)
        if tag:
            if tag in {each.name for each in api.list_repo_refs(name).tags}:
                api.delete_tag(name, tag=tag)
            api.create_tag(name, tag=tag, revision=commit.oid)
    url = f"{constants.ENDPOINT}/{name}/tree/{commit.oid}"
    return Pushed(url=url, commit=str(commit.oid), files=sorted(parts), private=bool(info.private))


def push_trained(*, folder: str, name: str | None) -> None:
    """Push what a run has written, if `--push_to_hub` names a repository. Only the main process may.

    Raises HubError: it was not pushed; the message has the command that does it later. The model stays where it is.
    """
    if name is None:
        return
    try:
        print(push_model(folder=Path(folder), name=name), flush=True)
    except (LacunaError, OSError) as error:  # a file of its own that cannot be read, too
        again = join(["python", "recipes/push_model.py", "--model", folder, "--to", name])
        raise HubError(f"the model is in {folder}, but not on the Hub: {error}\nto push it: {again}") from None


class BackgroundPush:
    """Pushes checkpoints while training goes on, one at a time; what fails is a line for people and nothing more."""

    def __init__(self, *, name: str, say: Callable[[str], None]) -> None:
        self.name, self.say = name, say
        self.held: set[Path] = set()  # folders that are still needed
        self._waiting: queue.Queue[Path | None] = queue.Queue()
        huggingface_hub.utils.disable_progress_bars()  # they, and remarks, would garble the line that shows a run
        huggingface_hub.utils.logging.set_verbosity_error()
        self._thread = threading.Thread(target=self._push_all, daemon=True)  # the end of the process does not wait
        self._thread.start()

    def offer(self, folder: Path) -> None:
        """Push step-00000100 with the tag step-100, in place of one that still waits."""
        self._give_up()
        self.held.add(folder)
        self._waiting.put(folder)

    def close(self, *, patience: float | None) -> None:
        """Wait until all is pushed, at most some seconds (0: for ever); None: only 3, and nothing more is begun."""
        if patience is None:
            self._give_up()
        elif self.held:
            self.say("waiting for the Hub to take the last checkpoint")
        self._waiting.put(None)
        self._thread.join(3.0 if patience is None else patience or None)
        if self._thread.is_alive():
            self.say("warning: a checkpoint was still on its way to the Hub")

    def _give_up(self) -> None:
        with suppress(queue.Empty):
            folder = self._waiting.get_nowait()
            self.say(f"{folder} is not pushed: the Hub was still taking the one before")
            self.held.discard(folder)

    def _push_all(self) -> None:
        while (folder := self._waiting.get()) is not None:
            tag = f"step-{int(folder.name.removeprefix('step-'))}"
            try:
                self.say(f"{tag}: {push_model(folder=folder, name=self.name, tag=tag)}")
            except Exception as error:
                self.say(f"warning: pushing {tag} failed: {error}")
            self.held.discard(folder)


@contextmanager
def hub_errors(name: str, advice: Mapping[int, str] = _ADVICE) -> Iterator[None]:
    """Whatever fails in here becomes a `HubError` that says what to do, and shows no token and no signed address."""
    try:
        yield
    except LacunaError:
        raise
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
            chain.append(cause)
        answers = [each.response for each in chain if getattr(each, "response", None) is not None]  # type: ignore[attr-defined]
        text = re.sub(r"\?\S+", "", " ".join(str(error).split()))[:300]
        failed = (
            f"the Hub cannot be reached, or the connection broke ({type(error).__name__}: {text}): check the network "
            "and HF_ENDPOINT, and try again"
        )
        said = _of_answer(answers[0], chain, advice) if answers else failed
        for token in filter(None, [huggingface_hub.get_token()]):
            said = said.replace(token, "***")
        raise HubError(f"{name}: {without_secrets(said)}") from None


def _of_answer(answer: Any, chain: Sequence[BaseException], advice: Mapping[int, str]) -> str:
    status = int(answer.status_code)
    does = advice.get(status, "refuses it")
    if status >= 500:
        does = "has trouble of its own: try again later (status.huggingface.co)"
    wait = answer.headers.get("Retry-After")
    does += f" in {wait} seconds" if status == 429 and wait else ""
    messages = [getattr(each, "server_message", None) for each in chain]
    detail = " ".join(str(next(filter(None, messages), "")).split())[:300]
    return f"the Hub (HTTP {status}) {does}" + (f". It says: {detail}" if detail else "")
