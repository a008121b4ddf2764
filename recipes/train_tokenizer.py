"""Train a tokenizer on raw text.

    python recipes/train_tokenizer.py                                              # the built-in corpus, seconds
    python recipes/train_tokenizer.py --data my_texts/ --vocab_size 16384 --output_dir runs/tokenizer
    python recipes/train_tokenizer.py --data my_code/ --text_column content --pattern code --vocab_size 16384
    python recipes/train_tokenizer.py --data my_texts/ --extend runs/tokenizer --vocab_size 24576 --output_dir runs/2

Writes the tokenizer (it loads with `AutoTokenizer.from_pretrained`) and tokenizer_report.json: docs/tokenizer.md says
what the figures mean and which option is for what.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lacuna import tokenization
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError, progress_bar
from lacuna.common.private import shown
from lacuna.corpus import Text, TextArguments, open_text
from lacuna.tokenization import Sample, TokenizerArguments
from lacuna.tokenization.files import REPORT, check_replaceable

MEASURED_BYTES = 32_000_000  # of the text trained on, for the report: seconds
BARS_FROM_BYTES = 20_000_000  # training on less takes about two seconds


def read(text: Text) -> Iterator[str]:
    """The texts of all documents, with a bar when it takes long."""
    with progress_bar(total=text.total_bytes, doing="reading", unit="B") as bar:
        for document in text.texts():
            yield document
            bar.update(text.bytes_read - bar.n)


def check(arguments: TokenizerArguments, text_arguments: TextArguments) -> Any:
    """The tokenizer to extend, if one is; options are checked before a text is read that may take hours."""
    if text_arguments.tokenizer:
        raise InputError("--tokenizer is for recipes that use one; --extend DIR adds tokens to one")
    for name in ("normalizer", "pattern"):
        if arguments.extend and getattr(arguments, name) != getattr(TokenizerArguments, name):
            raise InputError(f"--{name} cannot be chosen with --extend, which keeps that of the old tokenizer")
    old = tokenization.load_tokenizer(arguments.extend) if arguments.extend else None
    if old is None:
        tokenization.check_options(arguments)
    else:
        tokenization.check_extension(old, arguments)
    return old


def measure(*, tokenizer: Any, old: Any, sample: Sample) -> dict[str, Any]:
    """The report: on text that was trained on, on held-out text, and what `old` makes of the latter."""
    texts = sample.training(every=1 + sample.num_bytes // MEASURED_BYTES)
    report = tokenization.compression_report(tokenizer=tokenizer, documents=texts)
    report |= {"held_out": None, "before_extending": None}
    for name, each in (("held_out", tokenizer), ("before_extending", old)):
        if each is not None and sample.num_held_out_bytes:
            report[name] = tokenization.compression_report(tokenizer=each, documents=sample.spared())
            del report[name]["longest_tokens"]  # of the vocabulary, not of the text
    return report


def main(words: Sequence[str] | None = None) -> str:
    """Parse, sample, learn, measure, save; returns the folder of the tokenizer."""
    arguments, text_arguments = parse_arguments((TokenizerArguments, TextArguments), words, description=__doc__)
    old = check(arguments, text_arguments)
    check_replaceable(arguments.output_dir)
    said: list[str] = []
    warnings.showwarning = lambda message, *_, **__: said.append(str(message))

    start = time.perf_counter()
    text = open_text(text_arguments)
    sample = tokenization.sample_documents(documents=read(text), max_bytes=arguments.max_bytes, seed=arguments.seed)
    sampled = time.perf_counter()
    bars = sample.num_bytes > BARS_FROM_BYTES and sys.stderr.isatty()
    make = partial(tokenization.extend_tokenizer, tokenizer=old) if old else tokenization.train_bpe
    tokenizer = make(documents=sample.training(), show_progress=bars, **asdict(arguments))
    learned = time.perf_counter()

    report = measure(tokenizer=tokenizer, old=old, sample=sample)
    if torn := tokenization.torn_warning(report, held_out=report["held_out"]):
        said.append(torn)
    seconds = {"reading": sampled - start, "training": learned - sampled, "measuring": time.perf_counter() - learned}
    report |= {
        "sample": sample.describe(),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "peak_memory_bytes": tokenization.peak_memory(),
        "options": asdict(arguments),
        "pattern": tokenization.pattern_of(tokenizer.backend_tokenizer),
        "data": text.names,
        "warnings": said,
        "fingerprint": tokenization.tokenizer_fingerprint(tokenizer),
    }
    output_dir = Path(arguments.output_dir)
    tokenization.save_tokenizer(tokenizer=tokenizer, output_dir=output_dir)
    content = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    # A file name that is not UTF-8 has halves of surrogate pairs, whose escapes here are those of JSON.
    (output_dir / REPORT).write_text(content, encoding="utf-8", errors="backslashreplace")

    print(sample)
    print(tokenization.describe_report(report))
    print("seconds               " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))
    if report["peak_memory_bytes"]:
        print(f"memory at most        {report['peak_memory_bytes'] / 1e6:,.0f} MB")
    note = "" if report["pattern"] == "gpt2" else "; llama.cpp has none like it, so no GGUF"
    print(f"pattern               {report['pattern']}{note}")
    print(f"saved in {shown(output_dir)}")
    for message in said:
        print(f"warning: {message}", file=sys.stderr)
    return str(output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
