"""The strict-small track of the BabyLM challenge: ten passes over ten million words, scored on the way.

    python benchmarks/babylm.py --max_words 20000 --epochs 2 --size tiny --max_examples 5    # a laptop, two minutes
    python benchmarks/babylm.py --texts babylm_10M/ --suites blimp/ blimp_supplement/        # one GPU, or a night
    python benchmarks/babylm.py --minutes 120 --size tiny                                    # as far as that gets

The rules (https://babylm.github.io): at most ten million words, read at most ten times; the tokenizer is of the same
words. --texts are .txt files, by default the novels of LACUNA_DATA (their first ten million words). The model is one
run of recipes/pretrain.py with a checkpoint after every tenth; a benchmark that was stopped goes on from the last.

Each checkpoint is judged by the minimal pairs in --suites (BLiMP, and folders of its form). `accuracy` counts a tie as
half, `as official` as right. `promised` continues a straight line through the accuracy over the logarithm of the
words, from the second checkpoint on, to ten passes: an extrapolation, and none where the run has made them.
"""

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import DATA, LONG, Kept, at_once, begin, find_texts, make_parser, run_recipe, short_hash, table

WORDS, PASSES = 10_000_000, 10  # https://babylm.github.io
HELD_OUT = 0.05  # of the texts, for the loss
RECORD = 0.7402  # BLiMP: GPT-BERT, 8 layers of 512, strict-small (docs/tried.md)


def take_words(files: Sequence[str], *, most: int, into: Path) -> int:
    """Copy whole lines of files, in order, until the next would bring more than `most` words; how many they are."""
    count, is_full = 0, False
    into.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        lines = []
        for line in Path(file).read_text(encoding="utf-8-sig").splitlines(keepends=True):
            if is_full := count + (words := len(line.split())) > most:
                break
            count += words
            lines.append(line)
        if lines:
            (into / f"{number:05}-{Path(file).name}").write_text("".join(lines), encoding="utf-8")
        if is_full:
            break
    return count


def promise(words: Sequence[float], scores: Sequence[float], *, at: float) -> float | None:
    """The score at so many words, of a straight line through the others over the logarithm of the words.

    The first point is left out: it is of the warm-up. None with fewer than two others.
    """
    if len(words) < 3:
        return None
    slope, start = np.polyfit(np.log(words[1:]), scores[1:], 1)
    return float(start + slope * math.log(at))


class Challenge:
    """The run of these options, and its checkpoints."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        files, size = find_texts(options.texts)
        decides = {name: getattr(options, name) for name in ("max_words", "epochs", "minutes", "size", "seed")}
        decides |= {"batch_size": options.batch_size} if options.batch_size else {}
        decides |= {"objective": options.objective, "files": [Path(file).name for file in files], "bytes": size}
        self.folder = Path(options.work_dir, f"babylm-{short_hash(json.dumps(decides))}").absolute()
        self.run, self.counted, self.files = self.folder / "run", self.folder / "words.json", files
        self.kept = Kept(self.folder)

    def train(self) -> None:
        """Train, or go on; nothing is done where the run has ended."""
        if not self.counted.is_file():
            count = take_words(self.files, most=self.options.max_words, into=self.folder / "texts")
            self.counted.write_text(json.dumps({"words": count}))
        if (self.run / "results.json").is_file():
            return
        words: dict[str, Any] = {"data": self.folder / "texts", "objective": self.options.objective}
        words |= {"size": self.options.size, "max_epochs": self.options.epochs, "seed": self.options.seed}
        words |= {"save_steps": 0.1, "keep_checkpoints": PASSES, "eval_fraction": HELD_OUT, "output_dir": self.run}
        words |= {"max_minutes": self.options.minutes} if self.options.minutes else {}
        words |= {"batch_size": self.options.batch_size} if self.options.batch_size else {}
        words |= {"resume": True} if any(self.run.glob("checkpoints/step-*")) else {}
        print(f"training; how far it is: tail -f {self.folder / 'run.txt'}", flush=True)
        run_recipe("pretrain", words)

    def rows(self) -> list[dict[str, Any]]:
        """What each checkpoint knows, the oldest first."""
        words = json.loads(self.counted.read_text())["words"]
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        passes = {line["step"]: line["epoch"] for line in lines if "epoch" in line}
        found = []
        checkpoints, suites = sorted((self.run / "checkpoints").glob("step-*")), [*map(Path, self.options.suites)]
        asked = [(checkpoint, suite.resolve()) for checkpoint in checkpoints for suite in suites]
        results = dict(zip(asked, at_once(self.judge, asked), strict=True))
        for checkpoint in checkpoints:
            step = int(checkpoint.name.removeprefix("step-"))
            near = min(passes, key=lambda known: abs(known - step))
            row: dict[str, Any] = {"words": round(words * (1 - HELD_OUT) * passes[near] * step / near), "step": step}
            for suite in (suite.resolve() for suite in suites):
                if result := results[checkpoint, suite]:
                    row[suite.name] = result["accuracy"]
                    row[f"{suite.name} as official"] = result["accuracy"] + result["ties"] / result["pairs"] / 2
            found.append(row)
        return found

    def judge(self, checkpoint: Path, suite: Path) -> dict[str, Any] | None:
        """A suite of minimal pairs; None where it is not there yet and must not be made."""
        settings = {"step": checkpoint.name, "suite": suite.name, "max_examples": self.options.max_examples}
        if self.options.report_only:
            parts = self.kept.find(settings)
            return parts[-1]["result"] if parts else None
        given: dict[str, Any] = {"model": checkpoint, "suite": "minimal_pairs", "data": suite}
        given |= {"max_examples": self.options.max_examples} if self.options.max_examples else {}
        given["output_file"] = self.folder / "judged" / f"{checkpoint.name}-{suite.name}" / "results.json"
        name = f"{suite.name}-{checkpoint.name}"
        return self.kept.get(name, settings, lambda: run_recipe("evaluate_language_model", given))["result"]


def main() -> None:
    parser = make_parser(
        __doc__,
        ("texts", str(DATA / "novels"), "folder of .txt files"),
        ("max_words", WORDS, "words that are read"),
        ("epochs", float(PASSES), "passes over them"),
        ("minutes", float, "of training at most, instead of all passes"),
        ("size", "small", "of the model"),
        ("objective", "hybrid", "of recipes/pretrain.py"),
        ("batch_size", int, "rows of a step; a GPU is faster with more than the recipe's"),
        ("max_examples", int, "pairs of each paradigm (all)"),
        ("seed", 0, "of weights and order"),
        *LONG,
    )
    parser.add_argument("--suites", nargs="+", default=[str(DATA / "blimp")], metavar="FOLDER", help="minimal pairs")
    options = parser.parse_args()
    if options.max_words > WORDS or options.epochs > PASSES:
        raise SystemExit(f"the rules allow {WORDS:,} words and {PASSES} passes: lower --max_words or --epochs")
    report, challenge = begin(options), Challenge(options)
    if not options.report_only:
        challenge.train()
    rows = challenge.rows()
    done = {**json.loads((challenge.run / "results.json").read_text()), **json.loads(challenge.counted.read_text())}
    seen, all_words = [row["words"] for row in rows], PASSES * done["words"]
    names = [Path(suite).name for suite in options.suites if seen[-1] < 0.9 * all_words]
    told = [name for name in names if all(name in row for row in rows)]
    promised = {name: promise(seen, [row[name] for row in rows], at=all_words) for name in told}
    facts = ("words", "steps", "train_tokens", "train_seconds", "train_tokens_per_second", "eval_loss")
    run = {name: done.get(name) for name in facts}
    report.body |= {"run": run, "checkpoints": rows, "promised": promised, "record": RECORD}
    first = f"A {options.size} model, objective {options.objective}. To beat: {RECORD:.4f} on BLiMP."
    after = [f"Promised at {all_words:,} words, an extrapolation:", "", *table([promised])] if promised else []
    report.write("Ten passes over ten million words", [first, "", *table([run]), *table(rows), *after])


if __name__ == "__main__":
    main()
