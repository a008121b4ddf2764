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
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from contenders import DROPOUT, PEERS, Shape, Trainee, find_device
from held_out import HeldOut, Kind, Material, make_collator, mask_rows, open_material, score
from kept import LONG, Kept, begin, finite, run_recipe
from matplotlib.figure import Figure
from report import DATA, REPOSITORY, make_parser, numbers, table
from torch import Tensor
from tqdm import tqdm

from lacuna import modeling  # noqa: F401  (teaches the Auto classes our models)

OURS: dict[str, Kind] = {"lacuna-mlm": "masked", "lacuna-clm": "causal"}
GOALS = {"bert": 15.0, "modernbert": 3.0, "gpt2": 6.0}
"""How many times as fast as each peer our recipe is meant to reach the peer's loss."""
SHARED = {"size": "tiny", "optimizer": "muon", "learning_rate": 6e-3, "batch_size": 64}
RECIPE: dict[Kind, dict[str, Any]] = {
    "masked": {"objective": "mlm", "family": "lacuna", "document_boundary": "line", **SHARED},
    "causal": {"objective": "clm", "family": "qwen3", "document_boundary": "file", **SHARED},
}
"""Options of our runs. Lines are documents where held-out lines have special tokens around them."""
ASIDE = {"eval_fraction": 0, "eval_steps": 0}
"""Nothing of the train text is held out, and nothing evaluated: that is done here."""
AUTO = {"masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
TITLES = {"masked": "masked tokens", "causal": "next tokens"}
LOOP = {
    "optimizer": "AdamW, betas 0.9 and 0.999, no weight decay",
    "schedule": "linear to zero, no warm-up",
    "max_grad_norm": 1.0,
    "masking": "15 % drawn anew in each epoch, 80/10/10",
    "dropout": DROPOUT["time_to_loss"],
}
"""What `train_peer` does, for reports and for the hash of a part; its code says the same."""
WIDTH, LAYERS, HEADS, POSITIONS = 256, 6, 4, 512


def kind_of(name: str) -> Kind:
    """What a contender learns."""
    return OURS.get(name) or ("causal" if PEERS[name].is_decoder else "masked")


@dataclass(frozen=True)
class Budget:
    """How long a run trains: by the clock, or a number of steps."""

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
        if self.steps:
            return Budget(steps=max(1, round(share * self.steps)))
        return Budget(minutes=share * (self.minutes or 0))

    def options(self) -> dict[str, Any]:
        """As options of a recipe."""
        return {"max_steps": self.steps} if self.steps else {"max_minutes": self.minutes}

    def __str__(self) -> str:
        return f"{self.steps}steps" if self.steps else f"{self.minutes:g}min"


def batches(material: Material, *, batch_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Rows in another order in each epoch, masked anew or with themselves as labels; without end."""
    generator = torch.Generator().manual_seed(seed)
    collator = make_collator(material.tokenizer, generator)
    while True:
        for chosen in torch.randperm(len(material.train), generator=generator).split(batch_size):
            inputs = labels = material.train[chosen]
            if material.kind == "masked":
                inputs, labels = mask_rows(inputs, collator=collator, special=material.special)
            yield {"input_ids": inputs, "labels": labels}


def train_peer(
    name: str,
    *,
    material: Material,
    budget: Budget,
    learning_rate: float,
    batch_size: int,
    seed: int,
    points: int,
    subset: HeldOut,
) -> dict[str, Any]:
    """Train a peer, with first weights of its own, and score it on the held-out rows (None where it diverged).

    On the way it is scored on `subset` so many times, evenly spread over the budget: the `curve`.
    """
    shape = Shape(WIDTH, LAYERS, HEADS, len(material.tokenizer), max(material.train.shape[1], POSITIONS))
    settings = {"lr": learning_rate, "betas": (0.9, 0.999), "weight_decay": 0.0}
    trainee = Trainee(PEERS[name], shape, dropout=DROPOUT["time_to_loss"], seed=seed, own_weights=True, **settings)
    data = batches(material, batch_size=batch_size, seed=seed)
    step, tokens, seconds, first, diverged = 0, 0, 0.0, 0.0, False
    curve: list[dict[str, float]] = []
    with tqdm(total=100, desc=f"{name}, {learning_rate:g}, {budget}", unit="%", smoothing=0.05) as bar:
        while (done := budget.done(step=step, seconds=seconds)) < 1 and not diverged:
            began = time.perf_counter()
            trainee.use([next(data)])
            for group in trainee.optimizer.param_groups:
                group["lr"] = learning_rate * (1 - done)
            loss = float(trainee.step(trainee.batches[0], max_norm=LOOP["max_grad_norm"]))
            diverged = not math.isfinite(loss)
            seconds += time.perf_counter() - began
            step, tokens = step + 1, tokens + trainee.batches[0]["input_ids"].numel()
            first = first or seconds
            done = budget.done(step=step, seconds=seconds)
            bar.update(min(100, round(100 * done)) - bar.n)
            if done * points >= len(curve) + 1 and not diverged:
                found = score(trainee.model, subset)
                curve.append({"step": step, "minutes": seconds / 60, "train_loss": loss, **found})
    unknown = dict.fromkeys(("loss", "bits_per_byte", "accuracy"))
    facts = {name: trainee.describe()[name] for name in ("parameters", "precision")}
    facts |= {"steps": step, "tokens": tokens, "seconds": seconds, "first_step_seconds": first, "curve": curve}
    return {**(unknown if diverged else score(trainee.model, material.held_out)), **facts}


class Bench:
    """The settings of all contenders, and their parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kept = options, Kept(Path(options.output_dir, "parts"), again=options.again)
        sizes = {"length": options.length, "vocab_size": options.vocab_size}
        places = {"data": Path(options.data), "work_dir": Path(options.work_dir)}
        kinds = sorted({kind_of(name) for name in options.contenders})
        self.materials = {kind: open_material(kind=kind, **places, **sizes) for kind in kinds}
        self.subsets = {kind: each.held_out.subset(options.point_rows) for kind, each in self.materials.items()}
        self.budget = Budget(steps=options.steps) if options.steps else Budget(minutes=options.minutes)

    def settings(self, name: str, budget: Budget | None = None, **more: Any) -> dict[str, Any]:
        """What all runs of a contender have in common; of one run, the number of cores where the clock decides."""
        options, kind = self.options, kind_of(name)
        found = {"contender": name, "material": self.materials[kind].fingerprint, "seed": options.seed}
        found |= {"point_rows": len(self.subsets[kind].inputs), **more}
        if name in OURS:
            found |= {"points": options.our_points, "recipe": {**RECIPE[kind], "sequence_length": options.length}}
        else:
            found |= {"points": options.points, "batch_size": options.batch_size, "loop": LOOP}
        if budget:
            found |= {"budget": vars(budget), **({"threads": torch.get_num_threads()} if budget.minutes else {})}
        return found

    def found(self, name: str) -> list[dict[str, Any]]:
        """All parts of a contender with the present settings, whatever their rates and budgets."""
        threads = torch.get_num_threads()
        return [
            part for part in self.kept.find(self.settings(name)) if part["settings"].get("threads", threads) == threads
        ]

    def part(self, name: str, budget: Budget, learning_rate: float | None = None) -> float:
        """One run; its loss."""
        options, kind = self.options, kind_of(name)
        more = {} if learning_rate is None else {"learning_rate": learning_rate}
        if learning_rate is None:
            work = partial(self.train_ours, name, budget)
        else:
            given = {"material": self.materials[kind], "subset": self.subsets[kind], "batch_size": options.batch_size}
            given |= {"seed": options.seed, "points": options.points, "learning_rate": learning_rate}
            work = partial(train_peer, name, budget=budget, **given)
        title = "-".join([name, *(f"{rate:g}" for rate in more.values()), str(budget)])
        result = self.kept.get(title, self.settings(name, budget, **more), work, of=name)["result"]
        loss = "diverged" if result["loss"] is None else f"loss {result['loss']:.4f}"
        print(f"{title}: {loss}, {result['steps']:,} steps in {result['seconds'] / 60:.2f} min", flush=True)
        return finite(result["loss"])

    def run(self, name: str) -> None:
        """A whole run of ours for each budget; of a peer, find the learning rate, then train for the whole budget."""
        options = self.options
        if name in OURS:
            steps = [Budget(steps=count) for count in options.our_steps]
            for budget in steps or [Budget(minutes=length) for length in options.our_minutes]:
                self.part(name, budget)
            return
        share = self.budget.scaled(options.tuning_share)
        tuning = Budget(steps=options.tuning_steps) if options.tuning_steps else share
        rates = options.learning_rates
        if len(rates) > 1 or options.tune_only:
            tried = {rate: self.part(name, tuning, rate) for rate in rates}
            rates = sorted(tried, key=lambda rate: tried[rate])
        if not options.tune_only:
            self.part(name, self.budget, rates[0])

    def train_ours(self, name: str, budget: Budget) -> dict[str, Any]:
        """One run of the recipe in a process of its own, and the score of the model that it saved."""
        options, kind = self.options, OURS[name]
        material, count = self.materials[kind], options.our_points
        inside = RECIPE[kind]["document_boundary"] == "line"
        words = {**self.settings(name)["recipe"], **ASIDE, **budget.options(), "seed": options.seed}
        words |= {"save_steps": 1 / count, "keep_checkpoints": count + 1} if count > 1 else {"save_steps": 0}
        words |= {"data": material.train_file, "tokenizer": material.tokenizer_dir}
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=options.work_dir) as place:
            folder = Path(place, "run")
            results = run_recipe("pretrain", {**words, "output_dir": folder})
            assert results is not None
            ends = {checkpoint: progress(checkpoint) for checkpoint in sorted(folder.glob("checkpoints/step-*"))[:-1]}
            ends[folder] = {"step": results["steps"], "minutes": results["train_seconds"] / 60}
            curve = [
                {**end, **score(load(saved, kind), self.subsets[kind], inside_lines=inside)}
                for saved, end in ends.items()
            ]
            model = load(folder, kind)
        set_up = {name: results[name] for name in ("compile_seconds", "warmup_seconds") if name in results}
        return {
            **score(model, material.held_out, inside_lines=inside),
            **({"across_lines": score(model, material.held_out)} if inside else {}),
            **{"steps": results["steps"], "tokens": results["train_tokens"], "seconds": results["train_seconds"]},
            **set_up,
            "around_seconds": results["wall_seconds"] - results["train_seconds"],
            "parameters": model.num_parameters(),
            "curve": curve,
        }


def load(folder: Path, kind: Kind) -> Any:
    """A saved model in float32."""
    return getattr(transformers, AUTO[kind]).from_pretrained(folder, dtype=torch.float32).to(find_device())


def progress(checkpoint: Path) -> dict[str, float]:
    """Where a run stood at a checkpoint."""
    found = json.loads(Path(checkpoint, "training_state", "progress.json").read_text(encoding="utf-8"))
    return {"step": found["step"], "minutes": found["seconds"] / 60}


def summarize(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The best run of each peer with its largest budget, all of ours, and how much faster these are."""
    ours = {name: sorted(map(flat, found[name]), key=lambda run: run["minutes"]) for name in OURS if found.get(name)}
    peers, compared = {}, {}
    for name, parts in found.items():
        if name in OURS or not parts:
            continue
        tried = sorted(map(flat, parts), key=lambda run: (run["size"], run["learning_rate"]))
        largest = max(run["size"] for run in tried)
        peer = min((run for run in tried if run["size"] == largest), key=lambda run: finite(run["loss"]))
        peers[name] = {**peer, "tried": tried}
        runs = next((ours[own] for own in ours if OURS[own] == kind_of(name)), [])
        reached = next((run for run in runs if finite(run["loss"]) <= finite(peer["loss"])), None)
        ratio = peer["minutes"] / max(reached["minutes"], 1e-9) if reached else None
        best = min((finite(run["loss"]) for run in runs), default=None)
        compared[name] = {"reached_by": reached, "ratio": ratio, "our_best_loss": best}
        compared[name]["met"] = ratio is not None and ratio >= GOALS[name]
    return {"peers": peers, "ours": ours, "compared": compared}


def flat(part: dict[str, Any]) -> dict[str, Any]:
    """A run without its settings, but for what was tried; the clock counts as more than steps do."""
    budget, rate = Budget(**part["settings"]["budget"]), part["settings"].get("learning_rate")
    size = [bool(budget.minutes), budget.steps or budget.minutes]
    about = {name: part[name] for name in ("quiet", "busy_cores", "commit", "made")}
    minutes = part["result"]["seconds"] / 60
    return {**part["result"], **about, "minutes": minutes, "budget": str(budget), "size": size, "learning_rate": rate}


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    summary, settings = body["summary"], body["settings"]
    scored = ", ".join(f"{facts['rows']:,} rows of {TITLES[kind]}" for kind, facts in body["held_out"].items())
    every = {**summary["ours"], **{name: peer["tried"] for name, peer in summary["peers"].items()}}
    runs = [
        {
            "contender": name,
            **{fact: run[fact] for fact in ("budget", "learning_rate", "minutes", "steps", "parameters", "tokens")},
            **{fact: run[fact] for fact in ("loss", "bits_per_byte")},
            "machine": "quiet" if run["quiet"] else f"busy ({run['busy_cores']:.1f} cores)",
        }
        for name, tried in every.items()
        for run in tried
    ]
    compared = []
    for name, facts in summary["compared"].items():
        peer, ours = summary["peers"][name], facts["reached_by"]
        row = {"peer": name, "its loss": peer["loss"], "its minutes": peer["minutes"]}
        row |= {"our shortest run at or below it, minutes": ours["minutes"], "its end": ours["loss"]} if ours else {}
        row |= {"faster by": facts["ratio"], "goal": GOALS[name], "met": "yes" if facts["met"] else "no"}
        compared.append({**row, "our best loss": facts["our_best_loss"]})
    options = [" ".join(f"--{name} {value}" for name, value in RECIPE[kind].items()) for kind in body["held_out"]]
    return [
        f"Held out: {scored}, {settings['length']} tokens each; masked ones under one mask for all (15 %, 80/10/10). "
        "Minutes are those of training steps; scoring, imports, tokenizing and compiling are not in them. Peers: "
        f"batches of {settings['batch_size']}, {LOOP['optimizer']}, {LOOP['schedule']}; rates were chosen on the "
        "held-out rows, which favours them.",
        "",
        *table(compared),
        *table(runs),
        f"Options of our recipe: {'; '.join(options)}.",
        "",
        f"![loss against minutes]({body['picture']})",
    ]


def draw(summary: dict[str, Any], path: Path) -> None:
    """Loss on a part of the held-out rows against minutes of training, a panel for each kind.

    A line of a peer is one run on its way. Ours are the ends of whole runs, each with its schedule complete.
    """
    names = [*summary["peers"], *summary["ours"]]
    kinds = [kind for kind in TITLES if any(kind_of(name) == kind for name in names)] or ["masked"]
    figure = Figure(figsize=(5.5 * len(kinds), 4.5), dpi=120, layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for name in (name for name in names if kind_of(name) == kind):
            if name in OURS:
                points, label = [run["curve"][-1] for run in summary["ours"][name]], f"{name}, whole runs"
            else:
                run = summary["peers"][name]
                points, label = run["curve"], f"{name}, learning rate {run['learning_rate']:g}"
            minutes, losses = ([point[of] for point in points] for of in ("minutes", "loss"))
            axes.plot(minutes, losses, linewidth=1.8, marker="o", markersize=4, label=label)
        axes.set(title=TITLES[kind], xlabel="minutes of training", ylabel="held-out loss (nats)", xscale="log")
        low, high = axes.get_xlim()
        ticks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
        axes.set_xticks([tick for tick in ticks if low <= tick <= high])  # all minor ones would run into each other
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path)


def parse() -> argparse.Namespace:
    """The options; every one has a default."""
    parser = make_parser(
        __doc__,
        ("contenders", (*PEERS, *OURS), "who takes part"),
        ("data", str(DATA / "wikitext-2"), "folder with a train and a valid text"),
        ("minutes", 20.0, "of training of each peer"),
        ("steps", int, "train peers for so many steps instead, to the same loss on any machine"),
        ("tuning_share", 0.25, "of the budget, for each learning rate"),
        ("tuning_steps", int, "compare learning rates by so many steps instead"),
        ("tune_only", False, "stop when learning rates are compared"),
        ("batch_size", 32, "rows in a batch of peers"),
        ("length", 128, "tokens in a row"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        ("points", 10, "times that peers are scored on the way"),
        ("point_rows", 256, "held-out rows of these scores"),
        *LONG,
        ("work_dir", str(REPOSITORY / "runs" / "time_to_loss"), "folder of tokenizers"),
    )
    add = parser.add_argument
    add("--our_minutes", type=numbers(float), default=[1.33, 3.33, 6.67], help="budgets of ours (1.33,3.33,6.67)")
    add("--our_steps", type=numbers(int), default=[], help="budgets of ours in steps instead")
    add("--our_points", type=int, default=0, help="checkpoints of ours that are scored; they take a little time (0)")
    add("--learning_rates", type=numbers(float), default=[3e-4, 1e-3, 3e-3], help="of peers (3e-4,1e-3,3e-3)")
    add("--seed", type=int, default=0, help="of weights, order, masks and dropout (0)")
    options = parser.parse_args()
    if not 0 < options.tuning_share <= 1:
        parser.error(f"--tuning_share must be above 0 and at most 1, got {options.tuning_share}")
    return options


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    report = begin(__file__, options)
    bench = Bench(options)
    for name in [] if options.report_only else options.contenders:
        bench.run(name)
    if options.tune_only:
        return
    found = {name: bench.found(name) for name in options.contenders}
    held_out = {
        kind: {"rows": len(material.held_out.inputs), "fingerprint": material.fingerprint}
        for kind, material in bench.materials.items()
    }
    picture = report.path(".png")
    report.body |= {"recipe": RECIPE, "loop": LOOP, "held_out": held_out, "picture": picture.name}
    report.body |= {"summary": summarize(found), "parts": found}
    draw(report.body["summary"], picture)
    report.write("Time to a held-out loss", to_markdown(report.body))


if __name__ == "__main__":
    main()
