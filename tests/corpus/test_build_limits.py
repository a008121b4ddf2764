"""What a build refuses or takes in the odd cases of places, names and weights."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from examples import document_tokens
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError, StorageError
from lacuna.corpus import TextArguments, TokenStore, open_store, open_text, prepare_store
from lacuna.corpus.store import encoding as encoding_module
from lacuna.tokenization import train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["The cat sat. The dog ran! A new one. " * 20], vocab_size=280)


def prepare(data: list[str], tokenizer: Any, output_dir: Path | str, **options: Any) -> TokenStore:
    kinds = {name: options.pop(name) for name in ("document_boundary", "on_bad_record") if name in options}
    return prepare_store(
        text=open_text(TextArguments(data=data, **kinds)),
        tokenizer=tokenizer,
        tokenizer_fingerprint="t1",
        output_dir=output_dir,
        num_workers=0,
        **options,
    )


@pytest.mark.parametrize("gap", [" \n\n", "\t \n\n", "\u3000\n\n", "\n \n\n"])
def test_sections_are_not_cut_inside_white_space(
    gap: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_module, "SECTION_BYTES", 50)
    text = gap.join(["The cat sat. The dog ran!"] * 20)
    (tmp_path / "a.txt").write_text(text)
    assert len(list(encoding_module.cut_sections(text.encode()))) > 3
    store = prepare([f"{tmp_path}/a.txt"], tokenizer, tmp_path / "store")
    assert document_tokens(store, 0).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(encoding_module.cut_sections(b" " * 500)) == " " * 500


def test_no_more_open_files_does_not_mean_damaged(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("The cat sat.")
    data = [f"{tmp_path}/a.txt"]
    prepare(data, tokenizer, tmp_path / "store")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("numpy.memmap", full)
    with pytest.raises(StorageError, match=r"Too many open files\. Its files stay open.*ulimit -n") as caught:
        prepare(data, tokenizer, tmp_path / "store")
    assert caught.value.exit_code == 5


def test_weights_of_a_store_that_is_there_are_checked_too(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("The cat sat.")
    data = [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    prepare(data, tokenizer, tmp_path / "store")
    with pytest.raises(InputError, match=r"no document of .*b\.txt is left"):
        prepare([f"{name}:1" for name in data], tokenizer, tmp_path / "store")
    assert open_store(tmp_path / "store").source_weights is None


@pytest.mark.skipif(os.name == "nt" or os.uname().sysname == "Darwin", reason="file names are Unicode there")
def test_names_that_are_not_utf8_and_control_characters(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    names = [os.fsdecode(bytes(tmp_path) + b"/\xff\x1b.txt"), f"{tmp_path}/b.txt"]
    Path(names[0]).write_text("The cat \x1b[31msat\x07.")
    Path(names[1]).write_text("The dog ran!")
    store = prepare(names, tokenizer, tmp_path / os.fsdecode(b"\xfe"))
    assert open_store(store.path).source_names == names
    assert json.loads((store.path / "manifest.json").read_text())["sources"][0]["name"] == names[0]
    report = store.report(decode=tokenizer.decode)
    assert r"/\udcff\x1b.txt: " in report and r"0: The cat \x1b[31msat\x07." in report
    assert report.encode() and "\x1b" not in report


def test_a_place_that_is_a_link_and_names_that_are_none(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The cat sat.")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for text in ("The cat sat.", "The dog ran!"):
        (tmp_path / "a.txt").write_text(text)
        prepare([f"{tmp_path}/a.txt"], tokenizer, tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and open_store(tmp_path / "target").num_documents == 1
    for place in ("", ".", "..", "/"):
        with pytest.raises(InputError, match="has no name of its own"):
            prepare([f"{tmp_path}/a.txt"], tokenizer, place)
    with pytest.raises(InputError, match="empty name"):
        open_text(TextArguments(data=[""]))
    with pytest.raises(InputError, match="there is no file or folder ~nobody-of-this-name/x"):
        open_text(TextArguments(data=["~nobody-of-this-name/x"]))
