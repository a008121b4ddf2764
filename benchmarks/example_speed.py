"""Training examples per second of every objective, masking and packing included: tokens of rows made by one process.

    python benchmarks/example_speed.py --seconds 0.2 --rounds 2                        # a laptop, ten seconds
    python benchmarks/example_speed.py                                                 # what `make bench` runs
    python benchmarks/example_speed.py --corpus runs/corpus --tokenizer runs/tokenizer # on a prepared text of yours

What is timed is `example(row, index)` of rows drawn in a random order, as a worker of the data loader calls it; the
goal is 200,000 tokens a second for each core at rows of 512. Without --corpus the text is drawn at random: documents
of 800 tokens on average, sentences of 25, words of 1.3. Setting an objective up (packing, cutting into chunks) is
timed apart. Speed is the median over rounds, in which the objectives take turns.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from reports import RESULTS, describe_machine, write_report

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


@dataclass
class Text:
    """What objectives are made from."""

    store: Any
    tokens: SpecialTokens
    byte_lengths: np.ndarray
    token_edges: np.ndarray
    name: str


@dataclass
class RandomStore:
    """A token store in memory."""

    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray


def random_text(num_tokens: int) -> Text:
    """Tokens drawn with falling frequency, in sentences and documents of lengths as they occur."""
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
    return Text(
        store=RandomStore(
            tokens=ordinary[ranks].astype(np.uint16),
            sentence_offsets=np.concatenate([[0], np.cumsum(sentences)]),
            document_offsets=np.concatenate([[0], bounds]),
        ),
        tokens=SpecialTokens(
            pad=0,
            start=2,
            end=3,
            mask=4,
            is_special=is_special,
            ordinary=ordinary,
            sentinels=ids[VOCAB - SENTINELS :],
        ),
        byte_lengths=np.where(is_special, 0, 4),
        token_edges=np.where(is_special[:, None], 0, edges).astype(np.uint8),
        name=f"{int(sentences.sum()):,} random tokens, {len(bounds):,} documents",
    )


def prepared_text(path: str, tokenizer_path: str) -> Text:
    """A store on disk, with the tokenizer that it was made with."""
    store, tokenizer = corpus.open_store(path), tokenization.load_tokenizer(tokenizer_path)
    return Text(
        store=store,
        tokens=SpecialTokens.of(tokenizer),
        byte_lengths=tokenization.token_byte_lengths(tokenizer),
        token_edges=tokenization.token_edges(tokenizer),
        name=store.summary(),
    )


def make_objectives(text: Text, *, length: int) -> dict[str, tuple[TokenPrediction, float]]:
    """Each objective that the tokenizer allows, and the seconds that it took to set it up."""
    made = {}
    for name, options in CASES.items():
        if options.get("denoising") == "span_corruption" and not len(text.tokens.sentinels):
            continue
        start = time.perf_counter()
        work = OBJECTIVES[options["objective"]](
            store=text.store,
            tokens=text.tokens,
            byte_lengths=text.byte_lengths,
            token_edges=text.token_edges,
            seed=0,
            sequence_length=length,
            arguments=ObjectiveArguments(**options),
        )
        made[name] = work, time.perf_counter() - start
    return made


def tokens_of(example: dict[str, Any]) -> int:
    """Tokens of an example that the model reads; of both sides if it has two."""
    return len(example["input_ids"]) + len(example.get("decoder_input_ids", ()))


def measure(work: TokenPrediction, *, seconds: float, first: int) -> tuple[float, int]:
    """Tokens per second over about so many seconds, and the next sample number."""
    rows = np.random.default_rng(first).integers(work.num_examples, size=4096).tolist()
    tokens, index, start = 0, first, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        tokens += tokens_of(work.example(rows[index % len(rows)], index, 0.5))
        index += 1
    return tokens / passed, index


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = report["settings"]
    lines = [
        f"# Speed of making examples, {report['date']}",
        "",
        f"Rows of {settings['length']} tokens, one process on one core, {settings['rounds']} rounds of "
        f"{settings['seconds']:g} s for each objective in turn. Text: {report['text']}. Goal: {GOAL:,} tokens/s.",
        "",
        "| objective | tokens/s (median) | smallest..largest | times the goal | rows | set up in |",
        "|---|---|---|---|---|---|",
    ]
    for name, facts in report["objectives"].items():
        low, middle, high = (facts[f"tokens_per_second{end}"] for end in ("_min", "", "_max"))
        lines.append(
            f"| {name} | {middle:,.0f} | {low:,.0f}..{high:,.0f} | {middle / GOAL:.1f} | {facts['rows']:,} | "
            f"{facts['setup_seconds']:.2f} s |"
        )
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each objective takes its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a turn (1)")
    parser.add_argument("--length", type=int, default=512, help="tokens in a row (512)")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="tokens of the random text (10,000,000)")
    parser.add_argument("--corpus", help="a folder of recipes/prepare_corpus.py, instead of a random text")
    parser.add_argument("--tokenizer", help="the tokenizer that it was made with")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    options = parser.parse_args(arguments)
    if bool(options.corpus) != bool(options.tokenizer):
        parser.error("--corpus and --tokenizer go together")
    if options.rounds < 1 or options.seconds <= 0 or options.length < 8 or options.tokens < 10_000:
        parser.error("--rounds must be at least 1, --seconds above 0, --length at least 8, --tokens at least 10000")
    return options


def main() -> None:
    """Parse, build, measure, report."""
    options = parse()
    torch.set_num_threads(1)
    machine = describe_machine("numpy")
    text = prepared_text(options.corpus, options.tokenizer) if options.corpus else random_text(options.tokens)
    made = make_objectives(text, length=options.length)
    speeds: dict[str, list[float]] = {name: [] for name in made}
    index = dict.fromkeys(made, 0)
    for number in range(options.rounds + 1):  # round 0 warms up
        for name, (work, _) in made.items():
            speed, index[name] = measure(work, seconds=options.seconds, first=index[name])
            if number:
                speeds[name].append(speed)
                print(f"round {number}: {name}: {speed:,.0f} tokens/s", file=sys.stderr, flush=True)
    body = {
        "settings": {name: value for name, value in vars(options).items() if name != "output_dir"},
        "machine": machine,
        "text": text.name,
        "objectives": {
            name: {
                "tokens_per_second": statistics.median(speeds[name]),
                "tokens_per_second_min": min(speeds[name]),
                "tokens_per_second_max": max(speeds[name]),
                "rows": work.num_examples,
                "setup_seconds": seconds,
            }
            for name, (work, seconds) in made.items()
        },
        "tokens_per_second_by_round": speeds,
    }
    write_report(name="example_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
