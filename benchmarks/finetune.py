"""What fine-tuning gains from pretraining: each task from three models, in the same time, beside a guess.

    python benchmarks/finetune.py                          # all tasks: two times 20 minutes, then 21 runs; 2 hours
    python benchmarks/finetune.py --only sst2 wnut17       # some of them
    python benchmarks/finetune.py --only classification --minutes 0.5 --pretrain_minutes 1      # a laptop, minutes
    python benchmarks/finetune.py --report_only            # nothing but the report of what is there

The models are Lacuna's after pretraining on novels by masked tokens (for translation: by denoising), the same one with
its first weights, and BERT (for translation BART) of the same shape with its first weights. All have one tokenizer and
go through the same recipe with the same options, rows and minutes of training steps. Only the learning rate is that of
the kind, and Lacuna's classifiers read the mean of the tokens, BERT's the first of them.

The data are in --data (LACUNA_DATA); two tasks are built in. Each result is kept under --work_dir: the benchmark can
be stopped, and goes on from there.
"""

import argparse
import json
import shutil
import statistics
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from contenders import Shape, bert
from harness import DATA, LONG, Kept, begin, difference, make_parser, run_recipe, short_hash, table
from safetensors.torch import load_file
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, BartConfig, BartForConditionalGeneration, BertModel

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)

TITLES = {
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
FEW = 2000  # sentences of a small task, the first ones
SQUAD_HELD_OUT = 8  # articles, the last ones


@dataclass(frozen=True)
class Task:
    """A task of the benchmark; `minutes` are of training steps."""

    what: str
    recipe: str
    metrics: tuple[str, ...]
    baseline: str
    minutes: float
    files: dict[str, str] = field(default_factory=dict)
    """Options that name files in --data, or in the folder of `write_parts`."""
    shape: str = "encoder"
    options: dict[str, Any] = field(default_factory=dict)


SST2 = {"train_file": "{data}/sst2/train.tsv", "eval_file": "{data}/sst2/dev.tsv"}
SQUAD = {"train_file": "{work}/squad-train.json", "eval_file": "{work}/squad-eval.json"}
# Evaluated on the development part: many words of the test part have the tags of several people.
WNUT17 = {"train_file": "{data}/wnut17/wnut17train.conll", "eval_file": "{data}/wnut17/emerging.dev.conll"}
MULTI30K = {
    "train_file": "{data}/multi30k/train.en",
    "train_target_file": "{data}/multi30k/train.de",
    "eval_file": "{data}/multi30k/test_2016_flickr.en",
    "eval_target_file": "{data}/multi30k/test_2016_flickr.de",
}
LABEL, SPAN, TAG = "the most frequent label", "the better of two fixed guesses", "the tag that each word mostly had"
CLASSIFICATION, QUESTIONS, TAGGING = "classification", "question_answering", "token_classification"
SPANS = ("f1", "exact_match")
LENGTHS = {"max_length": 64, "max_target_length": 64}
TASKS = {
    "sst2": Task("SST-2: is a sentence of a review good or bad", CLASSIFICATION, ("accuracy",), LABEL, 3, SST2),
    "few": Task(
        *(f"SST-2, {FEW:,} sentences to learn from", CLASSIFICATION, ("accuracy",), LABEL, 0.3),
        {**SST2, "train_file": "{work}/sst2-few.tsv"},
    ),
    "squad": Task("SQuAD 1.1, 40 articles to learn from and 8 held out", QUESTIONS, SPANS, SPAN, 5, SQUAD),
    "wnut17": Task("WNUT-17: names in messages", TAGGING, ("f1",), TAG, 1, WNUT17),
    "multi30k": Task(
        *("Multi30k, English to German", "seq2seq", ("chrf", "bleu"), "the source itself", 5, MULTI30K),
        *("encoder-decoder", LENGTHS),
    ),
    "classification": Task(
        "built-in: module family of a docstring", CLASSIFICATION, ("accuracy", "f1_macro"), LABEL, 1
    ),
    "questions": Task("built-in: default of a parameter", QUESTIONS, SPANS, SPAN, 2),
}


def write_parts(data: Path, work: Path, *, only: list[str]) -> None:
    """Write the files of tasks that take a part: the first sentences of SST-2, SQuAD with whole articles held out."""
    if "few" in only:
        lines = (data / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (work / "sst2-few.tsv").write_text("".join(lines[: FEW + 1]), encoding="utf-8")
    if "squad" in only:
        content = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
        articles = content["data"]
        for name, part in (("train", articles[:-SQUAD_HELD_OUT]), ("eval", articles[-SQUAD_HELD_OUT:])):
            (work / f"squad-{name}.json").write_text(json.dumps({**content, "data": part}), encoding="utf-8")


def build_native(ours: Any) -> Any:
    """The model of transformers that has the shape of ours (its configuration), as it comes: four widths inside."""
    shape = Shape(ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads, ours.vocab_size, POSITIONS)
    ids = {name: getattr(ours, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    if not ours.is_encoder_decoder:
        return bert(shape, 0.1, head=BertModel, **ids)
    ids |= {"decoder_start_token_id": ours.decoder_start_token_id, "forced_eos_token_id": None}
    inner = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4 * shape.hidden_size)
    sides = {"decoder_layers": ours.num_decoder_layers, "decoder_attention_heads": shape.heads}
    return BartForConditionalGeneration(BartConfig(**shape.fields(), **sides, **inner, **ids))


class Benchmark:
    """All runs, and the folder of what they leave."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kept = options, Kept(options.work_dir)
        self.work, self.data = Path(options.work_dir), Path(options.data)
        self.work.mkdir(parents=True, exist_ok=True)
        novels = sorted((self.data / "novels").glob("*.txt"))
        if not novels:
            raise SystemExit(f"--data {self.data} has no novels/*.txt to pretrain on")
        self.text = short_hash(*((path.name, path.stat().st_size) for path in novels))
        try:
            write_parts(self.data, self.work, only=options.only)
            self.files = {name: self.open_files(TASKS[name]) for name in options.only}
            self.contents = {
                name: short_hash(*(path.read_bytes() for path in files.values())) for name, files in self.files.items()
            }
        except FileNotFoundError as error:
            raise SystemExit(f"--data {self.data} has no {error.filename}; leave its task out with --only") from error

    def open_files(self, task: Task) -> dict[str, Path]:
        """The options of a task that name files."""
        return {name: Path(path.format(data=self.data, work=self.work)) for name, path in task.files.items()}

    def limit(self, minutes: float) -> dict[str, Any]:
        """How long a run trains, as options of recipes."""
        return {"max_steps": self.options.steps} if self.options.steps else {"max_minutes": minutes}

    def pretraining(self, shape: str) -> dict[str, Any]:
        """All that decides the pretrained model of a shape."""
        options = {"objective": PRETRAINING[shape][0], "vocab_size": self.options.vocab_size, "size": "tiny"}
        options |= {"seed": 0, **self.limit(self.options.pretrain_minutes)}
        return {"pretraining": {"options": options, "text": self.text}}

    def pretrained(self, shape: str) -> Path:
        """The folder of the pretrained model; made now if it is not there."""
        settings = self.pretraining(shape)
        folder = self.work / "models" / f"{shape}-{short_hash(json.dumps(settings, sort_keys=True))}"

        def pretrain() -> dict[str, Any]:
            options = {"data": self.data / "novels", "unwrap": True, **settings["pretraining"]["options"]}
            shutil.rmtree(folder, ignore_errors=True)
            results = run_recipe("pretrain", {**options, "save_steps": 0, "output_dir": folder})
            names = ("steps", "parameters", "train_tokens", "eval_loss", "eval_bits_per_byte", "wall_seconds")
            return {name: results[name] for name in names if name in results}

        self.kept.get(f"pretrain-{shape}", settings, pretrain, anew=not (folder / "results.json").is_file())
        return folder

    def beginning(self, shape: str, kind: str, seed: int) -> Path:
        """The folder of the model that a run starts from."""
        pretrained = self.pretrained(shape)
        if kind == "pretrained":
            return pretrained
        folder = self.work / "models" / f"{pretrained.name}-{kind}-seed{seed}"
        if not (folder / "model.safetensors").is_file():
            transformers.set_seed(seed)
            ours, head = AutoConfig.from_pretrained(pretrained), getattr(transformers, PRETRAINING[shape][1])
            AutoTokenizer.from_pretrained(pretrained).save_pretrained(folder)
            (head.from_config(ours) if kind == "new" else build_native(ours)).save_pretrained(folder)
        return folder

    def settings(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """All that decides a run."""
        task = TASKS[name]
        options = {**task.options, **self.limit(self.options.minutes or task.minutes)}
        options |= {"learning_rate": RATES[kind], "seed": seed}
        if task.recipe == CLASSIFICATION and kind != "native":  # BERT has a choice of one
            options["pooling"] = "mean"
        facts = {"task": name, "kind": kind, "options": options, "files": self.contents[name]}
        return {**facts, **self.pretraining(task.shape)}

    def finetune(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """One run: scores, those of the guess, and how long all of it took."""
        task = TASKS[name]
        folder = self.work / "runs" / f"{name}-{kind}-seed{seed}"
        options = {"model": self.beginning(task.shape, kind, seed), **self.files[name]}
        options |= self.settings(name, kind, seed)["options"]
        options |= {"average": "none", "eval_steps": 0, "save_steps": 0, "output_dir": folder}
        shutil.rmtree(folder, ignore_errors=True)
        results = run_recipe(f"finetune_{task.recipe}", options)
        weights = [tensor for path in folder.glob("model*.safetensors") for tensor in load_file(path).values()]
        return {
            "scores": {metric: results[f"eval_{metric}"] for metric in task.metrics},
            "baseline": {metric: results.get(f"baseline_{metric}") for metric in task.metrics},
            "parameters": sum(tensor.numel() for tensor in weights),
            **{name: results.get(name) for name in ("wall_seconds", "steps", "train_tokens", "train_seconds")},
        }

    def run(self) -> None:
        """Make the results that are not there yet."""
        jobs = [(name, kind, seed) for seed in self.options.seeds for name in self.options.only for kind in RATES]
        for name, kind, seed in (bar := tqdm(jobs, unit="run")):
            bar.set_postfix_str(f"{name}, {TITLES[kind]}, seed {seed}")
            self.pretrained(TASKS[name].shape)  # a result of its own, so that its time is not this one's
            settings, work = self.settings(name, kind, seed), partial(self.finetune, name, kind, seed)
            self.kept.get(f"{name}-{kind}-seed{seed}", settings, work)

    def found(self, name: str) -> dict[str, dict[int, dict[str, Any]]]:
        """What is there of a task: by kind of model and seed."""
        seeds, find = self.options.seeds, self.kept.find
        return {
            kind: {seed: part for seed in seeds for part in find(self.settings(name, kind, seed))} for kind in RATES
        }


def rows_of(task: Task, found: dict[str, dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for the guess and one for each kind of model, from its results by seed: means, and what pretraining adds
    over the same seeds."""
    scores = {kind: {seed: part["result"]["scores"] for seed, part in parts.items()} for kind, parts in found.items()}
    guesses = [part["result"]["baseline"] for parts in found.values() for part in parts.values()]
    rows = [{"task": task.what, "model": f"none: {task.baseline}", "scores": means(guesses)}] if guesses else []
    for kind, parts in found.items():
        if not parts:
            continue
        results = [part["result"] for part in parts.values()]
        options = next(iter(parts.values()))["settings"]["options"]
        row = {"task": task.what, "model": TITLES[kind], "scores": means(list(scores[kind].values()))}
        if kind == "pretrained":
            both = [(ours, scores["new"][seed]) for seed, ours in scores[kind].items() if seed in scores["new"]]
            added = {metric: difference([ours[metric] - new[metric] for ours, new in both]) for metric in task.metrics}
            row["pretraining adds"] = ", ".join(f"{metric} {value}" for metric, value in added.items())
        row |= {"seeds": ", ".join(map(str, parts)), "parameters": results[0]["parameters"]}
        row |= {name: options.get(name) for name in ("learning_rate", "max_minutes")}
        row |= {name: statistics.fmean(result[name] for result in results) for name in ("steps", "train_tokens")}
        row["minutes in all, at most"] = max(result["wall_seconds"] for result in results) / 60
        row["machine"] = "quiet" if all(part["quiet"] for part in parts.values()) else "busy"
        rows.append(row)
    return rows


def means(scores: list[dict[str, Any]]) -> str:
    """Of each metric, where it is known."""
    known = {metric: [each[metric] for each in scores if each[metric] is not None] for metric in scores[0]}
    return ", ".join(f"{metric} {statistics.fmean(values):.4g}" for metric, values in known.items() if values)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    return make_parser(
        __doc__,
        ("only", tuple(TASKS), "tasks"),
        ("seeds", [0], "with commas between"),
        ("minutes", float, "of training steps in each run (0.3 to 5, by the task)"),
        ("pretrain_minutes", 20.0, "of pretraining, once for each shape"),
        ("steps", int, "of every run, instead of minutes; to try the benchmark itself"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        ("data", str(DATA), "folder with novels, sst2, squad, wnut17 and multi30k"),
        *LONG,
    ).parse_args(arguments)


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    report, benchmark = begin(options), Benchmark(options)
    if not options.report_only:
        benchmark.run()
    pretraining = [
        {"pretrained": shape, **part["settings"]["pretraining"]["options"], **part["result"]}
        for shape in dict.fromkeys(TASKS[name].shape for name in options.only)
        for part in benchmark.kept.find(benchmark.pretraining(shape))
        if "task" not in part["settings"]
    ]
    rows = [row for name in options.only for row in rows_of(TASKS[name], benchmark.found(name))]
    report.body |= {"pretraining": pretraining, "rows": rows}
    line = (
        "Means over seeds. What pretraining adds is the difference of Lacuna's two models, with its range over seeds."
    )
    report.write("Fine-tuning", [line, "", *table(pretraining), *table(rows)])


if __name__ == "__main__":
    main()
