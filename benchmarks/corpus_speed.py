"""Tokens per second, memory and disk space of preparing a corpus, beside `datasets.map` with `group_texts`.

    python benchmarks/corpus_speed.py --data ../shared/data/novels --tokenizer runs/tokenizer          # some minutes
    python benchmarks/corpus_speed.py --data my_texts/ --tokenizer runs/tokenizer --rounds 1 --max_files 5

The same text and the same tokenizer, each time from files to what training reads, in a process of its own and with an
empty cache:

- `lacuna`: corpus.prepare_store as recipes/prepare_corpus.py calls it: reading, fingerprint, sentences, tokens,
  duplicates, SHA-256 of every file; one worker a core;
- `datasets_1`: examples/pytorch/language-modeling/run_clm.py of transformers as it comes: load_dataset("text") with
  its line ends kept, map(tokenize), map(group_texts) into rows of --length with labels; one process, in which the
  tokenizer takes all cores;
- `datasets_2`: the same with preprocessing_num_workers 2.

Imports are not timed, nor is loading the tokenizer. Speed is the median over rounds; ratios are taken within rounds,
so that a slower minute of the machine slows all three.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from reports import REPOSITORY, RESULTS, describe_machine, positive, write_report
from tqdm import tqdm

OURS = "lacuna"
CONTENDERS = (OURS, "datasets_1", "datasets_2")
SAMPLED_EVERY = 0.05  # seconds, for the memory of all processes together


def prepare_with_lacuna(*, files: list[str], tokenizer: str, folder: Path, length: int) -> dict[str, Any]:
    """A token store of `files`; `length` is chosen when the store is read, not here."""
    from lacuna.corpus import TextArguments, open_text, prepare_store
    from lacuna.tokenization import load_tokenizer, tokenizer_fingerprint

    loaded = load_tokenizer(tokenizer)
    start = time.perf_counter()
    store = prepare_store(
        text=open_text(TextArguments(data=files)),
        tokenizer=loaded,
        tokenizer_fingerprint=tokenizer_fingerprint(loaded),
        output_dir=folder / "store",
    )
    assert store is not None
    return {"seconds": time.perf_counter() - start, "tokens": store.num_tokens}


def prepare_with_datasets(
    *, files: list[str], tokenizer: str, folder: Path, length: int, processes: int
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
    lines = load_dataset("text", data_files={"train": files}, keep_linebreaks=True, cache_dir=str(folder))["train"]
    tokenized = lines.map(tokenize_function, batched=True, num_proc=num_proc, remove_columns=["text"])
    grouped = tokenized.map(group_texts, batched=True, num_proc=num_proc)
    seconds = time.perf_counter() - start
    last = sum(Path(file["filename"]).stat().st_size for file in grouped.cache_files)
    return {"seconds": seconds, "tokens": len(grouped) * length, "bytes_of_rows": last}


def run_contender(name: str, options: argparse.Namespace, files: list[str]) -> dict[str, Any]:
    """One contender in a process of its own: seconds, tokens, bytes on the disk, peak memory of all its processes.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="corpus_speed-", dir=options.work_dir) as folder:
        work = {"files": files, "tokenizer": options.tokenizer, "folder": folder, "length": options.length}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            "LACUNA_CACHE": f"{folder}/lacuna",
            "HF_DATASETS_CACHE": folder,
            "HF_DATASETS_OFFLINE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--contender", name]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        peak = [0]
        watcher = threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True)
        watcher.start()
        output, errors = process.communicate(json.dumps(work))
        watcher.join()
        if process.returncode:
            raise RuntimeError(f"{name} failed, so nothing was measured:\n{errors[-2000:]}")
        measured = json.loads(output.splitlines()[-1])
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        return {**measured, "bytes": kept, "peak_memory": peak[0]}


def watch_memory(pid: int, peak: list[int]) -> None:
    """Put the largest sum of proportional memory of a process and its children into peak[0], until it ends."""
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            total = 0
            for each in [process, *process.children(recursive=True)]:
                try:
                    total += getattr(each.memory_full_info(), "pss", 0) or each.memory_info().rss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)
            time.sleep(SAMPLED_EVERY)
    except psutil.Error:
        pass


def measure(options: argparse.Namespace, files: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What each contender took in each round: A B C A B C ..."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    with tqdm(total=options.rounds * len(CONTENDERS), leave=False) as bar:
        for number in range(options.rounds):
            for name in CONTENDERS:
                bar.set_description(f"{name}, round {number + 1}")
                found[name].append(run_contender(name, options, files))
                bar.update()
            # Line by line, as datasets reads, a blank line is a token of its own: a few tokens more.
            counts = {name: rounds[0]["tokens"] for name, rounds in found.items()}
            if max(counts.values()) > 1.1 * min(counts.values()):
                raise RuntimeError(f"the same text must give about as many tokens, and it gave {counts}")
    return found


def summarize(found: dict[str, list[dict[str, Any]]], size: int) -> dict[str, float]:
    """Medians of each contender, and by how much we are faster and smaller: median, smallest and largest."""
    summary: dict[str, float] = {}
    for name, rounds in found.items():
        seconds = statistics.median(round["seconds"] for round in rounds)
        summary |= {
            f"seconds_{name}": seconds,
            f"tokens_per_second_{name}": statistics.median(round["tokens"] / round["seconds"] for round in rounds),
            f"bytes_per_second_{name}": size / seconds,
            f"bytes_{name}": statistics.median(round["bytes"] for round in rounds),
            f"peak_memory_{name}": max(round["peak_memory"] for round in rounds),
        }
        if name == OURS:
            continue
        # Of the seconds for the same text, which has other numbers of tokens line by line and in full rows only.
        ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in zip(found[OURS], rounds, strict=True)]
        summary |= {
            f"ratio_to_{name}": statistics.median(ratios),
            f"ratio_to_{name}_min": min(ratios),
            f"ratio_to_{name}_max": max(ratios),
            f"disk_ratio_to_{name}": found[OURS][0]["bytes"] / rounds[0]["bytes"],
            f"disk_ratio_to_rows_of_{name}": found[OURS][0]["bytes"] / rounds[0]["bytes_of_rows"],
        }
    return summary


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings, summary = report["settings"], report["summary"]
    lines = [
        f"# Preparing a corpus, {report['date']}",
        "",
        f"{settings['files']} text files, {settings['bytes'] / 1e6:.1f} MB, vocabulary {settings['vocab_size']:,}, "
        f"rows of {settings['length']}; {settings['rounds']} rounds, in turn, each with an empty cache.",
        "",
        "| | seconds | MB/s | tokens/s (median) | Lacuna is faster by (min..max over rounds) | on disk, MB | Lacuna "
        "takes of that | peak memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in CONTENDERS:
        ratio = disk = ""
        if name != OURS:
            low, middle, high = (summary[f"ratio_to_{name}{end}"] for end in ("_min", "", "_max"))
            ratio = f"{middle:.2f} x ({low:.2f}..{high:.2f})"
            disk = f"{summary[f'disk_ratio_to_{name}']:.1%}"
        lines.append(
            f"| `{name}` | {summary[f'seconds_{name}']:.1f} | {summary[f'bytes_per_second_{name}'] / 1e6:.2f} "
            f"| {summary[f'tokens_per_second_{name}']:,.0f} | {ratio} | {summary[f'bytes_{name}'] / 1e6:.1f} | {disk} "
            f"| {summary[f'peak_memory_{name}'] / 1e6:,.0f} |"
        )
    rows = summary["disk_ratio_to_rows_of_datasets_1"]
    lines += [
        "",
        f"On disk is all that is left when it is done; of the rows of `datasets_1` alone (without the text and the "
        f"tokens of lines that its cache keeps) Lacuna takes {rows:.1%}.",
    ]
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of .txt files")
    parser.add_argument("--tokenizer", required=True, help="folder made by recipes/train_tokenizer.py")
    parser.add_argument("--rounds", type=positive, default=5, help="times that each takes its turn (5)")
    parser.add_argument("--length", type=positive, default=512, help="tokens in a row of datasets (512)")
    parser.add_argument("--max_files", type=positive, help="only the first so many files")
    parser.add_argument("--work_dir", help="where caches and stores are made and removed (the temporary folder)")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    return parser.parse_args(arguments)


def contend(name: str) -> None:
    """The work of one contender, described on standard input; the result goes to standard output as one line."""
    work = json.loads(sys.stdin.read())
    work["folder"] = Path(work["folder"])
    if name == OURS:
        result = prepare_with_lacuna(**work)
    else:
        result = prepare_with_datasets(**work, processes=int(name.removeprefix("datasets_")))
    print(json.dumps(result))


def main() -> None:
    """Parse, measure, report."""
    if sys.argv[1:2] == ["--contender"]:
        contend(sys.argv[2])
        return
    options = parse()
    files = [str(path) for path in sorted(Path(options.data).rglob("*.txt"))][: options.max_files]
    if not files:
        raise SystemExit(f"there is no .txt file in {options.data}")
    size = sum(len(Path(file).read_bytes()) for file in files)  # and the files are in memory for all contenders
    from lacuna.tokenization import load_tokenizer

    vocab_size = len(load_tokenizer(options.tokenizer))
    machine = describe_machine("tokenizers", "transformers", "datasets", "sentencex", "numpy")
    found = measure(options, files)
    body = {
        "settings": {
            "files": len(files),
            "bytes": size,
            "vocab_size": vocab_size,
            "length": options.length,
            "rounds": options.rounds,
        },
        "machine": machine,
        "summary": summarize(found, size),
        "rounds": found,
    }
    write_report(name="corpus_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
