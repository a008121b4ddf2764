"""MB/s of training a tokenizer and of encoding with it, beside `tokenizers` used directly and `sentencepiece`.

    python benchmarks/tokenizer_speed.py --data ../shared/data/novels                              # ten minutes
    python benchmarks/tokenizer_speed.py --data my_texts/ --vocab_size 8000 --rounds 1 --max_files 5

Training goes from text files to a vocabulary of --vocab_size, with one pattern, no normalizer, the same special tokens
and minimum frequency for all but `sentencepiece` (bpe, byte_fallback, no normalization), which learns from the first
--sentencepiece_bytes and cuts text at spaces alone, which is less work. Encoding goes from text files to all ids in an
array, with a tokenizer that was trained before the clock starts; `lacuna` writes a store, as a person encodes a corpus
here: it also splits sentences, finds copies and takes SHA-256 of what it wrote. `KINDS` says what each contender does.

Each contender runs in a process of its own, A B C A B C ..., imports not timed. Busy cores are the CPU time of the
process and its children over the wall-clock time. Ratios are taken within rounds.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from clock import apart, summarize, take_turns, timed
from report import Report, find_texts, make_parser, table
from tokenizers import Tokenizer, trainers

from lacuna import corpus, tokenization
from lacuna.tokenization.patterns import untrained_backend
from lacuna.tokenization.vocabulary import ALPHABET

OURS = "lacuna"
LINES = 1000  # in a batch
PATTERN, MIN_FREQUENCY = "modern", 2
Work = dict[str, Any]
"""files, vocab_size, sentencepiece_bytes, folder of a contender, and the tokenizers to encode with."""


def read(work: Work) -> Iterator[str]:
    """The texts of the files, as `tokenizers` is given them by people."""
    for file in work["files"]:
        yield Path(file).read_text(encoding="utf-8-sig")


def lines_of(work: Work) -> Iterator[str]:
    """The lines of the files with their ends."""
    for text in read(work):
        yield from text.splitlines(keepends=True)


def share_of(work: Work) -> tuple[list[str], int]:
    """The first lines, and how many bytes they have: what sentencepiece learns from."""
    lines, size = [], 0
    for line in lines_of(work):
        if size >= work["sentencepiece_bytes"]:
            break
        lines.append(line.rstrip("\n"))
        size += len(line.encode())
    return lines, size


def open_files(work: Work) -> Any:
    """The text of the files, as recipes read it."""
    return corpus.open_text(corpus.TextArguments(data=work["files"]))


def train_lacuna(work: Work, *, as_recipe: bool = False) -> Any:
    """As a person who calls the library; or as the recipe, which looks at the documents first."""
    documents = open_files(work).texts()
    if as_recipe:
        most, folder = tokenization.TokenizerArguments.max_bytes, Path(work["folder"])
        documents = tokenization.sample_documents(documents=documents, max_bytes=most, folder=folder).training()
    options = {"vocab_size": work["vocab_size"], "min_frequency": MIN_FREQUENCY, "pattern": PATTERN}
    return tokenization.train_bpe(documents=documents, **options)


def train_tokenizers(work: Work, *, from_files: bool) -> Any:
    """`tokenizers` learns what train_bpe learns: it reads the files itself, or is given the texts."""
    trainer = trainers.BpeTrainer(
        vocab_size=work["vocab_size"],
        min_frequency=MIN_FREQUENCY,
        special_tokens=tokenization.SPECIAL_TOKENS,
        initial_alphabet=ALPHABET,
        show_progress=False,
    )
    backend = untrained_backend(normalizer="none", pattern=PATTERN)
    backend.train(work["files"], trainer) if from_files else backend.train_from_iterator(read(work), trainer)
    return backend


def train_sentencepiece(work: Work) -> Any:
    """`sentencepiece` on its share; returns the processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(share_of(work)[0]),
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


def encode_lacuna(work: Work) -> int:
    """A token store, as recipes/prepare_corpus.py makes it."""
    tokenizer = tokenization.load_tokenizer(work["tokenizer"])
    made_with = tokenization.tokenizer_fingerprint(tokenizer)
    options = {"tokenizer": tokenizer, "tokenizer_fingerprint": made_with, "output_dir": Path(work["folder"], "store")}
    store = corpus.prepare_store(text=open_files(work), **options)
    assert store is not None
    return store.num_tokens


def encode_loop(work: Work, *, texts: Callable[[Work], Iterator[str]]) -> int:
    """One text a call."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    ids = [np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.uint16) for text in texts(work)]
    return len(np.concatenate(ids))


def encode_batch(work: Work) -> int:
    """All cores, and the call that leaves out offsets."""
    backend = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    ids, lines = [], lines_of(work)
    while batch := list(islice(lines, LINES)):
        encoded = backend.encode_batch_fast(batch, add_special_tokens=False)
        ids += [np.array(each.ids, dtype=np.uint16) for each in encoded]
    return len(np.concatenate(ids))


def encode_sentencepiece(work: Work) -> int:
    """All cores."""
    processor = sentencepiece.SentencePieceProcessor(model_file=work["sentencepiece"])
    ids, lines = [], lines_of(work)
    while batch := [line.rstrip("\n") for line in islice(lines, LINES)]:
        ids += [np.array(each, dtype=np.uint16) for each in processor.encode(batch, num_threads=os.cpu_count())]
    return len(np.concatenate(ids))


KINDS: dict[str, dict[str, Callable[[Work], Any]]] = {
    "training": {
        OURS: train_lacuna,
        "lacuna_recipe": partial(train_lacuna, as_recipe=True),
        "tokenizers_files": partial(train_tokenizers, from_files=True),
        "tokenizers_iterator": partial(train_tokenizers, from_files=False),
        "sentencepiece": train_sentencepiece,
    },
    "encoding": {
        OURS: encode_lacuna,
        "tokenizers_loop": partial(encode_loop, texts=lines_of),
        "tokenizers_loop_files": partial(encode_loop, texts=read),
        "tokenizers_batch": encode_batch,
        "sentencepiece": encode_sentencepiece,
    },
}


def contend(kind: str, name: str, work: Work) -> dict[str, Any]:
    """The work of one contender, in its own process: what `timed` says, bytes read, and how many tokens came out."""
    size = share_of(work)[1] if (kind, name) == ("training", "sentencepiece") else work["bytes"]
    found = timed(KINDS[kind][name], work)
    made = found.pop("result")
    count = made if kind == "encoding" else made.get_vocab_size() if hasattr(made, "get_vocab_size") else len(made)
    return {**found, "bytes": size, "megabytes_per_second": size / 1e6 / found["seconds"], "tokens": count}


def run_contender(kind: str, name: str, work: Work, work_dir: str | None) -> dict[str, Any]:
    """One contender in a process of its own, with an empty cache."""
    with (
        tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=work_dir) as folder,
        apart(LACUNA_CACHE=f"{folder}/lacuna") as call,
    ):
        return call(contend, kind, name, {**work, "folder": folder})


def measure(work: Work, *, rounds: int, work_dir: str | None) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What each contender took in each round, by kind; the tokenizers to encode with are trained before.

    Raises:
        RuntimeError: they did not do the same work.
    """
    with tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=work_dir) as folder:
        model = Path(folder, "sentencepiece.model")
        model.write_bytes(train_sentencepiece(work).serialized_model_proto())
        tokenization.save_tokenizer(tokenizer=train_lacuna(work), output_dir=Path(folder, OURS))
        work = {**work, "tokenizer": f"{folder}/{OURS}", "sentencepiece": str(model)}
        found = {
            kind: take_turns(
                {name: partial(run_contender, kind, name, work, work_dir) for name in names},
                rounds=rounds,
                title=f"{kind}, ",
            )
            for kind, names in KINDS.items()
        }
    for kind, most in (("training", 1.0), ("encoding", 1.05)):
        counts = {name: each[0]["tokens"] for name, each in found[kind].items() if name != "sentencepiece"}
        if max(counts.values()) > most * min(counts.values()):
            raise RuntimeError(f"{kind}: the same text must give as many tokens, and it gave {counts}")
    return found


def main() -> None:
    """Parse, measure, report."""
    parser = make_parser(
        __doc__,
        ("data", ..., "folder of .txt files"),
        ("vocab_size", 32000, "tokens to learn, at most 65536"),
        ("rounds", 5, "times that each takes its turn"),
        ("sentencepiece_bytes", 1_000_000_000, "of the text, for sentencepiece"),
        ("max_files", int, "only the first so many files"),
        ("work_dir", str, "where models and stores are made and removed (the temporary folder)"),
    )
    options = parser.parse_args()
    if options.vocab_size > 65536:
        parser.error("--vocab_size must be at most 65536: the ids of all contenders are kept in 16 bits")
    files = find_texts(options.data, options.max_files)
    size = sum(len(Path(file).read_bytes()) for file in files)  # and the files are in memory for all contenders
    report = Report(__file__, options, "tokenizers", "transformers", "sentencepiece", "sentencex", "numpy")
    report.body["settings"] |= {"files": len(files), "bytes": size}
    work = {**vars(options), "files": files, "bytes": size}
    found = measure(work, rounds=options.rounds, work_dir=options.work_dir)
    summary = {kind: summarize(each, ours=OURS, speed="megabytes_per_second") for kind, each in found.items()}
    report.body |= {"summary": summary, "rounds": found}
    share = found["training"]["sentencepiece"][0]["bytes"]
    lines = [
        f"{len(files)} text files, {size / 1e6:.1f} MB, vocabulary {options.vocab_size:,}, pattern `{PATTERN}`, no "
        f"normalizer; medians of {options.rounds} rounds, in turn. sentencepiece learns from the first "
        f"{share / 1e6:.1f} MB and encodes all. benchmarks/tokenizer_speed.py says what each contender does.",
        "",
    ]
    for kind, contenders in summary.items():
        lines += table({kind: f"`{name}`", **facts} for name, facts in contenders.items())
    report.write("Training a tokenizer and encoding", lines)


if __name__ == "__main__":
    main()
