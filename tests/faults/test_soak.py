"""`make soak`: runs of sixty steps, killed at random moments twenty times and more, and taken up again to the end."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
from toy import Toy, count

KILLS = 20
LONG = {"max_steps": 60, "save_steps": 2, "eval_steps": 20, "rows": 96}


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_until_it_is_done(
    toy: Toy, new_toy: Any, seed: int, num_processes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = new_toy("straight")
    done = straight.run(num_processes=num_processes, **LONG)
    assert done.returncode == 0, done.stderr
    chance = random.Random(seed)
    kills = restarts = 0
    while True:
        running = toy.start("slow@300", num_processes=num_processes, resume=True, **LONG)
        if kills < KILLS:
            time.sleep(chance.uniform(0.2, 2.5))
            with suppress(ProcessLookupError):
                os.kill(chance.choice(running.pids), signal.SIGKILL)
        done = running.wait()
        restarts += 1
        if done.returncode == 0:
            break
        kills += 1
        count()
        assert restarts < 200
        # The killed process says nothing; of two, the other one says that it has lost it.
        assert "Traceback" not in done.stderr or num_processes > 1, done.stderr
        assert "CorruptCheckpointError" not in done.stderr
    assert kills >= KILLS
    assert toy.oracle() == straight.oracle()
    with capsys.disabled():
        print(f"\nseed {seed}, {num_processes} processes: {kills} kills, {restarts} starts, equal to the bit")
