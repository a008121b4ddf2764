"""Embeddings: what rows are, scores against those of sentence-transformers, training, and folders that load again."""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState

from lacuna.common.errors import CorruptCheckpointError, InputError, NumericsError
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM
from lacuna.tasks.base.report import write_results
from lacuna.tasks.base.rows import as_rows
from lacuna.tasks.embeddings.task import EMBEDDINGS, MODEL_WEIGHT, EmbeddingArguments, Embeddings, kind_of
from lacuna.training.reports.card import encoder_card
from lacuna.training.reports.log import RunLog

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: pip install -e '.[embeddings]'"
)


@dataclasses.dataclass
class Record:
    """What `corpus.read_labelled` gives."""

    fields: dict[str, Any]
    path: str
    line: int


def records(rows: list[dict[str, Any]], path: str = "train.jsonl") -> list[Record]:
    return [Record(fields=row, path=path, line=line) for line, row in enumerate(rows, start=1)]


WORDS = ["fox", "dog", "river", "north", "city", "name", "quick", "lazy", "year", "text", "built", "piece"]
PAIRS = [{"anchor": f"the {word}", "positive": f"what is a {word}?"} for word in WORDS]
TRIPLES = [{**row, "negative": PAIRS[i - 1]["positive"]} for i, row in enumerate(PAIRS)]
SCORED = [
    {"sentence1": f"the {one}", "sentence2": f"a {other}", "score": 5.0 * (one == other) + i % 2}
    for i, one in enumerate(WORDS)
    for other in (one, WORDS[i - 1])
]
NLI = {"premise": "the fox", "hypothesis": "no fox", "label": 2}


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory) -> Path:
    """A small encoder that fills masks, with its tokenizer."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
    config = LacunaConfig.from_family(
        "bert", vocab_size=320, intermediate_size=64, max_position_embeddings=128, initializer_range=0.2, **sizes
    )
    LacunaForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def other_trainers() -> Iterator[None]:
    """Their trainer sets what accelerate keeps for the whole process, also for the tests after these."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def encoder(checkpoint):
    from lacuna.tasks.embeddings.encoders import load_encoder

    return load_encoder(model=str(checkpoint), max_length=32)


def task(tokenizer, rows=PAIRS, eval_rows=(), **options) -> Embeddings:
    asked = EmbeddingArguments(train_file="rows.jsonl", max_length=32, **options)
    return Embeddings(asked, train_rows=rows, eval_rows=eval_rows, tokenizer=tokenizer)


# Rows


@pytest.mark.parametrize(
    ("fields", "columns", "kind"),
    [
        (PAIRS[0], ("anchor", "positive", None, None), "pairs"),
        (TRIPLES[0], ("anchor", "positive", "negative", None), "triples"),
        (SCORED[0], ("sentence1", "sentence2", None, "score"), "scored"),
        (
            {"question1": "x", "question2": "y", "is_duplicate": 1},
            ("question1", "question2", None, "is_duplicate"),
            "scored",
        ),
        ({"a": "x", "b": "y"}, ("a", "b", None, None), "pairs"),
        ({"id": 1, "question": "x", "answer": "y"}, ("question", "answer", None, None), "pairs"),
    ],
)
def test_what_rows_are_is_told_by_their_columns(fields, columns, kind):
    rows = as_rows([fields], part="training")
    assert (*EMBEDDINGS.find(rows).values(),) == columns
    assert kind_of(rows, dict(zip(EMBEDDINGS.columns, columns, strict=True))) == kind


def test_columns_that_are_named_win():
    rows = as_rows([{"anchor": "x", "positive": "y", "a": "z", "b": "w", "c": "v", "s": 1}], part="training")
    found = EMBEDDINGS.find(rows, text_column="a", text_pair_column="b", negative_column="c", label_column="s")
    assert (*found.values(),) == ("a", "b", "c", "s")
    found = EMBEDDINGS.find(as_rows([{"a": "x", "b": "y"}], part="training"), text_column="b")
    assert found["text_pair_column"] == "a"


# Scores


def test_correlations_are_those_of_sentence_transformers(tokenizer, encoder):
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    work = task(tokenizer, SCORED, eval_rows=SCORED)
    found = work.evaluate_encoder(encoder)
    sides = [[row[name] for row in SCORED] for name in ("sentence1", "sentence2", "score")]
    expected = EmbeddingSimilarityEvaluator(*sides, write_csv=False)(encoder)
    for name in ("spearman", "pearson"):
        assert found[name] == pytest.approx(expected[f"{name}_cosine"], abs=1e-5)
    readable = work.predictions()
    assert len(readable) == 24 and readable[0]["gold"] == 5.0 and abs(readable[0]["rank_difference"]) <= 1
    largest = work.mistakes(readable)
    assert abs(largest[0]["rank_difference"]) == max(abs(row["rank_difference"]) for row in readable)


@pytest.mark.parametrize("rows", [PAIRS, TRIPLES], ids=["pairs", "triples"])
def test_ranks_are_those_of_sentence_transformers(tokenizer, encoder, rows):
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator, TripletEvaluator

    given = [*rows, {**rows[0], "positive": "the quick one"}]  # two texts belong to the first
    work = task(tokenizer, given, eval_rows=given)
    found = work.evaluate_encoder(encoder)
    documents = list(dict.fromkeys(row[name] for row in given for name in ("positive", "negative") if name in row))
    relevant: dict[str, set[str]] = {}
    for row in given:
        relevant.setdefault(row["anchor"], set()).add(row["positive"])
    judge = InformationRetrievalEvaluator(
        {text: text for text in relevant},
        {text: text for text in documents},
        relevant,
        mrr_at_k=[10],
        precision_recall_at_k=[1, 5, 10],
        write_csv=False,
    )
    expected = judge(encoder)
    for name, theirs in (
        ("recall_at_1", "recall@1"),
        ("recall_at_5", "recall@5"),
        ("recall_at_10", "recall@10"),
        ("mrr_at_10", "mrr@10"),
    ):
        assert found[name] == pytest.approx(expected[f"cosine_{theirs}"], abs=1e-6), name
    if "negative" in rows[0]:
        triples = TripletEvaluator(*([row[name] for row in given] for name in row if name in rows[0]), write_csv=False)
        assert found["triplet_accuracy"] == pytest.approx(triples(encoder)["cosine_accuracy"])
    readable = work.predictions()
    assert [row["text"] for row in readable] == list(relevant)
    assert readable[0]["gold"] == [rows[0]["positive"], "the quick one"]
    assert all(row["correct"] == (row["prediction"] in row["gold"]) for row in readable)
    assert sum(row[1] for row in work.tables()["Rank of what belongs to a text"].rows) == 12


def test_baselines_are_those_of_words(tokenizer):
    pairs = task(tokenizer, PAIRS, eval_rows=PAIRS)
    assert pairs.baseline()["recall_at_1"] == 1.0 and pairs.records == []
    scored = task(tokenizer, SCORED, eval_rows=SCORED)
    assert scored.baseline()["spearman"] > 0.8


def test_words_and_a_model_together(tokenizer):
    """Half of the cosines of a model are added to those of words."""
    work = task(tokenizer, PAIRS, eval_rows=PAIRS)
    drawn = np.random.default_rng(0).normal(size=(2, len(PAIRS), 8))
    vectors = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
    sides = [[*column] for column in zip(*(row.values() for row in PAIRS), strict=True)]
    known = dict(zip([*sides[0], *sides[1]], vectors.reshape(-1, 8), strict=True))
    encoder = SimpleNamespace(encode=lambda texts, **options: np.array([known[text] for text in texts]))
    words = work._words
    cosines = (words((*sides[0],)) @ words((*sides[1],)).T).toarray() + MODEL_WEIGHT * vectors[0] @ vectors[1].T
    ranks = (cosines >= cosines.diagonal()[:, None]).sum(axis=1)
    found = work.hybrid(encoder)
    assert found["recall_at_1"] == np.mean(ranks == 1) and found["mrr_at_10"] == pytest.approx(np.mean(1 / ranks))
    alone = work._measure(lambda texts: torch.tensor(encoder.encode(texts)))[1]
    assert alone["mrr_at_10"] < found["mrr_at_10"]


def test_the_search_of_the_docs_finds_passages(encoder, monkeypatch, tmp_path):
    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", lambda name: encoder)
    page = Path(__file__).parents[2].joinpath("docs", "fine_tuning.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n((?:(?!```).)*def search.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_texts").mkdir()
    (tmp_path / "my_texts" / "a.txt").write_text("\n\n".join(row["positive"] for row in PAIRS))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code[1], names)
    for row in PAIRS:
        found = names["search"](row["anchor"], count=3)
        assert found[0] == row["positive"] and len({*found}) == 3 and {*found} <= {*names["passages"]}


def test_texts_without_words_are_compared(tokenizer):
    rows = [{"anchor": "!" * count, "positive": "?" * count} for count in range(1, 9)]
    assert task(tokenizer, rows, eval_rows=rows).baseline()["mrr_at_10"] == 1 / 8, "all alike"


def test_the_words_of_a_baseline_keep_their_marks(tokenizer):
    """Without its vowel signs every word here is the same one."""
    rows = [{"anchor": f"ह{sign}", "positive": f"ह{sign} है"} for sign in "ािीुूेो"]
    assert task(tokenizer, rows, eval_rows=rows).baseline()["recall_at_1"] == 1.0


def test_a_text_is_not_looked_for_among_itself(tokenizer):
    """The vectors of a are nearest to its own, and b is the nearest of the others."""
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "a"}]
    work, vectors = task(tokenizer, PAIRS, eval_rows=rows), {"a": [1.0, 0.0], "b": [0.8, 0.6], "c": [0.9, 0.1]}
    records, scores = work._measure(lambda texts: torch.tensor([vectors[text] for text in texts]))
    assert [record["prediction"] for record in records] == ["b", "a"] and scores["recall_at_1"] == 1.0


def test_what_cannot_be_told_apart_is_not_found(tokenizer):
    """A TF-IDF of texts with no word in common, or a model that gives all texts one vector."""
    work = task(tokenizer, PAIRS, eval_rows=PAIRS)
    records, scores = work._measure(lambda texts: torch.ones(len(texts), 1))
    assert {record["rank"] for record in records} == {12} and scores["mrr_at_10"] == 0


# Learning


@pytest.mark.parametrize(
    ("rows", "metric"),
    [(SCORED, "spearman"), (PAIRS, "mrr_at_10"), (TRIPLES, "mrr_at_10")],
    ids=["scored", "pairs", "triples"],
)
def test_an_encoder_learns_and_loads_again(tokenizer, encoder, tmp_path, rows, metric, capsys, monkeypatch):
    from lacuna.tasks.embeddings.encoders import save_encoder, train_encoder

    monkeypatch.setattr("lacuna.training.reports.log.draw_curves", lambda **_: None)
    work = task(tokenizer, rows, eval_rows=rows)
    assert work.metric == metric
    folder = tmp_path / "vectors"
    log, steps = RunLog(output_dir=folder, enabled=True, first_step=0, done=0.0), {"max_steps": 30, "eval_steps": 10}
    results = train_encoder(work, encoder, log=log, batch_size=12, learning_rate=3e-3, **steps)
    assert results["steps"] == 30 and results[f"eval_{metric}"] > results[f"start_{metric}"]
    assert results[f"eval_{metric}"] == work.scores()[metric] > 0.6
    assert [line["step"] for line in log.records if f"eval_{metric}" in line] == [0, 10, 20, 30]
    assert [line["step"] for line in log.records if {"loss", "learning_rate"} <= line.keys()] == [10, 20, 30]
    said = capsys.readouterr()
    assert "{" not in said.out + said.err and "it/s" not in said.err
    assert re.search(rf"^step +20 .*{metric} -?\d.*train loss .* left\)$", said.err, flags=re.MULTILINE)
    card = encoder_card(encoder[0].auto_model, {"objective": work.objective, "model": "m"}, results)
    save_encoder(encoder, folder, card=card)
    log.finish(results)
    write_results(work, results, folder)
    assert "before training" in (folder / "report.md").read_text(encoding="utf-8")
    names = {path.name for path in folder.iterdir()}
    wanted = {"config.json", "model.safetensors", "modules.json", "README.md", "results.json", "predictions.jsonl"}
    assert wanted | {"task.json", "report.md", "metrics.jsonl", "modeling_lacuna.py"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth")) or name.startswith(".")]
    again = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    texts = ["the fox", "a river in the north"]
    np.testing.assert_allclose(again.encode(texts), encoder.encode(texts), atol=1e-5)
    assert again.max_seq_length == 32
    assert "trust_remote_code=True" in (folder / "README.md").read_text(encoding="utf-8")
    assert json.loads((folder / "task.json").read_text(encoding="utf-8"))["name"] == "embeddings"
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["classifier_pooling"] == "mean"


def test_the_best_weights_are_kept(encoder):
    from lacuna.tasks.embeddings.encoders import KeepBest

    class Judge:
        metric = "score"
        evaluated: list[Any] = []

        def scores(self) -> dict[str, float]:
            return {"score": self.score}

        def evaluate_encoder(self, judged: Any) -> None:
            self.evaluated.append(judged)

    said: list[Any] = []
    judge = Judge()
    watch = KeepBest(judge, SimpleNamespace(evaluation=said.append, say=said.append))
    weight = next(encoder.parameters())
    for last, scores in ((3, [0.5, 0.9, 0.1]), (2, [0.9, 0.9])):
        watch.best, kept = -math.inf, []
        for step, judge.score in enumerate(scores, start=1):
            with torch.no_grad():
                weight += 1
            kept.append(weight.detach().clone())
            state = SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=last)
            watch.on_evaluate(None, state, None, model=encoder)
        watch.on_train_end(None, state, None, model=encoder)
        assert torch.equal(weight, kept[1]), "the best, and of equal ones the last"
    assert said[0] == {"step": 1, "eval_score": 0.5} and said[2]["step"] == 3
    assert said[3] == "the weights of step 2 are kept: score 0.9000" and len(said) == 6
    assert judge.evaluated == [encoder]


def test_vectors_that_are_no_numbers_are_not_judged(tokenizer, encoder, checkpoint, tmp_path):
    from lacuna.tasks.embeddings.encoders import load_encoder

    with torch.no_grad():
        next(encoder.parameters()).fill_(math.nan)
    for rows in (PAIRS, SCORED):
        with pytest.raises(NumericsError, match="not finite numbers: try a lower --learning_rate"):
            task(tokenizer, rows, eval_rows=rows).evaluate_encoder(encoder)
    shutil.copytree(checkpoint, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptCheckpointError, match="cut: its weights cannot be read"):
        load_encoder(model=str(tmp_path / "cut"))


def test_minutes_end_a_training_with_an_evaluation(tokenizer, encoder, tmp_path, monkeypatch):
    from lacuna.tasks.embeddings import encoders

    seconds = iter(range(1000))  # a step takes one
    clock = SimpleNamespace(monotonic=lambda: next(seconds), perf_counter=encoders.time.perf_counter)
    monkeypatch.setattr(encoders, "time", clock)
    work = task(tokenizer, PAIRS, eval_rows=PAIRS)
    log = RunLog(output_dir=tmp_path / "out", enabled=True, first_step=0, done=0.0)
    options = {"batch_size": 12, "max_steps": 30, "eval_steps": 3, "learning_rate": 3e-3}
    results = encoders.train_encoder(work, encoder, log=log, max_minutes=3.5 / 60, **options)
    assert results["steps"] == 4 and results["eval_mrr_at_10"] == work.scores()["mrr_at_10"]
    assert [line["step"] for line in log.records if "eval_mrr_at_10" in line] == [0, 3, 4]


# What people are told


def test_what_people_are_told(tokenizer):
    work = task(tokenizer, TRIPLES, eval_fraction=0.25)
    said = "\n".join(work.describe(1))
    assert "the rows are triples" in said and "MultipleNegativesRankingLoss" in said and "held out 3 of 12" in said
    assert "[CLS]the fox[SEP]" in said or "[CLS]the " in said
    held_out = {item.texts[0] for item in work.eval_items}
    assert not held_out & {item.texts[0] for item in work.train_items}
    assert json.dumps(work.settings())
    assert any("12 of 12 held-out rows" in note for note in task(tokenizer, PAIRS, eval_rows=PAIRS).notes)


# Bad input


@pytest.mark.parametrize(
    ("rows", "bad", "message"),
    [
        (
            PAIRS,
            {"anchor": "x"},
            r"train.jsonl:13: no column 'positive'; the columns there are \['anchor'\].*--text_pair_column",
        ),
        (PAIRS, {"anchor": " ", "positive": "y"}, "train.jsonl:13: column 'anchor' is empty"),
        (
            TRIPLES,
            {"anchor": "x", "positive": "y", "negative": 3},
            "train.jsonl:13: column 'negative' holds 3, not text",
        ),
        (
            SCORED,
            {"sentence1": "x", "sentence2": "y", "score": "high"},
            "train.jsonl:25: column 'score' holds 'high', not a number",
        ),
        (SCORED, {"sentence1": "x", "sentence2": "y", "score": None}, "train.jsonl:25: column 'score' holds None"),
    ],
)
def test_a_bad_row_is_named(tokenizer, rows, bad, message):
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, records([*rows, bad]))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        ([{"a": "x"}], {}, r"which columns of \['a'\] hold a text and one that.*--text_pair_column"),
        (PAIRS, {"kind": "triples"}, "triples need a third text.*--negative_column"),
        (PAIRS, {"kind": "scored"}, "which of .* is the label.*--label_column"),
        ([{**row, "score": 1} for row in PAIRS], {}, "every pair has the score 1.*--kind pairs"),
        ([NLI], {}, "premises with labelled hypotheses are of no kind.*as triples"),
        (PAIRS, {"text_column": "txt"}, "no column 'txt'.*--text_column"),
    ],
)
def test_bad_rows_as_a_whole(tokenizer, rows, options, message):
    with pytest.raises(InputError, match=message):
        task(tokenizer, rows, **options)


def test_one_row_is_too_few(tokenizer):
    with pytest.raises(InputError, match=r"a.csv:2: this is the only training row, so nothing can be held out"):
        task(tokenizer, records([{}, PAIRS[0]], "a.csv")[1:])
