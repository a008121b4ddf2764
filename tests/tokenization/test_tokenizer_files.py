"""Tokenizers on disk: files that any transformers reads, and errors that say what is wrong."""

import json
from pathlib import Path

import processes
import pytest
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lacuna.common.errors import InputError, StorageError
from lacuna.tokenization import (
    adapt_tokenizer,
    check_output_dir,
    load_or_train,
    load_tokenizer,
    save_tokenizer,
    tokenizer_fingerprint,
    train_bpe,
)
from lacuna.tokenization.files import check_replaceable


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_save_and_load(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "tokenizer"
    save_tokenizer(tokenizer=tokenizer, output_dir=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["tokenizer"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["clean_up_tokenization_spaces"] is False
    assert "auto_map" not in config
    for loaded in (load_tokenizer(folder), load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)):
        assert loaded("the cat", "a dog") == tokenizer("the cat", "a dog")
        assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
        assert loaded.decode(encode_text(loaded, "a , b .")) == "a , b ."
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the cat").ids == tokenizer("the cat").input_ids


def test_save_into_a_folder_with_other_files(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_tokenizer(tokenizer=tokenizer, output_dir=folder)
    decoder = adapt_tokenizer(tokenizer=tokenizer, shape="decoder", segments=False, max_length=8)
    save_tokenizer(tokenizer=decoder, output_dir=folder)
    assert (folder / "config.json").read_text() == "{}"
    assert load_tokenizer(folder).padding_side == "left"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_save_that_fails_leaves_nothing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
    with pytest.raises(StorageError, match="No space left") as caught:
        save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    assert caught.value.exit_code == 5
    assert not list(tmp_path.iterdir())


def test_load_of_what_is_not_there_or_broken(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder.*train_tokenizer.*--output_dir .*/nothing$"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"no tokenizer\.json.*--output_dir runs/tokenizer$"):
        load_tokenizer(tmp_path)  # not into the folder of somebody's texts
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_of_fine_tuning_is_not_for_raw_text(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    for name, first in (("tuned", " "), ("of_sentencepiece", "▁")):
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(first)])
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / name)
    load_tokenizer(tmp_path / "of_sentencepiece")
    with pytest.raises(InputError, match="begins every text with a space"):
        load_tokenizer(tmp_path / "tuned")
    monkeypatch.setattr(
        "lacuna.tokenization.files.loading.load_tokenizer",
        lambda name, **_: PreTrainedTokenizerFast.from_pretrained(tmp_path / "tuned"),
    )
    with pytest.raises(InputError, match="of me/tuned begins every text with a space"):  # on the Hub
        load_or_train(None, tokenizer=None, model="me/tuned")


READER = """
import json, sys
from transformers import AutoTokenizer

for name in [name for name in sys.modules if name.partition(".")[0] == "lacuna"]:
    sys.modules[name] = None
t = AutoTokenizer.from_pretrained("tokenizer")
print(json.dumps(t("the cat", "a dog").data))
"""


def test_another_process_reads_it_without_lacuna(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    (tmp_path / "reader.py").write_text(READER)
    done = processes.run(tmp_path / "reader.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == tokenizer("the cat", "a dog").data


def test_extra_special_tokens_survive_the_disk(tmp_path: Path) -> None:
    text = "some text, some more text"
    made = train_bpe(documents=[text] * 5, vocab_size=270, extra_special_tokens=["<user>", "<é>"])
    save_tokenizer(tokenizer=made, output_dir=tmp_path / "tokenizer")
    config = json.loads((tmp_path / "tokenizer" / "tokenizer_config.json").read_text())
    assert "extra_special_tokens" not in config  # transformers 4.57 takes a list under that name for a mistake
    for loaded in (load_tokenizer(tmp_path / "tokenizer"), AutoTokenizer.from_pretrained(tmp_path / "tokenizer")):
        assert loaded.convert_tokens_to_ids(["<user>", "<é>"]) == [5, 6]
        assert set(loaded.all_special_ids) == set(range(7))
        ids = loaded("some<user> text <é>")["input_ids"]
        assert {5, 6} < set(ids) and loaded.decode(ids, skip_special_tokens=True) == "some text "


def test_an_output_folder_is_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_output_dir(tmp_path / "deep" / "folder")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        check_output_dir(tmp_path / "file" / "folder")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(StorageError, match="no permission"):
        check_output_dir(tmp_path / "folder")


def test_what_train_tokenizer_has_not_written_is_never_written_over(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new")
    check_replaceable(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(InputError, match=r"holds tokenizer\.json, made by something else"):
        check_replaceable(tmp_path)
    (tmp_path / "tokenizer_report.json").touch()
    check_replaceable(tmp_path)  # one that it made before
    (tmp_path / "config.json").touch()
    with pytest.raises(InputError, match=r"holds config\.json, .* name another folder"):
        check_replaceable(tmp_path)
