"""docs/quickstart.ipynb: its cells, on little text here, and in a kernel as they stand where there is one."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "quickstart.ipynb"
SMALL = """
texts = [{"text": f"The river number {i} is {'deep' if i % 2 else 'wide'} and old. " * 6} for i in range(60)]
rows = [{"text": f"{'good' if i % 2 else 'bad'} river {i}", "label": "yes" if i % 2 else "no"} for i in range(60)]
minutes, new = 0.02, ["good river", "bad river"]
"""


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in found), "outputs stay out of the repository"
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_its_cells_on_little_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    names: dict[str, Any] = {}
    first, *others = cells()
    assert first.splitlines()[-2].startswith("texts, rows, minutes =")
    for cell in [SMALL, *others]:
        exec(compile(cell, NOTEBOOK.name, "exec"), names)
    assert [answer["text"] for answer in names["answers"]] == names["new"]
    said = capsys.readouterr().out
    assert "Your own machine: nothing to change" in said and "%  good river" in said
    assert names["tuned"].results["baseline_accuracy"] == 0.5


@pytest.mark.slow
def test_it_runs_in_a_kernel_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "the curves"
    assert not any(output.output_type == "error" for output in outputs)
