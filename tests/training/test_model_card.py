"""What a card says of a fine-tuned model, and what it keeps to itself."""

import math
import re
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
import yaml
from hub_server import HubServer
from huggingface_hub import ModelCard, ModelCardData

from lacuna.common.hub import HERE
from lacuna.common.private import shown_command, without_places
from lacuna.training import train
from lacuna.training.reports.card import auto_class, choices_of, model_card


def card(new_model: Any, **info: Any) -> str:
    facts = {"objective": "fine-tuning for classification", "model": "runs/base", "task": {"train_file": "train.csv"}}
    return model_card(
        model=new_model(),
        run_info={**facts, **info},
        step=120,
        tokens=3456,
        metrics={"eval_loss": 0.5, "eval_accuracy": 0.875},
        baseline={"baseline_accuracy": 0.5},
    )


def test_a_fine_tuned_model_says_data_baseline_command_and_versions(new_model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "base").mkdir(parents=True)
    task = {"train_file": "/home/me/train.csv", "eval_file": None, "label_names": ["a|b", "c"], "max_length": 128}
    text = card(
        new_model, task=task, examples=1234, held_out=56, command="python recipes/finetune_classification.py --seeds 3"
    )
    assert "fine-tuning for classification, from `runs/base`" in text and "base_model" not in text
    assert "| accuracy | 0.8750 | 0.5000 |" in text and "| loss | 0.5000 |  |" in text
    assert "| train_file | `train.csv` |" in text and "eval_file" not in text and "/home" not in text
    assert r"| label_names | `a\|b, c` |" in text and "| max_length | `128` |" in text
    assert "| examples | 1,234 to train on, 56 held out |" in text
    assert "\npython recipes/finetune_classification.py --seeds 3\n" in text
    assert f"torch {version('torch')}" in text and f"transformers {version('transformers')}" in text


def test_what_runs_from_a_folder_has_no_version_and_the_card_is_written(new_model) -> None:
    text = card(new_model, libraries=["toys", "seqeval"])  # the former can be imported, and no installer knows it
    assert "toys" not in text and f"seqeval {version('seqeval')}" in text


def test_a_base_of_the_hub_is_named_for_the_hub(new_model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = ModelCard(card(new_model, model="google/bert_uncased")).data
    assert (data.base_model, data.library_name, data.tags) == ("google/bert_uncased", "transformers", ["lacuna"])
    (tmp_path / "google" / "bert_uncased").mkdir(parents=True)
    assert "base_model" not in card(new_model, model="google/bert_uncased")


def test_the_head_is_what_the_hub_takes(new_model, tmp_path, monkeypatch) -> None:
    """Of a fine-tuned model: its results and those beside them, without what is no number."""
    written = tmp_path / "README.md"
    task = {"train_file": "nyu-mll/glue:sst2:train", "eval_file": "/home/me/held.csv"}
    written.write_text(
        model_card(
            model=new_model(),
            run_info={"objective": "x", "model": "google/bert", "task": task},
            step=1,
            tokens=1,
            metrics={"eval_loss": math.nan, "eval_accuracy": 0.87654},
            baseline={"baseline_accuracy": 0.5, "baseline_bits": 8.0, "words_accuracy": 0.75},
        )
    )
    found = ModelCard.load(written)
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path):
        found.validate()
        assert hub.requests == ["POST /api/validate-yaml"]
        with pytest.raises(ValueError, match="license"):
            ModelCard("---\nlicense: nobody-knows\n---\n").validate()
    again = ModelCardData(**yaml.safe_load(found.data.to_yaml()))
    assert again.to_dict() == found.data.to_dict() and str(found) == written.read_text()
    assert (found.data.base_model, found.data.datasets) == ("google/bert", ["nyu-mll/glue"])
    assert found.data.pipeline_tag == "fill-mask" and "language" not in found.data.to_yaml()
    results = {(each.dataset_name, each.metric_type): each.metric_value for each in found.data.eval_results}
    assert results == {
        ("held.csv", "accuracy"): 0.8765,
        ("held.csv", "accuracy (without a model)"): 0.5,
        ("held.csv", "accuracy (bag of words)"): 0.75,
    }
    assert found.text.endswith("whoever relies on it has to.\n") and "/home" not in str(found)


@pytest.mark.parametrize(
    ("options", "language", "datasets"),
    [
        ({"data": []}, "en", None),
        ({"data": [], "corpus": "runs/corpus"}, None, None),
        ({"data": [], "for_file": ["cornell/imdb:plain:train"]}, None, ["cornell/imdb"]),
        ({"data": ["my_texts/", "texts/a.txt", "./a/b"]}, None, None),
        ({"data": ["b/wiki:0.7", "a.jsonl:0.3", "a/c4"], "language": "zh-Hans"}, "zh", ["a/c4", "b/wiki"]),
    ],
)
def test_a_language_and_data_sets_are_named_where_they_are_known(
    new_model, tmp_path, monkeypatch, options, language, datasets
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    info = {"objective": "mlm", "model": None, "corpus": None, "for_file": [], "language": "en", **options}
    data = ModelCard(model_card(model=new_model(), run_info=info, step=1, tokens=1, metrics={})).data
    assert (data.language, data.datasets, data.eval_results) == (language, datasets, None)


@pytest.mark.parametrize("head", ["language: de", "language:\n- de\n- fr", "license: mit", "language: [", None])
def test_a_fine_tuned_model_has_the_language_of_its_base(new_model, tmp_path, head: str | None) -> None:
    if head is not None:
        (tmp_path / "README.md").write_text(f"---\n{head}\n---\n# A model\n")
    found = {"language: de": "de", "language:\n- de\n- fr": ["de", "fr"]}.get(str(head))
    assert ModelCard(card(new_model, model=str(tmp_path))).data.language == found


def test_a_run_says_what_it_ran_on_and_shows_its_curves(
    new_model, new_work, plain_tokenizer, options, tmp_path
) -> None:
    info = {"objective": "mlm", "text": "9 documents", "data": []}
    parts = {"work": new_work(), "tokenizer": plain_tokenizer, "run_info": info, "identity": {"corpus": "abcdef" * 8}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "curves.png").touch()
    train(model=new_model(), arguments=options(save_steps=8), **parts)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| text | 9 documents; fingerprint `abcdefabcdefabcd` |" in card
    assert re.search(r"\| hardware \| 1 × thread of \w.* \|\n\| minutes of training \| 0\.\d \|", card)
    assert "](curves.png)" in card and "| held out | this model | without a model |" in card
    on_the_way = (tmp_path / "run" / "checkpoints" / "step-00000008" / "README.md").read_text()
    assert "curves" not in on_the_way and "Limits" in on_the_way and HERE in on_the_way and HERE in card


def test_a_pretrained_model_has_no_table_of_data(new_model) -> None:
    text = model_card(
        model=new_model(), run_info={"objective": "mlm", "model": None, "command": "x"}, step=1, tokens=1, metrics={}
    )
    assert "| data |" not in text and "Made by" not in text


def test_what_was_left_to_the_model_is_not_said_and_long_lists_are_cut(new_model) -> None:
    text = card(new_model, task={"pooling": "auto", "label_names": [f"label {number}" for number in range(77)]})
    assert "auto" not in text[text.index("## Data") : text.index("## Made by")]
    assert "label 11, and 65 more` |" in text and "label 12" not in text


def test_what_was_chosen_is_said(new_model, tuning_options) -> None:
    """Of options that were left alone too."""
    plan = tuning_options(batch_size="64,128", batch_size_at="0,0.5", lora_rank=4, seed=7)
    chosen = choices_of(plan, epochs=2.5, precision="bf16")
    assert chosen == {
        "epochs": "2.50",
        "batch size": "64,128",
        "optimizer": "adamw",
        "learning rate": "0.01 at its peak, schedule linear",
        "LoRA": "rank 4, alpha 8",
        "precision": "bf16",
        "seed": "7",
    }
    early = choices_of(
        tuning_options(early_stopping_patience=3, max_steps=50), epochs=1, precision="no", ended_early=True
    )
    assert early["ended early"].startswith("before the 50 steps that were planned: 3 evaluations in a row")
    assert choices_of(tuning_options(freeze_backbone=True), epochs=1, precision="no")["frozen"] == "the backbone"
    text = model_card(model=new_model(), run_info={}, step=1, tokens=1, metrics={}, choices=chosen)
    assert "| steps | 1 |\n| tokens seen | 1 |\n| epochs | 2.50 |\n| batch size | 64,128 |\n" in text


@pytest.mark.parametrize(
    ("class_name", "auto_map", "name"),
    [
        ("BertForMultipleChoice", None, "AutoModelForMultipleChoice"),
        ("BartForConditionalGeneration", None, "AutoModelForSeq2SeqLM"),
        ("GPT2LMHeadModel", None, "AutoModelForCausalLM"),
        ("BertModel", None, "AutoModel"),
        ("OurOwn", {"AutoModelForMaskedLM": "modeling_our.OurOwn"}, "AutoModelForMaskedLM"),
        ("OurForConditionalGeneration", {"AutoModel": "modeling_our.Our"}, "AutoModelForSeq2SeqLM"),
    ],
)
def test_the_auto_class_is_one_that_there_is(class_name, auto_map, name) -> None:
    model = type(class_name, (), {"config": SimpleNamespace(auto_map=auto_map)})()
    assert auto_class(model) == name and hasattr(transformers, name)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/homes/me/data/train.csv", "~/data/train.csv"),
        ("~/data/x.csv", "~/data/x.csv"),
        ("/homes/me/work/data/x.csv", "data/x.csv"),
        ("/scratch/me/x.csv", "x.csv"),
        ("/home/somebody/data/x.csv", "x.csv"),
        ("/Users/somebody/x.csv", "x.csv"),
        (r"C:\Users\somebody\x.csv", "x.csv"),
        ("/data/x.csv", "/data/x.csv"),
        ("--train_file=/data/x.csv", "--train_file=/data/x.csv"),
        ("/a/b:0.5", "/a/b:0.5"),
        ("/a/b,/homes/me/d", "/a/b,~/d"),
        ("https://user@host.example:8080/org/name", "org/name"),
        ("data/train.csv", "data/train.csv"),
        ("../train.csv", "../train.csv"),
        ("nyu-mll/glue:sst2", "nyu-mll/glue:sst2"),
        ("--learning_rate", "--learning_rate"),
        ("|", "|"),
        ("0,0.5", "0,0.5"),
        ("file:///homes/me/work/text.txt", "text.txt"),
    ],
)
def test_home_folders_and_hosts_are_left_out(word, shown, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/homes/me")
    monkeypatch.setattr(Path, "cwd", lambda: Path("/homes/me/work"))
    assert without_places(word) == shown


def test_the_command_is_as_somebody_else_would_type_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "with a blank"
    folder.mkdir()
    words = ["/opt/lacuna/recipes/finetune_classification.py", "--train_file", str(folder), "--label_separator", "|"]
    expected = "python recipes/finetune_classification.py --train_file 'with a blank' --label_separator '|'"
    monkeypatch.setattr("sys.argv", words)
    assert shown_command() == expected
    monkeypatch.setattr("sys.argv", ["recipes/pretrain.py", "--seed", "1"])
    assert shown_command() == "python recipes/pretrain.py --seed 1"
    monkeypatch.setenv("HOME", "/homes/me")
    words = ["recipes/pretrain.py", "--data", "/homes/me/my texts.txt", "/homes/me/b.txt", "/data/c.txt"]
    monkeypatch.setattr("sys.argv", words)
    assert shown_command() == "python recipes/pretrain.py --data ~/'my texts.txt' ~/b.txt /data/c.txt"
