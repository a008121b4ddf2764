"""Tokens per second, memory and disk space of preparing a corpus, beside `datasets.map` with `group_texts`.

    python benchmarks/corpus_speed.py --data ../shared/data/novels --tokenizer runs/tokenizer          # some minutes
    python benchmarks/corpus_speed.py --data my_texts/ --tokenizer runs/tokenizer --rounds 1 --max_files 5

The same text and the same tokenizer, each time from files to what training reads, in a process of its own and with an
empty cache:

- `lacuna`: corpus.prepare_store as recipes/prepare_corpus.py calls it: reading, fingerprint, sentences, tokens,
  duplicates, SHA-256 of every file; one worker a core;
- `datasets_1`, `datasets_2`: examples/pytorch/language-modeling/run_clm.py of transformers as it comes, with its line
  ends kept: map(tokenize), map(group_texts) into rows of --length with labels; preprocessing_num_workers 1 and 2.

Imports are not timed, nor is loading the tokenizer. Speed is the median over rounds; ratios are taken within rounds,
so that a slower minute of the machine slows all three.
"""

import os
import tempfile
import threading
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from clock import apart, summarize, take_turns
from report import Report, find_texts, make_parser, table

from lacuna import corpus, tokenization

OURS = "lacuna"
CONTENDERS = {OURS: 0, "datasets_1": 1, "datasets_2": 2}
"""Processes of `datasets`."""
SAMPLED_EVERY = 0.05  # seconds, for the memory of all processes together


def prepare_with_lacuna(files: list[str], tokenizer: str, folder: str) -> dict[str, Any]:
    """A token store of `files`."""
    loaded = tokenization.load_tokenizer(tokenizer)
    start = time.perf_counter()
    store = corpus.prepare_store(
        text=corpus.open_text(corpus.TextArguments(data=files)),
        tokenizer=loaded,
        tokenizer_fingerprint=tokenization.tokenizer_fingerprint(loaded),
        output_dir=Path(folder, "store"),
    )
    assert store is not None
    return {"seconds": time.perf_counter() - start, "tokens": store.num_tokens}


def prepare_with_datasets(
    files: list[str], tokenizer: str, folder: str, length: int, processes: int
) -> dict[str, Any]:
    """Rows of `length` tokens of `files`, with the functions of transformers' run_clm.py."""
    from datasets import disable_progress_bars, load_dataset
    from transformers import AutoTokenizer
    from transformers.utils import logging

    disable_progress_bars()
    logging.set_verbosity_error()  # that a line is longer than the model's positions
    loaded = AutoTokenizer.from_pretrained(tokenizer)

    def tokenize_function(examples: dict[str, Any]) -> Any:
        return loaded(examples["text"], add_special_tokens=False)  # as GPT-2's tokenizer, which adds none

    def group_texts(examples: dict[str, Any]) -> dict[str, Any]:
        concatenated = {name: list(chain(*examples[name])) for name in examples}
        total = len(concatenated[next(iter(examples))]) // length * length
        result = {
            name: [values[start : start + length] for start in range(0, total, length)]
            for name, values in concatenated.items()
        }
        result["labels"] = result["input_ids"].copy()
        return result

    num_proc = None if processes == 1 else processes
    start = time.perf_counter()
    lines = load_dataset("text", data_files={"train": files}, keep_linebreaks=True, cache_dir=folder)["train"]
    tokenized = lines.map(tokenize_function, batched=True, num_proc=num_proc, remove_columns=["text"])
    grouped = tokenized.map(group_texts, batched=True, num_proc=num_proc)
    seconds = time.perf_counter() - start
    last = sum(Path(file["filename"]).stat().st_size for file in grouped.cache_files)
    return {"seconds": seconds, "tokens": len(grouped) * length, "bytes_of_rows": last}


def run_contender(
    name: str, *, files: list[str], size: int, tokenizer: str, length: int, work_dir: str | None
) -> dict[str, Any]:
    """One contender in a process of its own: seconds, tokens, bytes on the disk, peak memory of all its processes."""
    with tempfile.TemporaryDirectory(prefix="corpus_speed-", dir=work_dir) as folder:
        caches = {"LACUNA_CACHE": f"{folder}/lacuna", "HF_DATASETS_CACHE": folder}
        with apart(**caches, HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1") as call:
            peak, ended = [0], threading.Event()
            watcher = threading.Thread(target=watch_memory, args=(call(os.getpid), peak, ended))
            watcher.start()
            try:
                if name == OURS:
                    measured = call(prepare_with_lacuna, files, tokenizer, folder)
                else:
                    measured = call(prepare_with_datasets, files, tokenizer, folder, length, CONTENDERS[name])
            finally:
                ended.set()
                watcher.join()
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        speeds = {"megabytes_per_second": size / 1e6 / measured["seconds"]}
        speeds["tokens_per_second"] = measured["tokens"] / measured["seconds"]
        return {"bytes_of_rows": kept, **measured, **speeds, "bytes": kept, "peak_memory": peak[0]}


def watch_memory(pid: int, peak: list[int], ended: threading.Event) -> None:
    """Put the largest sum of proportional memory of a process and its children into peak[0], until `ended`."""
    process = psutil.Process(pid)
    while not ended.wait(SAMPLED_EVERY):
        total = 0
        for each in [process, *process.children(recursive=True)]:
            try:
                total += getattr(each.memory_full_info(), "pss", 0) or each.memory_info().rss
            except psutil.Error:
                continue
        peak[0] = max(peak[0], total)


def main() -> None:
    """Parse, measure, report."""
    options = make_parser(
        __doc__,
        ("data", ..., "folder of .txt files"),
        ("tokenizer", ..., "folder made by recipes/train_tokenizer.py"),
        ("rounds", 5, "times that each takes its turn"),
        ("length", 512, "tokens in a row of datasets"),
        ("max_files", int, "only the first so many files"),
        ("work_dir", str, "where caches and stores are made and removed (the temporary folder)"),
    ).parse_args()
    files = find_texts(options.data, options.max_files)
    size = sum(len(Path(file).read_bytes()) for file in files)  # and the files are in memory for all contenders
    report = Report(__file__, options, "tokenizers", "transformers", "datasets", "sentencex", "numpy")
    vocab_size = len(tokenization.load_tokenizer(options.tokenizer))
    report.body["settings"] |= {"files": len(files), "bytes": size, "vocab_size": vocab_size}
    work = {name: getattr(options, name) for name in ("tokenizer", "length", "work_dir")}
    found = take_turns(
        {name: partial(run_contender, name, files=files, size=size, **work) for name in CONTENDERS},
        rounds=options.rounds,
    )
    # Line by line, as datasets reads, a blank line is a token of its own: a few tokens more.
    counts = {name: rounds[0]["tokens"] for name, rounds in found.items()}
    if max(counts.values()) > 1.1 * min(counts.values()):
        raise RuntimeError(f"the same text must give about as many tokens, and it gave {counts}")
    # The speed is that of the text: in full rows only, there are other numbers of tokens.
    summary = summarize(found, ours=OURS, speed="megabytes_per_second")
    report.body |= {"summary": summary, "rounds": found}
    ours, rows = summary[OURS]["bytes"], summary["datasets_1"]["bytes_of_rows"]
    lines = [
        f"{len(files)} text files, {size / 1e6:.1f} MB, vocabulary {vocab_size:,}, rows of {options.length}; medians "
        f"of {options.rounds} rounds, in turn, each with an empty cache.",
        "",
        *table(
            {"contender": f"`{name}`", **facts, "share of it that Lacuna takes": ours / facts["bytes"]}
            for name, facts in summary.items()
        ),
        "Bytes are all that is left on the disk when it is done; of the rows of `datasets_1` alone (without the text "
        f"and the tokens of lines that its cache keeps) Lacuna takes {ours / rows:.1%}.",
    ]
    report.write("Preparing a corpus", lines)


if __name__ == "__main__":
    main()
