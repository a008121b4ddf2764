"""What stays of a run, and what is seen of it on a terminal and elsewhere."""

import fcntl
import json
import math
import mmap
import os
import pty
import re
import resource
import shutil
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lacuna.training.reports import log as run_log
from lacuna.training.reports.card import model_card
from lacuna.training.reports.log import RunLog, memory_in_use, short


def open_log(folder: Path, first_step: int = 0, enabled: bool = True, **options: Any) -> RunLog:
    return RunLog(output_dir=folder, enabled=enabled, first_step=first_step, done=0.0, **options)


def line(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 1.0 / step,
        "mlm_accuracy": 0.25,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_second": 10.0,
        "mfu": 0.3,
    }


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Time that passes when a test says so."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(run_log, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


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
    steps = [record["step"] for record in lines(tmp_path)]
    assert steps == [1, 2, 3, 4] == [record["step"] for record in log.records]
    open_log(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_marks_of_resumes_outlive_going_back_further(tmp_path) -> None:
    log = open_log(tmp_path)
    for step in range(1, 7):
        log.record(line(step))
        if step % 2 == 0:
            log.mark("checkpoint", step)
    log.close()
    log = open_log(tmp_path, first_step=4)
    log.mark("resume", 4, checkpoint="step-00000004")
    log.mark("spike", 5, samples=[1, 2])
    log.close()
    log = open_log(tmp_path, first_step=2)
    log.mark("resume", 2)
    log.close()
    assert [(record["step"], record.get("event")) for record in lines(tmp_path)] == [
        (1, None),
        (2, None),
        (2, "checkpoint"),
        (4, "resume"),
        (2, "resume"),
    ]
    assert lines(tmp_path)[3] == {"step": 4, "event": "resume", "checkpoint": "step-00000004"}
    assert lines(tmp_path) == log.records


def test_a_log_cut_at_any_byte_goes_on_with_whole_lines(tmp_path) -> None:
    log = open_log(tmp_path)
    for step in range(1, 4):
        log.record(line(step))
    log.close()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        log = open_log(tmp_path, first_step=3)
        log.record({"step": 4})
        log.close()
        kept = whole[:size].count(b"\n")
        assert [record["step"] for record in lines(tmp_path)] == [*range(1, kept + 1), 4]


@pytest.mark.parametrize("rubbish", [b"17\n", b"[]\n", b'{"loss": 1}\n', b'{"step": "2"}\n', b"\0\0\0\0", b"\xff\n"])
def test_lines_that_are_no_records_end_what_is_kept(tmp_path, rubbish) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + rubbish + b'{"step": 2}\n')
    open_log(tmp_path, first_step=2).close()
    assert lines(tmp_path) == [{"step": 1}]


def test_a_full_disk_is_one_warning_and_loses_no_line(tmp_path, capsys) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = open_log(tmp_path)
    log.record(line(1))
    room = (tmp_path / "metrics.jsonl").stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # as on a full disk, half a line still fits
    try:
        for step in (2, 3):
            log.record(line(step))
            log.evaluation({"step": step, "eval_loss": 1.0})
            log.mark("checkpoint", step)
            assert lines(tmp_path) == [line(1)]  # no half line was left
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.record(line(4))
    log.close()
    assert lines(tmp_path) == log.records and len(log.records) == 8
    said = capsys.readouterr().err
    assert said.count("cannot be written") == 1 and said.count("can be written again; no line is missing") == 1


@pytest.mark.parametrize("harm", ["folder", "file", "longer", "shorter"])
def test_a_log_that_somebody_harms_is_written_anew(tmp_path, harm, capsys) -> None:
    folder = tmp_path / "run"
    log = open_log(folder)
    log.record(line(1))
    log.record(line(2))
    path = folder / "metrics.jsonl"
    if harm == "folder":
        shutil.rmtree(folder)
        log.record(line(3))
    elif harm == "file":
        path.unlink()
        log.record(line(3))
    elif harm == "longer":
        path.write_bytes(path.read_bytes() + b'{"st')
        log.record(line(3))
    else:
        path.write_bytes(path.read_bytes()[:50])
        log.record(line(3))
    log.record(line(4))
    log.close()
    assert lines(folder) == [line(step) for step in (1, 2, 3, 4)]
    assert capsys.readouterr().err.count("warning") == 0


def test_a_log_that_cannot_be_opened_waits(tmp_path, capsys) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    log = open_log(tmp_path, first_step=3)
    log.record(line(4))
    log.record(line(5))
    (tmp_path / "metrics.jsonl").rmdir()
    log.record(line(6))
    log.close()
    assert [record["step"] for record in lines(tmp_path)] == [4, 5, 6]
    assert capsys.readouterr().err.count("warning") == 1


def test_other_processes_write_nothing(tmp_path, capsys) -> None:
    log = open_log(tmp_path / "run", enabled=False)
    log.record(line(1))
    log.evaluation({"step": 1, "eval_loss": 1.0})
    log.advance(0.5, step=1)
    log.mark("resume", 1)
    log.say("hello")
    log.close()
    log.finish({})
    assert not (tmp_path / "run").exists() and capsys.readouterr().err == ""


def test_curves_that_cannot_be_drawn_are_one_warning(tmp_path, monkeypatch, capsys) -> None:
    def fail(**_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(run_log, "draw_curves", fail)
    log = open_log(tmp_path)
    log.evaluation({"step": 1, "eval_loss": 1.0})
    log.evaluation({"step": 2, "eval_loss": 1.0})
    log.finish({"eval_loss": 1.0})
    assert json.loads((tmp_path / "results.json").read_text()) == {"eval_loss": 1.0}
    assert capsys.readouterr().err.count("curves.png could not be drawn (MemoryError: no room)") == 1


def test_drawing_takes_a_tenth_of_the_time_and_the_end_is_drawn(tmp_path, monkeypatch, clock) -> None:
    drawn: list[int] = []

    def draw(*, records: list[dict[str, Any]], path: Path, title: str, **options: Any) -> None:
        assert path == tmp_path / "curves.png" and title == "a model" and options.get("results") in (None, {})
        drawn.append(records[-1]["step"])
        clock.now += 2.0

    monkeypatch.setattr(run_log, "draw_curves", draw)
    log = open_log(tmp_path, title="a model")
    for step in range(1, 10):
        clock.now += 7.0
        log.evaluation({"step": step, "eval_loss": 1.0})
    assert drawn == [3, 6, 9]
    log.close()
    log.finish({})
    assert drawn == [3, 6, 9, 9]


def test_without_a_terminal_a_line_for_each_evaluation_and_signs_of_life(tmp_path, capsys, clock) -> None:
    log = open_log(tmp_path)
    for step in range(1, 31):
        clock.now += 10.0
        log.advance(step / 40, step=step)
        log.record(line(step))
        if step == 15:
            log.evaluation({"step": step, "eval_loss": 2.5, "eval_accuracy": 0.5})
    log.close()
    said = capsys.readouterr().err
    assert "\r" not in said and "\x1b" not in said
    evaluation = "step     15  loss 2.5  accuracy 0.5  (38%, train loss 0.067, 04:10 left)"
    assert [text if "(" in text else text[: text.index("  10.0 tokens/s")] for text in said.splitlines()] == [
        "15%  step 6  loss 0.200  05:40 left",
        "30%  step 12  loss 0.091  04:40 left",
        evaluation,
        "52%  step 21  loss 0.050  03:10 left",
        "68%  step 27  loss 0.038  02:09 left",
    ]
    assert re.search(r"lr 0.001  norm 0.5  mlm_accuracy 0.250  MFU 30.0%  [\d.]+ GiB$", said)


def test_an_output_that_nobody_reads_does_not_stop_the_run(tmp_path, monkeypatch, clock) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1, closefd=False) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        log = open_log(tmp_path)
        log.say("hello")
        clock.now += 100
        log.record(line(1))
        log.evaluation({"step": 1, "eval_loss": 1.0})
        log.close()
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    os.close(writer)
    assert len(lines(tmp_path)) == 2


@pytest.fixture
def terminal(monkeypatch) -> Iterator[Callable[[int], Callable[[], str]]]:
    """Makes standard error a terminal of some columns; what it gives returns what was written there since."""
    opened: list[Any] = []

    def make(columns: int) -> Callable[[], str]:
        master, slave = pty.openpty()
        os.set_blocking(master, False)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        stream = os.fdopen(slave, "w", encoding="utf-8")
        opened.extend([master, stream])
        monkeypatch.setattr(sys, "stderr", stream)

        def written() -> str:
            stream.flush()
            parts = []
            while True:
                try:
                    parts.append(os.read(master, 65536))
                except BlockingIOError:
                    return b"".join(parts).decode("utf-8")

        return written

    yield make
    monkeypatch.undo()
    for thing in opened:
        os.close(thing) if isinstance(thing, int) else thing.close()


def frames(text: str) -> list[str]:
    return [frame.rstrip() for frame in re.split(r"[\r\n]+", text) if frame.strip()]


@pytest.mark.parametrize("columns", [10, 20, 40, 80, 120, 200])
def test_the_live_line_fits_every_terminal_with_the_most_important_first(tmp_path, terminal, columns) -> None:
    written = terminal(columns)
    log = open_log(tmp_path)
    for step in range(1, 9):
        log.advance(step / 8, step=step)
        log.record(line(step))
    log.close()
    text = written()
    assert max(map(len, re.split(r"[\r\n]", text))) <= columns
    assert text.count("\n") == 1 and text.endswith("\n")  # the line stays, with the cursor under it
    whole = (
        "100%|██████████| step 8  loss 0.125  00:00 left  10.0 tokens/s  lr 0.001  norm 0.5  mlm_accuracy 0.250  MFU"
    )
    last = frames(text)[-1]
    assert last.startswith(whole) if columns > len(whole) else whole.startswith(last) and len(last) > columns - 3


def test_the_live_line_is_drawn_a_few_times_a_second_and_follows_the_width(tmp_path, terminal) -> None:
    written = terminal(80)
    log = open_log(tmp_path)
    written()
    started = time.monotonic()
    for step in range(1000):
        log.advance(step / 2000, step=step)
    assert len(frames(written())) <= 1 + (time.monotonic() - started) / 0.25
    fcntl.ioctl(sys.stderr.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    time.sleep(0.3)
    log.advance(0.75, step=1001)
    assert [len(frame) <= 30 for frame in frames(written())] == [True]
    log.close()


def test_lines_are_printed_above_the_live_line(tmp_path, terminal) -> None:
    written = terminal(100)
    log = open_log(tmp_path)
    log.record(line(1))
    written()
    log.say("a notice")
    log.evaluation({"step": 1, "eval_loss": 2.0})
    text = written()
    assert frames(text)[0] == "a notice" and "step      1  loss 2" in frames(text)
    assert "loss 1.000" not in next(frame for frame in frames(text) if frame.startswith("step   "))
    log.advance(0.5)
    log.close()
    assert frames(written())[-1].startswith(" 50%|█████     | step 1  loss 1.000")
    log.finish({})


def test_what_is_not_known_is_left_out(tmp_path, clock, capsys) -> None:
    log = open_log(tmp_path)
    clock.now += 61
    log.advance(0.0)
    log.record({"step": 1, "loss": math.nan, "count": 123456.0, "note": "text", "mfu": None})
    clock.now += 61
    log.advance(0.5)
    log.close()
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"0%  starting  [\d.]+ GiB", first)
    assert re.fullmatch(r"50%  step 1  loss nan  \d\d:\d\d left  count 123,456  [\d.]+ GiB", second)


def test_numbers_as_people_read_them() -> None:
    assert [short(value) for value in (12345.6, 0.12345, 1.2e-5, 3.0)] == ["12,346", "0.1235", "1.2e-05", "3"]


def test_memory_is_that_of_this_process() -> None:
    before = memory_in_use()
    with mmap.mmap(-1, 200_000_000) as held:  # of the kernel: malloc may hand out what it kept of earlier tests
        held.write(b"x" * len(held))
        assert memory_in_use() - before > 0.9 * len(held)


def test_the_card_says_how_to_load(new_model) -> None:
    card = model_card(
        model=new_model(), run_info={"objective": "mlm"}, step=1200, tokens=34567, metrics={"eval_loss": 2.5}
    )
    assert "AutoModelForMaskedLM.from_pretrained" in card and "trust_remote_code" not in card
    assert "| steps | 1,200 |" in card and "| loss (held out) | 2.5000 |" in card and "`bert`" in card
