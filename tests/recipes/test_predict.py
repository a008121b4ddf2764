"""recipes/predict.py: every head answers rows as a forward pass does, in their order; mistakes leave nothing."""

import csv
import errno
import io
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import transformers
from small_models import TEXTS
from transformers import AutoTokenizer, BertConfig

from lacuna.common.errors import InputError
from lacuna.tasks.base.bag_of_words import WORDS, Words
from lacuna.tasks.base.features import TOKENS
from lacuna.tasks.base.rows import write_rows as write_answers
from lacuna.tasks.multiple_choice.task import MultipleChoice, MultipleChoiceArguments
from lacuna.tasks.predict.inference import open_predictor, trained_columns
from lacuna.tasks.predict.predictor import PredictionArguments, check_rows, predict
from lacuna.tasks.question_answering.reader import QuestionAnsweringArguments
from lacuna.tasks.question_answering.task import QuestionAnswering
from lacuna.tasks.sequence_to_sequence.task import SequenceToSequence, SequenceToSequenceArguments
from lacuna.tasks.token_classification.reader import TokenClassificationArguments
from lacuna.tasks.token_classification.task import TokenClassification
from lacuna.tokenization import save_tokenizer


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".txt":
        path.write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@torch.no_grad()
def logits(folder: Path, head: str, *texts: str, dtype: Any = "auto", **options: Any) -> torch.Tensor:
    """Those of one input, without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, head).from_pretrained(folder, dtype=dtype).eval()
    return model(**tokenizer(*texts, return_tensors="pt", truncation=True, **options)).logits[0]


CLASSES = "AutoModelForSequenceClassification"
NAMED = {"id2label": {0: "bad", 1: "good", 2: "odd"}, "label2id": {"bad": 0, "good": 1, "odd": 2}}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet", ".txt"])
def test_labels_in_the_order_of_the_rows(ending: str, folder_of, run_recipe, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForSequenceClassification", **NAMED)
    rows = [{"text": text, "note": str(number)} for number, text in enumerate(TEXTS)]
    rows = [{"text": row["text"]} for row in rows] if ending == ".txt" else rows
    source, output = write_rows(tmp_path / f"new{ending}", rows), tmp_path / "out" / "answers.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output, "--batch_size", 3)
    assert code == 0, said
    answers = read_rows(output)
    assert [{name: row[name] for name in rows[0]} for row in answers] == rows
    for row in answers:
        chances = logits(folder, CLASSES, row["text"]).softmax(-1)
        assert row["prediction"] == NAMED["id2label"][int(chances.argmax())]
        assert row["probability"] == pytest.approx(float(chances.max()), abs=2e-6)
    assert len({row["prediction"] for row in answers}) > 1


def test_the_bag_of_words_beside_a_model_answers_with_it(folder_of, typed, tmp_path) -> None:
    settings = {"name": "classification", "words": True}
    folder = folder_of("modernbert", "LacunaForSequenceClassification", settings=settings, **NAMED)
    texts = [(text,) for text in TEXTS]
    words = Words.fit("single_label_classification", texts, [number % 2 * 2 for number in range(len(TEXTS))])
    assert words is not None
    words.weights = np.array([0.5, 2.0])
    words.save(folder / WORDS)
    source, answers = write_rows(tmp_path / "new.csv", [{"text": text} for text in TEXTS]), {}
    for name, more in (("both", ()), ("alone", ("--without_words",))):
        output = tmp_path / f"{name}.jsonl"
        code, said, why = typed("predict", "--model", folder, "--input", source, "--output", output, *more)
        assert code == 0 and ("with the bag of words beside it" in said) == (name == "both"), why
        answers[name] = read_rows(output)
    for row, alone, share in zip(
        answers["both"], answers["alone"], np.exp(words.log_probabilities(texts, num_labels=3)), strict=True
    ):
        chances = logits(folder, CLASSES, row["text"]).softmax(-1)
        assert alone["prediction"] == NAMED["id2label"][int(chances.argmax())]
        product = chances.detach().numpy() ** 0.5 * share**2
        product /= product.sum()
        assert row["prediction"] == NAMED["id2label"][int(product.argmax())]
        assert row["probability"] == pytest.approx(float(product.max()), abs=1e-3)
    assert {row["prediction"] for row in answers["both"]} == {"bad", "odd"}  # no row has the other label
    pairs = write_rows(tmp_path / "pairs.csv", [{"text": text, "text_pair": "odd"} for text in TEXTS])
    asked = ("--input", pairs, "--output", tmp_path / "x.csv", "--text_pair_column", "text_pair")
    code, _, why = typed("predict", "--model", folder, *asked)
    assert code == 2 and "learned from 1 of a row's texts, and are given 2: see --text_pair_column" in why
    assert typed("predict", "--model", folder, *asked, "--without_words")[0] == 0
    for weights in ([1.0, 1.0, 1.0], [np.nan, 1.0]):
        words.weights = np.array(weights)
        words.save(folder / WORDS)
        code, _, why = typed("predict", "--model", folder, "--input", source, "--output", tmp_path / "y.csv")
        assert code == 2 and "is not what fine-tuning writes" in why
    (folder / WORDS).write_bytes(b"{}")
    code, _, why = typed("predict", "--model", folder, "--input", source, "--output", tmp_path / "z.csv")
    assert code == 2 and "is not what fine-tuning writes" in why


def test_several_labels_numbers_and_pairs(folder_of, run_recipe, tmp_path) -> None:
    rows = [{"left": a, "right": b} for a, b in zip(TEXTS, reversed(TEXTS), strict=True)]
    source = write_rows(tmp_path / "new.csv", rows)
    columns = {"name": "classification", "text_column": "left", "text_pair_column": "right", "max_length": 24}
    many = folder_of(
        "bert",
        "LacunaForSequenceClassification",
        settings={**columns, "threshold": 0.4},
        problem_type="multi_label_classification",
        **NAMED,
    )
    number = folder_of(
        "bert", "LacunaForSequenceClassification", settings=columns, problem_type="regression", num_labels=1
    )
    for folder in (many, number):
        code, said = run_recipe(
            "predict", "--model", folder, "--input", source, "--output", tmp_path / f"{folder.name}.csv"
        )
        assert code == 0, said
    cut = 0
    for row, by_many, by_number in zip(
        rows, read_rows(tmp_path / f"{many.name}.csv"), read_rows(tmp_path / f"{number.name}.csv"), strict=True
    ):
        texts = (row["left"], row["right"])
        chances = logits(many, CLASSES, *texts, max_length=24).sigmoid()
        wanted = [name for place, name in NAMED["id2label"].items() if chances[place] > 0.4]
        assert json.loads(by_many["prediction"]) == wanted
        assert json.loads(by_many["probabilities"])["odd"] == pytest.approx(float(chances[2]), abs=2e-6)
        whole = torch.where(chances > 0.4, chances, 1 - chances).prod()  # of the set, as in predictions.jsonl
        assert float(by_many["probability"]) == pytest.approx(float(whole), abs=2e-6)
        whole = logits(number, CLASSES, *texts)
        value = logits(number, CLASSES, *texts, max_length=24)
        cut += abs(float(whole) - float(value)) > 1e-4
        assert float(by_number["prediction"]) == pytest.approx(float(value), rel=1e-4, abs=1e-5)
        assert by_number["prediction"] == str(round(float(by_number["prediction"]), 6))
    assert cut, "no text was longer than in training"


def test_questions_of_flat_rows_and_of_squad(folder_of, run_recipe, tmp_path) -> None:
    settings = {"name": "question_answering", "max_length": 40, "stride": 8, "max_answer_length": 6}
    folder = folder_of("modernbert", "LacunaForQuestionAnswering", settings=settings)
    context = " ".join(TEXTS)
    asked = [
        {"question": f"What of {text.split()[0]}?", "context": context[number * 20 :]}
        for number, text in enumerate(TEXTS)
    ]
    paragraphs = [{"context": row["context"], "qas": [{"question": row["question"], "id": "x"}]} for row in asked]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    flat = write_rows(tmp_path / "flat.csv", asked)
    for source in (squad, flat):
        code, said = run_recipe(
            "predict", "--model", folder, "--input", source, "--output", source.with_suffix(".jsonl")
        )
        assert code == 0, said
    # The task itself, which evaluates in other batches, finds the same; its probability is that of predictions.jsonl.
    rows = [{**row, "answers": {"text": [row["context"][:5]], "answer_start": [0]}} for row in asked]
    lengths = {name: settings[name] for name in ("max_length", "stride", "max_answer_length")}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    work = QuestionAnswering(
        QuestionAnsweringArguments(**lengths), train_rows=rows, eval_rows=rows, tokenizer=tokenizer
    )
    expected = by_task(work, folder, "AutoModelForQuestionAnswering")
    assert work.num_eval_examples > len(asked) + 3, "no context is longer than a window"
    for name in ("squad", "flat"):
        found = read_rows(tmp_path / f"{name}.jsonl")
        for row, wanted in zip(found, expected, strict=True):
            own = {"question", "context"} | ({"id"} if name == "squad" else set())
            assert row.keys() == own | {"prediction", "probability", "start", "end"} and row.get("id", "x") == "x"
            places = ("start", "end", "prediction")
            assert [row[place] for place in places] == [wanted[place] for place in places]
            assert row["context"][row["start"] : row["end"]] == row["prediction"] != ""
            assert row["probability"] == pytest.approx(wanted["probability"], abs=1e-5) and 0 < row["probability"] < 1


def test_questions_without_an_answer_are_those_of_the_tuned_threshold(folder_of, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForQuestionAnswering", settings={"name": "question_answering"})
    settings = {"name": "question_answering", "max_length": 40, "stride": 8, "max_answer_length": 6}
    asked = [
        {"question": f"What of {text.split()[0]}?", "context": " ".join(TEXTS[number:])}
        for number, text in enumerate(TEXTS)
    ]

    def answers(**more: object) -> list[dict[str, Any]]:
        (folder / "task.json").write_text(json.dumps({**settings, **more}))
        predictor = open_predictor(PredictionArguments(model=str(folder), input="x", output="y.jsonl", batch_size=2))
        check_rows(predictor, asked)
        return list(predict(predictor, asked))

    plain = answers()
    assert all(row["prediction"] for row in plain)
    none = answers(threshold=-1e9)
    assert [(row["prediction"], row["start"], row["end"]) for row in none] == [("", None, None)] * len(asked)
    assert all(0 < row["probability"] < 1 for row in none) and answers(threshold=1e9) == plain


def test_answers_are_computed_in_float32_whatever_the_weights_are_in(folder_of, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForSequenceClassification", **NAMED)
    transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(
        tmp_path / "half"
    )
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "half")
    arguments = PredictionArguments(model=str(tmp_path / "half"), input="x", output="y")
    predictor = open_predictor(arguments)
    assert {weight.dtype for weight in predictor.model.parameters()} == {torch.float32}
    check_rows(predictor, [{"text": text} for text in TEXTS])
    for text, row in zip(TEXTS, predict(predictor, [{"text": text} for text in TEXTS]), strict=True):
        chances = logits(tmp_path / "half", CLASSES, text, dtype=torch.float32).softmax(-1)
        assert row["probability"] == pytest.approx(float(chances.max()), abs=2e-6)


def test_an_adapter_alone_is_no_model(classifier, run_recipe, tmp_path) -> None:
    (classifier / "adapter").mkdir()
    (classifier / "adapter" / "adapter_config.json").write_text("{}")
    source = write_rows(tmp_path / "new.jsonl", [{"text": "a"}])
    words = ["--input", source, "--output", tmp_path / "x.csv"]
    code, said = run_recipe("predict", "--model", classifier / "adapter", *words)
    assert code == 2 and "Traceback" not in said and not (tmp_path / "x.csv").exists()
    assert f"pass {classifier}, which has the adapter merged in" in said


KINDS = ["O", "B-place", "I-place", "B-person", "I-person"]
TAGGED = {"id2label": dict(enumerate(KINDS)), "label2id": {name: number for number, name in enumerate(KINDS)}}


def by_task(work: Any, folder: Path, head: str) -> list[dict[str, Any]]:
    """The readable predictions of a task's own evaluation with the model of a folder."""
    model = getattr(transformers, head).from_pretrained(folder).eval()
    with torch.no_grad():
        batches = [work.collate([work.eval_example(row)]) for row in range(work.num_eval_examples)]
        work.records = [record for batch in batches for record in work.evaluate(model, batch)]
    work.records.sort(key=lambda record: record["row"])
    return work.predictions()


def test_tags_of_tokens(folder_of, run_recipe, tmp_path) -> None:
    """As the task itself finds them, also in sentences longer than a window."""
    rows = [{"words": f"{text} {' '.join(TEXTS[:number])}".split(), "id": number} for number, text in enumerate(TEXTS)]
    tags = [
        {**row, "tags": (["S-person", "B-place", "E-place"] + ["O"] * len(row["words"]))[: len(row["words"])]}
        for row in rows
    ]
    settings = {"max_length": 40, "tokens_column": "words", "scheme": "BIOES"}
    folder = folder_of(
        "modernbert",
        "LacunaForTokenClassification",
        settings={"name": "token_classification", **settings},
        **TAGGED,
    )
    source, output = write_rows(tmp_path / "new.jsonl", rows), tmp_path / "tags.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output, "--batch_size", 4)
    assert code == 0, said
    work = TokenClassification(
        TokenClassificationArguments(train_file="tags.jsonl", label_names=KINDS, max_length=40),
        train_rows=tags,
        eval_rows=tags,
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    assert work.num_eval_examples > len(rows), "no sentence is longer than a window"
    expected = by_task(work, folder, "AutoModelForTokenClassification")
    for row, answer, wanted in zip(rows, read_rows(output), expected, strict=True):
        assert {name: answer[name] for name in row} == row
        assert answer["predicted_tags"] == wanted["tags"]
        for found, span in zip(answer["prediction"], wanted["prediction"], strict=True):
            assert found.pop("probability") == pytest.approx(span.pop("probability"), abs=2e-6)
            assert found == span


def test_tags_of_sentences_in_columns(folder_of, run_recipe, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForTokenClassification", **TAGGED)
    source = tmp_path / "new.conll"
    source.write_text("\n\n".join("\n".join(f"{word} O" for word in text.split()) for text in TEXTS) + "\n")
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "tags.jsonl")
    assert code == 0, said
    rows = read_rows(tmp_path / "tags.jsonl")
    assert [row["tokens"] for row in rows] == [text.split() for text in TEXTS]
    assert all(len(row["predicted_tags"]) == len(row["tokens"]) for row in rows)


WAYS = {
    "types": KINDS,
    "no types": ["O", "B", "I"],
    "ends": ["O", "B-place", "I-place", "E-place", "S-place"],
    "ends, no types": ["O", "B", "I", "E", "S"],
    "no tag of entities": [*KINDS, "[CLS]", "X"],
}


@pytest.mark.parametrize("names", WAYS.values(), ids=WAYS)
def test_entities_of_texts(names: list[str], folder_of, run_recipe, tmp_path) -> None:
    """A text is parted into words; what is found in these stands at its place in the text, as it is for tokens."""
    named = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    folder = folder_of("modernbert", "LacunaForTokenClassification", **named)
    texts = ["Whoever  reads (this),\tgarden! of\u00a0the city: see http://a.b/c?d=1 @fox", *TEXTS, " ".join(TEXTS)]
    source = write_rows(tmp_path / "new.jsonl", [{"text": text} for text in texts])
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "texts.jsonl")
    assert code == 0, said
    words = [TOKENS.findall(text) for text in texts]
    assert words[0][-5:] == ["city", ":", "see", "http://a.b/c?d=1", "@fox"] and words[0][3:6] == ["this", ")", ","]
    source = write_rows(tmp_path / "words.jsonl", [{"tokens": each} for each in words])
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "tokens.jsonl")
    assert code == 0, said
    number = 0
    by_text, by_tokens = (read_rows(tmp_path / f"{name}.jsonl") for name in ("texts", "tokens"))
    for text, found, wanted in zip(texts, by_text, by_tokens, strict=True):
        assert all(text[span["start"] : span["end"]] == span["text"] for span in found["prediction"])
        assert [(span["type"], TOKENS.findall(span["text"]), span["probability"]) for span in found["prediction"]] == [
            (span["type"], span["text"].split(), pytest.approx(span["probability"], abs=2e-6))
            for span in wanted["prediction"]
        ]
        number += len(found["prediction"])
    assert number > 5
    types = {span["type"] for row in by_text for span in row["prediction"]}
    assert types <= ({""} if "B" in names else {"place", "person"})
    long = by_text[-1]
    assert long["prediction"][-1]["end"] > len(long["text"]) // 2, "what is beyond the first window was not seen"


def test_entities_of_a_script_with_marks(folder_of, run_recipe, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForTokenClassification", **TAGGED)
    sentences = [["हिन्दी", "मुंबई", "दिल्ली", "में"], ["Zu\u0308rich", "שָׁלוֹם", "می\u200cخواهم", "."]]
    answers = []
    for name, rows in (
        ("texts", [{"text": " ".join(words)} for words in sentences]),
        ("tokens", [{"tokens": words} for words in sentences]),
    ):
        source, output = write_rows(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}.out.jsonl"
        code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output)
        assert code == 0, said
        answers.append([[(s["type"], s["text"]) for s in row["prediction"]] for row in read_rows(output)])
    assert answers[0] == answers[1] and sum(map(len, answers[0])) > 1


def test_a_tag_for_every_word(folder_of, run_recipe, tmp_path) -> None:
    named = {"id2label": {0: "NOUN", 1: "VERB"}, "label2id": {"NOUN": 0, "VERB": 1}}
    folder = folder_of("modernbert", "LacunaForTokenClassification", **named)
    source = write_rows(tmp_path / "new.txt", [{"text": text} for text in TEXTS])
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "x.jsonl")
    assert code == 0, said
    rows = read_rows(tmp_path / "x.jsonl")
    assert all(len(row["prediction"]) == len(row["predicted_tokens"]) > 0 for row in rows)
    assert {tag for row in rows for tag in row["prediction"]} == {"NOUN", "VERB"}


def test_choices(folder_of, run_recipe, tmp_path) -> None:
    rows = [
        {
            "context": text,
            "question": "What then?" if number % 2 else None,
            "choices": TEXTS[: 2 + number % 3],
            "label": 0,
        }
        for number, text in enumerate(TEXTS)
    ]
    settings = {
        "name": "multiple_choice",
        "max_length": 48,
        "context_column": "context",
        "question_column": "question",
    }
    settings |= {"choices_columns": ["choices"], "label_column": "label"}
    folder = folder_of("bert", "LacunaForMultipleChoice", settings=settings)
    new = [{name: row[name] for name in row if name != "label"} for row in rows]
    source, output = write_rows(tmp_path / "new.jsonl", new), tmp_path / "chosen.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output, "--batch_size", 3)
    assert code == 0, said
    work = MultipleChoice(
        MultipleChoiceArguments(
            train_file="rows.jsonl", context_column="context", question_column="question", max_length=48
        ),
        train_rows=rows,
        eval_rows=rows,
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    expected = by_task(work, folder, "AutoModelForMultipleChoice")
    for row, answer, wanted in zip(new, read_rows(output), expected, strict=True):
        assert {name: answer[name] for name in row} == row
        assert answer["probabilities"] == pytest.approx(wanted["probabilities"], abs=2e-6)
        assert [answer[name] for name in ("prediction", "prediction_number")] == [
            wanted[name] for name in ("prediction", "prediction_number")
        ]
    source = write_rows(tmp_path / "other.jsonl", [{"context": TEXTS[0], "question": TEXTS[1]}])
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "no.jsonl")
    assert code == 2 and "Give it the name 'choices'" in said and "--choices_columns" not in said


def test_masks(folder_of, run_recipe, tmp_path) -> None:
    folder = folder_of("modernbert", "LacunaForMaskedLM")
    texts = ["The [MASK] fox.", "[MASK] dog sleeps in [MASK] city, and so on it goes.", "No [MASK]"]
    source = write_rows(tmp_path / "new.txt", [{"text": text} for text in texts])
    with source.open("a") as file:
        file.write("\n\n")  # blank lines at the end say nothing
    output = tmp_path / "filled.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output, "--top_k", 2)
    assert code == 0, said
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = read_rows(output)
    assert [row["text"] for row in rows] == texts
    for row in rows:
        ids = torch.tensor(tokenizer(row["text"])["input_ids"])
        chances = logits(folder, "AutoModelForMaskedLM", row["text"])[ids == tokenizer.mask_token_id].softmax(-1)
        best = chances.topk(2)
        for found, values, tokens in zip(row["tokens"], best.values.tolist(), best.indices.tolist(), strict=True):
            assert [token for token, _ in found] == [tokenizer.decode([token]) for token in tokens]
            assert [chance for _, chance in found] == pytest.approx(values, abs=2e-6)
        assert tokenizer.mask_token not in row["prediction"]
    assert rows[1]["prediction"].endswith(" city, and so on it goes.")
    words = ["--model", folder, "--input", source, "--output", output, "--overwrite"]
    code, said = run_recipe("predict", *words, "--max_length", 8)  # the second mask is cut off, and stays
    assert code == 0 and read_rows(output)[1]["prediction"].count("[MASK]") == 1, said
    words = ["--model", folder, "--input", source, "--output", output, "--overwrite"]
    code, said = run_recipe("predict", *words, "--top_k", 99_999)  # no more than there are
    assert code == 0 and len(read_rows(output)[0]["tokens"][0]) == len(tokenizer), said


def test_texts_go_on(folder_of, run_recipe, tmp_path) -> None:
    folder = folder_of("qwen3", "LacunaForCausalLM")
    rows = [{"prompt": text, "number": number} for number, text in enumerate(TEXTS)]
    source, output = write_rows(tmp_path / "new.jsonl", rows), tmp_path / "texts.jsonl"
    words = ["--input", source, "--output", output, "--max_new_tokens", 9, "--batch_size", 4]
    code, said = run_recipe("predict", "--model", folder, *words)
    assert code == 0, said
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for row, answer in zip(rows, read_rows(output), strict=True):
        ids = tokenizer(row["prompt"], return_tensors="pt")["input_ids"][:, -55:]
        made = model.generate(ids, max_new_tokens=9, do_sample=False)[0, ids.shape[1] :]
        assert answer == {**row, "prediction": tokenizer.decode(made, skip_special_tokens=True)}


@pytest.mark.parametrize(
    ("family", "head"), [("bart", "LacunaForConditionalGeneration"), ("qwen3", "LacunaForCausalLM")]
)
def test_texts_from_texts(family: str, head: str, folder_of, run_recipe, tmp_path) -> None:
    settings = {"name": "sequence_to_sequence", "max_length": 24, "max_target_length": 12, "source_column": "en"}
    folder = folder_of(family, head, settings=settings)
    rows = [{"id": number, "en": text} for number, text in enumerate(TEXTS)]
    source, output = write_rows(tmp_path / "new.jsonl", rows), tmp_path / "written.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", output, "--batch_size", 3)
    assert code == 0, said
    config, tokenizer = transformers.AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    pairs = [{**row, "de": row["en"]} for row in rows]
    columns = {"source_column": "en", "target_column": "de", "max_length": 24, "max_target_length": 12}
    asked = SequenceToSequenceArguments(train_file="pairs.jsonl", **columns)
    work = SequenceToSequence(asked, train_rows=pairs, eval_rows=pairs, tokenizer=tokenizer, config=config)
    auto_class = "AutoModelForSeq2SeqLM" if family == "bart" else "AutoModelForCausalLM"
    for row, answer, wanted in zip(rows, read_rows(output), by_task(work, folder, auto_class), strict=True):
        assert {name: answer[name] for name in row} == row and answer["prediction"] == wanted["prediction"]
        assert answer["probability"] == pytest.approx(wanted["probability"], abs=2e-6)
    assert len({row["prediction"] for row in read_rows(output)}) > 1
    words = ["--input", source, "--output", tmp_path / "longer.jsonl", "--max_new_tokens", 100_000]
    code, said = run_recipe("predict", "--model", folder, *words)
    assert code == 2 and "--max_new_tokens 100000" in said and "--max_target_length" not in said


def test_vectors_of_texts(folder_of, run_recipe, tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="pip install -e '.[interop]'")
    encoder = library.SentenceTransformer(str(folder_of("modernbert", "LacunaModel")))
    encoder.save(str(tmp_path / "encoder"))
    settings = {"name": "embeddings", "max_length": 32, "text_column": "first", "text_pair_column": "second"}
    (tmp_path / "encoder" / "task.json").write_text(json.dumps(settings))
    source = write_rows(tmp_path / "new.txt", [{"text": text} for text in TEXTS])
    output = tmp_path / "vectors.jsonl"
    code, said = run_recipe("predict", "--model", tmp_path / "encoder", "--input", source, "--output", output)
    assert code == 0, said
    for text, row in zip(TEXTS, read_rows(output), strict=True):
        assert row["text"] == text
        assert row["prediction"] == pytest.approx(encoder.encode(text).tolist(), abs=2e-5)
    more = ["--input", source, "--output", tmp_path / "no.jsonl", "--max_length", 65]
    code, said = run_recipe("predict", "--model", tmp_path / "encoder", *more)
    assert code == 2 and "--max_length 65 is more than the 64 tokens that the model takes: lower it" in said


@pytest.fixture
def classifier(folder_of) -> Path:
    return folder_of("modernbert", "LacunaForSequenceClassification", **NAMED)


MISTAKES: list[tuple[list[dict[str, Any]], list[str], str]] = [
    ([{"text": "a"}, {"text": " "}], [], "new.jsonl:2: column 'text' is empty"),
    ([{"text": "a"}, {"txt": "b"}], [], "new.jsonl:2: no column 'text'; the columns there are ['txt']"),
    ([{"text": "a"}, {"text": 7}], [], "new.jsonl:2: column 'text' holds 7, not text"),
    ([{"a": "x", "b": "y"}], [], "which column of ['a', 'b'] holds the text? Name it with --text_column"),
    ([{"a": 1}], [], "which column of ['a'] holds the text? Name it"),
    ([{"a": "x"}], ["--text_column", "c"], "no column 'c'; the columns there are ['a']"),
    ([{"text": "a", "prediction": "b"}], [], "there is a column 'prediction' already"),
    ([{"text": "a"}], ["--batch_size", "0"], "--batch_size must be greater than 0"),
    ([{"text": "a"}], ["--max_length", "65"], "more than the 64 tokens"),
    ([{"text": "a"}], ["--task", "cooking"], "--task cooking is not known"),
    ([{"text": "a"}], ["--task", "fill_mask"], "was not trained for this task"),
    ([{"text": "a"}], ["--task", "text_generation"], "cannot be loaded as AutoModelForCausalLM"),
    ([{"text": "a"}, {"text": "b", "prediction": "c"}], [], "new.jsonl:2: there is a column 'prediction' already"),
    ([{"text": "a"}, {"text": "b", "more": 1}], ["--output", "x.csv"], "new.jsonl:2 has a column 'more'"),
    ([{"text": "a"}, {"text": "b", "more": 1}], ["--output", "x.TSV"], "new.jsonl:2 has a column 'more'"),
    ([{"text": "a"}, {"text": "b\tc"}], ["--output", "x.tsv"], "new.jsonl:2 has a tab or end of a line in 'b"),
    ([{"text": "a", "b\nc": 1}], ["--output", "x.tsv"], "new.jsonl:1 has a tab or end of a line in 'b"),
    ([{"text": "a"}], ["--output", "x.xml"], "the ending '.xml'; answers are written as .jsonl, .csv, .tsv"),
    ([{"text": "a"}], ["--output", "new.jsonl"], "is the file of --input"),
    ([{"text": "a"}], ["--output", "there.jsonl"], "is there already; add --overwrite"),
    ([{"text": "a"}], ["--output", "there.jsonl/x.jsonl"], "is a file or cannot be written"),
]


@pytest.mark.parametrize(("rows", "words", "message"), MISTAKES)
def test_mistakes_are_one_message_and_leave_nothing(
    rows, words, message, classifier, run_recipe, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "new.jsonl", rows)
    (tmp_path / "there.jsonl").write_text("kept\n")
    monkeypatch.setattr(
        "lacuna.tasks.classification.task.ClassificationPredictor.answer", None
    )  # nothing is answered before
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, said = run_recipe("predict", "--model", classifier, "--input", "new.jsonl", "--output", "x.jsonl", *words)
    assert code == 2, said
    assert message in said and "Traceback" not in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_mistakes_in_files_and_folders(classifier, folder_of, run_recipe, tmp_path) -> None:
    lines = tmp_path / "new.txt"
    lines.write_bytes(b"fine\n\xff broken\n")
    gap, other = tmp_path / "gap.txt", tmp_path / "new.en"
    gap.write_text("one\ntwo\n\nfour\n")
    other.write_text("one\n")
    masked = folder_of("modernbert", "LacunaForMaskedLM")
    named = folder_of("modernbert", "LacunaForMaskedLM", settings={"name": "cooking"})
    broken = folder_of("modernbert", "LacunaForMaskedLM")
    (broken / "task.json").write_text("{")
    questions = write_rows(tmp_path / "q.jsonl", [{"question": "Who?", "context": "a fox"}, {"question": "Who?"}])
    answering = folder_of("modernbert", "LacunaForQuestionAnswering")
    plain = write_rows(tmp_path / "plain.txt", [{"text": "a [MASK]"}, {"text": "nothing"}])
    far = write_rows(tmp_path / "far.txt", [{"text": "the fox " * 70 + "[MASK]"}])
    cases = [
        (classifier, lines, "new.txt:2"),
        (classifier, tmp_path / "absent.csv", "there is no file"),
        (classifier, gap, "gap.txt:3: line 3 is empty: remove it or write its text"),
        (
            classifier,
            other,
            "new.en has the ending '.en'; rows are read from .jsonl, .json, .csv, .tsv, .parquet, texts",
        ),
        (classifier, write_rows(tmp_path / "empty.txt", []), "--input has no row"),
        (tmp_path, lines, "is not a model"),
        (tmp_path / "modl", lines, f"--model: there is no folder {tmp_path / 'modl'}."),
        (named, plain, "names the task 'cooking'"),
        (broken, plain, "is not what fine-tuning writes"),
        (answering, questions, "q.jsonl:2: no column 'context'"),
        (masked, plain, "plain.txt:2: column 'text' has no [MASK] in it"),
        (masked, far, "far.txt:1: column 'text' has no [MASK] in its first 64 tokens"),
    ]
    for folder, source, message in cases:
        code, said = run_recipe("predict", "--model", folder, "--input", source, "--output", tmp_path / "x.jsonl")
        assert code == 2 and message in said and "Traceback" not in said, said
        assert not (tmp_path / "x.jsonl").exists()
    code, said = run_recipe("predict", "--model", classifier, "--input", lines)
    assert code == 2 and "--output is missing" in said


def test_a_head_without_weights_is_no_answer(tokenizer, run_recipe, tmp_path) -> None:
    """transformers would draw them at random and go on."""
    body = transformers.BertModel(
        BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    body.save_pretrained(tmp_path / "body")
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "body")
    source = write_rows(tmp_path / "new.jsonl", [{"text": "a"}])
    words = ["--model", tmp_path / "body", "--input", source, "--output", tmp_path / "x.jsonl"]
    code, said = run_recipe("predict", *words)
    assert code == 2 and "has the head BertModel, which does not say what it is for" in said
    code, said = run_recipe("predict", *words, "--task", "classification")
    assert code == 2 and "was not trained for this task: it has no classifier" in said


@pytest.mark.parametrize("task", ["token_classification", "multiple_choice", "question_answering"])
def test_another_head_with_weights_of_the_same_names_is_no_answer(task: str, classifier, run_recipe, tmp_path) -> None:
    source = write_rows(tmp_path / "new.jsonl", [{"text": "a"}])
    words = ["--model", classifier, "--input", source, "--output", tmp_path / "x.jsonl", "--task", task]
    code, said = run_recipe("predict", *words)
    assert code == 2 and f"was not trained for {task}: its head, LacunaForSequenceClassification, is for " in said


def test_overwriting_when_asked(classifier, run_recipe, tmp_path) -> None:
    source, output = write_rows(tmp_path / "new.jsonl", [{"text": "a"}]), tmp_path / "x.csv"
    output.write_text("old")
    code, said = run_recipe("predict", "--model", classifier, "--input", source, "--output", output, "--overwrite")
    assert code == 0 and read_rows(output)[0]["text"] == "a", said


def test_a_full_disk_is_another_error(classifier, run_recipe, tmp_path, monkeypatch) -> None:
    def full(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = write_rows(tmp_path / "new.jsonl", [{"text": "a"}])
    monkeypatch.setattr("lacuna.common.files.os.replace", full)
    code, said = run_recipe("predict", "--model", classifier, "--input", source, "--output", tmp_path / "x.csv")
    assert code == 5 and f"cannot write {tmp_path / 'x.csv'}: No space left on device" in said
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]


def test_rows_are_read_as_answers_are_taken(classifier, tmp_path) -> None:
    """Neither rows nor logits of a whole file are ever in memory."""
    arguments = PredictionArguments(model=str(classifier), input="x", output="y", batch_size=2)
    predictor = open_predictor(arguments)
    taken = 0

    def rows() -> Iterator[dict[str, str]]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield {"text": f"{number} is {'a fox' if number % 3 else 'a dog in the garden'}"}

    assert check_rows(predictor, rows()) == 200
    taken, given = 0, 0
    for given, answer in enumerate(predict(predictor, rows()), start=1):
        assert answer["text"].startswith(f"{given - 1} ")
        assert taken - given <= 32
    assert given == 200


def test_a_file_that_breaks_off_is_not_there(tmp_path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"a": "1"}
        raise InputError("no more")

    for name in ("x.jsonl", "x.csv", "x.tsv"):
        with pytest.raises(InputError, match="no more"):
            write_answers(rows=rows(), path=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_only_answers_bring_is_refused_as_they_come(tmp_path) -> None:
    for rows, name, message in (
        ([{"a": "1"}, {"a": "1", "b": 2}], "x.csv", "row 2 has a column 'b', which the first row has not"),
        ([{"a": "1"}, {"a": "2\t3"}], "x.tsv", "row 2 has a tab or end of a line"),
    ):
        with pytest.raises(InputError, match=message):
            write_answers(rows=rows, path=tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert write_answers(rows=[{"a": ["1\t", "\n"], "b": None}], path=tmp_path / "x.tsv") == 1
    assert (tmp_path / "x.tsv").read_text() == 'a\tb\n["1\\t", "\\n"]\t\n'


def test_what_only_parquet_knows_is_written_as_text(tmp_path) -> None:
    row = {"a": Decimal("0.50"), "b": date(2020, 1, 2), "c": [Decimal("1")]}
    for ending, cells in ((".csv", ["0.50", "2020-01-02", '["1"]']), (".jsonl", ["0.50", "2020-01-02", ["1"]])):
        assert write_answers(rows=[row], path=tmp_path / f"x{ending}") == 1
        assert [*read_rows(tmp_path / f"x{ending}")[0].values()] == cells


def test_cells_come_back(tmp_path) -> None:
    rows = [{"a": 'x, "y"\nz', "b": ["1", None], "c": None, "d": 0.5, "e": "ü"}, {"a": "", "b": {"k": 1}}]
    assert write_answers(rows=rows, path=tmp_path / "x.csv") == 2
    assert read_rows(tmp_path / "x.csv") == [
        {"a": 'x, "y"\nz', "b": '["1", null]', "c": "", "d": "0.5", "e": "ü"},
        {"a": "", "b": '{"k": 1}', "c": "", "d": "", "e": ""},
    ]


OF_TABLE = "id;text\n7;good\n;bad\n"
OF_ARRAY = '[{"text": "good", "id": 7},\n {"text": "bad"}]\n'


@pytest.mark.parametrize("given", ['{"text": "good", "id": 7}\n{"text": "bad"}\n', OF_ARRAY, "good\nbad\n", OF_TABLE])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rows_of_standard_input_are_answered_on_standard_output(given, mark, classifier, capsys, monkeypatch) -> None:
    from lacuna.recipes.predict import main

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((mark + given).encode())))
    assert main(["--model", str(classifier), "--input", "-", "--output", "-"]) == "-"
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["text"] for row in rows] == ["good", "bad"] and all("prediction" in row for row in rows)
    assert (
        str(rows[0].get("id")) == ("None" if given[0] == "g" else "7")
        and "2 rows of standard input" in shown.err
        and "written with answers" not in shown.err
    )


def test_a_table_on_standard_input_has_the_columns_of_training(folder_of, capsys, monkeypatch, tmp_path) -> None:
    from lacuna.recipes.predict import main

    settings = {"name": "classification", "text_column": "sentence"}
    folder = folder_of("modernbert", "LacunaForSequenceClassification", settings=settings)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"sentence,label\ngood,1\nbad,0\n")))
    assert main(["--model", str(folder), "--input", "-", "--output", "-"]) == "-"
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["sentence"], row["label"]) for row in rows] == [("good", "1"), ("bad", "0")]
    choices = {
        "name": "multiple_choice",
        "choices_columns": ["a", "b"],
        "question_column": "q",
        "context_column": None,
    }
    (tmp_path / "task.json").write_text(json.dumps(choices))
    assert trained_columns(str(tmp_path)) == {"a", "b", "q"}
    (tmp_path / "task.json").write_text('{"name": "question_answering"}')
    assert trained_columns(str(tmp_path)) == {"question", "context"}


def test_mistakes_on_standard_input_are_called_so(classifier, monkeypatch) -> None:
    from lacuna.recipes.predict import main

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[MASK] is good\n\nbad\n")))
    with pytest.raises(InputError, match=r"^standard input:2: line 2 is empty"):
        main(["--model", str(classifier), "--input", "-", "--output", "-"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text,id\n\xff,1\n")))
    with pytest.raises(InputError, match=r"^standard input:2: (.|\n)* convert it: iconv -f latin1 -t UTF-8$"):
        main(["--model", str(classifier), "--input", "-", "--output", "-"])
