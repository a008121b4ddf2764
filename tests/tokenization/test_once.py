"""A tokenizer that several runs share is learned by the first of them."""

import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial

from filelock import FileLock

from lacuna.common.files import locked
from lacuna.tokenization import load_tokenizer, train_once

SENTENCE = (
    "The quick brown cat of house {} jumped over every lazy dog and sang about mountains, rivers and old towns. "
)
TEXTS = [SENTENCE.format(number) * 30 for number in range(8)]


def unread() -> Iterator[str]:
    raise AssertionError("the text is read again")
    yield ""


def test_the_first_learns_and_the_others_find_it(tmp_path, capsys, monkeypatch) -> None:
    train_once(documents=iter(TEXTS), output_dir=tmp_path / "tokenizers" / "one", vocab_size=300)
    assert len(load_tokenizer(str(tmp_path / "tokenizers" / "one"))) == 300
    train_once(documents=unread(), output_dir=tmp_path / "tokenizers" / "one", vocab_size=300)
    assert not capsys.readouterr().err
    # Another process is at it: who waits says so, and takes what it finds.
    monkeypatch.setattr("lacuna.tokenization.files.locked", partial(locked, silent_seconds=0.05))
    taken = threading.Event()

    def hold() -> None:
        with FileLock(tmp_path / "tokenizers" / ".one.lock"):
            taken.set()
            time.sleep(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(5)
    train_once(documents=unread(), output_dir=tmp_path / "tokenizers" / "one", vocab_size=300)
    assert "another process is learning the tokenizer" in capsys.readouterr().err
    holder.join()


def test_a_text_too_short_for_the_vocabulary_is_said_in_one_line(tmp_path, capsys) -> None:
    before = warnings.showwarning
    train_once(documents=iter(TEXTS), output_dir=tmp_path / "one", vocab_size=4096)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the vocabulary has ") and "not the 4096 of --vocab_size" in line
    assert warnings.showwarning is before


def test_a_pattern_that_llama_cpp_lacks_is_said_by_the_run_that_learns_it(tmp_path, capsys) -> None:
    hindi = ["हिन्दी भारत की एक भाषा है। " * number for number in range(1, 40)]
    train_once(documents=iter(hindi), output_dir=tmp_path / "one", vocab_size=262)
    assert "--pattern modern, which llama.cpp does not know: no GGUF" in capsys.readouterr().err
    train_once(documents=iter(TEXTS), output_dir=tmp_path / "two", vocab_size=300)
    assert not capsys.readouterr().err
