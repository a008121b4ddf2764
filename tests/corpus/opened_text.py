"""What tests of reading share: a file is written, opened as `--data` is, and what is said of a bad one."""

from pathlib import Path
from typing import Any

import pytest

from lacuna.common.errors import InputError
from lacuna.corpus import Text, TextArguments, open_text


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def opened(*data: Path | str, **options: Any) -> Text:
    return open_text(TextArguments(data=[str(path) for path in data], **options))


def texts(*data: Path | str, **options: Any) -> list[str]:
    return list(opened(*data, **options).texts())


def failure(*data: Path | str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        texts(*data, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)
