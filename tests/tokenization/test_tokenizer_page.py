"""docs/tokenizer.md: its commands run, then its Python, and its tables name what there is."""

import os
import random
import re
import shlex
from dataclasses import fields
from pathlib import Path

import processes
import pytest

from lacuna.tokenization import TokenizerArguments
from lacuna.tokenization.patterns import NORMALIZERS, PATTERNS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "tokenizer.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python recipes/.*$", PAGE, flags=re.MULTILINE)
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page speaks of: the recipes, and a folder of texts with more words than the built-in corpus has."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "recipes").symlink_to(REPOSITORY / "recipes")
    (folder / "my_texts").mkdir()
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randrange(3, 9))) for _ in range(8000)]
    for number in range(30):
        (folder / "my_texts" / f"{number}.txt").write_text(" ".join(draw.choices(words, k=2500)))
    return folder


def test_commands_run_and_then_the_python(workplace: Path) -> None:
    assert len(COMMANDS) == 3 and len(BLOCKS) == 2
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "LACUNA_CACHE": str(workplace / "cache"),
        "PYTHONPATH": str(REPOSITORY),
    }
    (workplace / "blocks.py").write_text("\n".join(BLOCKS))
    for words in [*map(shlex.split, COMMANDS), ["python", str(workplace / "blocks.py")]]:
        # The built-in corpus takes seconds to collect, and other tests do it.
        words += ["--data", "my_texts"] if "recipes/train_tokenizer.py" in words and "--data" not in words else []
        done = processes.run(*words[1:], cwd=workplace, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (workplace / "runs" / "extended" / "tokenizer.json").is_file()


def test_the_tables_name_what_there_is() -> None:
    patterns, normalizers = PAGE.split("| `--pattern` |")[1].split("| `--normalizer` |")
    for table, names in ((patterns, PATTERNS), (normalizers.split("\n\n")[0], NORMALIZERS)):
        assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(names)
    options = {field.name for field in fields(TokenizerArguments)}
    assert options <= set(re.findall(r"--(\w+)", PAGE))
