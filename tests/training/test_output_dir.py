"""What may be written to: nothing that somebody else put there."""

from pathlib import Path

import pytest

from lacuna.common.errors import InputError, StorageError
from lacuna.training import TrainingArguments, claim_output_dir


def test_an_empty_or_new_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    assert claim_output_dir(TrainingArguments(output_dir=str(tmp_path))) is None
    assert claim_output_dir(TrainingArguments(output_dir=str(tmp_path / "new" / "run"))) is None


def test_somebodys_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path)))
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "metrics.jsonl").touch()
    with pytest.raises(InputError, match=r"an interrupted run has left, metrics\.jsonl; delete that, or name another"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path / "left")))
    (tmp_path / "README.md").rename(tmp_path / "thesis.docx")
    (tmp_path / "config.json").touch()  # of something else: no run, and none to resume
    with pytest.raises(InputError, match="is not empty and would be written over"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path)))
    with pytest.raises(InputError, match=r"--resume: .* holds no run but config\.json"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path), resume=True))
    assert (tmp_path / "thesis.docx").read_text() == "mine"


def test_a_run_is_refused_unless_resumed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="--resume"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path)))
    with pytest.raises(InputError, match="already holds a run; name another folder"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path)), resumes=False)
    assert claim_output_dir(TrainingArguments(output_dir=str(tmp_path), resume=True)) is None


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path / name)))


def test_a_place_where_nothing_may_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(StorageError, match=f"no permission to write in {tmp_path}"):
        claim_output_dir(TrainingArguments(output_dir=str(tmp_path / "new" / "run")))
