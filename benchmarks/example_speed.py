"""Training examples per second of every objective, masking and packing included: tokens of rows made by one process.

    python benchmarks/example_speed.py --seconds 0.2 --rounds 2                        # a laptop, ten seconds
    python benchmarks/example_speed.py                                                 # a minute and a half
    python benchmarks/example_speed.py --corpus runs/corpus --tokenizer runs/tokenizer # on a prepared text of yours

What is timed is `example(row, index)` of rows drawn in a random order, as a worker of the data loader calls it; the
goal is 200,000 tokens a second for each core at rows of 512. Without --corpus the text is drawn at random: documents
of 800 tokens on average, sentences of 25, words of 1.3. Setting an objective up (packing, cutting into chunks) is
timed apart. Speed is the median over rounds, in which the objectives take turns.
"""

import statistics
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from clock import take_turns, timed
from report import Report, make_parser, table

from lacuna import corpus, tokenization
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


def random_text(num_tokens: int) -> tuple[str, dict[str, Any]]:
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
    return f"{int(sentences.sum()):,} random tokens, {len(bounds):,} documents", {
        "store": SimpleNamespace(
            tokens=ordinary[ranks].astype(np.uint16),
            sentence_offsets=np.concatenate([[0], np.cumsum(sentences)]),
            document_offsets=np.concatenate([[0], bounds]),
        ),
        "tokens": SpecialTokens(pad=0, start=2, end=3, mask=4, **masks),
        "byte_lengths": np.where(is_special, 0, 4),
        "token_edges": np.where(is_special[:, None], 0, edges).astype(np.uint8),
    }


def prepared_text(path: str, tokenizer_path: str) -> tuple[str, dict[str, Any]]:
    """A store on disk, with the tokenizer that it was made with."""
    store, tokenizer = corpus.open_store(path), tokenization.load_tokenizer(tokenizer_path)
    return store.summary(), {
        "store": store,
        "tokens": SpecialTokens.of(tokenizer),
        "byte_lengths": tokenization.token_byte_lengths(tokenizer),
        "token_edges": tokenization.token_edges(tokenizer),
    }


class Turns:
    """An objective, and the number of its next sample."""

    def __init__(self, work: TokenPrediction) -> None:
        self.work, self.index = work, 0

    def take(self, seconds: float) -> float:
        """Tokens per second over about so many seconds; of both sides if an example has two."""
        rows = np.random.default_rng(self.index).integers(self.work.num_examples, size=4096).tolist()
        tokens, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            example = self.work.example(rows[self.index % len(rows)], self.index, 0.5)
            tokens += len(example["input_ids"]) + len(example.get("decoder_input_ids", ()))
            self.index += 1
        return tokens / passed


def main() -> None:
    """Parse, measure, report."""
    parser = make_parser(
        __doc__,
        ("rounds", 5, "times that each objective takes its turn"),
        ("seconds", 1.0, "seconds of a turn"),
        ("length", 512, "tokens in a row, at least 8"),
        ("tokens", 10_000_000, "tokens of the random text, at least 10,000"),
        ("corpus", str, "a folder of recipes/prepare_corpus.py, instead of a random text"),
        ("tokenizer", str, "the tokenizer that it was made with"),
    )
    options = parser.parse_args()
    if bool(options.corpus) != bool(options.tokenizer):
        parser.error("--corpus and --tokenizer go together")
    if options.seconds <= 0 or options.length < 8 or options.tokens < 10_000:
        parser.error("--seconds must be above 0, --length at least 8, --tokens at least 10000")
    torch.set_num_threads(1)
    report = Report(__file__, options, "numpy", "torch")
    name, parts = prepared_text(options.corpus, options.tokenizer) if options.corpus else random_text(options.tokens)
    made = {}
    for case, changes in CASES.items():
        if changes.get("denoising") != "span_corruption" or len(parts["tokens"].sentinels):
            settings = {"seed": 0, "sequence_length": options.length, "arguments": ObjectiveArguments(**changes)}
            made[case] = timed(partial(OBJECTIVES[changes["objective"]], **parts, **settings))
    turns = {case: partial(Turns(facts["result"]).take, options.seconds) for case, facts in made.items()}
    speeds = take_turns(turns, rounds=options.rounds, warm_up=1)
    objectives = {
        case: {
            "tokens_per_second": statistics.median(speeds[case]),
            "by_round": speeds[case],
            "times_the_goal": statistics.median(speeds[case]) / GOAL,
            "rows": facts["result"].num_examples,
            "setup_seconds": facts["seconds"],
        }
        for case, facts in made.items()
    }
    report.body |= {"text": name, "objectives": objectives}
    lines = [
        f"Rows of {options.length} tokens, one process on one core, {options.rounds} rounds of {options.seconds:g} s "
        f"for each objective in turn. Text: {name}. Goal: {GOAL:,} tokens/s.",
        "",
        *table({"objective": case, **facts} for case, facts in objectives.items()),
    ]
    report.write("Speed of making examples", lines)


if __name__ == "__main__":
    main()
