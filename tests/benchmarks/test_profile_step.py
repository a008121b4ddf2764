"""The profile of a step, tiny: a table of what was computed."""

from pathlib import Path

import pytest
from processes import run


@pytest.mark.slow
def test_it_writes_a_table(tmp_path: Path) -> None:
    words = ["--name", "a", "--steps", 1, "--batch_size", 2, "--length", 16, "--compile", "off"]
    done = run("benchmarks/profile_step.py", *words, "--output_dir", tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-profile-a.txt")
    text = path.read_text()
    assert "tokens/s" in text and "aten::mm" in text and "aten::_fused_adamw_" in text and text in done.stdout
