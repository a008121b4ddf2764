"""Training examples per second of every objective, masking and packing included: tokens of rows made by one process.

    python benchmarks/example_speed.py --seconds 0.2 --rounds 2                        # a laptop, ten seconds
    python benchmarks/example_speed.py                                                 # a minute and a half

What is timed is `example(row, index)` of rows drawn in a random order, as a worker of the data loader calls it; the
goal is 200,000 tokens a second for each core at rows of 512. The text is drawn at random: documents of 800 tokens on
average, sentences of 25, words of 1.3. Setting an objective up (packing, cutting into chunks) is timed apart.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import Report, make_parser, table, take_turns, timed

from lacuna.objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens, TokenPrediction

GOAL = 200_000
SPECIAL, SENTINELS, VOCAB = 5, 100, 8192
SPACE, LETTER = 1, 3  # classes of `tokenization.token_edges`

CASES: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm"},
    "mlm, whole words": {"objective": "mlm", "masking": "whole_word"},
    "mlm, spans": {"objective": "mlm", "masking": "span"},
    "mlm, spans, best fit": {"objective": "mlm", "masking": "span", "packing": "best_fit"},
    "mlm_nsp": {"objective": "mlm_nsp"},
    "mlm_nsp, whole words": {"objective": "mlm_nsp", "masking": "whole_word"},
    "mlm_sop": {"objective": "mlm_sop"},
    "clm": {"objective": "clm"},
    "clm, best fit": {"objective": "clm", "packing": "best_fit"},
    "hybrid": {"objective": "hybrid"},
    "denoising, infilling": {"objective": "denoising", "denoising": "infilling"},
    "denoising, span corruption": {"objective": "denoising", "denoising": "span_corruption"},
}


def random_text(num_tokens: int) -> dict[str, Any]:
    """Tokens drawn with falling frequency, in sentences and documents as long as they occur, for `OBJECTIVES`."""
    generator = np.random.default_rng(0)
    sentences = np.maximum(1, generator.lognormal(3.0, 0.7, size=num_tokens // 25)).astype(np.int64)
    documents = np.maximum(1, generator.lognormal(3.0, 1.0, size=len(sentences) // 16)).astype(np.int64)
    bounds = np.cumsum(documents)
    bounds = np.append(bounds[bounds < len(sentences)], len(sentences))
    ids = np.arange(VOCAB)
    is_special = (ids < SPECIAL) | (ids >= VOCAB - SENTINELS)
    ordinary = np.flatnonzero(~is_special)
    ranks = np.minimum(generator.pareto(1.0, size=int(sentences.sum())), 1e6).astype(np.int64) % len(ordinary)
    edges = np.stack([np.where(ids % 4, SPACE, LETTER), np.full(VOCAB, LETTER)], axis=1)
    sentinels = ids[VOCAB - SENTINELS :]
    masks = {"is_special": is_special, "ordinary": ordinary, "sentinels": sentinels}
    return {
        "store": SimpleNamespace(
            tokens=ordinary[ranks].astype(np.uint16),
            sentence_offsets=np.concatenate([[0], np.cumsum(sentences)]),
            document_offsets=np.concatenate([[0], bounds]),
        ),
        "tokens": SpecialTokens(pad=0, start=2, end=3, mask=4, **masks),
        "byte_lengths": np.where(is_special, 0, 4),
        "token_edges": np.where(is_special[:, None], 0, edges).astype(np.uint8),
    }


def take(work: TokenPrediction, indices: Iterator[int], seconds: float) -> float:
    """Tokens per second over about so many seconds; of both sides if an example has two."""
    rows = np.random.default_rng(0).integers(work.num_examples, size=4096).tolist()
    tokens, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        index = next(indices)
        example = work.example(rows[index % len(rows)], index, 0.5)
        tokens += len(example["input_ids"]) + len(example.get("decoder_input_ids", ()))
    return tokens / passed


def main() -> None:
    """Parse, measure, report."""
    parser = make_parser(
        __doc__,
        ("rounds", 5, "turns of each objective"),
        ("seconds", 1.0, "of a turn"),
        ("length", 512, "tokens in a row, at least 8"),
        ("tokens", 10_000_000, "of the random text, at least 10,000"),
    )
    options = parser.parse_args()
    if options.seconds <= 0 or options.length < 8 or options.tokens < 10_000:
        parser.error("--seconds must be above 0, --length at least 8, --tokens at least 10000")
    torch.set_num_threads(1)
    report, text = Report(options), random_text(options.tokens)
    make, made = {"seed": 0, "sequence_length": options.length, **text}, {}
    for case, changes in CASES.items():
        made[case] = timed(partial(OBJECTIVES[changes["objective"]], arguments=ObjectiveArguments(**changes), **make))
    turns = {case: partial(take, facts["result"], itertools.count(), options.seconds) for case, facts in made.items()}
    speeds = take_turns(turns, rounds=options.rounds, warm_up=1)
    report.body["objectives"] = objectives = {
        case: {
            "tokens_per_second": statistics.median(speeds[case]),
            "by_round": speeds[case],
            "times_the_goal": statistics.median(speeds[case]) / GOAL,
            "rows": facts["result"].num_examples,
            "setup_seconds": facts["seconds"],
        }
        for case, facts in made.items()
    }
    line = f"{options.tokens:,} random tokens, rows of {options.length}, one core. Goal: {GOAL:,} tokens/s."
    rows = [{"objective": case, **facts} for case, facts in objectives.items()]
    report.write("Speed of making examples", [line, "", *table(rows)])


if __name__ == "__main__":
    main()
