"""MB/s of training a tokenizer and of encoding with it, beside `tokenizers` used directly and `sentencepiece`.

    python benchmarks/tokenizer_speed.py --data ../shared/data/novels                              # ten minutes
    python benchmarks/tokenizer_speed.py --data my_texts/ --vocab_size 8000 --rounds 1 --max_files 5

Training, from text files to a vocabulary of --vocab_size; all but the last with the same pattern, no normalizer, the
same special tokens and minimum frequency:

- `lacuna`: corpus.open_text and tokenization.train_bpe: reads the files, cuts them into pieces, learns;
- `lacuna_recipe`: the same with tokenization.sample_documents between, as recipes/train_tokenizer.py does it: finds
  copies, bounds memory and holds text out for the report;
- `tokenizers_files`: Tokenizer.train(files), its own reader, which takes a line for a text;
- `tokenizers_iterator`: Tokenizer.train_from_iterator over the texts of the files;
- `sentencepiece`: SentencePieceTrainer, model_type bpe, byte_fallback, no normalization, all cores, over the lines of
  the first --sentencepiece_bytes of the text; its MB/s are of that share. It cuts text at spaces alone, not with an
  expression that tells letters from digits and punctuation, which is less work.

Encoding, from text files to all ids in an array or on disk, with a tokenizer that was trained before the clock starts:

- `lacuna`: corpus.prepare_store with one worker a core, which is how a person encodes a corpus here; it also splits
  sentences, finds copies, writes the ids to the disk and takes SHA-256 of what it wrote;
- `tokenizers_loop`: Tokenizer.encode of one line after the other, TOKENIZERS_PARALLELISM=false;
- `tokenizers_loop_files`: the same with a whole file as a text;
- `tokenizers_batch`: Tokenizer.encode_batch_fast over 1,000 lines a call, all cores;
- `sentencepiece`: SentencePieceProcessor.encode over lists of 1,000 lines, num_threads of all cores, with its own
  vocabulary.

Each contender runs in a process of its own, A B C A B C ..., imports not timed. Busy cores are the CPU time of the
process and its children over the wall-clock time. Ratios are taken within rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from reports import REPOSITORY, RESULTS, describe_machine, positive, write_report
from tqdm import tqdm

OURS = "lacuna"
LINES = 1000  # in a batch
PATTERN, MIN_FREQUENCY = "modern", 2


def read(work: dict[str, Any]) -> Iterator[str]:
    """The texts of the files, as `tokenizers` is given them by people."""
    for file in work["files"]:
        yield Path(file).read_text(encoding="utf-8-sig")


def lines_of(work: dict[str, Any]) -> Iterator[str]:
    """The lines of the files with their ends."""
    for text in read(work):
        yield from text.splitlines(keepends=True)


def share_of(work: dict[str, Any]) -> tuple[list[str], int]:
    """The first lines, and how many bytes they have: what sentencepiece learns from."""
    lines, size = [], 0
    for line in lines_of(work):
        if size >= work["sentencepiece_bytes"]:
            break
        lines.append(line.rstrip("\n"))
        size += len(line.encode())
    return lines, size


def train_lacuna(work: dict[str, Any]) -> Any:
    """As a person who calls the library."""
    from lacuna.corpus import TextArguments, open_text
    from lacuna.tokenization import train_bpe

    text = open_text(TextArguments(data=work["files"]))
    return train_bpe(
        documents=text.texts(), vocab_size=work["vocab_size"], min_frequency=MIN_FREQUENCY, pattern=PATTERN
    )


def train_lacuna_recipe(work: dict[str, Any]) -> Any:
    """As the recipe."""
    from lacuna.corpus import TextArguments, open_text
    from lacuna.tokenization import TokenizerArguments, sample_documents, train_bpe

    text = open_text(TextArguments(data=work["files"]))
    sample = sample_documents(
        documents=text.texts(), max_bytes=TokenizerArguments.max_bytes, folder=Path(work["folder"])
    )
    return train_bpe(
        documents=sample.training(), vocab_size=work["vocab_size"], min_frequency=MIN_FREQUENCY, pattern=PATTERN
    )


def untrained(work: dict[str, Any]) -> tuple[Any, Any]:
    """A tokenizer and a trainer of `tokenizers` that learn what train_bpe learns."""
    from tokenizers import trainers

    from lacuna.tokenization import SPECIAL_TOKENS
    from lacuna.tokenization.patterns import untrained_backend
    from lacuna.tokenization.vocabulary import ALPHABET

    trainer = trainers.BpeTrainer(
        vocab_size=work["vocab_size"],
        min_frequency=MIN_FREQUENCY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=ALPHABET,
        show_progress=False,
    )
    return untrained_backend(normalizer="none", pattern=PATTERN), trainer


def train_tokenizers_files(work: dict[str, Any]) -> Any:
    """`tokenizers` reads the files itself."""
    backend, trainer = untrained(work)
    backend.train(work["files"], trainer)
    return backend


def train_tokenizers_iterator(work: dict[str, Any]) -> Any:
    """`tokenizers` is given the texts."""
    backend, trainer = untrained(work)
    backend.train_from_iterator(read(work), trainer)
    return backend


def train_sentencepiece(work: dict[str, Any]) -> Any:
    """`sentencepiece` on its share; returns the processor."""
    import io

    import sentencepiece

    model = io.BytesIO()
    lines, _ = share_of(work)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=work["vocab_size"],
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        num_threads=os.cpu_count(),
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def encode_lacuna(work: dict[str, Any]) -> int:
    """A token store, as recipes/prepare_corpus.py makes it."""
    from lacuna.corpus import TextArguments, open_text, prepare_store
    from lacuna.tokenization import load_tokenizer, tokenizer_fingerprint

    tokenizer = load_tokenizer(work["tokenizer"])
    store = prepare_store(
        text=open_text(TextArguments(data=work["files"])),
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        output_dir=Path(work["folder"], "store"),
    )
    assert store is not None
    return store.num_tokens


def encode_tokenizers_loop(work: dict[str, Any]) -> int:
    """One line a call."""
    return _encode_loop(work, lines_of(work))


def encode_tokenizers_loop_files(work: dict[str, Any]) -> int:
    """One file a call."""
    return _encode_loop(work, read(work))


def _encode_loop(work: dict[str, Any], texts: Iterator[str]) -> int:
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    ids = [np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.uint16) for text in texts]
    return len(np.concatenate(ids))


def encode_tokenizers_batch(work: dict[str, Any]) -> int:
    """All cores, and the call that leaves out offsets."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    ids, lines = [], lines_of(work)
    while batch := list(islice(lines, LINES)):
        encoded = backend.encode_batch_fast(batch, add_special_tokens=False)
        ids += [np.array(each.ids, dtype=np.uint16) for each in encoded]
    return len(np.concatenate(ids))


def encode_sentencepiece(work: dict[str, Any]) -> int:
    """All cores."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=work["sentencepiece"])
    ids, lines = [], lines_of(work)
    while batch := [line.rstrip("\n") for line in islice(lines, LINES)]:
        ids += [np.array(each, dtype=np.uint16) for each in processor.encode(batch, num_threads=os.cpu_count())]
    return len(np.concatenate(ids))


TRAINERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    OURS: train_lacuna,
    "lacuna_recipe": train_lacuna_recipe,
    "tokenizers_files": train_tokenizers_files,
    "tokenizers_iterator": train_tokenizers_iterator,
    "sentencepiece": train_sentencepiece,
}
ENCODERS: dict[str, Callable[[dict[str, Any]], int]] = {
    OURS: encode_lacuna,
    "tokenizers_loop": encode_tokenizers_loop,
    "tokenizers_loop_files": encode_tokenizers_loop_files,
    "tokenizers_batch": encode_tokenizers_batch,
    "sentencepiece": encode_sentencepiece,
}
KINDS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {"training": TRAINERS, "encoding": ENCODERS}


def contend(kind: str, name: str) -> None:
    """The work of one contender, described on standard input; the result goes to standard output as one line."""
    work = json.loads(sys.stdin.read())
    import resource

    import sentencepiece  # noqa: F401

    from lacuna import (
        corpus,  # noqa: F401
        tokenization,  # noqa: F401
    )

    def processor_time() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    size = work["bytes"]
    if (kind, name) == ("training", "sentencepiece"):
        size = share_of(work)[1]
    used, start = processor_time(), time.perf_counter()
    made = KINDS[kind][name](work)
    seconds = time.perf_counter() - start
    result = {"seconds": seconds, "busy_cores": (processor_time() - used) / seconds, "bytes": size}
    if kind == "training":
        vocabulary = made.get_vocab_size() if hasattr(made, "get_vocab_size") else len(made)
        result |= {"vocabulary": vocabulary, "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    else:
        result |= {"tokens": made}
    print(json.dumps(result))


def run_contender(kind: str, name: str, work: dict[str, Any], work_dir: str | None) -> dict[str, Any]:
    """One contender in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=work_dir) as folder:
        paths = [str(REPOSITORY), str(REPOSITORY / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "LACUNA_CACHE": f"{folder}/lacuna"}
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--contender", kind, name],
            input=json.dumps({**work, "folder": folder}),
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(f"{kind} with {name} failed, so nothing was measured:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def prepare(work: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train the tokenizers that are encoded with, before anything is timed."""
    from lacuna.tokenization import save_tokenizer

    save_tokenizer(tokenizer=train_lacuna(work), output_dir=folder / "lacuna")
    model = folder / "sentencepiece.model"
    model.write_bytes(train_sentencepiece(work).serialized_model_proto())
    return {**work, "tokenizer": str(folder / "lacuna"), "sentencepiece": str(model)}


def measure(options: argparse.Namespace, work: dict[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What each contender took in each round."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        kind: {name: [] for name in names} for kind, names in KINDS.items()
    }
    total = options.rounds * sum(map(len, KINDS.values()))
    with (
        tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=options.work_dir) as folder,
        tqdm(total=total, leave=False) as bar,
    ):
        bar.set_description("the tokenizers to encode with")
        work = prepare(work, Path(folder))
        for kind, names in KINDS.items():
            for number in range(options.rounds):
                for name in names:
                    bar.set_description(f"{kind}, {name}, round {number + 1}")
                    found[kind][name].append(run_contender(kind, name, work, options.work_dir))
                    bar.update()
    check(found)
    return found


def check(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Raises RuntimeError where contenders did not do the same work."""
    sizes = {name: rounds[0]["vocabulary"] for name, rounds in found["training"].items() if name != "sentencepiece"}
    if len(set(sizes.values())) > 1:
        raise RuntimeError(f"all must learn as many tokens, and they learned {sizes}: nothing was measured")
    counts = {name: rounds[0]["tokens"] for name, rounds in found["encoding"].items() if name != "sentencepiece"}
    if max(counts.values()) > 1.05 * min(counts.values()):
        raise RuntimeError(f"the same text must give about as many tokens, and it gave {counts}: nothing was measured")


def summarize(found: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, dict[str, dict[str, float]]]:
    """For each kind and contender: medians, and by how much we are faster (median, smallest, largest)."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for kind, contenders in found.items():
        summary[kind] = {}
        for name, rounds in contenders.items():
            facts = {
                "seconds": statistics.median(each["seconds"] for each in rounds),
                "megabytes_per_second": statistics.median(each["bytes"] / each["seconds"] / 1e6 for each in rounds),
                "busy_cores": statistics.median(each["busy_cores"] for each in rounds),
            }
            if kind == "training":
                facts["peak_memory"] = max(each["peak_memory"] for each in rounds)
            if name != OURS:
                ratios = [
                    (ours["bytes"] / ours["seconds"]) / (theirs["bytes"] / theirs["seconds"])
                    for ours, theirs in zip(contenders[OURS], rounds, strict=True)
                ]
                facts |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
            summary[kind][name] = facts
    return summary


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings, machine = report["settings"], report["machine"]
    share = report["rounds"]["training"]["sentencepiece"][0]["bytes"]
    lines = [
        f"# Training a tokenizer and encoding, {report['date']}",
        "",
        f"{settings['files']} text files, {settings['bytes'] / 1e6:.1f} MB, vocabulary {settings['vocab_size']:,}, "
        f"pattern `{PATTERN}`, no normalizer; {settings['rounds']} rounds, in turn. sentencepiece learns from the "
        f"first {share / 1e6:.1f} MB and encodes all. benchmarks/tokenizer_speed.py says what each contender does.",
    ]
    for kind, contenders in report["summary"].items():
        last = " peak memory, MB |" if kind == "training" else " tokens |"
        lines += [
            "",
            f"| {kind} | seconds | MB/s (median) | Lacuna is faster by (min..max over rounds) | busy cores |{last}",
            "|---|---|---|---|---|---|",
        ]
        for name, facts in contenders.items():
            ratio = ""
            if name != OURS:
                ratio = f"{facts['ratio']:.2f} x ({facts['ratio_min']:.2f}..{facts['ratio_max']:.2f})"
            if kind == "training":
                count = f"{facts['peak_memory'] / 1e6:,.0f}"
            else:
                count = f"{report['rounds'][kind][name][0]['tokens']:,}"
            lines.append(
                f"| `{name}` | {facts['seconds']:.1f} | {facts['megabytes_per_second']:.2f} | {ratio} "
                f"| {facts['busy_cores']:.2f} of {machine['cores']} | {count} |"
            )
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of .txt files")
    parser.add_argument("--vocab_size", type=positive, default=32000, help="tokens to learn (32000, at most 65536)")
    parser.add_argument("--rounds", type=positive, default=5, help="times that each takes its turn (5)")
    parser.add_argument(
        "--sentencepiece_bytes", type=positive, default=1_000_000_000, help="of the text, for sentencepiece (1 GB)"
    )
    parser.add_argument("--max_files", type=positive, help="only the first so many files")
    parser.add_argument("--work_dir", help="where models and stores are made and removed (the temporary folder)")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    options = parser.parse_args(arguments)
    if options.vocab_size > 65536:
        parser.error("--vocab_size must be at most 65536: the ids of all contenders are kept in 16 bits")
    return options


def main() -> None:
    """Parse, measure, report."""
    if sys.argv[1:2] == ["--contender"]:
        contend(*sys.argv[2:4])
        return
    options = parse()
    files = [str(path) for path in sorted(Path(options.data).rglob("*.txt"))][: options.max_files]
    if not files:
        raise SystemExit(f"there is no .txt file in {options.data}")
    size = sum(len(Path(file).read_bytes()) for file in files)  # and the files are in memory for all contenders
    machine = describe_machine("tokenizers", "transformers", "sentencepiece", "sentencex", "numpy")
    found = measure(
        options,
        {
            "files": files,
            "bytes": size,
            "vocab_size": options.vocab_size,
            "sentencepiece_bytes": options.sentencepiece_bytes,
        },
    )
    body = {
        "settings": {
            "files": len(files),
            "bytes": size,
            "vocab_size": options.vocab_size,
            "sentencepiece_bytes": options.sentencepiece_bytes,
            "rounds": options.rounds,
        },
        "machine": machine,
        "summary": summarize(found),
        "rounds": found,
    }
    write_report(name="tokenizer_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
