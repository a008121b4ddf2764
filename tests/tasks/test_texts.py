"""The texts that `--for` takes of a labelled file: those that fine-tuning would learn from, and nothing else."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, GPT2Config

from lacuna.common.errors import InputError
from lacuna.corpus import BUILTIN_TASKS, read_labelled
from lacuna.tasks.base.fine_tuning import warn_of_seen
from lacuna.tasks.texts import TASKS, read_task_texts
from lacuna.tokenization import adapt_tokenizer, train_bpe

WORDS = ["the", "a", "cat", "dog", "bird", "sat", "ran", "sang", "under", "over", "mat", "tree", "old", "new"]


def sentence(number: int) -> str:
    return f"{number} {' '.join(random.Random(number).choices(WORDS, k=6))}"


def questions(number: int) -> dict[str, Any]:
    context = f"{sentence(number // 2)} is here."
    answers = {"text": [context.split()[1]], "answer_start": [len(context.split()[0]) + 1]}
    return {"question": f"what {number}?", "context": context, "answers": answers}


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "classification": lambda n: {"text": sentence(n), "label": f"label-{n % 3}"},
    "question_answering": questions,
    "token_classification": lambda n: {
        "tokens": sentence(n).split(),
        "tags": ["O", "B-LOC", "O", "O", "O", "O", "B-PER"],
    },
    "multiple_choice": lambda n: {
        "question": f"which {n}?",
        "choices": [sentence(n), sentence(n + 500), f"no {n}"],
        "label": n % 3,
    },
    "sequence_to_sequence": lambda n: {"source": sentence(n), "target": f"written {n} from it"},
}


def write(path: Path, task: str, count: int = 80) -> str:
    path.write_text("".join(json.dumps(ROWS[task](number)) + "\n" for number in range(count)))
    return str(path)


def texts_of(*files: str, task: str | None = None) -> tuple[list[str], list[dict[str, Any]]]:
    return read_task_texts(files, task=task, read=read_labelled, builtin=BUILTIN_TASKS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_bpe(documents=[" ".join(WORDS)] * 4, vocab_size=300)


@pytest.mark.parametrize("task", ROWS)
def test_they_are_what_fine_tuning_reads_and_nothing_of_what_it_holds_out(task, tokenizer, tmp_path) -> None:
    """Every text that fine-tuning feeds a model, decoded, is in them; no held-out one and no target is."""
    file = write(tmp_path / "rows.jsonl", task)
    texts, [facts] = texts_of(file)
    assert facts["task"] == task and facts["texts"] == len(texts) == len(set(texts))
    kind = TASKS[task]
    options = kind.__annotations__["options"]
    config, shape = (GPT2Config(), "decoder") if kind.writes else (BertConfig(), "encoder")
    adapted = adapt_tokenizer(tokenizer=tokenizer, shape=shape, segments=False, max_length=512)
    work = kind.from_arguments(options(train_file=file), tokenizer=adapted, config=config, read=read_labelled)
    # A space before a text, as fine-tuning reads it.
    assert kind.writes or all(text.startswith(" ") for text in texts)
    lines = {line.strip() for line in "\n".join(texts).split("\n")}

    def pieces(example: dict[str, Any]) -> list[str]:
        shown = adapted.decode(example["input_ids"])
        for sign in ("[CLS]", "[SEP]", "<|endoftext|>"):
            shown = shown.replace(sign, "\n")
        return [piece.strip() for piece in shown.split("\n") if piece.strip()]

    work.options.token_dropout = 0
    learnt = {piece for row in range(work.num_examples) for piece in pieces(work.example(row, row))}
    held_out = {piece for row in range(work.num_eval_examples) for piece in pieces(work.eval_example(row))}
    assert learnt and held_out
    if task == "sequence_to_sequence":  # a decoder reads the target in the same row
        assert all(any(piece.startswith(line) for piece in learnt) for line in lines)
        assert not any(piece.startswith(line) for piece in held_out for line in lines)
        assert len(lines) == work.num_examples and not any("written" in line for line in lines)
    else:
        assert lines == learnt and not lines & held_out
    assert not any("label" in line or "B-LOC" in line for line in lines)


def test_a_shared_context_comes_once(tmp_path) -> None:
    texts, _ = texts_of(write(tmp_path / "rows.jsonl", "question_answering"))
    assert all(text.count("is here.") == 1 and text.count("what") == 2 for text in texts)


def test_related_texts_stay_apart(tmp_path) -> None:
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"anchor": sentence(n), "positive": f"near {n}"}) + "\n" for n in range(40))
    )
    texts, _ = texts_of(str(tmp_path / "pairs.jsonl"), task="embeddings")
    assert len(texts) == 2 * 36 and not any("\n" in text for text in texts)


@pytest.mark.parametrize(
    "row, task",
    [
        ({"premise": "p", "hypothesis": "h", "label": 0.5}, "classification"),
        ({"text": "t", "labels": ["a", "b"]}, "classification"),
        ({"translation": {"en": "e", "de": "d"}}, "sequence_to_sequence"),
        ({"sent1": "s", "ending0": "e", "ending1": "f", "label": 1}, "multiple_choice"),
        ({"tokens": ["t", "u"], "ner_tags": ["O", "B-A"]}, "token_classification"),
        ({"question": "q", "context": "c a", "answer": "a", "answer_start": 2}, "question_answering"),
    ],
)
def test_the_task_is_told_by_the_columns(row, task, tmp_path) -> None:
    def numbered(value: Any, number: int) -> Any:
        if isinstance(value, dict):
            return {name: numbered(item, number) for name, item in value.items()}
        return f"{value} {number}" if isinstance(value, str) and value != "a" else value

    rows = [{name: numbered(value, number) for name, value in row.items()} for number in range(60)]
    if "labels" in row:
        rows[0]["labels"] = ["c"]
    elif "label" in row:
        rows[0]["label"] = rows[1]["label"] = 0
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    _, [facts] = texts_of(str(tmp_path / "rows.jsonl"))
    assert facts["task"] == task


def test_conll_a_table_and_a_built_in_task_together(tmp_path) -> None:
    sentences = ["\n".join(f"{word}\tO" for word in [*sentence(n).split(), "end"]) for n in range(20)]
    conll = "\n\n".join(each.replace("end\tO", "end\tB-END") for each in sentences)
    (tmp_path / "a.conll").write_text(conll + "\n")
    texts, facts = texts_of(str(tmp_path / "a.conll"), "classification")
    assert [each["task"] for each in facts] == ["token_classification", "classification"]
    assert facts[0]["texts"] == 18 and len(texts) == 18 + facts[1]["texts"] and facts[1]["sha256"] == "classification"


def test_what_cannot_be_read_is_said(tmp_path) -> None:
    (tmp_path / "ids.csv").write_text("".join(["label\n", *(f"{n % 2}\n" for n in range(50))]))
    (tmp_path / "hole.csv").write_text("".join(["text,label\n", *(f"text {n},{n % 2}\n" for n in range(50)), ",1\n"]))
    (tmp_path / "two.csv").write_text("text,label\na b,x\nc d,y\n")
    (tmp_path / "several.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}|c\n" for n in range(50)))
    for name, task, says in [
        ("ids.csv", None, r"ids.csv: its columns \['label'\].* do not tell .* --for_task \(classification, "),
        ("ids.csv", "tagging", "--for_task tagging is not known; choose from classification"),
        ("hole.csv", None, r"--for reads .*hole.csv for classification.*hole.csv:52: column 'text' is empty"),
        ("none.csv", None, "there is no file or folder"),
        # What fine-tuning would be told to do about them cannot be done here.
        ("two.csv", None, r"so nothing can be held out to evaluate on$"),
        ("several.csv", None, r"looks like several labels in one text$"),
    ]:
        with pytest.raises(InputError, match=says):
            texts_of(str(tmp_path / name), task=task)


def test_fine_tuning_notices_a_split_of_its_own(tokenizer, tmp_path, monkeypatch) -> None:
    file, other = write(tmp_path / "rows.jsonl", "classification"), write(tmp_path / "b.jsonl", "classification", 60)
    kind = TASKS["classification"]
    options = kind.__annotations__["options"]
    _, facts = texts_of(file)
    (tmp_path / "run.json").write_text(json.dumps({"self_pretraining": facts}))
    (tmp_path / "bare").mkdir()

    def warned(model: Path = tmp_path, seed: int = 0, **more: Any) -> list[str]:
        data = options(**{"train_file": file, **more})
        work = kind.from_arguments(data, tokenizer=None, seed=seed, read=read_labelled)
        return warn_of_seen(str(model), data, work)

    assert warned() == warned(train_file=other, seed=1) == warned(tmp_path / "bare", seed=1) == []
    assert warned(eval_file=other, seed=1) == []
    [read] = warned(train_file=other, eval_file=file)
    assert read.startswith("warning: ") and "has read what is held out" in read
    [line] = warned(seed=1)
    assert line.startswith("warning: ") and "--eval_file" in line
    assert warned(eval_fraction=0.2) == [line]
    assert len(warned(tmp_path / "checkpoints" / "step-00000001", seed=1)) == 1
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path / "checkpoints")
    assert len(warned(Path("step-00000001"), seed=1)) == 1
