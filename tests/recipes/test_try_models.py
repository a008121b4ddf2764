"""recipes/try_models.py: every head does what it is for; a mistake is one line."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_models import TEXTS
from transformers import AutoTokenizer

RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "try_models.py")
NAMED = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}
KINDS = ["O", "B-place", "I-place", "B-person", "I-person"]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the recipe and returns what it printed; what it refuses with `code` it returns too."""

    def run(*words: object, code: int = 2) -> str:
        monkeypatch.setattr(sys, "argv", [RECIPE, *map(str, words)])
        capsys.readouterr()
        try:
            runpy.run_path(RECIPE, run_name="__main__")
        except SystemExit as left:
            assert left.code == code
            return capsys.readouterr().err.splitlines()[-1].removeprefix("error: ")
        return capsys.readouterr().out

    return run


def given(folder: Path, *rows: dict[str, Any]) -> Path:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "predictions.jsonl").write_text(lines, encoding="utf-8")
    return folder


def held_out(folder: Path, *texts: str) -> Path:
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    (folder / "held_out.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.parametrize("head", ["LacunaForMaskedLM", "LacunaForPreTraining"])
def test_masks_are_filled_in_texts_that_were_held_out(head: str, folder_of, tried, tmp_path) -> None:
    folder = held_out(folder_of("bert", head), "Das Fenster ist offen.", "日本語の文章です。")
    said = tried("--model", folder)
    assert len(re.findall(r"^      '.*' \d+%, '.*' \d+%, '.*' \d+% \(right: ", said, flags=re.MULTILINE)) == 2
    assert "  Das [GAP] ist offen.\n" in said and "(right: Fenster)" in said and "[GAP]" in said.splitlines()[2]
    (tmp_path / "mine.txt").write_text("Another window here.\n\nOne more sentence.\n")
    said = tried("--model", folder, "--examples", tmp_path / "mine.txt")
    assert "(right: Another)" in said and "(right: sentence)" in said
    (tmp_path / "mine.txt").write_text("Another [MASK] here.\n")
    assert "  Another [GAP] here.\n" in (said := tried("--model", folder, "--examples", tmp_path / "mine.txt"))
    assert "right" not in said


def test_texts_go_on_and_gaps_are_mended(folder_of, tried) -> None:
    text = "A window here."
    assert "  A window here. ... " in tried("--model", held_out(folder_of("qwen3", "LacunaForCausalLM"), text))
    folder = folder_of("gpt2", "LacunaForCausalLM")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    config = transformers.GPT2Config(vocab_size=320, bos_token_id=2, eos_token_id=3, pad_token_id=0, **sizes)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    assert "  A window here. ... " in tried("--model", held_out(folder, text))
    (folder / "task.json").write_text(json.dumps({"name": "sequence_to_sequence", "max_target_length": 4}))
    said = tried("--model", given(folder, {"source": "one\u2028", "gold": "x"}, {"source": "two"}))
    assert "  two" in said.splitlines()
    said = tried("--model", held_out(folder_of("bart", "LacunaForConditionalGeneration"), text, text)).splitlines()
    assert len(said) == 4 and said[0] == "  A [GAP] here." and said[1].endswith("(right: window)")


@pytest.mark.parametrize(
    ("family", "head"), [("bart", "LacunaForConditionalGeneration"), ("qwen3", "LacunaForCausalLM")]
)
def test_a_text_is_written_as_in_evaluation(family: str, head: str, folder_of, run_recipe, tried, tmp_path) -> None:
    settings = {"max_length": 24, "max_target_length": 12, "source_prefix": "write: ", "source_column": "source"}
    folder = folder_of(family, head, settings={"name": "sequence_to_sequence", **settings})
    said = tried("--model", given(folder, *({"source": text, "gold": "a b"} for text in TEXTS)), "--number", 7)
    words = ["--input", folder / "predictions.jsonl", "--output", tmp_path / "written.jsonl"]
    assert run_recipe("predict", "--model", folder, *words)[0] == 0
    wanted = [json.loads(line)["prediction"] for line in (tmp_path / "written.jsonl").read_text().splitlines()]
    assert len(set(wanted)) > 1 and said.splitlines()[1::2] == [
        f"      {' '.join(text.split()) or 'nothing'} (right: a b)" for text in wanted
    ]


def test_labels_several_labels_and_numbers(folder_of, tried) -> None:
    rows = [{"text": text, "gold": "odd"} for text in TEXTS]
    one = folder_of("modernbert", "LacunaForSequenceClassification", **NAMED)
    assert re.search(r"^      (bad|good|odd) \d+% \(right: odd\)$", tried("--model", given(one, *rows)), re.MULTILINE)
    several = {"problem_type": "multi_label_classification", **NAMED}
    many = folder_of("modernbert", "LacunaForSequenceClassification", settings={"name": "classification"}, **several)
    said = tried("--model", given(many, {**rows[0], "gold": ["bad", "odd"]}, {"text": "No.", "gold": []}))
    tokenizer = AutoTokenizer.from_pretrained(many)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(many).eval()
    with torch.no_grad():
        chances = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0].sigmoid()
    shown = re.findall(r"(bad|good|odd) \d+%", said.splitlines()[1])
    assert {NAMED["id2label"][place] for place in range(3) if chances[place] > 0.5} == set(shown)
    assert "(right: bad, odd)" in said and "(right: none)" in said
    number = {"id2label": {0: "stars"}, "label2id": {"stars": 0}, "problem_type": "regression"}
    said = tried("--model", given(folder_of("bert", "LacunaForSequenceClassification", **number), {"text": "a"}))
    assert re.fullmatch(r"  a\n      stars -?[\d.e-]+\n", said)


def test_entities_and_answers(folder_of, run_recipe, tried) -> None:
    tags = {"id2label": dict(enumerate(KINDS)), "label2id": {name: number for number, name in enumerate(KINDS)}}
    gold = [{"type": "place", "text": "garden"}, {"type": "person", "text": "fox"}]
    row = {"text": TEXTS[0], "tokens": TEXTS[0].split(), "gold": gold}
    tagger = given(folder_of("modernbert", "LacunaForTokenClassification", **tags), row)
    said = tried("--model", tagger)
    assert re.search(r"\S \((place|person)\)", said) and "(right: garden (place), fox (person))" in said
    output = tagger / "answers.jsonl"  # by words, where a blank may be a token of its own
    words = ["--model", tagger, "--input", tagger / "predictions.jsonl", "--output", output]
    assert run_recipe("predict", *words)[0] == 0
    spans = [f"{each['text']} ({each['type']})" for each in json.loads(output.read_text())["prediction"]]
    assert said.splitlines()[1] == f"      {', '.join(spans)} (right: garden (place), fox (person))"
    reader = folder_of("modernbert", "LacunaForQuestionAnswering")
    said = tried("--model", given(reader, {"question": "Who?", "context": TEXTS[2], "gold": []}))
    marked = re.search(r">>(.*)<<.*\(right: it does not say\)", said)
    tokenizer = AutoTokenizer.from_pretrained(reader)
    batch = tokenizer("Who?", TEXTS[2], return_tensors="pt", return_offsets_mapping=True)
    places, parts = batch.pop("offset_mapping")[0].tolist(), batch.sequence_ids(0)
    with torch.no_grad():
        found = transformers.AutoModelForQuestionAnswering.from_pretrained(reader).eval()(**batch)
    inside = [number for number, part in enumerate(parts) if part == 1]
    spans = [(first, last) for first in inside for last in inside if first <= last]
    first, last = max(spans, key=lambda span: float(found.start_logits[0, span[0]] + found.end_logits[0, span[1]]))
    assert marked and marked[1] == TEXTS[2][places[first][0] : places[last][1]].strip()


def test_a_mistake_is_one_line(folder_of, tried, tmp_path) -> None:
    for head in ("LacunaModel", "LacunaForMultipleChoice"):
        folder = folder_of("bert", head)
        said = tried("--model", folder)
        assert said == f"--model {folder}: its head, {head}, is for recipes/predict.py --model {folder} --input FILE"
    encoder = folder_of("bert", "LacunaForMaskedLM")
    (encoder / "modules.json").write_text("[]")
    assert "its head, SentenceTransformer, is for recipes/predict.py" in tried("--model", encoder)
    assert tried("--model", tmp_path).endswith("is not the folder of a model: it has no config.json")
    folder = folder_of("bert", "LacunaForSequenceClassification", **NAMED)
    assert tried("--model", folder).startswith(f"--examples {folder}/predictions.jsonl: no such file")
    spans = folder_of("modernbert", "LacunaForQuestionAnswering")  # as of --objective spans
    assert "is empty; fine-tune it on questions first, or name a .jsonl" in tried("--model", spans)
    assert tried("--model", given(folder, {"gold": 1})) == "--examples: a row has no 'text'"
    given(folder, {"text": "a"})
    for number in (0, -1):
        said = tried("--model", folder, "--number", number)
        assert said == f"--number must be at least 1, got {number}"
    (folder / "model.safetensors").write_bytes(b"x" * 64)
    said = tried("--model", folder, code=3)
    assert said.startswith(f"--model {folder}: its weights cannot be read: ") and "eader" in said


@pytest.mark.parametrize(
    ("name", "content", "place", "why"),
    [
        ("rows.jsonl", b'{"text": "a"}\nno json\n', ":2 is no line of .jsonl or .txt in UTF-8", "Expecting value"),
        ("rows.csv", b"text,label\na,good\n", ":1 is no line of", "Expecting value"),
        ("rows.jsonl", b"\n[1]\n", ":2 is no line of", "mapping"),
        ("texts.txt", "A window.\nEin schönes Fenster.\n".encode("latin-1"), ":2 is no line of", "codec can't decode"),
        ("empty.txt", b"\n", ": no such file (the Hub has none), or it is empty", "name a .jsonl or .txt"),
    ],
)
def test_examples_that_cannot_be_read_are_named(
    name: str, content: bytes, place: str, why: str, folder_of, tried, tmp_path
) -> None:
    (tmp_path / name).write_bytes(content)
    said = tried("--model", folder_of("bert", "LacunaForMaskedLM"), "--examples", tmp_path / name)
    assert said.startswith(f"--examples {tmp_path / name}{place}") and why in said
