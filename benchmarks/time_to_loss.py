"""How long each model trains until it reaches a held-out loss: our recipe beside native models of transformers.

    python benchmarks/time_to_loss.py --contenders bert lacuna-mlm --steps 20 --our_steps 10 --search learning_rate
    python benchmarks/time_to_loss.py --contenders modernbert_muon qwen3_muon lacuna-mlm lacuna-clm    # 90 minutes
    python benchmarks/time_to_loss.py                                                                  # four hours
    python benchmarks/time_to_loss.py --report_only                                                    # what is there

WikiText-2 (`--data`: a folder with one train and one valid text), one tokenizer, trained on the train text. `PEERS`
says how each peer trains, on rows of `group_texts`. Settings with several values are searched one after the other
(--search): each value is tried for --tuning_share of the budget, and the best stays; the best of all get the whole
budget. Ours are whole runs of recipes/pretrain.py with the options `RECIPE`, one for each budget. All are scored in
float32 on the same held-out rows under the same mask; only training is timed. Each result is kept under --work_dir:
the benchmark may be stopped at any time, and goes on there.
"""

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from contenders import SIDE_BY_SIDE, Contender, Shape, Trainee
from harness import LONG, Kept, begin, make_parser, table
from held_out import BOUNDARIES, OPTIONS, Kind, Material, make_masker, open_material, run_and_score, score
from torch import Tensor, nn
from tqdm import tqdm

from lacuna.training.optimizers.optimizers import split_parameters

OURS: dict[str, Kind] = {"lacuna-mlm": "masked", "lacuna-clm": "causal"}
GOAL = 5.0  # times as fast as the best peer of a kind, to its loss
SHARED = {"size": "tiny", "optimizer": "muon", "learning_rate": 6e-3, "batch_size": 64}
RECIPE: dict[Kind, dict[str, Any]] = {
    "masked": {"objective": "mlm", "family": "lacuna", "document_boundary": BOUNDARIES["masked"], **SHARED},
    "causal": {"objective": "clm", "family": "qwen3", "document_boundary": BOUNDARIES["causal"], **SHARED},
}
# Of a tuple the first value holds until another one proves better. Rates rise for the share `warmup` of the run and
# fall linearly to zero over its last share `decay`.
TUNED: dict[str, Any] = {"learning_rate": (1e-3, 3e-4, 3e-3), "batch_size": (32, 64), "dropout": (0.0, 0.1)}
TUNED |= {"weight_decay": (0.01, 0.1), "warmup": 0.05, "decay": 0.95, "optimizer": "adamw", "beta2": 0.98}
ENCODER = {**TUNED, "mask_probability": (0.3, 0.15)}  # as ModernBERT was trained, and BERT
MUON = {"optimizer": "muon", "learning_rate": (6e-3, 3e-3, 1.2e-2), "decay": 0.5}
PEERS: dict[str, tuple[Contender, dict[str, Any]]] = {
    "bert": (SIDE_BY_SIDE["bert_compiled"], ENCODER),
    "modernbert": (SIDE_BY_SIDE["modernbert_compiled"], ENCODER),
    "modernbert_muon": (SIDE_BY_SIDE["modernbert_compiled"], {**ENCODER, **MUON}),
    "gpt2": (SIDE_BY_SIDE["gpt2_compiled"], {**TUNED, "beta2": 0.95}),
    "qwen3_muon": (SIDE_BY_SIDE["qwen3_compiled"], {**TUNED, **MUON, "beta2": 0.95}),
}
"""Models of transformers and their settings; all they share with nanochat and modded-nanogpt is Muon."""
SEARCHED = tuple(name for name, value in ENCODER.items() if isinstance(value, tuple))
WARM_UP = 4  # batches before the clock starts, for compiling; each has another number of targets
WIDTH, LAYERS, HEADS, TUNING_ROWS = 256, 6, 4, 512


def kind_of(name: str) -> Kind:
    return OURS.get(name) or ("causal" if PEERS[name][0].is_decoder else "masked")


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


def batches(material: Material, *, batch_size: int, seed: int, masked: float | None) -> Iterator[dict[str, Tensor]]:
    """Full batches of rows, in another order in each epoch, masked anew or with themselves as labels; without end."""
    generator = torch.Generator().manual_seed(seed)
    mask = make_masker(material.tokenizer, generator, masked or 0.15)
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(len(material.train), generator=generator)])
        rows, order = material.train[order[:batch_size]], order[batch_size:]
        inputs, labels = mask(rows) if material.kind == "masked" else (rows, rows)
        yield {"input_ids": inputs, "labels": labels}


def make_optimizers(model: nn.Module, settings: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for matrices and AdamW for the rest; embeddings, norms and biases do not decay."""
    matrices, rest = split_parameters(model)
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    adamw = partial(torch.optim.AdamW, lr=rate, betas=(0.9, settings["beta2"]), fused=True)
    if settings["optimizer"] == "adamw":
        return [adamw([{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}])]
    # Updates of AdamW's size, so that one rate serves both: https://arxiv.org/abs/2502.16982
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw(rest, weight_decay=0.0)]


def rate_share(done: float, *, warmup: float, decay: float) -> float:
    """The share of its highest value that the rate has when this share of the run is done."""
    return min(1.0, (done + 1e-3) / (warmup + 1e-3), (1 - done) / decay)


def train_peer(
    name: str, *, material: Material, budget: Budget, settings: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Train a peer, with first weights of its own, and score it on the held-out rows (None where it diverged)."""
    torch._dynamo.reset()  # models share their code, and its limit of compiled versions
    shape = Shape(WIDTH, LAYERS, HEADS, len(material.tokenizer), material.train.shape[1])
    options = {"dropout": settings["dropout"], "optimizers": partial(make_optimizers, settings=settings)}
    trainee = Trainee(PEERS[name][0], shape, seed=seed, own_weights=True, **options)
    data = batches(material, batch_size=settings["batch_size"], seed=seed, masked=settings.get("mask_probability"))
    began = time.perf_counter()
    for _ in range(WARM_UP if trainee.compiles else 0):
        trainee.use([next(data)])
        trainee.backward(trainee.batches[0])
        trainee.model.zero_grad()
    compile_seconds = time.perf_counter() - began
    step, tokens, seconds, loss = 0, 0, 0.0, 0.0
    with tqdm(total=100, desc=f"{name}, {settings['learning_rate']:g}, {budget}", unit="%", smoothing=0.05) as bar:
        while (done := budget.done(step=step, seconds=seconds)) < 1 and math.isfinite(loss):
            began = time.perf_counter()
            trainee.use([next(data)])
            share = rate_share(done, warmup=settings["warmup"], decay=settings["decay"])
            for group in (group for optimizer in trainee.optimizers for group in optimizer.param_groups):
                group["lr"] = settings["learning_rate"] * share
            loss = float(trainee.step(trainee.batches[0], max_norm=1.0))
            seconds += time.perf_counter() - began
            step, tokens = step + 1, tokens + trainee.batches[0]["input_ids"].numel()
            bar.update(round(100 * done) - bar.n)
    found = score(trainee.model, material) if math.isfinite(loss) else {"loss": None}
    made = {"steps": step, "tokens": tokens, "seconds": seconds, "compile_seconds": compile_seconds}
    return {**found, **trainee.describe(), **made}


class Bench:
    """The settings of all contenders, and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.kept = options, Kept(options.work_dir)
        kinds = sorted({kind_of(name) for name in options.contenders})
        self.materials = {kind: open_material(kind, options) for kind in kinds}
        self.budget = Budget(steps=options.steps) if options.steps else Budget(minutes=options.minutes)

    def settings(self, name: str) -> dict[str, Any]:
        """What all runs of a contender have in common."""
        options, kind = self.options, kind_of(name)
        found = {"contender": name, "material": self.materials[kind].fingerprint, "seed": options.seed}
        found["threads"] = torch.get_num_threads()  # they decide how far a run gets in its minutes
        return {**found, "recipe": {**RECIPE[kind], "sequence_length": options.length}} if name in OURS else found

    def part(self, name: str, budget: Budget, chosen: Any = None, rows: int | None = None) -> float:
        """One run, of a peer with these settings; its loss on the first held-out rows, infinite where it diverged."""
        settings, work = {**self.settings(name), "budget": vars(budget)}, partial(self.train_ours, name, budget)
        if chosen:
            settings |= {"peer": chosen, "rows": rows}
            held = self.materials[kind_of(name)]
            held = replace(held, inputs=held.inputs[:rows], labels=held.labels[:rows])
            given = {"budget": budget, "seed": self.options.seed, "material": held}
            work = partial(train_peer, name, settings=chosen, **given)
        return finite(self.kept.get(f"{name}-{budget}", settings, work)["result"]["loss"])

    def run(self, name: str) -> None:
        """Of ours a whole run for each budget; of a peer, find its settings, then train for the whole budget."""
        options = self.options
        if name in OURS:
            budgets = [Budget(minutes=minutes) for minutes in options.our_minutes]
            for budget in [Budget(steps=options.our_steps)] if options.our_steps else budgets:
                self.part(name, budget)
            return
        tried = {key: value for key, value in PEERS[name][1].items() if isinstance(value, tuple)}
        chosen = {**PEERS[name][1], **{key: values[0] for key, values in tried.items()}}
        for key in (key for key in options.search if key in tried):
            tuning = self.budget.scaled(options.tuning_share)
            losses = {value: self.part(name, tuning, {**chosen, key: value}, TUNING_ROWS) for value in tried[key]}
            chosen[key] = min(losses, key=lambda value: losses[value])
        self.part(name, self.budget, chosen)

    def train_ours(self, name: str, budget: Budget) -> dict[str, Any]:
        """One run of the recipe in a process of its own, and the score of the model that it saved."""
        limit = {"max_steps": budget.steps} if budget.steps else {"max_minutes": budget.minutes}
        words = {**self.settings(name)["recipe"], **limit, "seed": self.options.seed}
        return run_and_score(words, self.materials[OURS[name]], self.options)


def finite(loss: float | None) -> float:
    """A loss to compare: infinite where the run diverged."""
    return loss if loss is not None and math.isfinite(loss) else math.inf


def summarize(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The runs of each contender, and for each peer, the best of each kind first, its best run with the largest budget
    and our shortest one that reaches its loss."""
    runs = {name: sorted(map(flat, parts), key=lambda run: run["size"]) for name, parts in found.items() if parts}
    compared = []
    for name in (name for name in runs if name not in OURS):
        largest = [run for run in runs[name] if run["budget"] == runs[name][-1]["budget"]]
        peer = min(largest, key=lambda run: finite(run["loss"]))
        ours = [run for own, kind in OURS.items() if kind == kind_of(name) for run in runs.get(own, [])]
        ours.sort(key=lambda run: run["minutes"])
        reached = next((run for run in ours if finite(run["loss"]) <= finite(peer["loss"])), None)
        row = {"kind": kind_of(name), "peer": name, "its loss": peer["loss"], "its minutes": peer["minutes"]}
        row["our shortest run at or below it, minutes"] = reached and reached["minutes"]
        row |= {"its end": reached and reached["loss"], "goal": None, "met": None}
        row["faster by"] = reached and peer["minutes"] / reached["minutes"]
        compared.append({**row, "our best loss": min((finite(run["loss"]) for run in ours), default=None)})
    compared.sort(key=lambda row: (row["kind"] == "causal", finite(row["its loss"])))
    for best in {row["kind"]: row for row in reversed(compared)}.values():
        best |= {"goal": GOAL, "met": "yes" if (best["faster by"] or 0) >= GOAL else "no"}
    return {"runs": runs, "compared": compared}


def flat(part: dict[str, Any]) -> dict[str, Any]:
    """A run with its settings; by `size` it is sorted, minutes after steps."""
    budget = Budget(**part["settings"]["budget"])
    about = {name: part[name] for name in ("quiet", "commit", "made")} | part["settings"].get("peer", {})
    about |= {"size": [bool(budget.minutes), budget.steps or budget.minutes], "budget": str(budget)}
    return {**part["result"], **about, "minutes": part["result"]["seconds"] / 60}


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people: the best peers first, then all runs."""
    summary, length = body["summary"], body["settings"]["length"]
    names = ("budget", *SEARCHED, "minutes", "steps", "parameters", "precision", "tokens", "loss", "bits_per_byte")
    runs = [
        {"contender": name, **{fact: run.get(fact) for fact in names}, "compiling, s": run.get("compile_seconds")}
        | {"machine": "quiet" if run["quiet"] else "busy"}
        for name, tried in summary["runs"].items()
        for run in tried
    ]
    peers = []
    for name, (_, settings) in PEERS.items():
        if tried := summary["runs"].get(name):
            values = {key: sorted({run[key] for run in tried}) for key in SEARCHED if key in settings}
            searched = {key: them if len(them) > 1 else them[0] for key, them in values.items()}
            peers.append({"peer": name, **settings, **searched})
    return [
        f"Held out: {body['held_out']} rows of {length} tokens. Minutes are those of training steps. The goal is for "
        f"the best peer of each kind. Settings of peers were chosen on {TUNING_ROWS} of these rows, in their favour.",
        "",
        *table(summary["compared"]),
        *table(runs),
        *("Peers, with gradients clipped at 1; of several values, smallest and largest:", "", *table(peers)),
        *("Ours:", "", *table(RECIPE.values())),
    ]


def main() -> None:
    options = make_parser(
        __doc__,
        ("contenders", (*PEERS, *OURS), "who takes part"),
        ("minutes", 20.0, "of training of each peer"),
        ("steps", int, "train peers for so many steps instead, to the same loss on any machine"),
        ("our_minutes", [4.0, 7.0, 10.0], "budgets of ours"),
        ("our_steps", int, "budget of ours in steps instead"),
        ("search", SEARCHED, "settings of peers that are searched"),
        ("tuning_share", 0.05, "of the budget, for each value that is tried"),
        ("seed", 0, "of weights, order, masks and dropout"),
        *OPTIONS,
        *LONG,
    ).parse_args()
    report, bench = begin(options), Bench(options)
    for name in [] if options.report_only else options.contenders:
        bench.run(name)
    summary = summarize({name: bench.kept.find(bench.settings(name)) for name in options.contenders})
    report.body |= {"recipe": RECIPE, "summary": summary}
    report.body["held_out"] = {kind: len(material.inputs) for kind, material in bench.materials.items()}
    report.write("Time to a held-out loss", to_markdown(report.body))


if __name__ == "__main__":
    main()
