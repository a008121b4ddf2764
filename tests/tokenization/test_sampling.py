"""A sample of a corpus: what is in it, what is not, and that it leans nowhere."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lacuna.common.errors import InputError, StorageError
from lacuna.tokenization import Sample, sample_documents
from lacuna.tokenization.sampling import LARGEST_HELD_OUT


def make_documents(count: int, *, length: int = 200, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [f"{number} " + " ".join(f"w{draw.randrange(1000)}" for _ in range(length // 5)) for number in range(count)]


def sample_of(documents: Any, **options: Any) -> Sample:
    return sample_documents(documents=documents, **{"max_bytes": 10**9, **options})


def everything(sample: Sample) -> list[str]:
    return [*sample.training(), *sample.spared()]


def test_without_a_need_all_is_kept_in_order_and_some_held_out() -> None:
    documents = make_documents(500)
    sample = sample_of(documents)
    held_out = set(sample.spared())
    assert list(sample.training()) == [text for text in documents if text not in held_out]
    assert sorted(everything(sample)) == sorted(documents)
    assert list(sample.training()) == list(sample.training())
    assert len(sample.training()) == len(documents) - len(held_out)
    assert list(sample.training(every=7)) == list(sample.training())[::7]
    total = sum(len(text.encode()) for text in documents)
    assert (sample.seen_documents, sample.seen_bytes) == (500, total)
    assert (sample.num_documents, sample.num_bytes) == (500, total)
    assert sample.held_out == "documents" and sample.limited_by is None
    assert 0 < sample.num_held_out_bytes <= LARGEST_HELD_OUT * total + 300
    assert sample.num_held_out_bytes == sum(len(text.encode()) for text in held_out)


def test_a_sample_keeps_its_budget_and_is_a_function_of_seed_and_text_alone() -> None:
    documents = make_documents(2000)
    sample = sample_of(documents, max_bytes=50_000, seed=3)
    assert 45_000 < sample.num_bytes <= 50_000
    assert sample.limited_by == "max_bytes"
    chosen = everything(sample)
    assert sum(len(text.encode()) for text in chosen) == sample.num_bytes
    assert chosen == everything(sample_of(iter(documents), max_bytes=50_000, seed=3))
    shuffled = random.Random(0).sample(documents, len(documents))
    again = sample_of(shuffled, max_bytes=50_000, seed=3)
    assert set(everything(again)) == set(chosen) and set(again.spared()) == set(sample.spared())
    assert set(everything(sample_of(documents, max_bytes=50_000, seed=4))) != set(chosen)


def test_a_sample_does_not_lean_to_the_start() -> None:
    documents = make_documents(1000, length=50)
    counts = np.zeros(1000)
    for seed in range(60):
        for text in everything(sample_of(documents, max_bytes=6_000, seed=seed)):
            counts[int(text.split()[0])] += 1
    # Four standard deviations of the mean of 250 documents.
    expected = counts.mean()
    deviation = 4 * np.sqrt(expected / 250)
    for quarter in np.split(counts, 4):
        assert abs(quarter.mean() - expected) < deviation


def test_copies_count_once_and_one_text_alone_is_an_error() -> None:
    documents = make_documents(50)
    sample = sample_of(documents * 3 + ["", " \n"])
    assert sample.duplicates == 100 and sample.num_documents == 50
    assert set(everything(sample)) == set(documents)
    with pytest.raises(InputError, match=r"all 1,000 documents are copies of one.*'the same'") as caught:
        sample_of(["the same"] * 1000)
    assert caught.value.exit_code == 2
    assert everything(sample_of(["only one"])) == ["only one"]


def test_one_document_that_repeats_its_passages_is_no_copy() -> None:
    passage = "the same words again and again, as in a log\n" * 1000
    sample = sample_of([passage * 3])
    assert sample.duplicates and sample.num_documents == 1
    sample_of([passage * 3, passage * 2])


@pytest.mark.parametrize("documents", [[], [""], ["", "  \n"]])
def test_no_text_is_an_error(documents: list[str]) -> None:
    with pytest.raises(InputError, match="no text"):
        sample_of(documents)


def test_a_large_document_is_taken_in_passages_and_some_of_them_held_out() -> None:
    document = "\n".join(make_documents(15_000))
    sample = sample_of([document])
    assert sample.held_out == "passages" and sample.num_held_out_bytes > 0
    assert sample.num_documents == 1 and sample.num_bytes == len(document)
    smaller = sample_of([document], max_bytes=1_000_000)
    assert 800_000 < smaller.num_bytes <= 1_000_000
    assert all(passage in document for passage in everything(smaller))
    assert sample_of(["a small text"]).held_out == "nothing"


def test_text_of_many_different_words_is_sampled_further() -> None:
    draw = random.Random(0)
    documents = [" ".join(f"{draw.getrandbits(40):010x}" for _ in range(500)) for _ in range(400)]
    sample = sample_of(documents, max_word_bytes=500_000)
    assert sample.limited_by == "words"
    words = {word for text in everything(sample) for word in text.split()}
    assert 400_000 < sum(map(len, words)) <= 510_000
    # As much text again, of the same words all the time, does not matter.
    assert (
        sample_of(documents[:50] + [f"{i} {documents[0]}" for i in range(400)], max_word_bytes=500_000).limited_by
        is None
    )


def test_the_budget_of_words_does_not_depend_on_the_order_of_the_text() -> None:
    few = make_documents(3000)  # 1,000 words, and their numbers
    assert sum(map(len, few)) > 300_000 and sample_of(few, max_word_bytes=300_000).limited_by is None
    draw = random.Random(0)
    many = [" ".join(f"{draw.getrandbits(40):010x}" for _ in range(500)) for _ in range(200)]
    chosen = sample_of(few + many, max_word_bytes=300_000)
    assert chosen.limited_by == "words" and 0 < chosen.num_held_out_bytes < chosen.num_bytes
    assert set(everything(chosen)) == set(everything(sample_of(many + few, max_word_bytes=300_000)))


def test_very_many_small_documents_are_sampled_further() -> None:
    documents = [f"{number} ab" for number in range(5000)]
    sample = sample_of(documents, max_passages=1000)
    assert sample.limited_by == "passages" and sample.num_documents == 1000
    assert everything(sample_of(documents, max_passages=1000, seed=1)) != everything(sample)
    assert "as many documents as memory allows" in str(sample)


STREAM = """
import sys
import numpy as np
from lacuna.tokenization import peak_memory, sample_documents, train_bpe

kind, megabytes = sys.argv[1], int(sys.argv[2])
draw = np.random.default_rng(0)
letters = str.maketrans("0123456789", "ghijklmnop")

def documents():
    written = 0
    while written < megabytes * 1_000_000:
        if kind == "words":
            numbers = draw.integers(0, 1 << 40, size=20_000).tolist()
            text = " ".join(f"{number:010x}" for number in numbers).translate(letters)
            yield text
            written += len(text)
        else:
            numbers = draw.integers(0, 1 << 40, size=20_000).tolist()
            yield from map(hex, numbers)
            written += 12 * len(numbers)

before = peak_memory()
budgets = {"max_bytes": 4_000_000, "max_word_bytes": 1_000_000, "max_passages": 20_000}
sample = sample_documents(documents=documents(), **budgets)
train_bpe(documents=sample.training(), vocab_size=2000)
print(sample.limited_by, sample.seen_bytes, peak_memory() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the peak of memory is not known there")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "reason"), [("words", "words"), ("documents", "passages")])
def test_memory_does_not_grow_with_the_text(kind: str, reason: str, tmp_path: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    peaks = []
    for megabytes in (2, 10):
        done = subprocess.run(
            [sys.executable, "-c", STREAM, kind, str(megabytes)],
            cwd=repository,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        limited_by, seen, peak = done.stdout.split()
        assert limited_by == reason and int(seen) > 0.8e6 * megabytes
        peaks.append(int(peak))
    # Training takes 150 bytes for each of the 1,000,000 bytes of words.
    assert peaks[1] < peaks[0] + 40e6 and peaks[1] < 450e6, peaks


@pytest.mark.parametrize(("option", "value"), [("max_bytes", 0), ("max_bytes", -5), ("seed", -1)])
def test_an_option_that_cannot_be_is_an_error(option: str, value: int) -> None:
    with pytest.raises(InputError, match=f"--{option} {value}"):
        sample_of(["text"], **{option: value})


def test_a_full_disk_is_told_from_an_error_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> Iterator[str]:
        yield "text"
        raise FileNotFoundError(2, "No such file", "text.txt")

    with pytest.raises(FileNotFoundError):
        sample_of(unreadable())
    sample = Sample(max_bytes=10, seed=0, max_word_bytes=10, max_passages=10, folder=tmp_path)

    class Full:
        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda **_: Full())
    with pytest.raises(StorageError, match="No space left") as caught:
        sample_of(["text"], folder=tmp_path)
    assert caught.value.exit_code == 5 and sample.num_bytes == 0
