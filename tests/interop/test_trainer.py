"""`Trainer` of transformers trains every head: it learns, accumulates exactly, and writes checkpoints that load."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from examples import fast
from torch import Tensor
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

Row = dict[str, Any]

# ------------------------------------------------------------------------------- text -> one row of data for each head


def mask_some(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    """Mask every second to fifth token: rows have different numbers of targets."""
    row = dict(tokenizer(text))
    ids, hidden = row["input_ids"], range(1 + number % 3, len(row["input_ids"]) - 1, 2 + number % 4)
    row["labels"] = [ids[place] if place in hidden else -100 for place in range(len(ids))]
    row["input_ids"] = [tokenizer.mask_token_id if place in hidden else ids[place] for place in range(len(ids))]
    return row


def mask_two_of_a_pair(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    """Two targets in each row: `Trainer` counts tokens and not pairs, which then have equal shares of every batch."""
    row = dict(tokenizer(text, "The dog runs." if number % 2 else text))
    ids = row["input_ids"]
    row["labels"] = [token if place in (1, 2) else -100 for place, token in enumerate(ids)]
    row["input_ids"] = [tokenizer.mask_token_id if place in (1, 2) else token for place, token in enumerate(ids)]
    return row | {"next_sentence_label": number % 2}


def continue_after_a_prompt(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    row = dict(tokenizer(text))
    return row | {"labels": [-100] * (number % 4) + row["input_ids"][number % 4 :]}


def one_of_three(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    return dict(tokenizer(text)) | {"labels": number % 3}


def several_of_three(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    return dict(tokenizer(text)) | {"labels": [float(number % 2), float(number % 3 == 0), 1.0]}


def a_number(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    return dict(tokenizer(text)) | {"labels": number / 4}


def a_span(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    # All of one length: as in transformers, the tokens of the padding are places that could be the answer.
    row = dict(tokenizer(text, padding="max_length", max_length=64))
    return row | {"start_positions": 1 + number % 2, "end_positions": 2 + number % 3}


def a_class_for_each_token(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    row = dict(tokenizer(text, return_special_tokens_mask=True))
    special = row.pop("special_tokens_mask")
    classes = [len(token) % 3 for token in tokenizer.convert_ids_to_tokens(row["input_ids"])]
    return row | {"labels": [-100 if skip else name for skip, name in zip(special, classes, strict=True)]}


def one_of_two_endings(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    return dict(tokenizer([text, text], ["The fox.", "The city."])) | {"labels": number % 2}


def the_end_from_the_beginning(tokenizer: PreTrainedTokenizerFast, text: str, number: int) -> Row:
    words = text.split()
    return dict(tokenizer(text)) | {"labels": tokenizer(" ".join(words[: 2 + number % 4])).input_ids}


# ----------------------------------------------------------------------------------------------------------- the heads


@dataclass(frozen=True)
class Case:
    """A head, the pretrained folder that it starts from, and its data."""

    auto_name: str
    family: str
    pretrained: str
    make_row: Callable[[PreTrainedTokenizerFast, str, int], Row]
    collator: str
    options: dict[str, Any] = field(default_factory=dict)


PRE, CAUSAL, SEQ2SEQ = "LacunaForPreTraining", "LacunaForCausalLM", "LacunaForConditionalGeneration"
CLASSES, TOKENS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
PADS_LABELS, PADS = "DataCollatorForTokenClassification", "DataCollatorWithPadding"
CHOICES, TWO_SIDES = "DataCollatorForMultipleChoice", "DataCollatorForSeq2Seq"
THREE: dict[str, Any] = {"num_labels": 3}
SEVERAL: dict[str, Any] = {**THREE, "problem_type": "multi_label_classification"}
CASES = {
    "masked": Case("AutoModelForMaskedLM", "modernbert", PRE, mask_some, PADS_LABELS),
    "pretraining": Case("AutoModelForPreTraining", "bert", PRE, mask_two_of_a_pair, PADS_LABELS),
    "causal": Case("AutoModelForCausalLM", "qwen3", CAUSAL, continue_after_a_prompt, PADS_LABELS),
    "class": Case(CLASSES, "modernbert", PRE, one_of_three, PADS, THREE),
    "class by pooler": Case(CLASSES, "bert", PRE, one_of_three, PADS, THREE),
    "class by decoder": Case(CLASSES, "qwen3", CAUSAL, one_of_three, PADS, THREE),
    "class by encoder-decoder": Case(CLASSES, "bart", SEQ2SEQ, one_of_three, PADS, THREE),
    "labels": Case(CLASSES, "modernbert", PRE, several_of_three, PADS, SEVERAL),
    "number": Case(CLASSES, "modernbert", PRE, a_number, PADS, {"num_labels": 1}),
    "answer": Case("AutoModelForQuestionAnswering", "modernbert", PRE, a_span, PADS),
    "tokens": Case(TOKENS, "modernbert", PRE, a_class_for_each_token, PADS_LABELS, THREE),
    "tokens by decoder": Case(TOKENS, "qwen3", CAUSAL, a_class_for_each_token, PADS_LABELS, THREE),
    "choice": Case("AutoModelForMultipleChoice", "bert", PRE, one_of_two_endings, CHOICES),
    "text to text": Case("AutoModelForSeq2SeqLM", "bart", SEQ2SEQ, the_end_from_the_beginning, TWO_SIDES),
}
QUICK = ("masked", "pretraining", "causal", "class", "answer", "text to text")
LEARNT = ("pretraining", "causal", "text to text")


@pytest.fixture
def build(checkpoint, load, texts, tmp_path) -> Callable[..., Trainer]:
    """Makes the `Trainer` of a case; the same one, weights included, whenever it is asked."""

    def make(name: str, *, output_dir: str = "run", **options: Any) -> Trainer:
        case = CASES[name]
        folder = checkpoint(case.family, case.pretrained)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        torch.manual_seed(1)
        model = load(folder, case.auto_name, **case.options)
        data = Dataset.from_list([case.make_row(tokenizer, text, number) for number, text in enumerate(texts)])
        generates = "predict_with_generate" in options
        trainer_class, arguments_class = (
            (Seq2SeqTrainer, Seq2SeqTrainingArguments) if generates else (Trainer, TrainingArguments)
        )
        defaults = {"learning_rate": 0.003, "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no"}
        return trainer_class(
            model=model,
            args=arguments_class(
                output_dir=str(tmp_path / output_dir), use_cpu=True, disable_tqdm=True, **{**defaults, **options}
            ),
            train_dataset=data,
            eval_dataset=data,
            data_collator=getattr(transformers, case.collator)(tokenizer, **({"model": model} if generates else {})),
            processing_class=tokenizer,
        )

    return make


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", fast(CASES, *QUICK))
def test_accumulating_changes_nothing(name: str, build) -> None:
    """One batch of 8 rows in 1 or 4 parts: equal loss, gradient norm and step.

    With most heads of transformers the loss and the gradient are multiplied by the number of parts: `Trainer` does
    not divide, since `forward` takes any keyword, and the head takes the mean over its part.
    """
    found = {}
    for parts in (1, 4):
        trainer = build(
            name,
            optim="sgd",
            learning_rate=1.0,
            max_steps=1,
            max_grad_norm=1e9,
            per_device_train_batch_size=8 // parts,
            gradient_accumulation_steps=parts,
        )
        before = weights(trainer.model)
        trainer.train()
        logged = trainer.state.log_history[0]
        found[parts] = (logged["loss"], logged["grad_norm"], weights(trainer.model) - before)
    loss, norm, step = found[1]
    assert loss > 0.1 and norm > 0.01
    assert found[4][0] == pytest.approx(loss, rel=1e-5)
    assert found[4][1] == pytest.approx(norm, rel=1e-5)
    assert float((found[4][2] - step).norm() / step.norm()) < 1e-5


@pytest.mark.parametrize("name", fast(CASES, *LEARNT))
def test_it_learns_and_its_checkpoint_loads(name: str, build, load) -> None:
    trainer = build(name, max_steps=16, save_strategy="steps", save_steps=8, per_device_train_batch_size=4)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.9 * before

    folder = Path(trainer.args.output_dir) / "checkpoint-16"
    loaded = load(folder, CASES[name].auto_name).eval()
    batch = trainer.data_collator([trainer.train_dataset[0], trainer.train_dataset[1]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).loss, trainer.model.eval()(**batch).loss, rtol=1e-5, atol=0)
    assert AutoTokenizer.from_pretrained(folder, trust_remote_code=True)("A gap.").input_ids

    resumed = build(name, output_dir="resumed", max_steps=16, per_device_train_batch_size=4)
    resumed.train(resume_from_checkpoint=str(folder.with_name("checkpoint-8")))
    torch.testing.assert_close(weights(resumed.model), weights(trainer.model), rtol=1e-5, atol=1e-6)


def test_seq2seq_trainer_generates(build) -> None:
    trainer = build(
        "text to text",
        per_device_eval_batch_size=4,
        predict_with_generate=True,
        generation_max_length=12,
        generation_num_beams=2,
    )
    found = trainer.predict(trainer.eval_dataset)
    assert found.metrics["test_loss"] > 0
    batch = trainer.data_collator([trainer.eval_dataset[row] for row in range(4)])
    with torch.no_grad():
        expected = trainer.model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_length=12, num_beams=2
        )
    assert found.predictions[:4, : expected.shape[1]].tolist() == expected.tolist()


@pytest.mark.slow
def test_an_encoder_and_a_decoder_from_their_folders_are_compiled_in_one_process(checkpoint, load) -> None:
    """Each brings its own copy of the code, of which a compiler may not take one for the other."""
    ids = torch.randint(5, 300, (2, 12), generator=torch.Generator().manual_seed(0))
    torch.compiler.reset()
    for family, head, auto_name in (
        ("modernbert", "LacunaForMaskedLM", "AutoModelForMaskedLM"),
        ("qwen3", "LacunaForCausalLM", "AutoModelForCausalLM"),
    ):
        model = load(checkpoint(family, head), auto_name).train()
        expected = model(input_ids=ids, labels=ids).loss
        found = torch.compile(model, backend="aot_eager")(input_ids=ids, labels=ids).loss
        found.backward()
        torch.testing.assert_close(found, expected)
    torch.compiler.reset()
