"""What each technique is worth: one row with and without it, on the same data, scored on the same held-out rows.

    python benchmarks/ablations.py --objectives mlm --variants no_qk_norm --steps 20  # a laptop, some minutes
    python benchmarks/ablations.py --objectives mlm --threads 1 --steps 1500          # beside another one for clm
    python benchmarks/ablations.py --time                                             # on an idle machine
    python benchmarks/ablations.py --steps 1500 --seeds 0,1,2                         # more seeds, and equal time
    python benchmarks/ablations.py --steps 1500 --seeds 0,1,2 --report_only

The bases are a tiny encoder (mlm) and a tiny decoder (clm) with the settings `BASES` in variants.py, the rows what
`VARIANTS` there changes in them. All runs have equal steps, so that losses do not depend on how busy the machine is.
`--time` measures milliseconds of a step, of base and variant in turn in one process. Where these differ by more than
3 %, a later run without --time trains the variant once more, for as many steps as the base's time allows: that is the
loss at equal time; elsewhere the loss at equal steps stands for it. Parts are kept in --parts_dir, by the settings
that decide them, and found there by the next run.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from ablation_report import summarize, to_markdown
from held_out import Material, default_data, find_device, open_material, score
from parts import read_parts, run_part, use_cores
from reports import REPOSITORY, describe_machine, positive, write_report
from tqdm import tqdm
from variants import BASES, NOTHING, VARIANTS, Variant

from lacuna import corpus, modeling, tokenization, training
from lacuna.objectives import OBJECTIVES, ObjectiveArguments, SpecialTokens
from lacuna.training.environment import bf16_is_fast

ENOUGH = 0.03
"""Difference of step times from which on a variant is trained once more for equal time."""
WARM_UP = 2
"""Steps of a timed run that are not counted; of each stage after the first one step is not."""


class Study:
    """A base with its data: trains, scores and times variants of it."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options, self.base = name, options, BASES[name]
        data, work_dir = Path(options.data), Path(options.work_dir)
        self.material: Material = open_material(
            kind=self.base.kind, data=data, work_dir=work_dir, length=options.length, vocab_size=options.vocab_size
        )
        self.tokenizer = tokenization.load_tokenizer(str(self.material.tokenizer_dir))
        made_with = tokenization.tokenizer_fingerprint(self.tokenizer)
        text = corpus.open_text(
            corpus.TextArguments(data=[str(self.material.train_file)], document_boundary=self.base.document_boundary)
        )
        folder = work_dir / "corpora" / f"{text.fingerprint[:16]}-{made_with[:16]}"
        self.store = corpus.prepare_store(
            text=text, tokenizer=self.tokenizer, tokenizer_fingerprint=made_with, output_dir=folder
        )

    def settings(self, variant: Variant, **more: Any) -> dict[str, Any]:
        """All that decides a run of a variant; defaults that are not named here belong to the commit."""
        precision = "bf16" if bf16_is_fast() else "float32"
        known = {"base": asdict(self.base), "material": self.material.fingerprint, "length": self.options.length}
        return {"ablation": self.name, **known, "precision": precision, "changes": variant.changes(), **more}

    def works(self, variant: Variant, seed: int) -> list[tuple[float, Any]]:
        """What is learned, for each stage of row length."""
        changes = {"sequence_length": self.options.length, **self.base.objective, **variant.objective}
        goal = ObjectiveArguments(objective=self.name, eval_fraction=0, **changes)  # type: ignore[arg-type]
        parts = {
            "store": self.store,
            "tokens": SpecialTokens.of(self.tokenizer),
            "byte_lengths": tokenization.token_byte_lengths(self.tokenizer),
            "token_edges": tokenization.token_edges(self.tokenizer),
            "seed": seed,
            "arguments": goal,
        }
        kind: Any = OBJECTIVES[self.name]
        kind = reading_across(kind) if variant.across else kind
        return [(at, kind(**parts, sequence_length=length)) for at, length in goal.stages]

    def model(self, variant: Variant, seed: int) -> Any:
        """A new model, as recipes/pretrain.py makes it."""
        transformers.set_seed(seed)
        ids = {f"{name}_token_id": getattr(self.tokenizer, f"{name}_token_id") for name in _SPECIAL}
        config = modeling.LacunaConfig.from_family(
            self.base.family,
            self.base.size,
            vocab_size=-(-len(self.tokenizer) // 64) * 64,
            max_position_embeddings=max(self.options.length, 512),
            **ids,
            **{**self.base.config, **variant.config},
        )
        return getattr(transformers, self.base.head).from_config(config)

    @contextlib.contextmanager
    def trained(
        self, variant: Variant, *, steps: int, seed: int, **more: Any
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Train a variant; the folder with what the run wrote, and its results."""
        with tempfile.TemporaryDirectory(prefix="ablation-", dir=self.options.work_dir) as folder:
            arguments = training.TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                seed=seed,
                eval_steps=0,
                save_steps=0,
                **{**self.base.training, **variant.training, **more},
            )
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                results = training.train(
                    model=self.model(variant, seed),
                    work=self.works(variant, seed),
                    tokenizer=self.tokenizer,
                    arguments=arguments,
                )
            yield Path(folder), results

    def run(self, variant: Variant, *, steps: int, seed: int) -> dict[str, Any]:
        """The held-out score of a variant after so many steps: of the model that was saved."""
        with self.trained(variant, steps=steps, seed=seed) as (folder, results):
            kind: Any = getattr(transformers, self.base.head)
            model = kind.from_pretrained(folder, dtype=torch.float32).to(find_device())
        lines = self.base.document_boundary == "line"
        scores = {inside: score(model, self.material.held_out, inside_lines=inside) for inside in {False, lines}}
        return {
            **scores[lines and not variant.across],
            **({"other_reading": scores[variant.across]} if lines else {}),
            "steps": results["steps"],
            "tokens": results["train_tokens"],
            "seconds": results["train_seconds"],
            "parameters": model.num_parameters(),
        }

    def milliseconds(self, variant: Variant) -> float:
        """Of a step, a mean over the stages of a short run and a median within each."""
        steps = self.options.time_steps
        with self.trained(variant, steps=steps, seed=0, logging_steps=1) as (folder, _):
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        ends = [0.0, *(line["seconds"] for line in lines if "seconds" in line and "event" not in line)]
        took = [1000 * (after - before) for before, after in pairwise(ends)]
        given = [variant.training.get("batch_size_at", "0"), variant.objective.get("sequence_length_at", "0")]
        shares = sorted({float(share) for text in given for share in text.split(",")})
        bounds = [-(-share * steps // 1) for share in shares] + [steps]
        total = 0.0
        for first, last in pairwise(map(int, bounds)):
            counted = took[first + (1 if first else WARM_UP) : last] or took[first:last]
            total += (last - first) * statistics.median(counted) if counted else 0.0
        return total / steps

    def time(self, variant: Variant) -> dict[str, Any]:
        """Milliseconds of base and variant in turn, and the ratio within each round."""
        rounds = [
            (self.milliseconds(VARIANTS[NOTHING]), self.milliseconds(variant)) for _ in range(self.options.rounds)
        ]
        ratios = [theirs / base for base, theirs in rounds]
        return {"ratio": statistics.median(ratios), "ratios": ratios, "milliseconds_by_round": rounds}


_SPECIAL = ("pad", "bos", "eos", "cls", "sep")


def reading_across(kind: type) -> type:
    """The objective without what tells the documents of a row apart."""

    class Across(kind):
        """Its rows come without positions, so that attention takes each for one text."""

        def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            """Examples as tensors, without positions."""
            batch = super().collate(examples)
            batch.pop("position_ids")
            return batch

    return Across


class Ablations:
    """All studies and the folder of their parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, Path(options.parts_dir)
        self.studies = {name: Study(name, options) for name in options.objectives}

    def chosen(self) -> list[tuple[str, str]]:
        """Names of study and variant; the base always takes part."""
        wanted = [NOTHING, *(name for name in self.options.variants if name != NOTHING)]
        return [(study, name) for study in self.studies for name in wanted if study in VARIANTS[name].of]

    def loss(self, study: str, name: str, *, steps: int, seed: int) -> dict[str, Any]:
        """The part with the held-out score of a variant."""
        variant = VARIANTS[name]
        return run_part(
            folder=self.folder,
            name=f"{study}-{name}-{steps}steps-seed{seed}",
            settings=self.studies[study].settings(variant, steps=steps, seed=seed),
            work=partial(self.studies[study].run, variant, steps=steps, seed=seed),
            again=name in self.options.again,
        )

    def time(self, study: str, name: str) -> dict[str, Any]:
        """The part with the step time of a variant."""
        more = {"time_steps": self.options.time_steps, "rounds": self.options.rounds}
        return run_part(
            folder=self.folder,
            name=f"{study}-{name}-time",
            settings=self.time_settings(study, name, **more),
            work=partial(self.studies[study].time, VARIANTS[name]),
            again=name in self.options.again,
        )

    def time_settings(self, study: str, name: str, **more: Any) -> dict[str, Any]:
        """What decides a step time, besides how often it is measured."""
        return self.studies[study].settings(VARIANTS[name], timed=True, **more)

    def ratio(self, study: str, name: str) -> float | None:
        """Step time of a variant as a share of the base's; the newest measurement. None: there is none."""
        if VARIANTS[name].same_speed:
            return 1.0
        timed = self.timed(study, name)
        return timed["result"]["ratio"] if timed else None

    def timed(self, study: str, name: str) -> dict[str, Any] | None:
        """The newest part with the step time of a variant."""
        wanted = self.time_settings(study, name)
        found = [part for part in read_parts(self.folder) if wanted.items() <= part["settings"].items()]
        return max(found, key=lambda part: part["made"], default=None)

    def run(self) -> None:
        """Make the parts that are not there yet: times with --time, or else losses."""
        options = self.options
        if options.time:
            names = [pair for pair in self.chosen() if not VARIANTS[pair[1]].same_speed]
            for study, name in (bar := tqdm(names, unit="variant", desc="timing")):
                bar.set_postfix_str(f"{study} {name}")
                self.time(study, name)
            return
        jobs = [(study, name, options.steps, seed) for seed in options.seeds for study, name in self.chosen()]
        again = [(study, name, self.steps_in_time(study, name), seed) for study, name, _, seed in jobs]
        jobs += [job for job in again if job[2] is not None and job[2] != options.steps]
        for study, name, steps, seed in (bar := tqdm(jobs, unit="run", desc="training")):
            bar.set_postfix_str(f"{study} {name}, {steps} steps, seed {seed}")
            self.loss(study, name, steps=steps, seed=seed)

    def steps_in_time(self, study: str, name: str) -> int | None:
        """Steps of a variant in the time of the base's; as many where times are nearly equal, None if unknown."""
        ratio = self.ratio(study, name)
        if ratio is None:
            return None
        return self.options.steps if abs(ratio - 1) <= ENOUGH else max(1, round(self.options.steps / ratio))

    def found(self, study: str, name: str, steps: int | None) -> list[dict[str, Any]]:
        """The losses that are there after so many steps, by seed."""
        wanted = self.studies[study].settings(VARIANTS[name], steps=steps)
        parts = [part for part in read_parts(self.folder) if wanted.items() <= part["settings"].items()]
        return sorted(
            (part for part in parts if part["settings"]["seed"] in self.options.seeds),
            key=lambda part: part["settings"]["seed"],
        )

    def report(self) -> dict[str, Any]:
        """The body of the report."""
        rows = [
            {
                "study": study,
                "variant": name,
                "changes": VARIANTS[name].describe(),
                "ratio": self.ratio(study, name),
                "timed": self.timed(study, name),
                "ratio_is_measured": not VARIANTS[name].same_speed,
                "equal_steps": self.found(study, name, self.options.steps),
                "steps_in_time": self.steps_in_time(study, name),
                "equal_time": self.found(study, name, self.steps_in_time(study, name)),
            }
            for study, name in self.chosen()
        ]
        return {"bases": {name: asdict(study.base) for name, study in self.studies.items()}, "rows": summarize(rows)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--objectives", nargs="+", default=list(BASES), choices=list(BASES), help="bases (all)")
    add("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME", help="rows (all)")
    add("--steps", type=positive, default=1500, help="of each run (1,500)")
    add("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0], help="as 0,1,2 (0)")
    add("--time", action="store_true", help="measure step times, and nothing else")
    add("--time_steps", type=positive, default=12, help="steps of a timed run (12)")
    add("--rounds", type=positive, default=3, help="times that base and variant are timed in turn (3)")
    add("--threads", type=positive, help="stay on so many cores, the least busy ones (all)")
    add(
        "--again",
        nargs="+",
        default=[],
        choices=list(VARIANTS),
        metavar="NAME",
        help="run these though they are there",
    )
    add("--report_only", action="store_true", help="run nothing")
    add("--data", default=str(default_data()), help="folder with a train and a valid text (WikiText-2)")
    add("--length", type=positive, default=128, help="tokens in a row (128)")
    add("--vocab_size", type=positive, default=8192, help="tokens in the vocabulary (8192)")
    add("--work_dir", default=str(REPOSITORY / "runs" / "ablations"), help="folder of tokenizer, rows and corpora")
    add("--parts_dir", default=str(REPOSITORY / "runs" / "ablations" / "parts"), help="folder of single results")
    add("--output_dir", default=str(REPOSITORY / "benchmarks"), help="folder of ablations-DATE.md and .json")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse, train what is not there yet, report."""
    options = parse()
    use_cores(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    Path(options.work_dir).mkdir(parents=True, exist_ok=True)
    machine = describe_machine("torch", "transformers", device=find_device().type, threads=torch.get_num_threads())
    ablations = Ablations(options)
    if not options.report_only:
        ablations.run()
    body = {
        "settings": {name: value for name, value in vars(options).items() if not name.endswith("_dir")},
        "machine": machine,
        **ablations.report(),
    }
    write_report(
        name="ablations",
        output_dir=options.output_dir,
        body=body,
        to_markdown=to_markdown,
        pattern="{name}-{date}",
    )


if __name__ == "__main__":
    main()
