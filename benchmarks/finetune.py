"""What fine-tuning gains from pretraining: each task from three models, in the same time, beside a guess without any.

    python benchmarks/finetune.py                          # all tasks: two times 20 minutes, then 21 runs; 2 hours
    python benchmarks/finetune.py --only sst2 wnut17       # some of them
    python benchmarks/finetune.py --only classification --minutes 0.5 --pretrain_minutes 1      # a laptop, minutes
    python benchmarks/finetune.py --report_only            # nothing but the report of what is there

The models are Lacuna's after pretraining on novels by masked tokens (for translation: by denoising), the same one with
its first weights, and the native model of transformers of the same shape with its first weights: BERT, for translation
BART. All have the tokenizer of the first and go through the same recipe with the same options, rows and minutes of
training steps; a task has the more of them the more text it brings. Only the learning rate is that of the kind, and
Lacuna's classifiers read the mean of the tokens, BERT's the first of them. They are evaluated once, at the end.

The data are those that tests use (--data, LACUNA_DATA): SST-2, SQuAD 1.1 (its articles, 40 to learn from and 8 to
evaluate on), WNUT-17 and Multi30k from English to German, with the official parts to evaluate on where there are any;
the two built-in tasks need none. Every run is a file of its own: the benchmark can be stopped, and goes on from there.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from contenders import DROPOUT, Shape, bert, with_dropout
from kept import LONG, Kept, begin, commits, run_recipe, short_hash
from report import DATA, REPOSITORY, difference, make_parser, numbers, table
from safetensors.torch import load_file
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, BartConfig, BartForConditionalGeneration, BertModel

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)

TITLES = {
    "baseline": "no model",
    "native": "native, first weights",
    "new": "Lacuna, first weights",
    "pretrained": "Lacuna, pretrained",
}
RATES = {"native": 3e-4, "new": 3e-4, "pretrained": 2e-3}
"""Learning rates, tried on SST-2 for 500 steps from 3e-4 on. Weights that were pretrained with Muon are nine times as
large as first ones and want a higher rate; native BERT learns nothing there at 1e-3."""
PRETRAINING = {"encoder": ("mlm", "AutoModelForMaskedLM"), "encoder-decoder": ("denoising", "AutoModelForSeq2SeqLM")}
"""Objective and head by the shape of the model."""
POSITIONS = 512
FEW = 2000
"""Sentences of a small task, the first ones."""
SQUAD_HELD_OUT = 8
"""Articles, the last ones."""
Files = Callable[[Path, Path], dict[str, Path]]
"""(data, folder for what has to be written) -> options that name the files."""


def files(**names: str) -> Files:
    """Files that are there."""
    return lambda data, folder: {option: data / name for option, name in names.items()}


def few(data: Path, folder: Path) -> dict[str, Path]:
    """The first sentences of SST-2 alone."""
    lines = (data / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[: FEW + 1]
    file = folder / f"sst2-{FEW}.tsv"
    file.write_text("".join(lines), encoding="utf-8")
    return {"train_file": file, "eval_file": data / "sst2" / "dev.tsv"}


def squad(data: Path, folder: Path) -> dict[str, Path]:
    """Questions about Wikipedia; whole articles are held out."""
    content = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
    articles = content["data"]
    kept = max(1, len(articles) - SQUAD_HELD_OUT)
    files = {}
    for name, part in (("train_file", articles[:kept]), ("eval_file", articles[kept:])):
        files[name] = folder / f"squad-{name}.json"
        files[name].write_text(json.dumps({**content, "data": part}), encoding="utf-8")
    return files


@dataclass(frozen=True)
class Task:
    """A task of the benchmark: the first of its metrics judges, `minutes` are of training steps."""

    what: str
    recipe: str
    metrics: tuple[str, ...]
    baseline: str
    minutes: float
    files: Files
    shape: str = "encoder"
    options: dict[str, Any] = field(default_factory=dict)


SST2 = files(train_file="sst2/train.tsv", eval_file="sst2/dev.tsv")
# Evaluated on the development part: many words of the test part have the tags of several people.
WNUT17 = files(train_file="wnut17/wnut17train.conll", eval_file="wnut17/emerging.dev.conll")
MULTI30K = files(
    train_file="multi30k/train.en",
    train_target_file="multi30k/train.de",
    eval_file="multi30k/test_2016_flickr.en",
    eval_target_file="multi30k/test_2016_flickr.de",
)
LABEL, SPAN = "the most frequent label", "the better of two fixed guesses"
LENGTHS = {"max_length": 64, "max_target_length": 64}
CLASSIFICATION, QUESTIONS = "classification", "question_answering"
QA_METRICS = ("f1", "exact_match")
TASKS = {
    "sst2": Task("SST-2: is a sentence of a review good or bad", CLASSIFICATION, ("accuracy",), LABEL, 3, SST2),
    "few": Task(f"SST-2, {FEW:,} sentences to learn from", CLASSIFICATION, ("accuracy",), LABEL, 0.3, few),
    "squad": Task("SQuAD 1.1, 40 articles to learn from and 8 held out", QUESTIONS, QA_METRICS, SPAN, 5, squad),
    "wnut17": Task(
        "WNUT-17: names in messages", "token_classification", ("f1",), "the tag that each word mostly had", 1, WNUT17
    ),
    "multi30k": Task(
        *("Multi30k, English to German", "seq2seq", ("chrf", "bleu"), "the source itself", 5, MULTI30K),
        *("encoder-decoder", LENGTHS),
    ),
    "classification": Task(
        *("built-in: which family of modules a docstring is from", CLASSIFICATION, ("accuracy", "f1_macro"), LABEL),
        *(1, files()),
    ),
    "questions": Task("built-in: what the default of a parameter is", QUESTIONS, QA_METRICS, SPAN, 2, files()),
}


def build_native(ours: Any) -> Any:
    """The model of transformers that has the shape of ours (its configuration), as it comes: four widths inside."""
    shape = Shape(ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads, ours.vocab_size, POSITIONS)
    ids = {name: getattr(ours, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    if not ours.is_encoder_decoder:
        return bert(shape, DROPOUT["finetune"], head=BertModel, **ids)
    ids |= {"decoder_start_token_id": ours.decoder_start_token_id, "forced_eos_token_id": None}
    inner = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4 * shape.hidden_size)
    sides = {"decoder_layers": ours.num_decoder_layers, "decoder_attention_heads": shape.heads}
    return BartForConditionalGeneration(
        with_dropout(BartConfig(**shape.fields(), **sides, **inner, **ids), DROPOUT["finetune"])
    )


class Benchmark:
    """All runs, and the folder of what they leave."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work, self.data = Path(options.work_dir), Path(options.data)
        self.kept = Kept(options.parts_dir, again=options.again)
        self.work.mkdir(parents=True, exist_ok=True)
        novels = sorted((self.data / "novels").glob("*.txt"))
        if not novels:
            raise SystemExit(f"--data {self.data} has no novels/*.txt to pretrain on")
        self.text = short_hash(*((path.name, path.stat().st_size) for path in novels))
        try:
            self.files = {name: TASKS[name].files(self.data, self.work) for name in options.only}
            self.contents = {
                name: {option: short_hash(path.read_bytes()) for option, path in files.items()}
                for name, files in self.files.items()
            }
        except FileNotFoundError as error:
            raise SystemExit(f"--data {self.data} has no {error.filename}; leave its task out with --only") from error

    def limit(self, minutes: float) -> dict[str, Any]:
        """How long a run trains, as options of recipes."""
        return {"max_steps": self.options.steps} if self.options.steps else {"max_minutes": minutes}

    def recipe(self, name: str, options: dict[str, Any], **more: Any) -> dict[str, Any] | None:
        """A run of a recipe with this process's cores."""
        threads = str(torch.get_num_threads())
        return run_recipe(name, options, LACUNA_CACHE=str(self.work / "cache"), OMP_NUM_THREADS=threads, **more)

    def pretraining(self, shape: str) -> dict[str, Any]:
        """All that decides the pretrained model of a shape."""
        options = {"vocab_size": self.options.vocab_size, "size": "tiny", "seed": 0}
        options |= self.limit(self.options.pretrain_minutes)
        return {"pretraining": {"objective": PRETRAINING[shape][0], "options": options, "text": self.text}}

    def pretrained(self, shape: str) -> Path:
        """The folder of the pretrained model; made now if it is not there."""
        settings = self.pretraining(shape)
        folder = self.work / "models" / f"{shape}-{short_hash(json.dumps(settings, sort_keys=True))}"
        if not (folder / "results.json").is_file():
            self.kept.again.add(shape)
        self.kept.get(f"pretrain-{shape}", settings, partial(self.pretrain, settings, folder), of=shape)
        self.kept.again.discard(shape)
        return folder

    def pretrain(self, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Train on the novels; a run that was stopped goes on from its newest checkpoint."""
        options = {"data": self.data / "novels", "unwrap": True, "objective": settings["pretraining"]["objective"]}
        options |= {**settings["pretraining"]["options"], "save_minutes": 2, "save_steps": 0, "output_dir": folder}
        if any(folder.glob("checkpoints/step-*")):
            options["resume"] = True
        else:
            shutil.rmtree(folder, ignore_errors=True)
        results = self.recipe("pretrain", options)
        assert results is not None
        names = ("steps", "tokens", "parameters", "train_tokens", "eval_loss", "eval_bits_per_byte")
        kept = {name: results[name] for name in (*names, "eval_mlm_accuracy") if name in results}
        return {"seconds": results["wall_seconds"], **kept}

    def beginning(self, shape: str, kind: str, seed: int) -> Path:
        """The folder of the model that a run starts from."""
        pretrained = self.pretrained(shape)
        if kind == "pretrained":
            return pretrained
        folder = self.work / "models" / f"{pretrained.name}-{kind}-seed{seed}"
        if not (folder / "config.json").is_file():
            transformers.set_seed(seed)
            hidden = folder.with_name(f".{folder.name}")
            ours, head = AutoConfig.from_pretrained(pretrained), getattr(transformers, PRETRAINING[shape][1])
            model = head.from_config(ours) if kind == "new" else build_native(ours)
            model.save_pretrained(hidden)
            AutoTokenizer.from_pretrained(pretrained).save_pretrained(hidden)
            hidden.replace(folder)
        return folder

    def settings(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """All that decides a run."""
        task = TASKS[name]
        options = {**task.options, **self.limit(self.options.minutes or task.minutes)}
        options |= {"learning_rate": RATES[kind], "seed": seed}
        if task.recipe == CLASSIFICATION and kind != "native":  # BERT has a choice of one
            options["pooling"] = "mean"
        facts = {"task": name, "kind": kind, "options": options, "files": self.contents[name]}
        return {**facts, **self.pretraining(task.shape), "limit_minutes": self.options.limit_minutes}

    def finetune(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """One run: scores, those of the guess, and how long all of it took."""
        task = TASKS[name]
        folder = self.work / "runs" / f"{name}-{kind}-seed{seed}"
        options = {"model": self.beginning(task.shape, kind, seed), **self.files[name]}
        options |= self.settings(name, kind, seed)["options"]
        options |= {"average": "none", "eval_steps": 0, "save_steps": 0, "output_dir": folder}
        shutil.rmtree(folder, ignore_errors=True)
        results = self.recipe(f"finetune_{task.recipe}", options, minutes=self.options.limit_minutes)
        if results is None:
            return {"too_long": True}
        weights = [tensor for path in folder.glob("model*.safetensors") for tensor in load_file(path).values()]
        return {
            "scores": {metric: results[f"eval_{metric}"] for metric in task.metrics},
            "baseline": {metric: results.get(f"baseline_{metric}") for metric in task.metrics},
            "parameters": sum(tensor.numel() for tensor in weights),
            **{name: results.get(name) for name in ("wall_seconds", "steps", "train_tokens", "train_seconds")},
        }

    def run(self) -> None:
        """Make the parts that are not there yet."""
        jobs = [(name, kind, seed) for seed in self.options.seeds for name in self.options.only for kind in RATES]
        for name, kind, seed in (bar := tqdm(jobs, unit="run")):
            bar.set_postfix_str(f"{name}, {TITLES[kind]}, seed {seed}")
            self.pretrained(TASKS[name].shape)  # its own part, so that its time is not this one's
            settings, work = self.settings(name, kind, seed), partial(self.finetune, name, kind, seed)
            self.kept.get(f"{name}-{kind}-seed{seed}", settings, work, of=name)

    def rows(self) -> list[dict[str, Any]]:
        """What is there of each task."""
        rows = []
        for name in self.options.only:
            parts = {
                kind: [part for seed in self.options.seeds for part in self.kept.find(self.settings(name, kind, seed))]
                for kind in RATES
            }
            facts = {"task": name, "what": TASKS[name].what, "baseline_is": TASKS[name].baseline}
            scores = {metric: scores_of(parts, metric) for metric in TASKS[name].metrics}
            rows.append({**facts, "scores": scores, "parts": parts})
        return rows


def scores_of(parts: dict[str, list[dict[str, Any]]], metric: str) -> dict[str, Any]:
    """Means over seeds, and what pretraining adds over the same seeds."""
    done = {kind: [part for part in found if "scores" in part["result"]] for kind, found in parts.items()}
    by_seed = {
        kind: {part["settings"]["options"]["seed"]: part["result"]["scores"][metric] for part in found}
        for kind, found in done.items()
    }
    guesses = [part["result"]["baseline"][metric] for found in done.values() for part in found]
    values = {"baseline": [guess for guess in guesses if guess is not None]}
    values |= {kind: list(found.values()) for kind, found in by_seed.items()}
    ours, first = by_seed["pretrained"], by_seed["new"]
    return {
        **{kind: statistics.fmean(found) if found else None for kind, found in values.items()},
        "by_seed": by_seed,
        "differences": [ours[seed] - first[seed] for seed in ours if seed in first],
    }


def cells(row: dict[str, Any], kind: str, limit: float) -> dict[str, Any]:
    """The scores of a task from one kind of model, and time and size of its runs."""
    parts = row["parts"].get(kind, [])
    done = [part for part in parts if "scores" in part["result"]]
    scores = {metric: found[kind] for metric, found in row["scores"].items() if found[kind] is not None}
    added = [f"{metric} {difference(found['differences'])}" for metric, found in row["scores"].items()]
    facts = {
        "task": row["what"],
        "model": TITLES[kind],
        "scores": ", ".join(f"{metric} {value:.4g}" for metric, value in scores.items()),
        "pretraining adds": ", ".join(added) if kind == "pretrained" else "",
    }
    if not done:
        return {**facts, "minutes in all, at most": f"ended after {limit:g}" if parts else ""}
    options, results = [part["settings"]["options"] for part in done], [part["result"] for part in done]
    busy = "" if all(part["quiet"] for part in done) else " (busy)"
    return {
        **facts,
        "seeds": ", ".join(str(each["seed"]) for each in options),
        "parameters": results[0]["parameters"],
        **{name: options[0].get(name) for name in ("learning_rate", "max_minutes")},
        **{name: statistics.fmean(result[name] for result in results) for name in ("steps", "train_tokens")},
        "minutes in all, at most": f"{max(result['wall_seconds'] for result in results) / 60:.1f}{busy}",
    }


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = body["settings"]
    long = f"{settings['steps']} steps" if settings["steps"] else "for the minutes of training steps in the table"
    lines = [
        f"Each run trains {long}, then is evaluated once; seeds {', '.join(map(str, settings['seeds']))}, means of "
        "those that the table names. More is better. What pretraining adds is the difference between Lacuna's two "
        "models, smallest..largest where there are several seeds. What has no entry was not measured yet.",
        "",
    ]
    for shape, parts in body["pretraining"].items():
        for part in parts[-1:]:
            given, result = part["settings"]["pretraining"], part["result"]
            options = ", ".join(f"{name} {value}" for name, value in given["options"].items())
            found = ", ".join(f"{name} {value:,.4g}" for name, value in result.items() if name != "seconds" and value)
            long = f"{result['seconds'] / 60:.1f} minutes in all"
            lines.append(f"- {shape}: pretrained by {given['objective']} on novels ({options}), {long}; {found}.")
    rows = [
        cells(row, kind, settings["limit_minutes"])
        for row in body["rows"]
        for kind in TITLES
        if kind == "baseline" or row["parts"][kind]
    ]
    return [
        *lines,
        "",
        *table(rows),
        "No model: " + "; ".join(f"{row['task']}: {row['baseline_is']}" for row in body["rows"]) + ".",
        "",
        commits(part for row in body["rows"] for parts in row["parts"].values() for part in parts),
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = make_parser(
        __doc__,
        ("only", tuple(TASKS), "tasks"),
        ("minutes", float, "of training steps in each run (1 to 5, by the task)"),
        ("pretrain_minutes", 20.0, "of pretraining, once for each shape"),
        ("limit_minutes", 15.0, "after which a run is ended, evaluation included"),
        ("steps", int, "of every run, instead of minutes; to try the benchmark itself"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        *LONG,
        ("data", str(DATA), "folder with novels, sst2, squad, wnut17 and multi30k"),
        ("work_dir", str(REPOSITORY / "runs" / "finetune"), "folder of models, runs and what they said"),
        ("parts_dir", str(REPOSITORY / "runs" / "finetune" / "parts"), "folder of single results"),
    )
    parser.add_argument("--seeds", type=numbers(int), default=[0], help="as 0,1,2 (0)")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    report = begin(__file__, options)
    benchmark = Benchmark(options)
    if not options.report_only:
        benchmark.run()
    shapes = dict.fromkeys(TASKS[name].shape for name in options.only)
    pretraining = {
        shape: [part for part in benchmark.kept.find(benchmark.pretraining(shape)) if "task" not in part["settings"]]
        for shape in shapes
    }
    report.body |= {"pretraining": pretraining, "rows": benchmark.rows()}
    report.write("Fine-tuning", to_markdown(report.body))


if __name__ == "__main__":
    main()
