"""How far something is, in a log."""

import pytest

from lacuna.common.errors import progress_bar


def test_a_log_has_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is begun again, as on a terminal, would leave halves and blanks before what is said next."""
    monkeypatch.setattr("lacuna.common.errors.LOG_SECONDS", 0)
    for _ in progress_bar(range(3), doing="reading", unit="row", delay=0, miniters=1):
        pass
    said = capsys.readouterr().err
    assert "\r" not in said and said.endswith("\n") and len(said.splitlines()) >= 3
    assert all(line.startswith("reading:") and line == line.strip() for line in said.splitlines())
