"""Adding an objective, an optimizer and a task from the outside, in as many places as README's table says."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from lacuna import training
from lacuna.common.command_line import parse_arguments
from lacuna.common.options import option
from lacuna.corpus import read_labelled
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM, as_ours
from lacuna.objectives import OBJECTIVES, CausalLanguageModelling
from lacuna.tasks.base.arguments import TaskArguments
from lacuna.tasks.base.columns import TEXT, Column, Layout
from lacuna.tasks.base.features import model_inputs, pad_inputs, records, tokenize
from lacuna.tasks.base.fine_tuning import fine_tune_task
from lacuna.tasks.base.rows import Row
from lacuna.tasks.base.task import Inputs, Task
from lacuna.tasks.predict.inference import PREDICTORS
from lacuna.tasks.predict.predictor import Predictor
from lacuna.tokenization import adapt_tokenizer, save_tokenizer, train_bpe
from lacuna.training import FineTuningArguments, ModelArguments
from lacuna.training.optimizers.optimizers import OPTIMIZERS, Optimizer


@pytest.fixture(autouse=True)
def accelerate_forgets() -> Iterator[None]:
    """Other tests of this process train in another precision."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


SMALL = ("--max_steps", "2", "--batch_size", "4", "--eval_steps", "0", "--save_steps", "0", "--compile", "off")


class Backwards(CausalLanguageModelling):
    """An objective: the text from its end to its beginning."""

    name, summary = "backwards", "previous token"

    def example(self, row: int, index: int) -> dict[str, Any]:
        example = super().example(row, index)
        return {**example, "input_ids": example["input_ids"][::-1].copy(), "labels": example["labels"][::-1].copy()}


class Signs(torch.optim.Rprop):
    """An optimizer, which notes its rates."""

    rates: ClassVar[list[float]] = []

    def step(self, closure: Any = None) -> Any:
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


def sign_descent(model: nn.Module, arguments: Any) -> list[torch.optim.Optimizer]:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [Signs(weights, lr=arguments.learning_rate)]


def test_an_objective_and_an_optimizer_are_a_class_a_function_and_a_line_each(
    run_recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(OBJECTIVES, "backwards", Backwards)
    monkeypatch.setitem(OPTIMIZERS, "sign_descent", Optimizer(sign_descent, "steps by the sign"))
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("\n".join(f"Sentence {number} speaks of river {number % 7}." for number in range(400)))
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    words = ("--data", text, "--vocab_size", "320", "--sequence_length", "32", "--eval_fraction", "0", *SMALL)
    code, said = run_recipe(
        "pretrain", *words, "--objective", "backwards", "--optimizer", "sign_descent", "--output_dir", folder
    )
    assert code == 0, said
    run = json.loads((folder / "run.json").read_text())
    assert run["objective"] == "backwards" and "sign_descent" in json.dumps(run)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines and np.isfinite([line["loss"] for line in lines]).all()
    assert lines[-1]["learning_rate"] == Signs.rates[lines[-1]["step"] - 1], "groups need not say how they scale it"


@dataclass
class LengthArguments(TaskArguments):
    """The options of a task: its reader."""

    long: int = option(12, "Letters from which on a text is long.")


class Length(Task):
    """A task: is a text long?"""

    name, objective, metric = "length", "fine-tuning for length", "accuracy"
    auto_class, label_names = "AutoModelForSequenceClassification", ["short", "long"]

    def read(self, train: list[Row], held_out: list[Row]) -> None:
        self.columns = self.find_columns(Layout({"text_column": Column("the text", "text", TEXT)}), train)
        self.parts = self.divide(train, held_out, same=lambda row: row.fields["text"])

    def encode(self) -> None:
        examples = [[self._example(row) for row in rows] for rows in self.parts]
        self.set_examples(train=examples[0], held_out=examples[1])

    def _example(self, row: Row) -> Inputs:
        text = str(row.fields["text"])
        [inputs], _ = tokenize(texts=[text], tokenizer=self.tokenizer, max_length=self.max_length)
        return {**inputs, "target": int(len(text) > self.options.long)}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        more = {name: torch.tensor([example.get(name, 0) for example in examples]) for name in ("row", "target")}
        return {**batch, **more}

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        nats = nn.functional.cross_entropy(model(**model_inputs(batch)).logits, batch["target"], reduction="sum")
        return nats / num_targets["examples"], {}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        logits = model(**model_inputs(batch)).logits.float()
        nats = nn.functional.cross_entropy(logits, batch["target"], reduction="none")
        return records(row=batch["row"], loss=nats, prediction=logits.argmax(dim=1), target=batch["target"])

    def scores(self) -> dict[str, float]:
        return {"accuracy": float(np.mean([record["prediction"] == record["target"] for record in self.records]))}

    def baseline(self) -> dict[str, float]:
        return {"accuracy": 0.5}

    def predictions(self) -> list[dict[str, Any]]:
        return [{**record, "correct": record["prediction"] == record["target"]} for record in self.records]


class LengthPredictor(Predictor):
    """Its predictor."""

    columns = ("prediction",)
    auto_class = "AutoModelForSequenceClassification"

    def choose_columns(self, row: Row) -> None:
        self.notes.append("text from column text")

    def read(self, row: Row) -> str:
        return str(row.fields["text"])

    def size(self, given: str) -> int:
        return len(given)

    def forward(self, given: Sequence[str]) -> Any:
        examples, _ = tokenize(texts=given, tokenizer=self.tokenizer, max_length=32)
        logits = self.model(**self.to_model(pad_inputs(examples=examples, tokenizer=self.tokenizer))).logits
        yield from ({"prediction": Length.label_names[int(best)]} for best in logits.argmax(dim=1))


def recipe(words: Sequence[str]) -> None:
    """Its recipe."""
    start, data, arguments = parse_arguments((ModelArguments, LengthArguments, FineTuningArguments), list(words))
    read = partial(read_labelled, tagged=False)
    fine_tune_task(Length, start, data, arguments, training=training, as_ours=as_ours, read=read)


def test_a_task_is_a_reader_a_task_a_predictor_a_recipe_and_a_line(
    run_recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PREDICTORS, "length", LengthPredictor)
    rows: list[Mapping[str, str]] = [{"text": "river " * (1 + number % 4)} for number in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, folder = tmp_path / "model", tmp_path / "tuned"
    tokenizer = train_bpe(documents=["river by the river\n"] * 4, vocab_size=262)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    LacunaForMaskedLM(LacunaConfig.from_family("bert", vocab_size=320, **sizes)).save_pretrained(model)
    shape = {"shape": "encoder", "segments": True, "max_length": 64}
    save_tokenizer(tokenizer=adapt_tokenizer(tokenizer=tokenizer, **shape), output_dir=model)
    words = ["--model", model, "--train_file", tmp_path / "rows.jsonl", "--output_dir", folder, *SMALL]
    recipe([str(word) for word in words])
    assert json.loads((folder / "results.json").read_text())["baseline_accuracy"] == 0.5
    assert json.loads((folder / "task.json").read_text())["name"] == "length"
    answers = tmp_path / "answers.jsonl"
    code, said = run_recipe("predict", "--model", folder, "--input", tmp_path / "rows.jsonl", "--output", answers)
    assert code == 0, said
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    assert {row["prediction"] for row in found} <= {"short", "long"}
