"""A sample of a corpus: what is in it, what is not, and that it leans nowhere."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lacuna.common.errors import InputError
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
    assert sample.held_out == "documents" and sample.whole
    assert 0 < sample.num_held_out_bytes <= LARGEST_HELD_OUT * total + 300
    assert sample.num_held_out_bytes == sum(len(text.encode()) for text in held_out)


def test_a_sample_keeps_its_budget_and_is_a_function_of_seed_and_text_alone() -> None:
    documents = make_documents(2000)
    sample = sample_of(documents, max_bytes=50_000, seed=3)
    assert 45_000 < sample.num_bytes <= 50_000
    assert not sample.whole
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
    limited = sample_of(documents * 3, max_bytes=3_000)
    assert limited.duplicates and everything(limited) == everything(sample_of(documents, max_bytes=3_000))
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
sample = sample_documents(documents=documents(), max_bytes=1_000_000)
train_bpe(documents=sample.training(), vocab_size=2000)
print(sample.seen_bytes, peak_memory() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the peak of memory is not known there")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "documents"])
def test_memory_does_not_grow_with_the_text(kind: str) -> None:
    repository = Path(__file__).resolve().parents[2]
    peaks = []
    for megabytes in (2, 10):
        done = subprocess.run(
            [sys.executable, "-c", STREAM, kind, str(megabytes)],
            cwd=repository,
            capture_output=True,
            text=True,
            check=True,
        )
        seen, peak = done.stdout.split()
        assert int(seen) > 0.8e6 * megabytes
        peaks.append(int(peak))
    # Training takes 150 bytes for each of the 1,000,000 bytes of words.
    assert peaks[1] < peaks[0] + 40e6 and peaks[1] < 450e6, peaks


@pytest.mark.parametrize(("option", "value"), [("max_bytes", 0), ("max_bytes", -5), ("seed", -1)])
def test_an_option_that_cannot_be_is_an_error(option: str, value: int) -> None:
    with pytest.raises(InputError, match=f"--{option} {value}"):
        sample_of(["text"], **{option: value})
