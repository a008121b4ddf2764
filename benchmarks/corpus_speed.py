"""Tokens per second and disk space of preparing a corpus, beside `datasets.map` with `group_texts`.

    python benchmarks/corpus_speed.py --data ../shared/data/novels --tokenizer runs/tokenizer          # some minutes
    python benchmarks/corpus_speed.py --data my_texts/ --tokenizer runs/tokenizer --rounds 1 --max_files 5

The same text and tokenizer, from files to what training reads, each time in a new process with an empty cache:

- `lacuna`: a token store, as recipes/prepare_corpus.py makes it, with one worker a core;
- `datasets_1`, `datasets_2`: run_clm.py of transformers, with its line ends kept: map(tokenize), map(group_texts) into
  rows of --length with labels; preprocessing_num_workers 1 and 2.

Imports are not timed, nor is loading the tokenizer. Disk space is what is left in the end.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from harness import Report, apart, find_texts, make_parser, summarize, table, take_turns

from lacuna import corpus, tokenization

OURS = "lacuna"


def prepare_with_lacuna(files: list[str], tokenizer: str, folder: str, **_: Any) -> dict[str, Any]:
    """A token store of `files`, which is cut into rows of any length later."""
    loaded = tokenization.load_tokenizer(tokenizer)
    start = time.perf_counter()
    parts = {"tokenizer": loaded, "tokenizer_fingerprint": tokenization.tokenizer_fingerprint(loaded)}
    text = corpus.open_text(corpus.TextArguments(data=files))
    store: Any = corpus.prepare_store(text=text, **parts, output_dir=Path(folder, "store"))
    return {"seconds": time.perf_counter() - start, "tokens": store.num_tokens}


def prepare_with_datasets(
    files: list[str], tokenizer: str, folder: str, *, length: int, processes: int
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
    return {"seconds": time.perf_counter() - start, "tokens": len(grouped) * length}


CONTENDERS: dict[str, Callable[..., dict[str, Any]]] = {
    OURS: prepare_with_lacuna,
    "datasets_1": partial(prepare_with_datasets, processes=1),
    "datasets_2": partial(prepare_with_datasets, processes=2),
}


def run_contender(name: str, work: dict[str, Any], *, size: int, work_dir: str | None) -> dict[str, Any]:
    """One contender in a process of its own: seconds, tokens, bytes on the disk."""
    with tempfile.TemporaryDirectory(prefix="corpus_speed-", dir=work_dir) as folder:
        caches = {"LACUNA_CACHE": f"{folder}/lacuna", "HF_DATASETS_CACHE": folder}
        with apart(**caches, HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1") as call:
            measured = call(CONTENDERS[name], folder=folder, **work)
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    speeds = {"megabytes_per_second": size / 1e6 / measured["seconds"]}
    speeds["tokens_per_second"] = measured["tokens"] / measured["seconds"]
    return {**measured, **speeds, "bytes": kept}


def main() -> None:
    """Parse, measure, report."""
    options = make_parser(
        __doc__,
        ("data", ..., "folder of .txt files"),
        ("tokenizer", ..., "folder made by recipes/train_tokenizer.py"),
        ("rounds", 5, "turns of each"),
        ("length", 512, "tokens in a row of datasets"),
        ("max_files", int, "only the first so many files"),
        ("work_dir", str, "where caches and stores are made and removed (the temporary folder)"),
    ).parse_args()
    files, size = find_texts(options.data, options.max_files)
    report = Report(options)
    report.body["settings"] |= {"files": len(files), "bytes": size}
    work = {"files": files, "tokenizer": options.tokenizer, "length": options.length}
    turn = partial(run_contender, work=work, size=size, work_dir=options.work_dir)
    found = take_turns({name: partial(turn, name) for name in CONTENDERS}, rounds=options.rounds)
    # Line by line, as datasets reads, a blank line is a token of its own: a few tokens more.
    counts = {name: rounds[0]["tokens"] for name, rounds in found.items()}
    if max(counts.values()) > 1.1 * min(counts.values()):
        raise RuntimeError(f"the same text must give about as many tokens, and it gave {counts}")
    summary = summarize(found, ours=OURS, speed="megabytes_per_second")
    for facts in summary.values():
        facts["share of its disk space that Lacuna takes"] = summary[OURS]["bytes"] / facts["bytes"]
    report.body |= {"summary": summary, "rounds": found}
    line = f"{len(files)} text files, {size / 1e6:.1f} MB, rows of {options.length}; {options.rounds} rounds."
    rows = [{"contender": name, **facts} for name, facts in summary.items()]
    report.write("Preparing a corpus", [line, "", *table(rows)])


if __name__ == "__main__":
    main()
