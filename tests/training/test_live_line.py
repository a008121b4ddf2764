"""What the live line says."""

import mmap
import random
from types import SimpleNamespace

import pytest

from lacuna.training import live_line
from lacuna.training.live_line import Item, Remaining, duration, fit, line_items, memory_in_use, short

VALUES = {
    "step": 1200,
    "epoch": 0.25,
    "loss": 3.2141,
    "mlm_accuracy": 0.4123,
    "nsp_accuracy": 0.5,
    "learning_rate": 1e-3,
    "grad_norm": 0.8341,
    "tokens_per_second": 12345.6,
    "seconds": 70.0,
    "mfu": 0.3142,
}


def items(**changes) -> list[Item]:
    return line_items(
        **{"step": 1200, "done": 0.24, "values": VALUES, "seconds_left": 754.0, "memory": 3 * 2**30} | changes
    )


def test_numbers_as_people_read_them() -> None:
    assert [short(value) for value in (12345.6, 0.12345, 1.2e-5, 3.0)] == ["12,346", "0.1235", "1.2e-05", "3"]
    assert [duration(seconds) for seconds in (9, 754, 5025, 60 * 60 * 76)] == ["0:09", "12:34", "1:23:45", "3 d 04:00"]


def test_all_of_it_where_there_is_room() -> None:
    assert fit(items(), 200) == (
        "24%  step 1,200  loss 3.214  mlm_accuracy 0.412  nsp_accuracy 0.500  lr 0.001  norm 0.834  "
        "12.3k tokens/s  MFU 31.4%  3.0 GiB  12:34 left"
    )


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (100, "24%  step 1,200  loss 3.214  mlm_accuracy 0.412  lr 0.001  norm 0.834  12.3k tokens/s  12:34 left"),
        (79, "24%  step 1,200  loss 3.214  lr 0.001  norm 0.834  12.3k tokens/s  12:34 left"),
        (60, "24%  step 1,200  loss 3.214  12.3k tokens/s  12:34 left"),
        (40, "step 1,200  loss 3.214  12:34 left"),
        (22, "step 1,200  loss 3.214"),
        (10, "step 1,200"),
        (4, "step"),
    ],
)
def test_the_less_important_goes_first(width, expected) -> None:
    assert fit(items(), width) == expected


def test_nothing_is_ever_wider_than_the_terminal() -> None:
    chance = random.Random(0)
    for _ in range(500):
        parts = [Item("x" * chance.randint(1, 30), chance.randint(0, 9)) for _ in range(chance.randint(1, 12))]
        width = chance.randint(1, 120)
        assert 0 < len(fit(parts, width)) <= width


def test_what_is_not_known_is_left_out() -> None:
    assert fit(items(step=None, values={}, done=0.0, seconds_left=None), 200) == "0%  starting  3.0 GiB"
    assert "MFU" not in fit(items(values={**VALUES, "mfu": None}), 200)
    odd = fit(items(values={"loss": float("nan"), "count": 123456.0, "note": "text"}), 200)
    assert "loss nan  count 123,456" in odd and "note" not in odd
    assert "left" not in fit(items(seconds_left=float("inf")), 200)


def test_memory_is_that_of_this_process() -> None:
    before = memory_in_use()
    with mmap.mmap(-1, 200_000_000) as held:  # of the kernel: malloc may hand out what it kept of earlier tests
        held.write(b"x" * len(held))
        assert memory_in_use() - before > 0.9 * len(held)


def test_time_left_follows_the_newer_half(monkeypatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(live_line, "time", SimpleNamespace(monotonic=lambda: clock.now))
    remaining = Remaining(0.5)
    assert remaining.seconds(0.5) is None
    clock.now += 60  # a first step that takes long
    remaining.seconds(0.501)
    for step in range(1, 1000):
        clock.now += 1.0
        left = remaining.seconds(0.501 + step / 10_000)
    assert left == pytest.approx((1 - 0.6009) * 10_000, rel=0.01)
    assert len(remaining.points) < 210
