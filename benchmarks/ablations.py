"""What each technique is worth: one row with and without it, on the same data, scored on the same held-out rows.

    python benchmarks/ablations.py --objectives mlm --variants no_qk_norm --steps 20  # a laptop, some minutes
    python benchmarks/ablations.py --objectives mlm --threads 1 --steps 1500          # beside another one for clm
    python benchmarks/ablations.py --time                                             # on an idle machine
    python benchmarks/ablations.py --steps 1500 --seeds 0,1,2                         # more seeds, and equal time
    python benchmarks/ablations.py --steps 1500 --seeds 0,1,2 --report_only

The bases are a tiny encoder (mlm) and a tiny decoder (clm) with the settings `BASES`, the rows what `VARIANTS` changes
in them. All runs have equal steps, so that losses do not depend on how busy the machine is. `--time` measures
milliseconds of a step, of base and variant in turn in one process. Where these differ by more than 3 %, a later run
without --time trains the variant once more, for as many steps as the base's time allows: that is the loss at equal
time; elsewhere the loss at equal steps stands for it. Parts are kept in --parts_dir, by the settings that decide them,
and found there by the next run.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from clock import compare
from contenders import find_device
from held_out import Kind, open_material, score
from kept import LONG, Kept, begin, commits
from report import DATA, REPOSITORY, difference, make_parser, numbers, table
from tqdm import tqdm

from lacuna import corpus, modeling, tokenization, training
from lacuna.objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens
from lacuna.training.environment import bf16_is_fast

ENOUGH = 0.03
"""Difference of step times from which on a variant is trained once more for equal time."""
WARM_UP = 2
"""Steps of a timed run that are not counted; of each stage after the first one step is not."""
RATE = 6e-3
TRAINING = {"optimizer": "muon", "learning_rate": RATE, "batch_size": "64", "schedule": "wsd", "warmup_steps": 0.05}
TRAINING |= {"weight_decay": 0.01, "compile": "on"}


@dataclass(frozen=True)
class Base:
    """A run to which others are compared: a tiny model with these options.

    `document_boundary`: lines are documents where held-out lines have special tokens around them.
    """

    kind: Kind
    head: str
    family: str
    document_boundary: Literal["file", "line"]
    options: dict[str, Any]


BASES = {
    "mlm": Base("masked", "AutoModelForMaskedLM", "lacuna", "line", {**TRAINING, "mask_probability": "0.3"}),
    "clm": Base("causal", "AutoModelForCausalLM", "qwen3", "file", TRAINING),
}
BASE = "base"
WIDE = {"hidden_size": 512, "num_attention_heads": 8}
PLAIN = {"gated_mlp": False, "intermediate_size": 1024}
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-3},
    "adamw_faster": {"optimizer": "adamw", "learning_rate": 3e-3},
    "rate_half": {"learning_rate": 0.5 * RATE},
    "rate_double": {"learning_rate": 2 * RATE},
    "rate_quarter": {"learning_rate": 0.25 * RATE},
    "schedule_linear": {"schedule": "linear"},
    "schedule_cosine": {"schedule": "cosine"},
    "warmup_none": {"warmup_steps": 0},
    "warmup_long": {"warmup_steps": 0.15},
    "decay_all": {"decay_share": 1.0},
    "weight_decay_none": {"weight_decay": 0.0},
    "weight_decay_0.1": {"weight_decay": 0.1},
    "average_ema": {"average": "ema"},
    "average_tail": {"average": "tail"},
    "batch_ramp": {"batch_size": "32,64", "batch_size_at": "0,0.3"},
    "batch_32": {"batch_size": "32"},
    "length_ramp": {"sequence_length": "64,128", "sequence_length_at": "0,0.5"},
    "mask_15": {"mask_probability": "0.15"},
    "mask_30_to_15": {"mask_probability": "0.3,0.15"},
    "mask_only": {"mask_replace_prob": 1.0, "random_replace_prob": 0.0},
    "packing_best_fit": {"packing": "best_fit"},
    "packing_none": {"packing": "none"},
    "attention_across": {"across": True},
    "no_qk_norm": {"qk_norm": False},
    "zero_init_residual": {"zero_init_residual": True},
    "full_attention": {"layer_types": ["full_attention"] * 6},
    "gated_relu": {"hidden_act": "relu"},
    "gated_relu2": {"hidden_act": "relu2"},
    "gated_silu": {"hidden_act": "silu"},
    "gated_gelu": {"hidden_act": "gelu"},
    "plain_relu2": {**PLAIN, "hidden_act": "relu2"},
    "plain_gelu": {**PLAIN, "hidden_act": "gelu"},
    "dropout_0.1": {"embedding_dropout": 0.1, "hidden_dropout": 0.1},
    "norm_rms": {"norm_type": "rms_norm"},
    "norm_layer": {"norm_type": "layer_norm"},
    "embedding_norm": {"embedding_norm": True},
    "wide": WIDE,
    "wide_rate_half": {**WIDE, "learning_rate": 0.5 * RATE},
    "wide_rate_0.7": {**WIDE, "learning_rate": 0.7 * RATE},
    "untied": {"tie_word_embeddings": False},
    "z_loss": {"z_loss": 1e-4},
}
"""The options that a variant changes. Its name is also that of its parts on the disk."""
NOT_IN = {
    "clm": {"mask_15", "mask_30_to_15", "mask_only", "packing_best_fit", "packing_none", "attention_across"}
    | {"full_attention", "gated_silu", "norm_rms", "wide", "wide_rate_half", "wide_rate_0.7"},
    "mlm": {"gated_gelu", "norm_layer", "embedding_norm"},
}
"""Where a variant is the base itself, or nothing."""
SAME_SPEED = {BASE, "rate_half", "rate_double", "rate_quarter", "schedule_linear", "schedule_cosine", "warmup_none"}
SAME_SPEED |= {"warmup_long", "decay_all", "weight_decay_none", "weight_decay_0.1", "mask_only", "zero_init_residual"}
"""A step is the same work as in the base, so that its time need not be measured."""


def split(study: str, variant: str) -> dict[str, dict[str, Any]]:
    """The options of a base with the changes of a variant, by the part of a run that has an option of that name.

    `across` is our own: attention goes over the whole row, not only inside documents.
    """
    rooms = {"training": training.TrainingArguments, "objective": ObjectiveArguments}
    homes = {field.name: room for room, arguments in rooms.items() for field in fields(arguments)}
    parts: dict[str, dict[str, Any]] = {"config": {}, "training": {}, "objective": {}, "across": {}}
    for name, value in {**BASES[study].options, **VARIANTS[variant]}.items():
        parts["across" if name == "across" else homes.get(name, "config")][name] = value
    return parts


def across(kind: Any) -> Any:
    """The objective without what tells the documents of a row apart, so that attention takes each row for one text."""

    class Across(kind):
        def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            batch = super().collate(examples)
            del batch["position_ids"]
            return batch

    return Across


class Study:
    """A base with its data: trains, scores and times variants of it."""

    def __init__(self, name: str, options: argparse.Namespace, kept: Kept) -> None:
        self.name, self.options, self.base, self.kept = name, options, BASES[name], kept
        data, work_dir = Path(options.data), Path(options.work_dir)
        sizes = {"length": options.length, "vocab_size": options.vocab_size}
        self.material = open_material(kind=self.base.kind, data=data, work_dir=work_dir, **sizes)
        self.tokenizer = tokenization.load_tokenizer(str(self.material.tokenizer_dir))
        made_with = tokenization.tokenizer_fingerprint(self.tokenizer)
        boundary = self.base.document_boundary
        text = corpus.open_text(corpus.TextArguments(data=[str(self.material.train_file)], document_boundary=boundary))
        folder = work_dir / "corpora" / f"{text.fingerprint[:16]}-{made_with[:16]}"
        parts = {"tokenizer": self.tokenizer, "tokenizer_fingerprint": made_with, "output_dir": folder}
        self.store = corpus.prepare_store(text=text, **parts)

    def settings(self, variant: str, **more: Any) -> dict[str, Any]:
        """All that decides a run of a variant; defaults that are not named here belong to the commit."""
        precision = "bf16" if bf16_is_fast() else "float32"
        known = {"base": asdict(self.base), "material": self.material.fingerprint, "length": self.options.length}
        return {"ablation": self.name, **known, "precision": precision, "changes": VARIANTS[variant], **more}

    def train(self, variant: str, folder: str, *, steps: int, seed: int, **more: Any) -> dict[str, Any]:
        """Train a new model, as recipes/pretrain.py makes it, for each stage of row length; the results."""
        options, length = split(self.name, variant), self.options.length
        goal = ObjectiveArguments(
            objective=self.name, eval_fraction=0, **{"sequence_length": length, **options["objective"]}
        )
        kind = across(OBJECTIVES[self.name]) if options["across"] else OBJECTIVES[self.name]
        parts = {
            "store": self.store,
            "tokens": SpecialTokens.of(self.tokenizer),
            "byte_lengths": tokenization.token_byte_lengths(self.tokenizer),
            "token_edges": tokenization.token_edges(self.tokenizer),
        }
        work = [(at, kind(**parts, seed=seed, arguments=goal, sequence_length=size)) for at, size in goal.stages]
        transformers.set_seed(seed)
        special = ("pad", "bos", "eos", "cls", "sep")
        sizes = {"vocab_size": -(-len(self.tokenizer) // 64) * 64, "max_position_embeddings": max(length, 512)}
        ids = {f"{name}_token_id": getattr(self.tokenizer, f"{name}_token_id") for name in special}
        config = modeling.LacunaConfig.from_family(self.base.family, "tiny", **sizes, **ids, **options["config"])
        model = getattr(transformers, self.base.head).from_config(config)
        limits = {"max_steps": steps, "seed": seed, "eval_steps": 0, "save_steps": 0}
        arguments = training.TrainingArguments(output_dir=folder, **limits, **options["training"], **more)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return training.train(model=model, work=work, tokenizer=self.tokenizer, arguments=arguments)

    def score(self, variant: str, *, steps: int, seed: int) -> dict[str, Any]:
        """The held-out score of a variant after so many steps: of the model that was saved."""
        with tempfile.TemporaryDirectory(prefix="ablation-", dir=self.options.work_dir) as folder:
            results = self.train(variant, folder, steps=steps, seed=seed)
            kind: Any = getattr(transformers, self.base.head)
            model = kind.from_pretrained(folder, dtype=torch.float32).to(find_device())
        lines, over = self.base.document_boundary == "line", "across" in VARIANTS[variant]
        scores = {inside: score(model, self.material.held_out, inside_lines=inside) for inside in {False, lines}}
        return {
            **scores[lines and not over],
            **({"other_reading": scores[over]} if lines else {}),
            "steps": results["steps"],
            "tokens": results["train_tokens"],
            "seconds": results["train_seconds"],
            "parameters": model.num_parameters(),
        }

    def milliseconds(self, variant: str) -> float:
        """Of a step, a mean over the stages of a short run and a median within each."""
        steps = self.options.time_steps
        with tempfile.TemporaryDirectory(prefix="ablation-", dir=self.options.work_dir) as folder:
            self.train(variant, folder, steps=steps, seed=0, logging_steps=1)
            lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text("utf-8").splitlines()]
        ends = [0.0, *(line["seconds"] for line in lines if "seconds" in line and "event" not in line)]
        took = [1000 * (after - before) for before, after in pairwise(ends)]
        given = [VARIANTS[variant].get(name, "0") for name in ("batch_size_at", "sequence_length_at")]
        bounds = sorted({int(-(-float(share) * steps // 1)) for text in given for share in text.split(",")}) + [steps]
        total = 0.0
        for first, last in pairwise(bounds):
            counted = took[first + (1 if first else WARM_UP) : last] or took[first:last]
            total += (last - first) * statistics.median(counted) if counted else 0.0
        return total / steps

    def time(self, variant: str) -> dict[str, Any]:
        """Milliseconds of base and variant in turn, and the ratio within each round."""
        rounds = [[self.milliseconds(name) for name in (BASE, variant)] for _ in range(self.options.rounds)]
        base, theirs = zip(*rounds, strict=True)
        return {**compare(list(theirs), list(base)), "milliseconds_by_round": rounds}

    def make(self, variant: str, *, steps: int | None = None, seed: int = 0) -> None:
        """The part with the loss of a variant after so many steps; without them, with its step time."""
        if steps is None:
            given = {"timed": True, "time_steps": self.options.time_steps, "rounds": self.options.rounds}
            name, work = f"{self.name}-{variant}-time", partial(self.time, variant)
        else:
            given = {"steps": steps, "seed": seed}
            name = f"{self.name}-{variant}-{steps}steps-seed{seed}"
            work = partial(self.score, variant, **given)
        self.kept.get(name, self.settings(variant, **given), work, of=variant)

    def timed(self, variant: str) -> dict[str, Any] | None:
        """The newest part with the step time of a variant."""
        return (self.kept.find(self.settings(variant, timed=True)) or [None])[-1]

    def steps_in_time(self, variant: str) -> int | None:
        """Steps of a variant in the time of the base's; as many where times are nearly equal, None if unknown."""
        timed, steps = self.timed(variant), self.options.steps
        if variant not in SAME_SPEED and timed is None:
            return None
        ratio = timed["result"]["ratio"] if timed else 1.0
        return steps if abs(ratio - 1) <= ENOUGH else max(1, round(steps / ratio))

    def losses(self, variant: str, steps: int | None) -> list[dict[str, Any]]:
        """The parts that are there after so many steps, one for each seed."""
        found = {part["settings"]["seed"]: part for part in self.kept.find(self.settings(variant, steps=steps))}
        return [found[seed] for seed in self.options.seeds if seed in found]

    def row(self, variant: str) -> dict[str, Any]:
        """What is known of a variant, and how it differs from the base with the same seeds."""
        base = self.losses(BASE, self.options.steps)
        steps_in_time = self.steps_in_time(variant)
        equal_steps, equal_time = (self.losses(variant, steps) for steps in (self.options.steps, steps_in_time))
        return {
            "study": self.name,
            "variant": variant,
            "changes": describe(VARIANTS[variant]),
            "timed": self.timed(variant),
            "steps_in_time": steps_in_time,
            "equal_steps": differ(equal_steps, base),
            "equal_time": differ(equal_time, base),
            "parts": equal_steps + equal_time,
        }


def describe(options: dict[str, Any]) -> str:
    """Options in one line."""
    words = [
        f"{name} {value[0] + ' everywhere' if isinstance(value, list) else value}" for name, value in options.items()
    ]
    return ", ".join(words) or "the base"


def differ(parts: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Mean loss, and mean difference from the base over the seeds that both have; None without a part."""
    losses, bases = ({part["settings"]["seed"]: part["result"]["loss"] for part in each} for each in (parts, base))
    if not losses:
        return None
    differences = [loss - bases[seed] for seed, loss in losses.items() if seed in bases]
    return {"loss": statistics.fmean(losses.values()), "differences": differences}


def cells(row: dict[str, Any]) -> dict[str, Any]:
    """A variant for people."""
    timed, result = row["timed"], row["parts"][0]["result"] if row["parts"] else {}
    found = {"variant": row["variant"], "what is changed": row["changes"]}
    found |= {name: result.get(name) for name in ("parameters", "tokens")}
    for name in ("equal_steps", "equal_time"):
        facts = row[name] or {"loss": None, "differences": []}
        found |= {f"loss at {name}": facts["loss"], f"difference at {name}": difference(facts["differences"])}
    found["step time"] = "=" if row["variant"] in SAME_SPEED else timed and timed["result"]["ratio"]
    found["timed"] = timed and ("quiet" if timed["quiet"] else "busy")
    return {**found, "steps in equal time": row["steps_in_time"]}


def rank(row: dict[str, Any]) -> tuple[bool, float]:
    """Base first, then from the best variant to the worst, at equal time where that is known."""
    return row["variant"] != BASE, (row["equal_time"] or row["equal_steps"] or {"loss": float("inf")})["loss"]


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = body["settings"]
    lines = [
        f"Runs of {settings['steps']:,} steps, seeds {', '.join(map(str, settings['seeds']))}; loss in nats on the "
        "held-out rows, less is better. Differences are from the base with the same seeds, smallest..largest where "
        "there are several.",
        "",
        f"At equal time: a variant whose step takes more than 3 % longer or shorter was trained once more, for the "
        f"steps that fit into the time of {settings['steps']:,} steps of the base; where the times are nearly equal, "
        'the run of equal steps is meant. "=" marks step times that are equal because the work is, "busy" those that '
        "were measured beside other programs. What has no entry was not measured yet.",
    ]
    for study, base in body["bases"].items():
        about = f"Base: {base['family']} tiny, {describe(base['options'])}; documents are each "
        lines += ["", f"## {study}", "", f"{about}{base['document_boundary']}.", ""]
        lines += table(cells(row) for row in sorted(body["rows"], key=rank) if row["study"] == study)
    return [*lines, commits(part for row in body["rows"] for part in row["parts"])]


def main() -> None:
    """Parse, train what is not there yet, report."""
    parser = make_parser(
        __doc__,
        ("objectives", tuple(BASES), "bases"),
        ("variants", tuple(VARIANTS), "rows"),
        ("steps", 1500, "of each run"),
        ("time", False, "measure step times, and nothing else"),
        ("time_steps", 12, "steps of a timed run"),
        ("rounds", 3, "times that base and variant are timed in turn"),
        *LONG,
        ("data", str(DATA / "wikitext-2"), "folder with a train and a valid text"),
        ("length", 128, "tokens in a row"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
        ("work_dir", str(REPOSITORY / "runs" / "ablations"), "folder of tokenizer, rows and corpora"),
        ("parts_dir", str(REPOSITORY / "runs" / "ablations" / "parts"), "folder of single results"),
    )
    parser.add_argument("--seeds", type=numbers(int), default=[0], help="as 0,1,2 (0)")
    options = parser.parse_args()
    report = begin(__file__, options)
    kept = Kept(options.parts_dir, again=options.again)
    studies = [Study(name, options, kept) for name in options.objectives]
    names = [BASE, *(name for name in options.variants if name != BASE)]
    chosen = [(study, name) for study in studies for name in names if name not in NOT_IN[study.name]]
    jobs: list[tuple[Study, str, int | None, int]] = []
    if options.time:
        jobs = [(study, name, None, 0) for study, name in chosen if name not in SAME_SPEED]
    elif not options.report_only:
        jobs = [(study, name, options.steps, seed) for seed in options.seeds for study, name in chosen]
        more = [(study, name, study.steps_in_time(name), seed) for study, name, _, seed in jobs]
        jobs += [job for job in more if job[2] not in (None, options.steps)]
    for study, name, steps, seed in (bar := tqdm(jobs, unit="run")):
        bar.set_postfix_str(f"{study.name} {name}, {steps or 'timed'}, seed {seed}")
        study.make(name, steps=steps, seed=seed)
    rows = [study.row(name) for study, name in chosen]
    report.body |= {"bases": {study.name: asdict(study.base) for study in studies}, "rows": rows}
    report.write("Ablations", to_markdown(report.body))


if __name__ == "__main__":
    main()
