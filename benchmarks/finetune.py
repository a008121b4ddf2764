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
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from finetune_report import summarize, to_markdown
from finetune_tasks import TASKS
from held_out import find_device, short_hash
from parts import read_parts, run_part, use_cores
from peers import POSITIONS
from reports import REPOSITORY, describe_machine, positive, write_report
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertModel

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)

KINDS = {
    "pretrained": "Lacuna, pretrained",
    "new": "Lacuna, first weights",
    "native": "native, first weights",
}
RATES = {"pretrained": 2e-3, "new": 3e-4, "native": 3e-4}
"""Learning rates, tried on SST-2 for 500 steps from 3e-4 on. Weights that were pretrained with Muon are nine times as
large as first ones and want a higher rate; native BERT learns nothing there at 1e-3."""
PRETRAINING = {"encoder": ("mlm", "AutoModelForMaskedLM"), "encoder-decoder": ("denoising", "AutoModelForSeq2SeqLM")}
"""Objective and head by the shape of the model."""


def as_words(options: dict[str, Any]) -> list[str]:
    """Options as they are typed."""
    return [str(word) for name, value in options.items() for word in (f"--{name}", value)]


def run_recipe(name: str, options: dict[str, Any], *, log: Path, cache: Path, minutes: float | None) -> float | None:
    """Run a recipe as people do, and return its seconds; None where it took longer than `minutes` and was ended.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    command = [sys.executable, str(REPOSITORY / "recipes" / f"{name}.py"), *as_words(options)]
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "LACUNA_CACHE": str(cache)}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=None if minutes is None else 60 * minutes,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    if done.returncode:
        said = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{said}")
    return time.perf_counter() - begun


def read_results(folder: Path) -> dict[str, Any]:
    """The content of results.json."""
    content: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


class Benchmark:
    """All runs, and the folder of what they leave."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work, self.parts, self.data = Path(options.work_dir), Path(options.parts_dir), Path(options.data)
        self.work.mkdir(parents=True, exist_ok=True)
        if not any((self.data / "novels").glob("*.txt")):
            raise SystemExit(f"--data {self.data} has no novels/*.txt to pretrain on")
        try:
            self.files = {name: TASKS[name].files(self.data, self.work) for name in options.only}
            self.contents = {
                name: {option: short_hash(path.read_bytes()) for option, path in files.items()}
                for name, files in self.files.items()
            }
        except FileNotFoundError as error:
            raise SystemExit(f"--data {self.data} has no {error.filename}; leave its task out with --only") from error

    # Pretraining

    def pretraining(self, shape: str) -> dict[str, Any]:
        """All that decides the pretrained model of a shape."""
        novels = sorted((self.data / "novels").glob("*.txt"))
        return {
            "objective": PRETRAINING[shape][0],
            "options": {
                "vocab_size": self.options.vocab_size,
                "size": "tiny",
                "seed": 0,
                **self.limit(self.options.pretrain_minutes),
            },
            "text": short_hash(*((path.name, path.stat().st_size) for path in novels)),
        }

    def limit(self, minutes: float) -> dict[str, Any]:
        """How long a run trains, as options of recipes."""
        return {"max_steps": self.options.steps} if self.options.steps else {"max_minutes": minutes}

    def pretrained(self, shape: str) -> Path:
        """The folder of the pretrained model; made now if it is not there."""
        settings = self.pretraining(shape)
        folder = self.work / "models" / f"{shape}-{short_hash(json.dumps(settings, sort_keys=True))}"
        run_part(
            folder=self.parts,
            name=f"pretrain-{shape}",
            settings={"pretraining": settings},
            work=partial(self.pretrain, settings, folder),
            again=not (folder / "results.json").is_file(),
        )
        return folder

    def pretrain(self, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Train on the novels; a run that was stopped goes on from its newest checkpoint."""
        options = {"data": self.data / "novels", "unwrap": True, "objective": settings["objective"]}
        options |= {**settings["options"], "save_minutes": 2, "save_steps": 0, "output_dir": folder}
        if any(folder.glob("checkpoints/step-*")):
            options["resume"] = True
        else:
            shutil.rmtree(folder, ignore_errors=True)
        log = self.work / "logs" / f"{folder.name}.txt"
        seconds = run_recipe("pretrain", options, log=log, cache=self.work / "cache", minutes=None)
        results = read_results(folder)
        kept = (
            "steps",
            "tokens",
            "parameters",
            "train_tokens",
            "eval_loss",
            "eval_bits_per_byte",
            "eval_mlm_accuracy",
        )
        return {"seconds": seconds, **{name: results[name] for name in kept if name in results}}

    def beginning(self, shape: str, kind: str, seed: int) -> Path:
        """The folder of the model that a run starts from."""
        pretrained = self.pretrained(shape)
        if kind == "pretrained":
            return pretrained
        folder = self.work / "models" / f"{pretrained.name}-{kind}-seed{seed}"
        if not (folder / "config.json").is_file():
            transformers.set_seed(seed)
            tokenizer = AutoTokenizer.from_pretrained(pretrained)
            hidden = folder.with_name(f".{folder.name}")
            ours = AutoConfig.from_pretrained(pretrained)
            head = getattr(transformers, PRETRAINING[shape][1])
            model = head.from_config(ours) if kind == "new" else build_native(ours)
            model.save_pretrained(hidden)
            tokenizer.save_pretrained(hidden)
            hidden.replace(folder)
        return folder

    # Fine-tuning

    def settings(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """All that decides a run."""
        task = TASKS[name]
        options = {**task.options, **self.limit(self.options.minutes or task.minutes)}
        options |= {"learning_rate": RATES[kind], "seed": seed}
        if task.recipe == "classification" and kind != "native":  # BERT has a choice of one
            options["pooling"] = "mean"
        return {
            "task": name,
            "kind": kind,
            "options": options,
            "files": self.contents[name],
            "pretraining": self.pretraining(task.shape),
            "limit_minutes": self.options.limit_minutes,
        }

    def finetune(self, name: str, kind: str, seed: int) -> dict[str, Any]:
        """One run: scores, those of the guess, and how long all of it took."""
        task = TASKS[name]
        model = self.beginning(task.shape, kind, seed)
        label = f"{name}-{kind}-seed{seed}"
        folder = self.work / "runs" / label
        shutil.rmtree(folder, ignore_errors=True)
        options = {"model": model, **self.files[name], **self.settings(name, kind, seed)["options"]}
        options |= {"average": "none", "eval_steps": 0, "save_steps": 0, "output_dir": folder}
        seconds = run_recipe(
            f"finetune_{task.recipe}",
            options,
            log=self.work / "logs" / f"{label}.txt",
            cache=self.work / "cache",
            minutes=self.options.limit_minutes,
        )
        if seconds is None:
            return {"too_long": True}
        results = read_results(folder)
        scores = {metric: results[f"eval_{metric}"] for metric in task.metrics}
        guess = {metric: results.get(f"baseline_{metric}") for metric in task.metrics}
        facts = {name: results.get(name) for name in ("steps", "train_tokens", "train_seconds")}
        weights = sum(p.numel() for p in load_parameters(folder))
        return {"scores": scores, "baseline": guess, "wall_seconds": seconds, "parameters": weights, **facts}

    def run(self) -> None:
        """Make the parts that are not there yet."""
        jobs = [(name, kind, seed) for seed in self.options.seeds for name in self.options.only for kind in KINDS]
        for name, kind, seed in (bar := tqdm(jobs, unit="run")):
            bar.set_postfix_str(f"{name}, {KINDS[kind]}, seed {seed}")
            self.pretrained(TASKS[name].shape)  # its own part, so that its time is not this one's
            run_part(
                folder=self.parts,
                name=f"{name}-{kind}-seed{seed}",
                settings=self.settings(name, kind, seed),
                work=partial(self.finetune, name, kind, seed),
                again=name in self.options.again,
            )

    def report(self) -> dict[str, Any]:
        """The body of the report, of the parts that are there."""
        there = {json.dumps(part["settings"], sort_keys=True): part for part in read_parts(self.parts)}
        rows = []
        for name in self.options.only:
            task = TASKS[name]
            found = {
                kind: [
                    part
                    for seed in self.options.seeds
                    if (part := there.get(json.dumps(self.settings(name, kind, seed), sort_keys=True)))
                ]
                for kind in KINDS
            }
            facts = {"task": name, "what": task.what, "baseline_is": task.baseline, "shape": task.shape}
            rows.append({**facts, "recipe": task.recipe, "metrics": list(task.metrics), "parts": found})
        shapes = dict.fromkeys(TASKS[name].shape for name in self.options.only)
        pretraining = {
            shape: there.get(json.dumps({"pretraining": self.pretraining(shape)}, sort_keys=True)) for shape in shapes
        }
        return {"pretraining": pretraining, "rows": summarize(rows)}


def load_parameters(folder: Path) -> list[torch.Tensor]:
    """The tensors of a model folder, tied ones once."""
    from safetensors.torch import load_file

    return [tensor for path in sorted(folder.glob("model*.safetensors")) for tensor in load_file(path).values()]


def build_native(ours: Any) -> Any:
    """The model of transformers that has the shape of ours, as it comes: dropout 0.1, four widths inside.

    Args:
        ours: the configuration of Lacuna's model.
    """
    shared = {name: getattr(ours, name) for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
    if not ours.is_encoder_decoder:
        return BertModel(
            BertConfig(
                hidden_size=ours.hidden_size,
                num_hidden_layers=ours.num_hidden_layers,
                num_attention_heads=ours.num_attention_heads,
                intermediate_size=4 * ours.hidden_size,
                max_position_embeddings=POSITIONS,
                **shared,
            )
        )
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", ours.num_attention_heads), ("ffn_dim", 4 * ours.hidden_size))
    }
    return BartForConditionalGeneration(
        BartConfig(
            d_model=ours.hidden_size,
            encoder_layers=ours.num_hidden_layers,
            decoder_layers=ours.num_decoder_layers,
            max_position_embeddings=POSITIONS,
            decoder_start_token_id=ours.decoder_start_token_id,
            forced_eos_token_id=None,
            **sides,
            **shared,
        )
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK", help=f"of {', '.join(TASKS)}")
    add("--minutes", type=float, help="of training steps in each run (1 to 5, by the task)")
    add("--pretrain_minutes", type=float, default=20, help="of pretraining, once for each shape (20)")
    add("--limit_minutes", type=float, default=15, help="after which a run is ended, evaluation included (15)")
    add("--steps", type=positive, help="of every run, instead of minutes; to try the benchmark itself")
    add("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0], help="as 0,1,2 (0)")
    add("--vocab_size", type=positive, default=8192, help="tokens in the vocabulary (8192)")
    add("--threads", type=positive, help="stay on so many cores, the least busy ones (all)")
    add("--again", nargs="+", default=[], choices=list(TASKS), metavar="TASK", help="run these though they are there")
    add("--report_only", action="store_true", help="run nothing")
    folder = os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data")
    add("--data", default=str(folder), help="folder with novels, sst2, squad, wnut17 and multi30k")
    add("--work_dir", default=str(REPOSITORY / "runs" / "finetune"), help="folder of models, runs and what they said")
    add("--parts_dir", default=str(REPOSITORY / "runs" / "finetune" / "parts"), help="folder of single results")
    add("--output_dir", default=str(REPOSITORY / "benchmarks"), help="folder of finetune-DATE.md and .json")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    use_cores(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    machine = describe_machine("torch", "transformers", device=find_device().type, threads=torch.get_num_threads())
    benchmark = Benchmark(options)
    if not options.report_only:
        benchmark.run()
    body = {
        "settings": {name: value for name, value in vars(options).items() if not name.endswith("_dir")},
        "machine": machine,
        **benchmark.report(),
    }
    write_report(
        name="finetune",
        output_dir=options.output_dir,
        body=body,
        to_markdown=to_markdown,
        pattern="{name}-{date}",
    )


if __name__ == "__main__":
    main()
