"""What pretraining pays: tasks from pretrained weights and from first ones, beside what needs no language model.

    python benchmarks/transfer.py --models runs/model                                   # an encoder: 26 minutes
    python benchmarks/transfer.py --models runs/model runs/other --seeds 0,1,2          # first weights are shared
    python benchmarks/transfer.py --models runs/model --only sst2_100 wnut17 --steps 5  # a laptop, a minute
    python benchmarks/transfer.py --work_dir runs/sensor --only classification          # own_text.jsonl to pretrain on
    python benchmarks/transfer.py --models runs/model --train_files labels.csv --eval_file held_out.csv     # your task

A model, be it encoder, decoder or encoder-decoder, gets the tasks that its shape can do. A run is the recipe with its
default options (`TASKS` has the exceptions) but for the weights: those of the last step, or the mean of three runs
where that is the default; choosing the best on the held-out rows would flatter them. It begins from the model, or from
first weights drawn from the seed. Up to four run at once. Results stay in --work_dir; other code needs another one.

`guess` and `words` (TF-IDF with logistic regression; for names, words around them; for questions, words in common) are
what recipes report. `skip-gram` is logistic regression on means of gensim's word vectors of the novels, or of --text.
"""

import argparse
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from harness import DATA, LONG, Kept, at_once, begin, hash_files, make_parser, run_recipe, short_hash, shown, table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoConfig, AutoModel, AutoTokenizer

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.private import without_places
from lacuna.corpus import TextArguments, builtin_classification, builtin_documents, open_text, read_labelled
from lacuna.evaluation.language_model import AUTO_CLASSES, find_kind
from lacuna.tasks.base.models import load_base
from lacuna.tasks.base.rows import stratified_split, write_rows
from lacuna.tasks.classification.task import Classification

HELD_OUT_ARTICLES, QUESTIONS = 10, {"train": 3000, "eval": 1000}  # of SQuAD: the last ones; drawn with seed 0
LONGEST = 700  # characters of its paragraphs; all would take half as long again
COUNTS = (100, 500, 2000)  # of the first sentences of SST-2
WIDTH, WORDS, LEARNT = 256, re.compile(r"\w+"), 180_000_000  # of word vectors; characters that they learn from
VOLATILE = {"_name_or_path", "architectures", "auto_map", "transformers_version"}  # all else is the architecture


@dataclass(frozen=True)
class Task:
    """A task: a fine-tuning recipe, or what needs no training: a probe, or a suite of evaluate_language_model.py."""

    what: str
    recipe: str
    metric: str
    files: tuple[str, ...] = ()  # in the order of `FILES`, or a suite's data; --data and --work_dir are filled in
    options: dict[str, Any] = field(default_factory=dict)
    best: float = 1  # the score of a model that is always right


FILES = ("train_file", "eval_file", "train_target_file", "eval_target_file")
LABELS, SPANS = ("classification", "accuracy"), ("question_answering", "f1")
MULTI30K = ("train.en", "test_2016_flickr.en", "train.de", "test_2016_flickr.de")
# The test part of WNUT-17 has words with the tags of several people.
SST2, WNUT17 = "{data}/sst2/dev.tsv", ("{data}/wnut17/wnut17train.conll", "{data}/wnut17/emerging.dev.conll")
BUILTIN, SQUAD = (tuple(f"{{work}}/{name}-{part}.jsonl" for part in QUESTIONS) for name in ("docstrings", "squad"))
FEW = ("{work}/docstrings-500.jsonl", BUILTIN[1])
LAST = {"average": "none", "eval_steps": 0}  # the weights of the last step, which alone are judged
BLEND = {"seeds": 3, "soup": True}  # the default of few rows (test_transfer.py); seed 1 has the runs 10, 11 and 12
OWN_TEXT = "own_text.jsonl"  # the built-in text, from which each held-out docstring is cut
TASKS = {
    f"sst2_{n}": Task(f"SST-2, {n:,} phrases", *LABELS, (f"{{work}}/sst2-{n}.tsv", SST2), BLEND) for n in COUNTS
} | {
    "sst2": Task("SST-2", *LABELS, ("{data}/sst2/train.tsv", SST2), {"max_epochs": 1}),
    "squad": Task("SQuAD, 3,000 questions", *SPANS, SQUAD, {"max_epochs": 5}, best=100),  # eight are no better
    "questions": Task("built-in: default of a parameter", *SPANS, best=100),
    "classification": Task("built-in: module family of a docstring", *LABELS, BUILTIN, BLEND),
    "wnut17": Task("WNUT-17: names in messages", "token_classification", "f1", WNUT17, BLEND),
    "classification_500": Task("built-in: the same family, 500 docstrings", *LABELS, FEW, BLEND),
    "multi30k": Task(
        *("Multi30k, English to German", "seq2seq", "bleu", tuple(f"{{data}}/multi30k/{name}" for name in MULTI30K)),
        *({"max_epochs": 1.5, "max_length": 64, "max_target_length": 64}, 100),
    ),
    "probe": Task("linear probe: SST-2, 2,000 phrases", "probe", "accuracy", ("{work}/sst2-2000.tsv", SST2)),
    "blimp": Task("BLiMP, 50 of each paradigm", "minimal_pairs", "accuracy", ("{data}/blimp",), {"max_examples": 50}),
    "bits_per_byte": Task("SQuAD, held out", "bits_per_byte", "bits_per_byte", ("{work}/squad-texts.jsonl",)),
}
SUITES, LINEAR = {"minimal_pairs", "bits_per_byte"}, {"classification", "probe"}
CANNOT = {"encoder": {"seq2seq"}, "decoder": {"seq2seq"}, "encoder-decoder": {"token_classification", *SUITES}}


def own_tasks(train_files: Sequence[str], eval_file: str, *, seeds: Sequence[int]) -> dict[str, Task]:
    """A classification for each file of labels (with {seed} for each seed's), as its recipe does it by default."""
    counts = {file: len(read_labelled(file.format(seed=seeds[0]))) for file in train_files}
    few = Classification.blended_rows
    return {
        file.replace("/", "_"): Task(f"{count:,} labels", *LABELS, (file, eval_file), BLEND if count <= few else {})
        for file, count in counts.items()
    }


class Estimate(NamedTuple):
    value: float
    error: float | None = None  # the standard error, where it is known


def row_error(score: float, rows: int) -> float:
    """The most that the standard error of a mean over so many rows can be, of scores between 0 and 1."""
    return math.sqrt(score * (1 - score) / rows)


def estimate(values: Sequence[float], *, error: float | None = None) -> Estimate:
    """The mean over seeds with its standard error, which has to be given of one seed."""
    mean = statistics.fmean(values)
    return Estimate(mean, statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else error)


def gains(
    first: Mapping[int, float], pretrained: Mapping[int, float], *, errors: Sequence[float | None] = (None, None)
) -> dict[str, Estimate]:
    """Of scores by seed: pretrained - first, and its share of 1 - first where that is not 0; seed against seed.

    The two errors of a single seed count as independent, which is too much: they are of the same rows.
    """
    if not (pairs := [(first[seed], pretrained[seed]) for seed in sorted(first.keys() & pretrained.keys())]):
        return {}
    known = None not in errors
    found = {"gained": estimate([ours - new for new, ours in pairs], error=math.hypot(*errors) if known else None)}
    if all(new < 1 for new, _ in pairs):
        lacks, shares = 1 - pairs[0][0], [(ours - new) / (1 - new) for new, ours in pairs]
        error = math.hypot(errors[1], errors[0] * (1 - shares[0])) / lacks if known else None  # derivatives by both
        found["share"] = estimate(shares, error=error)
    return found


def mean_share(rows: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """The number that sums it up: the mean share over fine-tuned tasks. Those without an error count as exact."""
    if not (shares := [row["share"] for row in rows if row["share"] and TASKS[row["name"]].recipe != "probe"]):
        return None
    error = math.hypot(*(share.error or 0 for share in shares)) / len(shares)
    return Estimate(statistics.fmean(share.value for share in shares), error or None)


def row_of(name: str, found: Mapping[str, Mapping[int, dict[str, Any]]]) -> dict[str, Any]:
    """A row of the table in numbers, from the results by seed from "first_weights" and "pretrained"."""
    task, some = TASKS[name], next(iter(found["pretrained"].values()))
    scores = {kind: {seed: result["score"] for seed, result in by.items()} for kind, by in found.items()}
    errors = {kind: next((result.get("error") for result in by.values()), None) for kind, by in found.items()}
    row = {"name": name, "task": task.what, "metric": some.get("metric", task.metric), "held_out": some["held_out"]}
    row["seeds"] = len(scores["pretrained"])
    row |= dict.fromkeys(("guess", "words", "skip_gram", *scores, "with_words", "gained", "share"))  # columns in order
    for key in ("guess", "words", "skip_gram", "with_words"):  # which differ where each seed has labels of its own
        known = [result[key] for result in found["pretrained"].values() if key in result]
        row[key] = estimate(known) if len({*known}) > 1 else next(iter(known), None)
    row |= {kind: estimate(list(by.values()), error=errors[kind]) for kind, by in scores.items() if by}
    return row | gains(scores["first_weights"], scores["pretrained"], errors=list(errors.values()))


def cell(name: str, value: Any) -> Any:
    """A value of a row as the report shows it."""
    if not isinstance(value, Estimate):
        return f"{value:.3f}" if isinstance(value, float) else value
    error = "" if value.error is None else f" ± {value.error:.3f}"
    return f"{value.value:{'+' if name in ('gained', 'share') else ''}.3f}{error}"


def side_by_side(models: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """What each of several models reaches, a line for each task; first weights are those of the first one."""
    lines: dict[str, dict[str, Any]] = {}
    for model, row in ((model, row) for model, rows in models.items() for row in rows):
        known = {name: cell(name, row[name]) for name in ("task", "metric", "words", "first_weights")}
        lines.setdefault(row["name"], known)[Path(model).name] = cell(model, row["pretrained"])
    return ["## Side by side", "", *table(lines.values())] if len(models) > 1 else []


def lines_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table of a model in Markdown, without empty columns; the sum is its last line."""
    rows = [*rows, {"task": "mean over fine-tuned tasks", "share": mean_share(rows)}]
    names = [name for name in rows[0] if name != "name" and any(row.get(name) is not None for row in rows)]
    return table({name: cell(name, row.get(name)) for name in names} for row in rows)


def write_parts(data: Path, work: Path, *, only: Sequence[str]) -> None:
    """Write the files of tasks that take a part: the first sentences of SST-2, the docstrings as seed 0 divides them,
    the built-in text without the held-out ones, and questions of SQuAD with whole articles held out, whose paragraphs
    are for bits per byte."""
    for count in COUNTS:
        if {f"sst2_{count}", "probe" if count == 2000 else ""} & set(only):
            lines = (data / "sst2/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
            (work / f"sst2-{count}.tsv").write_text("".join(lines[: count + 1]), encoding="utf-8")
    if {"classification", "classification_500"} & set(only):
        rows = builtin_classification()
        names = sorted({row["label"] for row in rows})
        parts = stratified_split(labels=[names.index(row["label"]) for row in rows], fraction=0.1, seed=0)
        for name, part in zip(QUESTIONS, parts, strict=True):
            write_rows(rows=[rows[number] for number in part], path=work / f"docstrings-{name}.jsonl")
        train, held_out = ([rows[number] for number in part] for part in parts)
        write_rows(rows=Random(0).sample(train, 500), path=work / "docstrings-500.jsonl")
        others = sorted((row["text"] for row in held_out), key=len, reverse=True)
        texts = (reduce(lambda text, other: text.replace(other, ""), others, text) for text in builtin_documents())
        write_rows(rows=({"text": text} for text in texts), path=work / OWN_TEXT)
    if {"squad", "bits_per_byte"} & set(only):
        articles = json.loads((data / "squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"]
        halves = articles[:-HELD_OUT_ARTICLES], articles[-HELD_OUT_ARTICLES:]
        for (name, most), half in zip(QUESTIONS.items(), halves, strict=True):
            texts = [text for article in half for text in article["paragraphs"] if len(text["context"]) <= LONGEST]
            rows = [{"context": text["context"], **question} for text in texts for question in text["qas"]]
            for row in rows:
                row["answers"] = {key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")}
            write_rows(rows=Random(0).sample(rows, min(most, len(rows))), path=work / f"squad-{name}.jsonl")
        write_rows(rows=[{"text": text["context"]} for text in texts], path=work / "squad-texts.jsonl")


def linear_score(features: Callable[[list[str]], np.ndarray], files: Mapping[str, Path]) -> dict[str, Any]:
    """Held-out accuracy of logistic regression on standardised features, float [texts, width], cross-validated."""
    parts = [[record.fields for record in read_labelled(files[name])] for name in FILES[:2]]
    text, label = sorted(parts[0][0].keys() - {"id"}, key=lambda column: column == "label")
    inputs = [features([row[text] for row in part]) for part in parts]
    learnt, truth = ([row[label] for row in part] for part in parts)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model = GridSearchCV(model, {"logisticregression__C": [0.001, 0.01, 0.1, 1]}, cv=3).fit(inputs[0], learnt)
    return {"score": float(model.score(inputs[1], truth)), "held_out": len(truth)}


@torch.inference_mode()
def mean_states(folder: Path, texts: list[str]) -> np.ndarray:
    """Means of last hidden states, float32 [texts, width]; special tokens and padding do not count."""
    tokenizer, model = load_base(model=str(folder))[1], AutoModel.from_pretrained(folder)
    model = (model.get_encoder() if model.config.is_encoder_decoder else model).eval()
    options = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
    found, order = np.zeros((len(texts), model.config.hidden_size), np.float32), np.argsort([*map(len, texts)])
    for batch in np.array_split(order, math.ceil(len(order) / 64)):
        inputs = tokenizer([texts[number] for number in batch], return_special_tokens_mask=True, **options)
        words = 1 - inputs.pop("special_tokens_mask").unsqueeze(-1)  # padding is special too
        states = model(**inputs).last_hidden_state * words
        found[batch] = states.sum(dim=1) / words.sum(dim=1).clamp(min=1)
    return found


@cache
def word_vectors(files: tuple[Path, ...], work: Path) -> Callable[[list[str]], np.ndarray]:
    """Texts to means of their words' skip-gram vectors (Mikolov et al. 2013, https://arxiv.org/abs/1310.4546), which
    are learnt from files once, and kept."""
    from gensim.models import KeyedVectors, Word2Vec

    path = work / f"skip-gram-{short_hash(WIDTH, hash_files(*files))}.bin"
    if not path.is_file():
        texts = open_text(TextArguments(data=[*map(str, files)])).texts()
        parts = (part for text in texts for part in re.split(r"\n\s*\n", text))
        lines, unfinished = path.with_suffix(".txt"), path.with_suffix(".part.bin")
        with lines.open("w", encoding="utf-8") as file:
            count = sum(file.write(" ".join(WORDS.findall(part.lower())) + "\n") for part in parts)
        epochs = max(3, min(30, LEARNT // count))
        options = {"sg": 1, "vector_size": WIDTH, "sample": 1e-4, "workers": torch.get_num_threads()}
        Word2Vec(corpus_file=str(lines), epochs=epochs, **options).wv.save_word2vec_format(unfinished, binary=True)
        unfinished.rename(path)
    known = KeyedVectors.load_word2vec_format(path, binary=True)
    words = lambda text: [word for word in WORDS.findall(text.lower()) if word in known]  # noqa: E731
    return lambda texts: np.stack(
        [known[them].mean(axis=0) if (them := words(text)) else np.zeros(WIDTH) for text in texts]
    )


class Pretrained:
    """A folder of --models: its shape, and names of its weights and of first ones of the same architecture."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = without_places(name), Path(name)
        files = [self.folder / name for name in ("config.json", "tokenizer.json", "model.safetensors")]
        if missing := [file.name for file in files if not file.is_file()]:
            raise SystemExit(f"--models {name} has no {missing[0]}: name a folder that recipes/pretrain.py wrote")
        config = AutoConfig.from_pretrained(self.folder)
        self.shape, self.head = "encoder-decoder", "AutoModelForSeq2SeqLM"
        if not config.is_encoder_decoder:
            kind = "masked" if getattr(config, "question_aware", False) else find_kind(config)  # after `spans`
            self.shape, self.head = "decoder" if kind == "causal" else "encoder", AUTO_CLASSES[kind]
        facts = {fact: value for fact, value in config.to_dict().items() if fact not in VOLATILE}
        self.architecture = short_hash(json.dumps(facts, sort_keys=True, default=str), files[1].read_bytes())
        self.weights = short_hash(self.architecture, files[2].read_bytes())

    def story(self) -> dict[str, Any]:
        """How it was pretrained, as far as its folder tells."""
        files = [path for name in ("run", "results") if (path := self.folder / f"{name}.json").is_file()]
        facts: dict[str, Any] = {key: value for path in files for key, value in json.loads(path.read_text()).items()}
        names = {name: [Path(path).name for path in facts.get(name) or ()] for name in ("data", "for_file")}
        facts |= {name: " ".join(them) if len(them) < 9 else f"{len(them)} files" for name, them in names.items()}
        facts["for_share"] = facts["for_file"] and facts.get("for_share")
        told = "objective data for_file for_share steps train_tokens teacher_seconds train_seconds eval_loss"
        return {name: facts[name] for name in told.split() if facts.get(name)}

    def first(self, work: Path, seed: int) -> Path:
        """The folder of first weights, which folders of the same architecture and tokenizer share."""
        folder = work / "models" / f"{self.architecture}-seed{seed}"
        if not (folder / "model.safetensors").is_file():
            transformers.set_seed(seed)
            AutoTokenizer.from_pretrained(self.folder).save_pretrained(folder)
            model = getattr(transformers, self.head).from_config(AutoConfig.from_pretrained(self.folder))
            model.save_pretrained(folder)
        return folder


class Benchmark:
    """All results, and the folder of what they leave."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kept = options, Kept(options.work_dir)
        self.work, self.data = Path(options.work_dir), Path(options.data)
        self.work.mkdir(parents=True, exist_ok=True)
        self.models = [Pretrained(name) for name in options.models]
        texts = options.text or (() if options.train_files else sorted((self.data / "novels").glob("*.txt")))
        self.texts = tuple(map(Path, texts)) if find_spec("gensim") else ()
        self.parts: list[dict[str, Any]] = []
        try:
            write_parts(self.data, self.work, only=options.only)
            for name, seed in product(options.only, options.seeds):
                hash_files(*self.files(name, seed).values())
        except FileNotFoundError as error:
            raise SystemExit(f"--data {self.data} has no {error.filename}; leave its task out with --only") from error

    def files(self, name: str, seed: int) -> dict[str, Path]:
        """What a task reads, by option."""
        task, places = TASKS[name], {"data": self.data, "work": self.work, "seed": seed}
        options = ("data",) if task.recipe in SUITES else FILES
        return dict(zip(options, (Path(path.format(**places)) for path in task.files), strict=False))

    def prepare(self) -> None:
        """Make what several tasks need, before they run at once."""
        for model, seed in product(self.models, self.options.seeds):
            model.first(self.work, seed)
        if self.texts and any(TASKS[name].recipe in LINEAR for name in self.options.only):
            word_vectors(self.texts, self.work)

    def result(self, name: str, draw: int, weights: str, work: Callable[[], dict[str, Any]], **options: Any) -> Any:
        """What came of a task with these weights and options, made now if it is not there; None if it must not be."""
        files = hash_files(*self.files(name, draw).values())
        settings = {"task": name, "weights": weights, "files": files, "options": options}
        parts = self.kept.find(settings)[-1:]
        if not self.options.report_only:
            parts = [self.kept.get(f"{name}-{weights}", settings, work)]
        self.parts += [part for part in parts if part not in self.parts]
        return parts[0]["result"] if parts else None

    def measure(self, name: str, draw: int, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        """One run from the weights of a folder: scores from 0 to 1, and of how many rows."""
        task, files = TASKS[name], self.files(name, draw)
        if task.recipe == "probe":
            done = linear_score(partial(mean_states, folder), files)
            return done | {"error": row_error(done["score"], done["held_out"])}
        out = self.work / "runs" / f"{name}-{folder.name}-{options.get('seed', '')}"
        shutil.rmtree(out, ignore_errors=True)
        given = {"model": folder, **files, **options}
        if task.recipe in SUITES:
            given |= {"suite": task.recipe, "output_file": out / "results.json"}
            done = run_recipe("evaluate_language_model", given)
            metric = task.metric if task.metric in done else f"masked_{task.metric}"
            guess = done.get(f"baseline_{metric}", done.get(f"baseline_unigram_{metric}"))
            found = {"metric": metric, "score": done[metric], "guess": guess, "held_out": done.get("pairs")}
            return found | ({"error": row_error(done[metric], done["pairs"])} if "pairs" in done else {})
        done = run_recipe(f"finetune_{task.recipe}", {"seeds": 1, **LAST, **given, "output_dir": out})
        judged = (out / "predictions.jsonl").read_bytes().count(b"\n")
        shutil.rmtree(out)  # its log stays
        parts = {"score": "eval", "guess": "baseline", "words": "words", "with_words": "hybrid"}
        found = {key: done[name] / task.best for key in parts if (name := f"{parts[key]}_{task.metric}") in done}
        if (name := f"alone_{task.metric}_std") in done:
            found["error"] = done[name] / task.best / math.sqrt(BLEND["seeds"])
        elif task.recipe in {"classification", "question_answering"}:
            found["error"] = row_error(found["score"], judged)
        return {**found, "held_out": judged, "steps": done["steps"], "train_tokens": done["train_tokens"]}

    def row(self, model: Pretrained, name: str) -> dict[str, Any]:
        """The row of a task; empty where the model cannot do it, or nothing is there."""
        task, limit = TASKS[name], {"max_steps": self.options.steps} if self.options.steps else {}
        if task.recipe in CANNOT[model.shape]:
            return {}
        found: dict[str, dict[int, Any]] = {"first_weights": {}, "pretrained": {}}
        for seed in self.options.seeds:
            trained = task.recipe not in {"probe", *SUITES}
            options = {**task.options, **limit, "seed": 10 * seed} if trained else task.options
            starts = {"first_weights": (f"{model.architecture}-seed{seed}", model.first(self.work, seed))}
            starts |= {"pretrained": (model.weights, model.folder)}
            for kind, (weights, folder) in list(starts.items())[task.recipe in SUITES :]:  # first weights only guess
                work = partial(self.measure, name, seed, folder, options)
                if result := self.result(name, seed, weights, work, **options):
                    found[kind][seed] = result
            if self.texts and task.recipe in LINEAR and seed in found["pretrained"]:
                work = partial(linear_score, word_vectors(self.texts, self.work), self.files(name, seed))
                if result := self.result(name, seed, "skip-gram", work):
                    found["pretrained"][seed] = {**found["pretrained"][seed], "skip_gram": result["score"]}
        return row_of(name, found) if found["pretrained"] else {}


def main() -> None:
    parser = make_parser(
        __doc__,
        ("only", tuple(TASKS), "tasks"),
        ("seeds", [0], "with commas between"),
        ("steps", int, "of every run, instead of its passes; to try the benchmark itself"),
        ("data", str(DATA), "folder with sst2, wnut17, squad, multi30k, blimp and novels"),
        *LONG,
    )
    paths = {"models": "pretrained models; without: write files of tasks", "text": "of word vectors (the novels)"}
    for name, what in {**paths, "train_files": "labels of your own instead; {seed}: for each of --seeds"}.items():
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="PATH", help=what)
    parser.add_argument("--eval_file", help="other rows of the same kind, by which --train_files are judged")
    options = parser.parse_args()
    if options.train_files:
        named = [file.format(seed=seed) for file in options.train_files for seed in options.seeds]
        if missing := [file for file in (*named, options.eval_file or "") if not Path(file).is_file()]:
            parser.error(f"--train_files and --eval_file: there is no file {missing[0]!r}")
        TASKS.update(own := own_tasks(options.train_files, options.eval_file, seeds=options.seeds))
        options.only = [*own]
    report, benchmark = begin(options), Benchmark(options)
    if not options.models:
        return print(f"wrote what the tasks read to {options.work_dir}")
    found: dict[str, list[dict[str, Any]]] = {model.name: [] for model in benchmark.models}
    if not options.report_only:
        benchmark.prepare()
    tasks = [(model, name) for model in benchmark.models for name in options.only]
    for (model, _), row in zip(tasks, at_once(benchmark.row, tasks), strict=True):
        found[model.name] += filter(None, [row])
    report.body |= {"models": found, "mean_share": {name: mean_share(rows) for name, rows in found.items()}}
    report.body["core_minutes"] = minutes = round(sum(part["seconds"] for part in benchmark.parts) / 60)
    line = (
        "Scores are from 0 to 1, bits per byte aside. After ± stands the standard error: over --seeds, or over the "
        "three runs whose mean of weights it is, neither with that of the held-out rows, which are the same for all "
        "(0.015 for 872), else that of the held-out rows. The share is (pretrained - first weights) / (1 - first "
        f"weights); in its mean, tasks without an error count as exact. {len(benchmark.parts)} runs took {minutes} "
        f"core minutes, at {', '.join(sorted({part['commit'] for part in benchmark.parts}))}."
    )
    report.body["pretraining"] = stories = {model.name: model.story() for model in benchmark.models}
    lines = [line, "", *side_by_side(found)]
    for name, rows in found.items():
        told = ", ".join(f"{fact} {shown(value)}" for fact, value in stories[name].items())
        lines += [f"## {name}", "", told, "", *lines_of(rows)]
    report.write("What pretraining pays", lines)


if __name__ == "__main__":
    main()
