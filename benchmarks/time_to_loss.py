"""How long each model trains until it reaches a held-out loss: our recipe beside native models of transformers.

    python benchmarks/time_to_loss.py --steps 20 --our_steps 10 --learning_rates 1e-3      # a laptop, some minutes
    python benchmarks/time_to_loss.py --contenders bert --tuning_steps 1500 --tune_only    # tune a peer; may be slowed
    python benchmarks/time_to_loss.py                                                      # all of it, about two hours
    python benchmarks/time_to_loss.py --report_only                                        # what is there so far

WikiText-2 (`--data`: a folder with one train and one valid text), one tokenizer, trained on the train text. Peers are
trained from the start by a loop that does what run_mlm.py and run_clm.py of transformers do: rows of `group_texts`,
15 % of the tokens masked anew in each epoch, AdamW without weight decay, a rate that falls in a line to zero,
gradients cut at 1. The rate is the best of --learning_rates, found in runs of --tuning_share of the budget (or of
--tuning_steps); then it has the whole budget. Ours are whole runs of recipes/pretrain.py with the options `RECIPE`
below, one for each budget. All are scored in float32 on the same held-out rows, under the same mask; scoring is not
timed, nor are imports and tokenizing. What decides a result is in the name of its file under --output_dir/parts, where
the next run finds it: the benchmark may be done in pieces, and stopped at any time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from held_out import HeldOut, Kind, Material, default_data, find_device, open_material, score
from loss_report import draw, summarize, to_markdown
from parts import Budget, finite, read_parts, run_part, use_cores
from peers import LOOP, PEERS, train_peer
from reports import REPOSITORY, RESULTS, describe_machine, positive, write_report

from lacuna import modeling  # noqa: F401  (teaches the Auto classes our models)

OURS: dict[str, Kind] = {"lacuna-mlm": "masked", "lacuna-clm": "causal"}
RECIPE: dict[Kind, dict[str, Any]] = {
    "masked": {
        "objective": "mlm",
        "family": "lacuna",
        "size": "tiny",
        "document_boundary": "line",
        "optimizer": "muon",
        "learning_rate": 6e-3,
        "batch_size": 64,
    },
    "causal": {
        "objective": "clm",
        "family": "qwen3",
        "size": "tiny",
        "document_boundary": "file",
        "optimizer": "muon",
        "learning_rate": 6e-3,
        "batch_size": 64,
    },
}
"""Options of our runs. Lines are documents where held-out lines have special tokens around them."""
ASIDE = {"eval_fraction": 0, "eval_steps": 0}
"""Nothing of the train text is held out, and nothing evaluated: that is done here."""
AUTO = {"masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
SET_UP = ("compile_seconds", "warmup_seconds")
"""Of results.json, where they are there."""


class Bench:
    """The settings of all contenders, and their parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.output_dir, "parts")
        kinds = {PEERS[name].kind if name in PEERS else OURS[name] for name in options.contenders}
        sizes = {"length": options.length, "vocab_size": options.vocab_size}
        self.materials: dict[Kind, Material] = {
            kind: open_material(kind=kind, data=Path(options.data), work_dir=Path(options.work_dir), **sizes)
            for kind in sorted(kinds)
        }
        self.subsets: dict[Kind, HeldOut] = {
            kind: material.held_out.subset(options.point_rows) for kind, material in self.materials.items()
        }
        self.budget = Budget(steps=options.steps) if options.steps else Budget(minutes=options.minutes)

    def settings(self, name: str) -> dict[str, Any]:
        """What all runs of a contender have in common."""
        options, peer = self.options, PEERS.get(name)
        kind = peer.kind if peer else OURS[name]
        shared = {"contender": name, "material": self.materials[kind].fingerprint, "seed": options.seed}
        points = {"points": options.points, "point_rows": len(self.subsets[kind].inputs)}
        if peer:
            return {**shared, **points, "batch_size": options.batch_size, "precision": peer.precision, "loop": LOOP}
        points["points"] = options.our_points
        return {**shared, **points, "recipe": {**RECIPE[kind], "sequence_length": options.length}}

    def of_run(self, name: str, budget: Budget, **more: Any) -> dict[str, Any]:
        """The settings of one run; the number of cores counts where the clock decides how much is learned."""
        timed = {"threads": torch.get_num_threads()} if budget.minutes else {}
        return {**self.settings(name), "budget": vars(budget), **timed, **more}

    def found(self, name: str) -> list[dict[str, Any]]:
        """All parts of a contender with the present settings, whatever their rates and budgets."""
        wanted, threads = self.settings(name), torch.get_num_threads()
        return [
            part
            for part in read_parts(self.folder)
            if wanted.items() <= part["settings"].items() and part["settings"].get("threads", threads) == threads
        ]

    def peer_part(self, name: str, learning_rate: float, budget: Budget) -> dict[str, Any]:
        """One run of a peer."""
        peer, title = PEERS[name], f"{name}-{learning_rate:g}-{budget}"
        work = partial(
            train_peer,
            peer=peer,
            material=self.materials[peer.kind],
            budget=budget,
            learning_rate=learning_rate,
            batch_size=self.options.batch_size,
            seed=self.options.seed,
            points=self.options.points,
            subset=self.subsets[peer.kind],
            description=title,
        )
        settings = self.of_run(name, budget, learning_rate=learning_rate)
        return run_part(folder=self.folder, name=title, settings=settings, work=work, again=name in self.options.again)

    def run_peer(self, name: str) -> None:
        """Find the learning rate, then train for the whole budget."""
        options = self.options
        by_steps = Budget(steps=options.tuning_steps)
        tuning = by_steps if options.tuning_steps else self.budget.scaled(options.tuning_share)
        best = options.learning_rates[0]
        if len(options.learning_rates) > 1 or options.tune_only:
            tried = {rate: self.peer_part(name, rate, tuning) for rate in options.learning_rates}
            for rate, part in tried.items():
                say(name, part, f"{tuning} at {rate:g}")
            best = min(tried, key=lambda rate: finite(tried[rate]["result"]["loss"]))
        if not options.tune_only:
            say(name, self.peer_part(name, best, self.budget), f"{self.budget} at {best:g}")

    def run_ours(self, name: str) -> None:
        """One whole run for each budget."""
        options, kind = self.options, OURS[name]
        steps, minutes = options.our_steps, [] if options.our_steps else options.our_minutes
        for budget in [*(Budget(steps=count) for count in steps), *(Budget(minutes=length) for length in minutes)]:
            rate = RECIPE[kind]["learning_rate"]
            part = run_part(
                folder=self.folder,
                name=f"{name}-{rate:g}-{budget}",
                settings=self.of_run(name, budget),
                work=partial(train_ours, bench=self, name=name, budget=budget),
                again=name in options.again,
            )
            say(name, part, str(budget))


def say(name: str, part: dict[str, Any], what: str) -> None:
    """One line on the screen for a part."""
    result = part["result"]
    loss = (
        "diverged" if result["loss"] is None else f"loss {result['loss']:.4f}, {result['bits_per_byte']:.4f} bits/byte"
    )
    print(f"{name}, {what}: {loss}, {result['steps']:,} steps in {result['seconds'] / 60:.2f} min", flush=True)


def train_ours(*, bench: Bench, name: str, budget: Budget) -> dict[str, Any]:
    """One run of the recipe in a process of its own, and the score of the model that it saved.

    Raises:
        RuntimeError: the recipe failed.
    """
    options, kind = bench.options, OURS[name]
    material = bench.materials[kind]
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=options.work_dir) as folder:
        count = options.our_points
        saves = {"save_steps": 1 / count, "keep_checkpoints": count + 1} if count > 1 else {"save_steps": 0}
        words = {
            **bench.settings(name)["recipe"],
            **ASIDE,
            **saves,
            "data": material.train_file,
            "tokenizer": material.tokenizer_dir,
            "seed": options.seed,
            "output_dir": folder,
            **({"max_steps": budget.steps} if budget.steps else {"max_minutes": budget.minutes}),
        }
        command = [sys.executable, str(REPOSITORY / "recipes" / "pretrain.py")]
        command += [word for option, value in words.items() for word in (f"--{option}", str(value))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        began = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        whole = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        results = json.loads(Path(folder, "results.json").read_text(encoding="utf-8"))
        inside = RECIPE[kind]["document_boundary"] == "line"
        model = load(Path(folder), kind)
        checkpoints = sorted(Path(folder, "checkpoints").glob("step-*"))
        curve = [point_of(path, kind, bench.subsets[kind], inside) for path in checkpoints[:-1]]
        last = {"step": results["steps"], "minutes": results["train_seconds"] / 60}
        return {
            **score(model, material.held_out, inside_lines=inside),
            **({"across_lines": score(model, material.held_out)} if inside else {}),
            "steps": results["steps"],
            "tokens": results["train_tokens"],
            "seconds": results["train_seconds"],
            "around_seconds": whole - results["train_seconds"],
            **{name: results[name] for name in SET_UP if name in results},
            "parameters": model.num_parameters(),
            "curve": [*curve, {**last, **score(model, bench.subsets[kind], inside_lines=inside)}],
        }


def load(folder: Path, kind: Kind) -> Any:
    """A saved model in float32."""
    return getattr(transformers, AUTO[kind]).from_pretrained(folder, dtype=torch.float32).to(find_device())


def point_of(checkpoint: Path, kind: Kind, subset: HeldOut, inside_lines: bool) -> dict[str, float]:
    """Where a run stood at a checkpoint, and its score there."""
    progress = json.loads(Path(checkpoint, "training_state", "progress.json").read_text(encoding="utf-8"))
    found = score(load(checkpoint, kind), subset, inside_lines=inside_lines)
    return {"step": progress["step"], "minutes": progress["seconds"] / 60, **found}


def numbers(kind: Any) -> Any:
    """A type of argparse: numbers above 0 with commas between."""

    def parse_numbers(text: str) -> list[Any]:
        values = [kind(part) for part in text.split(",")]
        if min(values) <= 0:
            raise ValueError(text)
        return values

    return parse_numbers


def parse(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*PEERS, *OURS]
    add = parser.add_argument
    add("--contenders", nargs="+", default=names, choices=names, help="who takes part (all)")
    add("--data", default=str(default_data()), help="folder with a train and a valid text (WikiText-2)")
    add("--minutes", type=float, default=20, help="of training of each peer (20)")
    add("--steps", type=positive, help="train peers for so many steps instead, to the same loss on any machine")
    add("--our_minutes", type=numbers(float), default=[1.33, 3.33, 6.67], help="budgets of ours (1.33,3.33,6.67)")
    add("--our_steps", type=numbers(int), default=[], help="budgets of ours in steps instead")
    add("--learning_rates", type=numbers(float), default=[3e-4, 1e-3, 3e-3], help="of peers (3e-4,1e-3,3e-3)")
    add("--tuning_share", type=float, default=0.25, help="of the budget, for each learning rate (0.25)")
    add("--tuning_steps", type=positive, help="compare learning rates by so many steps instead")
    add("--tune_only", action="store_true", help="stop when learning rates are compared")
    add("--batch_size", type=positive, default=32, help="rows in a batch of peers (32)")
    add("--length", type=positive, default=128, help="tokens in a row (128)")
    add("--vocab_size", type=positive, default=8192, help="tokens in the vocabulary (8192)")
    add("--seed", type=int, default=0, help="of weights, order, masks and dropout (0)")
    add("--points", type=positive, default=10, help="times that peers are scored on the way (10)")
    add("--our_points", type=int, default=0, help="checkpoints of ours that are scored; they take a little time (0)")
    add("--point_rows", type=positive, default=256, help="held-out rows of these scores (256)")
    add("--threads", type=positive, help="stay on so many cores, the least busy ones (all)")
    add("--again", nargs="+", default=[], choices=names, help="run these though their parts are there")
    add("--report_only", action="store_true", help="run nothing")
    add("--work_dir", default=str(REPOSITORY / "runs" / "time_to_loss"), help="folder of tokenizer and rows")
    add("--output_dir", default=str(RESULTS), help="folder of the report and of parts/")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if not 0 < options.tuning_share <= 1:
        parser.error(f"--tuning_share must be above 0 and at most 1, got {options.tuning_share}")
    return options


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    use_cores(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    Path(options.work_dir).mkdir(parents=True, exist_ok=True)
    machine = describe_machine("torch", "transformers", device=find_device().type, threads=torch.get_num_threads())
    bench = Bench(options)
    for name in [] if options.report_only else options.contenders:
        bench.run_peer(name) if name in PEERS else bench.run_ours(name)
    if options.tune_only:
        return
    found = {name: bench.found(name) for name in options.contenders}
    kinds = {name: PEERS[name].kind if name in PEERS else OURS[name] for name in options.contenders}
    body: dict[str, Any] = {
        "settings": {name: value for name, value in vars(options).items() if not name.endswith("_dir")},
        "machine": machine,
        "recipe": RECIPE,
        "loop": LOOP,
        "held_out": {
            kind: {"rows": len(material.held_out.inputs), "fingerprint": material.fingerprint}
            for kind, material in bench.materials.items()
        },
        "summary": summarize(found=found, kinds=kinds, ours=list(OURS)),
        "parts": found,
    }
    if picture := draw(body["summary"], folder=Path(options.output_dir)):
        body["picture"] = picture.name
    write_report(name="time_to_loss", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
