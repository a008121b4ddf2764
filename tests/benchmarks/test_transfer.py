"""What pretraining pays: the arithmetic and tables by hand, the parts, and all of it for two steps on stand-ins."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
import transfer
from processes import run
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transfer import estimate, gains, lines_of, mean_share, row_error, row_of, side_by_side
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from lacuna.corpus import builtin_questions, read_labelled
from lacuna.tasks.base.rows import write_rows
from lacuna.tasks.classification.task import Classification
from lacuna.tasks.question_answering.task import QuestionAnswering
from lacuna.tasks.token_classification.task import TokenClassification
from lacuna.training import fine_tuning
from lacuna.training.arguments import FineTuningArguments


def by_seed(*scores: float, **more: Any) -> dict[int, dict[str, Any]]:
    return {seed: {"score": score, "held_out": 400, **more} for seed, score in enumerate(scores)}


def test_the_error_is_that_over_seeds_or_is_given() -> None:
    assert estimate([0.6, 0.7, 0.8], error=0.5) == pytest.approx((0.7, 0.1 / math.sqrt(3)))
    assert estimate([0.8], error=row_error(0.8, 400)) == pytest.approx((0.8, 0.02))
    assert estimate([0.8]) == (0.8, None)


def test_gains_are_taken_seed_by_seed() -> None:
    found = gains({0: 0.5, 1: 0.6, 7: 0.1}, {0: 0.6, 1: 0.8, 2: 0.9}, errors=(0.3, 0.3))
    assert found["gained"] == pytest.approx((0.15, 0.05))
    assert found["share"] == pytest.approx((0.35, 0.15))
    assert gains({}, {0: 0.5}) == {}
    assert [found.error for found in gains({0: 0.5}, {0: 0.6}).values()] == [None, None]
    assert "share" not in gains({0: 1.0}, {0: 0.9}, errors=(0, 0.1)), "nothing was missing"


def test_the_error_of_one_seed_is_that_of_simulated_held_out_rows() -> None:
    found = gains({0: 0.5}, {0: 0.8}, errors=[row_error(score, 400) for score in (0.5, 0.8)])
    drawn = np.random.default_rng(0).binomial(400, [[0.5], [0.8]], (2, 20_000)) / 400
    assert found["gained"] == pytest.approx((0.3, (drawn[1] - drawn[0]).std()), rel=0.03)
    assert found["share"] == pytest.approx((0.6, ((drawn[1] - drawn[0]) / (1 - drawn[0])).std()), rel=0.03)


def test_the_table_and_the_number_that_sums_it_up() -> None:
    beside = {"skip_gram": 0.72, "with_words": 0.74}
    rows = [
        row_of("wnut17", {"first_weights": by_seed(0.1), "pretrained": by_seed(0.28, guess=0.09, words=0.2)}),
        row_of("sst2_100", {"first_weights": by_seed(0.5, 0.5), "pretrained": by_seed(0.6, 0.7, **beside)}),
        row_of("probe", {"first_weights": by_seed(0.6, error=0.02), "pretrained": by_seed(0.9, error=0.015)}),
        row_of("bits_per_byte", {"first_weights": {}, "pretrained": by_seed(2.5, metric="masked_bits_per_byte")}),
    ]
    assert mean_share(rows) == pytest.approx((0.25, 0.05)), "of 0.2 without an error and 0.3 ± 0.1, without the probe"
    head, _, names, few, probe, bits, total, _ = lines_of(rows)
    titles = "task metric held seeds guess words skip first pretrained with gained share"
    assert [title.split()[0] for title in head.strip("| ").split(" | ")] == titles.split()
    assert "| f1 | 400 | 1 | 0.090 | 0.200 |  | 0.100 | 0.280 |  | +0.180 | +0.200 |" in names, "no error"
    assert "| 0.720 | 0.500 ± 0.000 | 0.650 ± 0.050 | 0.740 | +0.150 ± 0.050 | +0.300 ± 0.100 |" in few
    assert "| 0.600 ± 0.020 | 0.900 ± 0.015 |  | +0.300 ± 0.025 |" in probe
    assert bits.count("2.500") == 1 and "masked_bits_per_byte" in bits and "±" not in bits
    assert total.endswith("| +0.250 ± 0.050 |") and mean_share(rows[3:]) is None
    assert "skip gram" not in lines_of(rows[:1])[0], "a column that nothing is in"
    assert side_by_side({"a": rows}) == []
    *_, first, _ = side_by_side({"a": rows[:1], "b": rows[:1]})
    assert first == f"| {rows[0]['task']} | f1 | 0.200 | 0.100 | 0.280 | 0.280 |"


@pytest.fixture
def stand_ins(tmp_path: Path, two_texts: Path) -> Path:
    """A folder like that of the real data, with a little of what every interpreter has."""
    data = tmp_path / "data"
    for name in ("novels", "sst2", "squad"):
        (data / name).mkdir(parents=True)
    (data / "novels" / "One.txt").write_text((two_texts / "train.txt").read_text()[:20_000])
    lines = [f"it is {'good' if number % 2 else 'bad'} , for {number} reasons \t{number % 2}" for number in range(152)]
    for name, part in (("train", lines[:120]), ("dev", lines[120:])):
        (data / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *part]) + "\n")
    articles = []
    for number, row in zip(range(12), builtin_questions(), strict=False):
        starts = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in starts]
        qas = [{"id": f"{number}{it}", "question": row["question"], "answers": answers} for it in "ab"]
        articles.append({"title": str(number), "paragraphs": [{"context": row["context"], "qas": qas}]})
    (data / "squad" / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return data


def test_parts_of_data(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "QUESTIONS", {"train": 3, "eval": 9})
    transfer.write_parts(stand_ins, tmp_path, only=["squad", "sst2_100", "classification_500"])
    every = (stand_ins / "sst2" / "train.tsv").read_text().splitlines()
    assert (tmp_path / "sst2-100.tsv").read_text().splitlines() == every[:101], "the first sentences"
    train, held_out = (read_labelled(tmp_path / f"squad-{name}.jsonl") for name in ("train", "eval"))
    assert len(train) == 3 and len(held_out) == 9
    assert {record.fields["id"][0] for record in train} == {"0", "1"}, "whole articles are held out"
    fields = train[0].fields
    (answer,), (start,) = fields["answers"]["text"], fields["answers"]["answer_start"]
    assert fields["context"][start:].startswith(answer)
    assert len(read_labelled(tmp_path / "squad-texts.jsonl")) == transfer.HELD_OUT_ARTICLES
    few, most, others = (read_labelled(tmp_path / f"docstrings-{name}.jsonl") for name in ("500", "train", "eval"))
    known, held_out = ({record.fields["id"] for record in part} for part in (most, others))
    assert len({record.fields["id"] for record in few} & known) == len(few) == 500 and not known & held_out
    text = "\n".join(record.fields["text"] for record in read_labelled(tmp_path / transfer.OWN_TEXT))
    assert not any(record.fields["text"] in text for record in others)
    assert sum(record.fields["text"] in text for record in few) > 450


def test_a_linear_model_on_mean_vectors(stand_ins: Path, tmp_path: Path) -> None:
    files = {f"{name}_file": stand_ins / f"sst2/{part}.tsv" for name, part in (("train", "train"), ("eval", "dev"))}
    found = transfer.linear_score(lambda texts: np.array([["good" in text, len(text)] for text in texts]), files)
    assert found == {"score": 1.0, "held_out": 32}
    rows = [{"id": f"{i}", "text": "good" if i % 2 else "bad", "label": "no" if i % 2 else "yes"} for i in range(32)]
    write_rows(rows=rows, path=tmp_path / "docstrings.jsonl")
    of_own = dict.fromkeys(files, tmp_path / "docstrings.jsonl")
    found = transfer.linear_score(lambda texts: np.array([["good" in text, len(text)] for text in texts]), of_own)
    assert found == {"score": 1.0, "held_out": 32}


def test_skip_gram_vectors_are_learnt_once(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    file = tmp_path / "novel.txt"
    file.write_text("The cat sat.\n\n" * 200)
    mean = transfer.word_vectors((file,), tmp_path)
    (kept,) = tmp_path.glob("skip-gram-*.bin")
    vectors = mean(["THE cat", "the", "cat", "unknown"])
    assert vectors.shape == (4, transfer.WIDTH) and not vectors[3].any()
    np.testing.assert_allclose(vectors[0], vectors[1:3].mean(axis=0), rtol=1e-6)
    before = kept.stat().st_mtime_ns
    transfer.word_vectors.cache_clear()
    assert (transfer.word_vectors((file,), tmp_path)(["the cat"]) == vectors[0]).all()
    assert kept.stat().st_mtime_ns == before


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two tiny BERTs of one architecture, with a tokenizer of whole words."""
    words = {
        word: place
        for place, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a", "bad", "good", "film"])
    }
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "mask", "unk")}
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(words), hidden_size=16, max_position_embeddings=16, **sizes)
    for name in "ab":
        BertForMaskedLM(config).save_pretrained(tmp_path / name)
        PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(tmp_path / name)
    return [tmp_path / name for name in "ab"]


def test_means_of_states_are_those_of_each_text_alone(folders: list[Path]) -> None:
    texts = ["a good film", "bad", "a bad good bad film a"]
    model, tokenizer = (auto.from_pretrained(folders[0]) for auto in (AutoModel, AutoTokenizer))
    with torch.inference_mode():
        alone = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1].mean(dim=0) for text in texts
        ]
    np.testing.assert_allclose(transfer.mean_states(folders[0], texts), torch.stack(alone), atol=1e-5)


def test_folders_of_one_architecture_share_first_weights(folders: list[Path], tmp_path: Path) -> None:
    one, other = (transfer.Pretrained(str(folder)) for folder in folders)
    assert one.architecture == other.architecture and one.weights != other.weights
    assert (one.shape, one.head) == ("encoder", "AutoModelForMaskedLM")
    first, same, next_seed = one.first(tmp_path, 0), other.first(tmp_path, 0), one.first(tmp_path, 1)
    assert first == same != next_seed
    assert transfer.Pretrained(str(first)).architecture == one.architecture
    assert len({transfer.Pretrained(str(folder)).weights for folder in (*folders, first, next_seed)}) == 4


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no config\.json: name a folder"):
        transfer.Pretrained(str(tmp_path))


def test_a_run_that_fails_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "wrong.py").write_text("import sys\nsys.exit('error: ' + ' '.join(sys.argv[1:]))")
    monkeypatch.setattr(harness, "REPOSITORY", tmp_path)
    with pytest.raises(RuntimeError, match="error: --steps 2"):
        harness.run_recipe("wrong", {"steps": 2, "output_dir": tmp_path / "run"})


@pytest.mark.slow
def test_it_fine_tunes_measures_and_reports(stand_ins: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    pretraining = {"data": stand_ins / "novels", "objective": "mlm", "vocab_size": 400, "max_steps": 2}
    words = [word for name, value in pretraining.items() for word in (f"--{name}", value)]
    done = run("recipes/pretrain.py", *words, "--save_steps", 0, "--output_dir", model)
    assert done.returncode == 0, done.stderr
    options = {"models": model, "data": stand_ins, "work_dir": tmp_path / "work", "steps": 2, "seeds": "0"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words += ["--output_dir", tmp_path, "--threads", 1, "--only"]
    absent = run("benchmarks/transfer.py", *words, "multi30k", timeout=100)
    assert absent.returncode == 1 and "train.en; leave its task out with --only" in absent.stderr
    only = ["sst2_100", "probe", "bits_per_byte"]
    done = run("benchmarks/transfer.py", *words, *only, timeout=280)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-transfer.json")
    report = json.loads(path.read_text())
    (rows,), (share,) = report["models"].values(), report["mean_share"].values()
    assert [row["name"] for row in rows] == only
    few, probe, bits = rows
    assert few["held_out"] == 32 and 0 <= few["guess"] <= 1 and few["words"] == 1
    assert 0.5 < few["with_words"] <= 1
    runs = [json.loads(path.read_text())["result"] for path in (tmp_path / "work" / "parts").glob("sst2_100-*seed0-*")]
    assert [few["first_weights"][1]] == [run["error"] for run in runs], "the error over the three runs"
    assert few["gained"][1] == pytest.approx(math.hypot(few["first_weights"][1], few["pretrained"][1]))
    assert few["gained"][0] == pytest.approx(few["pretrained"][0] - few["first_weights"][0])
    assert share[0] == pytest.approx(few["gained"][0] / (1 - few["first_weights"][0]))
    assert probe["held_out"] == 32 and probe["pretrained"][0] > 0.6
    assert bits["metric"] == "masked_bits_per_byte" and 0 < bits["pretrained"][0] < 10
    parts = tmp_path / "work" / "parts"
    made = {file.name: file.read_text() for file in parts.iterdir()}
    again = run("benchmarks/transfer.py", *words, *only, timeout=100)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in parts.iterdir()} == made
    table = path.with_suffix(".md").read_text().partition("Machine")[0]
    again = run("benchmarks/transfer.py", *words, *only, "--report_only", timeout=100)
    assert again.returncode == 0, again.stderr
    assert path.with_suffix(".md").read_text().partition("Machine")[0] == table
    options |= {"train_files": stand_ins / "sst2/train.tsv", "eval_file": stand_ins / "sst2/dev.tsv"}
    options |= {"text": stand_ins / "novels", "mark": "own", "output_dir": tmp_path}
    done = run("benchmarks/transfer.py", *(f"--{name}={value}" for name, value in options.items()), timeout=280)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-transfer-own.json")
    ((row,),) = json.loads(path.read_text())["models"].values()
    assert row["task"] == "120 labels" and row["words"] == 1 and row["held_out"] == 32
    assert (row["skip_gram"] is not None) == (find_spec("gensim") is not None)


def test_labels_of_ones_own(tmp_path: Path) -> None:
    for count in (10000, 10001):
        lines = "".join(json.dumps({"text": str(number), "label": number % 2}) + "\n" for number in range(count))
        (tmp_path / f"of-{count}.jsonl").write_text(lines)
    files = [str(tmp_path / name) for name in ("of-{seed}.jsonl", "of-10001.jsonl")]
    few, many = transfer.own_tasks(files, "held_out.jsonl", seeds=[10000, 7]).values()
    assert (few.what, few.recipe, few.metric) == ("10,000 labels", "classification", "accuracy")
    assert few.files == (files[0], "held_out.jsonl")
    assert (few.options, many.options) == (transfer.BLEND, {})
    for words, why in (([], "no file ''"), (["--eval_file", "no.csv"], "no file 'no.csv'")):
        refused = run("benchmarks/transfer.py", "--train_files", files[1], *words, timeout=100)
        assert refused.returncode == 2 and why in refused.stderr


def test_words_of_several_draws_are_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transfer.TASKS, "own", transfer.Task("own", *transfer.LABELS))
    result = {"score": 0.6, "guess": 0.1, "held_out": 9}
    found = {"first_weights": {}, "pretrained": {0: {**result, "words": 0.5}, 1: {**result, "words": 0.7}}}
    row = transfer.row_of("own", found)
    assert row["guess"] == 0.1 and row["words"] == (pytest.approx(0.6), pytest.approx(0.1)), "the error over draws"


@pytest.mark.parametrize(
    ("task", "rows", "blends"),
    [(Classification, 10_000, True), (Classification, 10_001, False), (TokenClassification, 5000, True),
     (TokenClassification, 5001, False), (QuestionAnswering, 1, False)],
)  # fmt: skip
def test_few_rows_are_learned_as_the_recipes_learn_them(task, rows, blends) -> None:
    work = object.__new__(task)  # without its rows
    work.num_examples = rows
    decided = fine_tuning._runs_for(torch.nn.Linear(2, 2), work, FineTuningArguments())
    assert decided == (transfer.BLEND if blends else {"seeds": 1})
