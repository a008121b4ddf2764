"""MB/s of training a tokenizer and of encoding with it, beside `tokenizers` used directly and `sentencepiece`.

    python benchmarks/tokenizer_speed.py --data ../shared/data/novels                              # ten minutes
    python benchmarks/tokenizer_speed.py --data my_texts/ --vocab_size 8000 --rounds 1 --max_files 5

Training goes from text files to a vocabulary of --vocab_size, with one pattern, no normalizer, the same special tokens
and minimum frequency for all but `sentencepiece` (bpe, byte_fallback, no normalization), which cuts text at spaces
alone: that is less work. Encoding goes from text files to all ids in an array, with a tokenizer that is there already;
`lacuna` writes a store. Each contender runs in a process of its own, imports not timed.
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
from harness import Report, apart, find_texts, make_parser, summarize, table, take_turns, timed
from tokenizers import Tokenizer, trainers

from lacuna import corpus, tokenization
from lacuna.tokenization.patterns import untrained_backend
from lacuna.tokenization.vocabulary import ALPHABET

OURS = "lacuna"
LINES = 1000  # in a batch
PATTERN, MIN_FREQUENCY = "modern", 2
Work = dict[str, Any]
"""files, bytes, vocab_size, folder of a contender, and the tokenizer to encode with."""


def read(work: Work) -> Iterator[str]:
    """The texts of the files, as people give them to `tokenizers`."""
    return (Path(file).read_text(encoding="utf-8-sig") for file in work["files"])


def lines_of(work: Work) -> Iterator[str]:
    """The lines of the files with their ends."""
    return (line for text in read(work) for line in text.splitlines(keepends=True))


def train_lacuna(work: Work, *, as_recipe: bool = False) -> Any:
    """As a person who calls the library; or as the recipe, which looks at the documents first."""
    documents = corpus.open_text(corpus.TextArguments(data=work["files"])).texts()
    if as_recipe:
        most = tokenization.TokenizerArguments.max_bytes
        documents = tokenization.sample_documents(documents=documents, max_bytes=most).training()
    options = {"vocab_size": work["vocab_size"], "min_frequency": MIN_FREQUENCY, "pattern": PATTERN}
    return tokenization.train_bpe(documents=documents, **options)


def train_tokenizers(work: Work, *, from_files: bool) -> Any:
    """`tokenizers` learns what train_bpe learns: it reads the files itself, or is given the texts."""
    options = {"special_tokens": tokenization.SPECIAL_TOKENS, "initial_alphabet": ALPHABET, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=work["vocab_size"], min_frequency=MIN_FREQUENCY, **options)
    backend = untrained_backend(normalizer="none", pattern=PATTERN)
    backend.train(work["files"], trainer) if from_files else backend.train_from_iterator(read(work), trainer)
    return backend


def train_sentencepiece(work: Work) -> Any:
    """`sentencepiece` as a byte-level BPE."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.rstrip("\n") for line in lines_of(work)),
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


def encode_lacuna(work: Work) -> range:
    """A token store, as recipes/prepare_corpus.py makes it."""
    tokenizer = tokenization.load_tokenizer(work["tokenizer"])
    parts = {"tokenizer": tokenizer, "tokenizer_fingerprint": tokenization.tokenizer_fingerprint(tokenizer)}
    text = corpus.open_text(corpus.TextArguments(data=work["files"]))
    store = corpus.prepare_store(text=text, **parts, output_dir=Path(work["folder"], "store"))
    return range(store.num_tokens)


def encode_tokenizers(work: Work, *, in_batches: bool) -> np.ndarray:
    """One line a call; or on all cores, with the call that leaves out offsets."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if in_batches else "false"
    backend = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    one = partial(backend.encode, add_special_tokens=False)
    ids, lines, dtype = [], lines_of(work), np.min_scalar_type(work["vocab_size"])
    while batch := list(islice(lines, LINES)):
        every = backend.encode_batch_fast(batch, add_special_tokens=False) if in_batches else map(one, batch)
        ids += [np.array(each.ids, dtype=dtype) for each in every]
    return np.concatenate(ids)


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
        "tokenizers_loop": partial(encode_tokenizers, in_batches=False),
        "tokenizers_batch": partial(encode_tokenizers, in_batches=True),
    },
}


def contend(kind: str, name: str, work: Work) -> dict[str, Any]:
    """The work of one contender, in its own process: what `timed` says, MB/s, and how many tokens came out."""
    found = timed(KINDS[kind][name], work)
    made = found.pop("result")
    count = made.get_vocab_size() if isinstance(made, Tokenizer) else len(made)
    return {**found, "megabytes_per_second": work["bytes"] / 1e6 / found["seconds"], "tokens": count}


def run_contender(kind: str, name: str, work: Work) -> dict[str, Any]:
    """One contender in a process of its own, with an empty cache."""
    with (
        tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=work["work_dir"]) as folder,
        apart(LACUNA_CACHE=f"{folder}/lacuna") as call,
    ):
        return call(contend, kind, name, {**work, "folder": folder})


def main() -> None:
    """Parse, measure, report."""
    options = make_parser(
        __doc__,
        ("data", ..., "folder of .txt files"),
        ("vocab_size", 32000, "tokens to learn"),
        ("rounds", 5, "turns of each"),
        ("max_files", int, "only the first so many files"),
        ("work_dir", str, "where models and stores are made and removed (the temporary folder)"),
    ).parse_args()
    files, size = find_texts(options.data, options.max_files)
    report, found = Report(options), {}
    report.body["settings"] |= {"files": len(files), "bytes": size}
    with tempfile.TemporaryDirectory(prefix="tokenizer_speed-", dir=options.work_dir) as folder:
        work = {**vars(options), "files": files, "bytes": size, "tokenizer": folder}
        tokenization.save_tokenizer(tokenizer=train_lacuna(work), output_dir=Path(folder))
        for kind, names in KINDS.items():
            turns = {name: partial(run_contender, kind, name, work) for name in names}
            found[kind] = take_turns(turns, rounds=options.rounds, title=f"{kind},")
    for kind, most in (("training", 1.0), ("encoding", 1.05)):
        counts = {name: each[0]["tokens"] for name, each in found[kind].items() if name != "sentencepiece"}
        if max(counts.values()) > most * min(counts.values()):
            raise RuntimeError(f"{kind}: the same text must give as many tokens, and it gave {counts}")
    summary = {kind: summarize(each, ours=OURS, speed="megabytes_per_second") for kind, each in found.items()}
    report.body |= {"summary": summary, "rounds": found}
    lines = [f"{len(files)} text files, {size / 1e6:.1f} MB, vocabulary {options.vocab_size:,}, pattern `{PATTERN}`."]
    for kind, contenders in summary.items():
        lines += ["", *table({kind: name, **facts} for name, facts in contenders.items())]
    report.write("Training a tokenizer and encoding", lines)


if __name__ == "__main__":
    main()
