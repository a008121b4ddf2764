"""What stays of a run."""

import json

import pytest

from training.curves import draw_curves
from training.model_card import model_card
from training.run_log import RunLog, short


def test_numbers_as_people_read_them() -> None:
    assert [short(value) for value in (12345.6, 0.12345, 1.2e-5, 3.0)] == ["12,346", "0.1235", "1.2e-05", "3"]


def open_log(folder, first_step: int = 0, enabled: bool = True) -> RunLog:
    return RunLog(output_dir=folder, enabled=enabled, first_step=first_step, done=0.0)


def line(step: int) -> dict:
    return {"step": step, "loss": 1.0 / step, "learning_rate": 1e-3, "tokens_per_second": 10.0}


def test_what_came_after_the_checkpoint_is_dropped_when_resuming(tmp_path) -> None:
    log = open_log(tmp_path)
    for step in range(1, 6):
        log.record(line(step))
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo\xff')
    log = open_log(tmp_path, first_step=3)
    log.record(line(4))
    log.close()
    steps = [json.loads(text)["step"] for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4] == [record["step"] for record in log.records]
    open_log(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_other_processes_write_nothing(tmp_path) -> None:
    log = open_log(tmp_path / "run", enabled=False)
    log.record(line(1))
    log.evaluation({"step": 1, "eval_loss": 1.0})
    log.say("hello")
    log.finish({})
    log.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "records",
    [
        [line(1)],
        [{"step": 1, "eval_loss": 2.0}],
        [line(1), {"step": 1, "eval_loss": 2.0, "eval_accuracy": 0.5, "eval_f1": 0.2}, line(2)],
        [{**line(1), "loss": float("inf")}, {"step": 1, "eval_loss": 1.0}],
    ],
)
def test_curves_of_any_records(tmp_path, records) -> None:
    draw_curves(records=records, path=tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_the_card_says_how_to_load(new_model) -> None:
    card = model_card(
        model=new_model(), run_info={"objective": "mlm"}, step=1200, tokens=34567, metrics={"eval_loss": 2.5}
    )
    assert "AutoModelForMaskedLM.from_pretrained" in card and "trust_remote_code" not in card
    assert "| steps | 1,200 |" in card and "| loss (held out) | 2.5000 |" in card and "`bert`" in card
