"""No step of fine-tuning makes the host wait for a GPU."""

from typing import Any

import pytest
import test_classification
import test_multiple_choice
import test_question_answering
from waiting import as_on_a_gpu, run_step

from lacuna.modeling import (
    LacunaConfig,
    LacunaForMultipleChoice,
    LacunaForQuestionAnswering,
    LacunaForSequenceClassification,
    LacunaForTokenClassification,
)

NUMBERS = [{"text": row["text"], "label": 0.5 * place} for place, row in enumerate(test_classification.ROWS)]


def encoder(head: Any, *, num_labels: int = 2) -> Any:
    sizes = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return head(LacunaConfig(shape="encoder", **sizes, intermediate_size=32, num_labels=num_labels))


@pytest.mark.parametrize("rows", [test_classification.ROWS, NUMBERS], ids=["classes", "numbers"])
def test_classification_waits_for_nothing(tokenizer: Any, rows: list[dict[str, Any]]) -> None:
    work = test_classification.task(tokenizer, rows)
    with as_on_a_gpu():
        run_step(work, encoder(LacunaForSequenceClassification, num_labels=1 if rows is NUMBERS else 2))


def test_choices_wait_for_nothing(tokenizer: Any) -> None:
    with as_on_a_gpu():
        run_step(test_multiple_choice.task(tokenizer), encoder(LacunaForMultipleChoice))


def test_questions_wait_for_nothing(tokenizer: Any) -> None:
    work = test_question_answering.task(tokenizer, test_question_answering.long_rows())
    with as_on_a_gpu():
        run_step(work, encoder(LacunaForQuestionAnswering))


def test_tagging_waits_for_nothing(tokenizer: Any) -> None:
    tagging = pytest.importorskip("test_token_classification")
    work = tagging.task(tokenizer)
    with as_on_a_gpu():
        run_step(work, encoder(LacunaForTokenClassification, num_labels=len(work.label_names)))


@pytest.mark.parametrize("kind", ["bart", "qwen3"])
def test_writing_waits_for_nothing(tokenizer: Any, kind: str) -> None:
    writing = pytest.importorskip("test_sequence_to_sequence")
    adapted = {
        has_encoder: writing.adapt_tokenizer(tokenizer=tokenizer, shape=shape, segments=False, max_length=128)
        for has_encoder, shape in ((True, "encoder-decoder"), (False, "decoder"))
    }
    model = writing.make_model(kind)
    with as_on_a_gpu():
        run_step(writing.task(adapted, model), model)
