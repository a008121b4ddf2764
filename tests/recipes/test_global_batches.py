"""The first 36 global batches of every objective, from the loader of the loop: the same however a step is divided."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import fast
from processes import REPOSITORY

from lacuna.corpus import TextArguments, open_text, prepare_store
from lacuna.objectives import IGNORED, OBJECTIVES, ObjectiveArguments, SpecialTokens
from lacuna.tokenization import token_facts, tokenizer_fingerprint, train_bpe
from lacuna.training.checkpoints.saving import Progress
from lacuna.training.loop import _loader
from lacuna.training.stages import Stage

STEPS, BATCH, LENGTH = 36, 8, 32
ROWS = 244  # so that step 30 (counted from 0) has samples of two epochs
STARTS = (1, 19, 30, 31, 35)
FROM_THE_START, FROM_STARTS, WITH_WORKERS = ((2, 4), (4, 1)), ((1, 4), (2, 2), (4, 2)), (2, 2)
"""Processes and micro-batches of the runs that are compared with one process that takes a step at once."""
WORDS = "the a cat dog bird sat ran sang on under over mat tree house and but then when it was so very old new"

CASES: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm", "mask_probability": 0.2},
    "mlm of whole words": {"objective": "mlm", "masking": "whole_word"},
    "mlm of spans": {"objective": "mlm", "masking": "span", "packing": "none"},
    "mlm_nsp": {"objective": "mlm_nsp"},
    "mlm_sop": {"objective": "mlm_sop"},
    "mlm_contrastive": {"objective": "mlm_contrastive"},
    "clm": {"objective": "clm"},
    "hybrid": {"objective": "hybrid"},
    "denoising": {"objective": "denoising"},
    "recurring spans": {"objective": "spans"},
}
FAST = ("mlm_nsp", "hybrid", "denoising")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """What objectives are made from: a text without (False) and with (True) weighted sources."""
    folder = tmp_path_factory.mktemp("batches")
    chance = random.Random(0)
    for name, documents in (("a", 200), ("b", 50)):
        texts = []
        for _ in range(documents):
            sentences = [" ".join(chance.choices(WORDS.split(), k=chance.randint(3, 12))) for _ in range(9)]
            texts.append(" ".join(f"{sentence.capitalize()}." for sentence in sentences))
        (folder / f"{name}.txt").write_text("\n".join(texts))
    tokenizer = train_bpe(documents=open_text(_text(folder, "a.txt")).texts(), vocab_size=368)
    found = {}
    for weighted, names in ((False, ("a.txt", "b.txt")), (True, ("a.txt:0.3", "b.txt:0.7"))):
        store = prepare_store(
            text=open_text(_text(folder, *names)),
            tokenizer=tokenizer,
            tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
            output_dir=folder / f"store-{weighted}",
            num_workers=0,
        )
        found[weighted] = {
            "store": store,
            "tokens": SpecialTokens.of(tokenizer),
            **token_facts(tokenizer),
            "seed": 3,
            "sequence_length": LENGTH,
        }
    return found


def _text(folder: Path, *names: str) -> TextArguments:
    return TextArguments(data=[str(folder / name) for name in names], document_boundary="line")


def batches(work: Any, *, start: int, processes: int = 1, micro: int = BATCH, workers: int = 0) -> list[str]:
    """A hash of each global batch from step `start` on, of what all processes get in it."""
    micro = min(micro, BATCH // processes)
    ranks = []
    for rank in range(processes):
        stage = Stage(at=0.0, work=work, batch_size=BATCH, micro_batch_size=micro)
        run: Any = SimpleNamespace(
            accelerator=SimpleNamespace(
                process_index=rank, num_processes=processes, device=SimpleNamespace(type="cpu")
            ),
            arguments=SimpleNamespace(seed=3, num_workers=workers, max_steps=STEPS, max_minutes=None),
            progress=Progress(step=start, samples=start * BATCH),
        )
        loader = iter(_loader(run, stage))
        per_step = BATCH // processes // micro
        ranks.append([list(islice(loader, per_step)) for _ in range(start, STEPS)])
        del loader  # its workers end
    return [_hash(row for rank in step for batch in rank for row in _rows(batch)) for step in zip(*ranks, strict=True)]


def _rows(batch: dict[str, Any]) -> Iterator[bytes]:
    """Each row as bytes, all of it: filled up to a width of its own, since micro-batches are as wide as their widest.

    No row is lost in a wider one: what fills a row up there fills it up here.
    """
    fill = {"input_ids": 0, "decoder_input_ids": 0, "labels": IGNORED}
    for number in range(len(batch["input_ids"])):
        row = b""
        for name, values in sorted(batch.items()):
            value = np.atleast_1d(values[number].numpy())
            wide = np.full(2 * LENGTH, fill.get(name, 0))
            wide[: len(value)] = value
            row += name.encode() + wide.tobytes()
        yield row


def _hash(rows: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row)
    return digest.hexdigest()


def check(work: Any, *, turn: int) -> None:
    """Every start with one division of the step; with another `turn` it is another one."""
    expected = batches(work, start=0)
    assert len(expected) == STEPS == len(set(expected))  # no batch is like another
    for processes, micro in FROM_THE_START:
        assert batches(work, start=0, processes=processes, micro=micro) == expected
    for number, start in enumerate(STARTS):
        processes, micro = FROM_STARTS[(number + turn) % len(FROM_STARTS)]
        assert batches(work, start=start, processes=processes, micro=micro) == expected[start:]
    processes, micro = WITH_WORKERS
    for start in (0, 31):
        assert batches(work, start=start, processes=processes, micro=micro, workers=2) == expected[start:]


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def test_the_page_says_what_is_tested() -> None:
    page = " ".join((REPOSITORY / "docs" / "exactness.md").read_text(encoding="utf-8").split())
    divisions = {(1, BATCH), *FROM_THE_START, *FROM_STARTS, WITH_WORKERS}
    processes, micro = (sorted(numbers) for numbers in map(set, zip(*divisions, strict=True)))
    assert len(divisions) == 6 and f"of the {BATCH} rows of a step (six divisions," in page
    assert f"for {listed(processes)} processes with micro-batches of {micro[0]} to {micro[-1]} of" in page
    assert f"the first {STEPS} global batches of every objective" in page and f"steps {listed(STARTS)}, across" in page
    assert {options["objective"] for options in CASES.values()} == OBJECTIVES.keys()
    assert FAST == ("mlm_nsp", "hybrid", "denoising")
    assert "`make test` does so for `mlm_nsp`, `hybrid` and `denoising`, `make test-slow` for all" in page


@pytest.mark.parametrize("case", fast(CASES, *FAST))
def test_global_batches_do_not_depend_on_how_they_are_divided(case: str, parts: dict[bool, dict[str, Any]]) -> None:
    arguments = ObjectiveArguments(**CASES[case])
    work = OBJECTIVES[arguments.objective](**parts[False], arguments=arguments)
    assert work.num_examples >= ROWS and parts[False]["tokens"].pad == 0
    work.num_examples = ROWS
    check(work, turn=list(CASES).index(case))


def test_nor_do_those_of_weighted_sources(parts: dict[bool, dict[str, Any]]) -> None:
    work = OBJECTIVES["mlm_nsp"](**parts[True], arguments=ObjectiveArguments(objective="mlm_nsp"))
    assert [weight for _, weight in work.mixture] == [0.3, 0.7]
    # Of the second source 201 of the first 288 samples are drawn, which is more than it has.
    assert work.mixture[1][0] < 201
    check(work, turn=0)


def test_another_seed_or_step_is_another_batch(parts: dict[bool, dict[str, Any]]) -> None:
    """The hashes see what they are to see."""
    arguments = ObjectiveArguments(objective="mlm")
    works = [OBJECTIVES["mlm"](**{**parts[False], "seed": seed}, arguments=arguments) for seed in (3, 4)]
    first, other = (batches(work, start=34) for work in works)
    assert not set(first) & set(other)
    assert not set(first) & set(batches(works[0], start=26)[:8])
