"""The page on a run: what it shows of files written by hand, and that nothing of them can break out of it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from lacuna.common.errors import InputError
from lacuna.training.reports.page import write_page

RUN = {
    "arguments": {"learning_rate": 0.006, "batch_size": [64, 128], "max_steps": 20, "seed": 0},
    "objective": "mlm",
    "data": ["my <b>texts</b>/"],
}
LINES = [{"step": step, "loss": 9.0 - step / 10} for step in range(1, 21)]
LINES += [{"step": 7, "event": "skipped"}, {"step": 9, "event": "skipped"}, {"step": 12, "event": "resume"}]


class Cells(HTMLParser):
    """The rows of all tables by caption, and all addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self.at = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at = tag if tag in ("caption", "td", "th") else ""
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        assert tag not in ("script", "b")
        if tag == "tr":
            self.rows.append([])
        elif tag == "caption":
            self.rows: list[list[str]] = []
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.at == "caption":
            self.tables[data] = self.rows
        elif self.at:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.at = ""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A pretrained run, another one, and what was fine-tuned from the first."""

    def make(name: str, info: dict, results: dict, lines: list[dict]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(info))
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    took = {"steps": 20, "train_tokens": 4096, "train_seconds": 12.0}
    first = make("first", RUN, {"eval_loss": 3.25, "baseline_loss": 6.5, **took}, LINES)
    (first / "samples.jsonl").write_text(json.dumps({"step": 10, "prompt": "A", "text": "A </script><b>cat"}) + "\n")
    row = ["bits_per_byte", "bits_per_byte", "1.5000 (1.4000 to 1.6000)", "unigram 2.5000"]
    (first / "evaluation_all.json").write_text(json.dumps({"suite": "all", "max_examples": 3, "summary": [row]}))
    make("second", RUN, {"eval_loss": 3.5}, LINES[:10])
    scores = {"eval_accuracy": 0.75, "baseline_accuracy": 0.5, "words_accuracy": 0.625}
    make("tuned", {"objective": "fine-tuning for classification", "model": str(first)}, scores, [])
    make("other", {"objective": "fine-tuning for classification", "model": "somebody/else"}, scores, [])
    return tmp_path


def test_a_run_is_shown_with_what_it_survived_said_and_became(home: Path) -> None:
    write_page([home / "first"], home / "page.html")
    page = (home / "page.html").read_text()
    found = Cells(page)
    asked = dict(found.tables["What was asked"][1:])
    assert asked == {
        "objective": "mlm",
        "data": "my <b>texts</b>/",
        "batch_size": "64, 128",
        "learning_rate": "0.006",
        "max_steps": "20",
        "seed": "0",
    }
    assert found.tables["Held-out scores"] == [["score", "this model", "without a model"], ["loss", "3.25", "6.5"]]
    survived = found.tables["Faults that it survived"][1:]
    assert survived == [["taken up again", "1", "12"], ["steps not applied", "2", "7, 9"]]
    assert found.tables["What it said along the way"][1:] == [["10", "A", "A </script><b>cat"]]
    evaluated = found.tables["Evaluation of what it knows, at most 3 examples of a kind"]
    assert evaluated[1:] == [["bits_per_byte", "bits_per_byte", "1.5000 (1.4000 to 1.6000)", "unigram 2.5000"]]
    assert found.tables["Fine-tuned from it"][1:] == [["tuned", "classification", "accuracy", "0.75", "0.5", "0.625"]]
    assert "20 steps, 4,096 tokens, 12 s" in page and "What it read" not in found.tables
    assert not re.search(r"https?://", page)


def test_several_runs_stand_side_by_side(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "second" / "held_out.jsonl").write_text(json.dumps({"text": "what <b>it</b> looks like " * 20}) + "\n")
    labels, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda it, *words, **how: labels.append(it) or save(it, *words, **how))
    write_page([home / "first", home / "second"], home / "page.html")
    assert [(it.axes[0].get_xlabel(), it.axes[0].get_ylabel()) for it in labels] == [("step", "loss")]
    found = Cells((home / "page.html").read_text())
    assert found.tables["What it read"] == [["held out", ("what <b>it</b> looks like " * 20)[:300]]]
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses) and found.addresses
    page = (home / "page.html").read_text()
    first = re.search(r"<h2>Side by side</h2>.*?</table>", page, re.DOTALL)
    assert first is not None
    scores = [["score", "first", "second"], ["objective", "mlm", "mlm"], ["loss", "3.25", "3.5"]]
    assert Cells(first[0]).tables["Held-out scores"] == scores
    assert "It has not ended." in page  # the second one has no totals
    (home / "elsewhere").mkdir()
    (home / "second").rename(home / "elsewhere" / "first")
    write_page([home / "first", home / "elsewhere" / "first"], home / "page.html")  # of one name
    first = re.search(r"<h2>Side by side</h2>.*?</table>", (home / "page.html").read_text(), re.DOTALL)
    assert first is not None
    head, *_ = Cells(first[0]).tables["Held-out scores"]
    assert head == ["score", str(home / "first"), str(home / "elsewhere" / "first")]


def test_what_is_no_run_is_refused(home: Path, run_recipe) -> None:
    (home / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no run\.json: name the --output_dir of a recipe that trains"):
        write_page([home / "empty"], home / "page.html")
    code, said = run_recipe("report_run", "--run", home / "empty")
    assert code == 2 and "has no run.json" in said and "Traceback" not in said
    code, said = run_recipe("report_run")
    assert code == 2 and "--run is missing" in said
    code, said = run_recipe("report_run", "--run", home / "first", "--output_file", home)
    assert code == 2 and f"--output_file {home} is a folder; name a file" in said
    (home / "in.csv").write_text("mine")
    code, said = run_recipe("report_run", "--run", home / "first", "--output_file", home / "in.csv")
    assert code == 2 and "in.csv is not HTML; name a file that ends in .html" in said
    assert (home / "in.csv").read_text() == "mine"
    code, said = run_recipe("report_run", "--run", home / "first", home / "tuned")
    assert code == 0 and (home / "first" / "run.html").is_file()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"step": 7, "event": "skipped"}\n{"step": 8, "lo', ""),
        ("metrics.jsonl", '{"step": 7, "lo\n{"step": 8}\n', "metrics.jsonl:1 cannot be read as JSON"),
        ("run.json", '{"arguments": ', "run.json cannot be read as JSON: mend or remove it"),
        ("results.json", "[]", "results.json cannot be read as JSON: mend or remove it"),
        ("evaluation_all.json", "{", "evaluation_all.json cannot be read as JSON: mend or remove it"),
    ],
)
def test_a_broken_file_is_named_but_for_a_last_line(
    name: str, content: str, message: str, home: Path, run_recipe
) -> None:
    (home / "first" / name).write_text(content)
    code, said = run_recipe("report_run", "--run", home / "first")
    page = home / "first" / "run.html"
    if message:
        assert code == 2 and f"{home / 'first'}/{message}" in said and "Traceback" not in said and not page.exists()
    else:
        survived = Cells(page.read_text()).tables["Faults that it survived"][1:]
        assert code == 0 and survived == [["steps not applied", "1", "7"]]


def test_a_broken_run_beside_it_is_left_out(home: Path, run_recipe) -> None:
    (home / "broken").mkdir()
    for name, content in (("run.json", '{"model": '), ("run.json", "{}"), ("results.json", "[]")):
        (home / "broken" / name).write_text(content)
        code, said = run_recipe("report_run", "--run", home / "first")
        page = Cells((home / "first" / "run.html").read_text())
        assert code == 0 and len(page.tables["Fine-tuned from it"]) > 1, said
