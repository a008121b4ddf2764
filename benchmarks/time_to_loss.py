"""How long each model trains until it reaches a held-out loss: our recipe beside native models of transformers.

    python benchmarks/time_to_loss.py --steps 20 --our_steps 10 --learning_rates 1e-3      # a laptop, some minutes
    python benchmarks/time_to_loss.py                                                      # about two hours
    python benchmarks/time_to_loss.py --report_only                                        # what is there so far

WikiText-2 (`--data`: a folder with one train and one valid text), one tokenizer, trained on the train text. Peers are
trained as run_mlm.py and run_clm.py of transformers do it: rows of `group_texts`, 15 % of the tokens masked anew in
each epoch, AdamW without weight decay, a rate that falls linearly to zero, gradients clipped at 1. Each of
--learning_rates is tried for --tuning_share of the budget; the best one gets the whole budget. Ours are whole runs of
recipes/pretrain.py with the options `RECIPE`, one for each budget. All are scored in float32 on the same held-out rows
under the same mask; scoring is not timed, nor are imports, tokenizing and compiling. Each result is kept under
--work_dir, where the next run finds it: the benchmark may be stopped at any time.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contenders import PEERS, Shape, Trainee
from harness import DATA, LONG, Kept, begin, make_parser, run_recipe, table
from held_out import BOUNDARIES, Kind, Material, make_masker, open_material, score, score_run
from torch import Tensor
from tqdm import tqdm

OURS: dict[str, Kind] = {"lacuna-mlm": "masked", "lacuna-clm": "causal"}
GOALS = {"bert": 15.0, "modernbert": 3.0, "gpt2": 6.0}
"""How many times as fast as each peer our recipe is meant to reach the peer's loss."""
SHARED = {"size": "tiny", "optimizer": "muon", "learning_rate": 6e-3, "batch_size": 64}
RECIPE: dict[Kind, dict[str, Any]] = {
    "masked": {"objective": "mlm", "family": "lacuna", "document_boundary": BOUNDARIES["masked"], **SHARED},
    "causal": {"objective": "clm", "family": "qwen3", "document_boundary": BOUNDARIES["causal"], **SHARED},
}
LOOP = "AdamW, betas 0.9 and 0.999, no weight decay, linear to zero, no warm-up, gradients clipped at 1"
"""What `train_peer` does, for the report and among the settings of a run."""
WIDTH, LAYERS, HEADS, POSITIONS = 256, 6, 4, 512


def kind_of(name: str) -> Kind:
    """What a contender learns."""
    return OURS.get(name) or ("causal" if PEERS[name].is_decoder else "masked")


@dataclass(frozen=True)
class Budget:
    """How long a run trains: minutes, or a number of steps."""

    minutes: float | None = None
    steps: int | None = None

    def done(self, *, step: int, seconds: float) -> float:
        """The share that is done. The clock ends a run with the step that ends nearest to it."""
        if self.steps:
            return step / self.steps
        limit, a_step = 60 * (self.minutes or 0), seconds / max(step, 1)
        return 1.0 if limit - seconds < a_step / 2 else seconds / limit

    def scaled(self, share: float) -> "Budget":
        """A share of it, a step at least."""
        return Budget(self.minutes and share * self.minutes, self.steps and max(1, round(share * self.steps)))

    def __str__(self) -> str:
        return f"{self.steps}steps" if self.steps else f"{self.minutes:g}min"


def batches(material: Material, *, batch_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Rows in another order in each epoch, masked anew or with themselves as labels; without end."""
    generator = torch.Generator().manual_seed(seed)
    mask = make_masker(material.tokenizer, generator)
    while True:
        for chosen in torch.randperm(len(material.train), generator=generator).split(batch_size):
            rows = material.train[chosen]
            inputs, labels = mask(rows) if material.kind == "masked" else (rows, rows)
            yield {"input_ids": inputs, "labels": labels}


def train_peer(
    name: str, *, material: Material, budget: Budget, learning_rate: float, batch_size: int, seed: int
) -> dict[str, Any]:
    """Train a peer, with first weights of its own, and score it on the held-out rows (None where it diverged)."""
    shape = Shape(WIDTH, LAYERS, HEADS, len(material.tokenizer), max(material.train.shape[1], POSITIONS))
    settings = {"lr": learning_rate, "betas": (0.9, 0.999), "weight_decay": 0.0}
    trainee = Trainee(PEERS[name], shape, seed=seed, own_weights=True, **settings)
    data = batches(material, batch_size=batch_size, seed=seed)
    step, tokens, seconds, loss = 0, 0, 0.0, 0.0
    with tqdm(total=100, desc=f"{name}, {learning_rate:g}, {budget}", unit="%", smoothing=0.05) as bar:
        while (done := budget.done(step=step, seconds=seconds)) < 1 and math.isfinite(loss):
            began = time.perf_counter()
            trainee.use([next(data)])
            for group in trainee.optimizer.param_groups:
                group["lr"] = learning_rate * (1 - done)
            loss = float(trainee.step(trainee.batches[0], max_norm=1.0))
            seconds += time.perf_counter() - began
            step, tokens = step + 1, tokens + trainee.batches[0]["input_ids"].numel()
            bar.update(round(100 * done) - bar.n)
    found = score(trainee.model, material) if math.isfinite(loss) else {"loss": None}
    return {**found, **trainee.describe(), "steps": step, "tokens": tokens, "seconds": seconds}


class Bench:
    """The settings of all contenders, and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kept = options, Kept(options.work_dir)
        sizes = {"length": options.length, "vocab_size": options.vocab_size}
        places = {"data": Path(options.data), "work_dir": Path(options.work_dir)}
        kinds = sorted({kind_of(name) for name in options.contenders})
        self.materials = {kind: open_material(kind=kind, **places, **sizes) for kind in kinds}
        self.budget = Budget(steps=options.steps) if options.steps else Budget(minutes=options.minutes)

    def settings(self, name: str) -> dict[str, Any]:
        """What all runs of a contender have in common."""
        options, kind = self.options, kind_of(name)
        found = {"contender": name, "material": self.materials[kind].fingerprint, "seed": options.seed}
        found["threads"] = torch.get_num_threads()  # they decide how far a run gets in its minutes
        recipe = {"recipe": {**RECIPE[kind], "sequence_length": options.length}}
        return {**found, **(recipe if name in OURS else {"batch_size": options.batch_size, "loop": LOOP})}

    def part(self, name: str, budget: Budget, **more: Any) -> float:
        """One run, of a peer with a learning rate; its loss, infinite where it diverged."""
        given = {"batch_size": self.options.batch_size, "seed": self.options.seed, **more}
        peer = partial(train_peer, name, material=self.materials[kind_of(name)], budget=budget, **given)
        title = "-".join([name, *(f"{rate:g}" for rate in more.values()), str(budget)])
        settings = {**self.settings(name), **more, "budget": vars(budget)}
        work = partial(self.train_ours, name, budget) if name in OURS else peer
        return finite(self.kept.get(title, settings, work)["result"]["loss"])

    def run(self, name: str) -> None:
        """Of ours a whole run for each budget; of a peer, find the learning rate, then train for the whole budget."""
        options = self.options
        if name in OURS:
            budgets = [Budget(minutes=minutes) for minutes in options.our_minutes]
            for budget in [Budget(steps=options.our_steps)] if options.our_steps else budgets:
                self.part(name, budget)
            return
        rates, tuning = options.learning_rates, self.budget.scaled(options.tuning_share)
        best = min(rates, key=lambda rate: self.part(name, tuning, learning_rate=rate)) if len(rates) > 1 else rates[0]
        self.part(name, self.budget, learning_rate=best)

    def train_ours(self, name: str, budget: Budget) -> dict[str, Any]:
        """One run of the recipe in a process of its own, and the score of the model that it saved."""
        material = self.materials[OURS[name]]
        words = {**self.settings(name)["recipe"], "eval_fraction": 0, "eval_steps": 0, "save_steps": 0}
        words |= {"max_steps": budget.steps} if budget.steps else {"max_minutes": budget.minutes}
        words |= {"seed": self.options.seed, "data": material.train_file, "tokenizer": material.tokenizer_dir}
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.options.work_dir) as place:
            results = run_recipe("pretrain", {**words, "output_dir": f"{place}/run"})
            return score_run(f"{place}/run", results, material)


def finite(loss: float | None) -> float:
    """A loss that can be compared: infinite where the run diverged."""
    return loss if loss is not None and math.isfinite(loss) else math.inf


def summarize(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The runs of each contender, and for each peer its best run and our shortest one that reaches its loss."""
    runs = {name: sorted(map(flat, parts), key=lambda run: run["size"]) for name, parts in found.items() if parts}
    compared = {}
    for name in runs.keys() - OURS.keys():
        largest = [run for run in runs[name] if run["budget"] == runs[name][-1]["budget"]]
        peer = min(largest, key=lambda run: finite(run["loss"]))
        ours = [run for own, kind in OURS.items() if kind == kind_of(name) for run in runs.get(own, [])]
        ours.sort(key=lambda run: run["minutes"])
        reached = next((run for run in ours if finite(run["loss"]) <= finite(peer["loss"])), None)
        ratio = peer["minutes"] / max(reached["minutes"], 1e-9) if reached else None
        compared[name] = {
            "peer": name,
            "its loss": peer["loss"],
            "its minutes": peer["minutes"],
            "its learning rate": peer["learning_rate"],
            "our shortest run at or below it, minutes": reached and reached["minutes"],
            "its end": reached and reached["loss"],
            "faster by": ratio,
            "goal": GOALS[name],
            "met": "yes" if ratio is not None and ratio >= GOALS[name] else "no",
            "our best loss": min((finite(run["loss"]) for run in ours), default=None),
        }
    return {"runs": runs, "compared": {name: compared[name] for name in PEERS if name in compared}}


def flat(part: dict[str, Any]) -> dict[str, Any]:
    """A run with what was tried; by `size` it is sorted, minutes after steps."""
    budget, rate = Budget(**part["settings"]["budget"]), part["settings"].get("learning_rate")
    size = [bool(budget.minutes), budget.steps or budget.minutes, rate or 0]
    about = {name: part[name] for name in ("quiet", "commit", "made")}
    minutes = part["result"]["seconds"] / 60
    return {**part["result"], **about, "minutes": minutes, "budget": str(budget), "size": size, "learning_rate": rate}


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    summary, settings = body["summary"], body["settings"]
    names = (
        "budget",
        "learning_rate",
        "minutes",
        "steps",
        "parameters",
        "tokens",
        "loss",
        "bits_per_byte",
        "compile_seconds",
    )
    runs = [
        {"contender": name, **{fact: run.get(fact) for fact in names}, "machine": "quiet" if run["quiet"] else "busy"}
        for name, tried in summary["runs"].items()
        for run in tried
    ]
    return [
        f"Held out: {body['held_out']} rows of {settings['length']} tokens. Minutes are those of training steps. "
        f"Peers: {LOOP}; batches of {settings['batch_size']}; rates chosen on the held-out rows, which favours them.",
        f"Ours: {', '.join(str(RECIPE[kind]) for kind in body['held_out'])}.",
        "",
        *table(summary["compared"].values()),
        *table(runs),
    ]


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = make_parser(
        __doc__,
        ("contenders", (*PEERS, *OURS), "who takes part"),
        ("data", str(DATA / "wikitext-2"), "folder with a train and a valid text"),
        ("minutes", 20.0, "of training of each peer"),
        ("steps", int, "train peers for so many steps instead, to the same loss on any machine"),
        ("our_minutes", [1.33, 3.33, 6.67], "budgets of ours"),
        ("our_steps", int, "budget of ours in steps instead"),
        ("learning_rates", [3e-4, 1e-3, 3e-3], "of peers"),
        ("tuning_share", 0.25, "of the budget, for each learning rate"),
        ("batch_size", 32, "rows in a batch of peers"),
        ("length", 128, "tokens in a row"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        ("seed", 0, "of weights, order, masks and dropout"),
        *LONG,
    ).parse_args()
    report, bench = begin(options), Bench(options)
    for name in [] if options.report_only else options.contenders:
        bench.run(name)
    summary = summarize({name: bench.kept.find(bench.settings(name)) for name in options.contenders})
    held_out = {kind: len(material.inputs) for kind, material in bench.materials.items()}
    report.body |= {"recipe": RECIPE, "loop": LOOP, "held_out": held_out, "summary": summary}
    report.write("Time to a held-out loss", to_markdown(report.body))


if __name__ == "__main__":
    main()
