"""What each technique is worth: the same run with and without it, scored on the same held-out rows.

    python benchmarks/ablations.py --objectives mlm --variants no_qk_norm --steps 20    # a laptop, some minutes
    python benchmarks/ablations.py --steps 1500 --seeds 0,1,2

The bases are a tiny encoder (mlm) and a tiny decoder (clm) with the settings `BASES`; `VARIANTS` says what each row
changes in them. Runs have equal steps, so that losses do not depend on how busy the machine is; with --minutes they
have equal time. Each result is kept under --work_dir, where the next run finds it.
"""

import argparse
import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import transformers
from harness import LONG, Kept, begin, difference, make_parser, table
from held_out import HEADS, OPTIONS, Kind, open_material, run_and_score
from tqdm import tqdm

from lacuna import modeling, tokenization
from lacuna.training.environment import bf16_is_fast

RATE = 6e-3
TRAINING = {"optimizer": "muon", "learning_rate": RATE, "batch_size": "64", "schedule": "wsd", "warmup_steps": 0.05}
TRAINING |= {"weight_decay": 0.01, "embedding_init": "random", "embedding_rate": 1, "compile": "on"}


@dataclass(frozen=True)
class Base:
    """A run to which others are compared: a tiny model of this family, with these options."""

    kind: Kind
    family: str
    options: dict[str, Any]


BASES = {
    "mlm": Base("masked", "lacuna", {**TRAINING, "mask_probability": "0.3"}),
    "clm": Base("causal", "qwen3", TRAINING),
}
BASE = "base"
COUNTS = {"embedding_init": "cooccurrence"}
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "decay": {"weight_decay": 0.1},
    "cooccurrence": COUNTS,
    "cooccurrence_slower": {**COUNTS, "embedding_rate": 0.3},
    "defaults": {**COUNTS, "embedding_rate": 0.3, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-3},
    "adamw_faster": {"optimizer": "adamw", "learning_rate": 3e-3},
    "rate_half": {"learning_rate": 0.5 * RATE},
    "rate_double": {"learning_rate": 2 * RATE},
    "schedule_linear": {"schedule": "linear"},
    "batch_ramp": {"batch_size": "32,64", "batch_size_at": "0,0.3"},
    "length_ramp": {"sequence_length": "64,128", "sequence_length_at": "0,0.5"},
    "mask_15": {"mask_probability": "0.15"},
    "no_qk_norm": {"qk_norm": False},
    "zero_init_residual": {"zero_init_residual": True},
    "plain_relu2": {"gated_mlp": False, "intermediate_size": 1024, "hidden_act": "relu2"},
}
"""What a variant changes: the model's configuration, and options of recipes/pretrain.py."""
OF_ENCODERS = {"mask_15", "mask_30_to_15"}


def split(study: str, variant: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a variant, where it differs from the family's, and the options of its run."""
    options = {**BASES[study].options, **VARIANTS[variant]}
    config = {name: options.pop(name) for name in list(options) if hasattr(modeling.LacunaConfig, name)}
    return config, options


class Study:
    """A base with its data: trains and scores variants of it."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options, self.base, self.kept = name, options, BASES[name], Kept(options.work_dir)
        self.limit = {"max_minutes": options.minutes} if options.minutes else {"max_steps": options.steps}
        self.material = open_material(self.base.kind, options)

    def settings(self, variant: str, **more: Any) -> dict[str, Any]:
        """All that decides a run of a variant; defaults that are not named here belong to the commit."""
        known = {"base": asdict(self.base), "material": self.material.fingerprint, "length": self.options.length}
        known |= {"precision": "bf16" if bf16_is_fast() else "float32", **self.limit}
        return {"ablation": self.name, **known, "changes": VARIANTS[variant], **more}

    def run(self, variant: str, *, seed: int) -> dict[str, Any]:
        """Make the model, train it with recipes/pretrain.py, and score it."""
        (changes, words), length = split(self.name, variant), self.options.length
        tokenizer = tokenization.load_tokenizer(str(self.material.tokenizer_dir))
        sizes = {"vocab_size": -(-len(tokenizer) // 64) * 64, "max_position_embeddings": max(length, 512)}
        ids = (f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep"))
        sizes |= {name: getattr(tokenizer, name) for name in ids}
        config = modeling.LacunaConfig.from_family(self.base.family, "tiny", **sizes, **changes)
        transformers.set_seed(seed)
        with tempfile.TemporaryDirectory(dir=self.options.work_dir) as folder:
            getattr(transformers, HEADS[self.base.kind]).from_config(config).save_pretrained(folder)
            words = {"sequence_length": length, **words, **self.limit, "objective": self.name, "seed": seed}
            words |= {"model": folder} if changes else {"family": self.base.family, "size": "tiny"}
            return run_and_score(words, self.material, self.options)

    def row(self, variant: str) -> dict[str, Any]:
        """What is known of a variant, and how its loss differs from the base's with the same seeds."""
        parts, base = self.kept.find(self.settings(variant)), self.kept.find(self.settings(BASE))
        results = {part["settings"]["seed"]: part["result"] for part in parts}
        bases = {part["settings"]["seed"]: part["result"]["loss"] for part in base}
        losses = {seed: results[seed]["loss"] for seed in self.options.seeds if seed in results}
        return {
            "study": self.name,
            "variant": variant,
            "what is changed": describe(VARIANTS[variant]),
            **{name: parts[-1]["result"][name] if parts else None for name in ("parameters", "tokens", "seconds")},
            "loss": statistics.fmean(losses.values()) if losses else None,
            "differences": [loss - bases[seed] for seed, loss in losses.items() if seed in bases],
            "machine": ("quiet" if all(part["quiet"] for part in parts) else "busy") if parts else None,
            "made at": ", ".join(sorted({part["commit"] for part in parts})),
        }


def describe(options: dict[str, Any]) -> str:
    """Options in one line."""
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "the base"


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people: the base first, then the best variant to the worst."""
    settings = body["settings"]
    limit = f"{settings['minutes']:g} minutes" if settings["minutes"] else f"{settings['steps']:,} steps"
    lines = [
        f"Runs of {limit}, seeds {settings['seeds']}; loss in nats on the held-out rows, less is better. Differences "
        "are from the base with the same seeds, smallest..largest where there are several.",
    ]
    for study, base in body["bases"].items():
        rows = [row for row in body["rows"] if row["study"] == study]
        rows.sort(key=lambda row: (row["variant"] != BASE, row["loss"] or float("inf")))
        lines += ["", f"## {study}", "", f"Base: {base['family']} tiny, {describe(base['options'])}.", ""]
        lines += table(
            {**{name: row[name] for name in row if name != "study"}, "differences": difference(row["differences"])}
            for row in rows
        )
    return lines


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = make_parser(
        __doc__,
        ("objectives", tuple(BASES), "bases"),
        ("variants", tuple(VARIANTS), "rows"),
        ("steps", 1500, "of each run"),
        ("minutes", float, "of each run instead, so that all have equal time"),
        ("seeds", [0], "with commas between"),
        *OPTIONS,
        *LONG,
    ).parse_args()
    report = begin(options)
    studies = [Study(name, options) for name in options.objectives]
    names = [BASE, *(name for name in options.variants if name != BASE)]
    chosen = [(study, name) for study in studies for name in names if study.name == "mlm" or name not in OF_ENCODERS]
    if not options.report_only:
        for seed in options.seeds:
            for study, name in (bar := tqdm(chosen, unit="run")):
                bar.set_postfix_str(f"{study.name} {name}, seed {seed}")
                title, work = f"{study.name}-{name}-seed{seed}", partial(study.run, name, seed=seed)
                study.kept.get(title, study.settings(name, seed=seed), work)
    rows = [study.row(name) for study, name in chosen]
    report.body |= {"bases": {study.name: asdict(study.base) for study in studies}, "rows": rows}
    report.write("Ablations", to_markdown(report.body))


if __name__ == "__main__":
    main()
