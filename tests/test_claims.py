"""Every measured number in README and docs is that of the newest dated file in benchmarks/results.

- A table under `<!-- from benchmarks/results/DATE-NAME.md -->` is part of a table in that report: its columns, and the
  rows whose first cell it has. `: TEXT` at the end of the mark takes the first such table after TEXT.
- A sentence is in CLAIMS, with the place of each number in DATE-NAME.json; `!p` makes it a percentage, `!M` millions.
- Any other number with a unit is in FACTS: a default, a limit, a formula, a setting, a published figure.

`python -m tests.test_claims` writes tables and links anew after a benchmark and prints the sentences to be mended.
"""

import json
import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- from benchmarks/results/([\w-]+)\.md(?:: (.+?))? -->\n((?:\|.*\n)+)")
LINK = re.compile(r"benchmarks/results/\d{4}-\d\d-\d\d-([\w-]+)\.md")
GENERATED = re.compile(r"<!-- table: .+? -->.*?<!-- end of table -->", flags=re.DOTALL)  # test_model_page.py
BLOCKS = re.compile(r"^```.*?^```$|^    [^\n]*$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(  # code and its default, links, papers, versions
    r"`[^`]+`(?: \((?:0; BERT: )?[\d.]+\)| \| [\d.]+ \|)?|\]\([^)]*\)|arXiv:[\d.]+|UTF-8"
    r"|(?:section|Python|torch|accelerate|transformers|Llama) \d[\d.]*\d"
)
UNITS = (
    r"times|%|percent|per cent|tokens(?:/s)?|tok/s|words a second|M tokens|[kMGT]i?B(?:/s)?|(?:mega|giga)bytes|bytes|"
    r"[mµ]?s|microseconds|seconds?|min|minutes?|h|hours?|days?|points|nats|bits|BLEU|chrF|F1|T?FLOP/s|x|×|-fold"
)
MANY = "forty|fifty|sixty|seventy|eighty|ninety|a hundred"
IN_WORDS = rf"(?:half an?|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|{MANY})"
MEASURED = re.compile(
    rf"(?<![\w.])[\d,.]*\d(?: (?:million|to|and|or) [\d,.]*)? ?(?:{UNITS})(?![\w-])|(?<![\w.])\d+\.\d+(?!\w|\.\d)"
    r"|\b\d[\d,]* of \d"
    rf"|(?<![\w.,])0,\d|\b\d+e-?\d+|(?:accuracy|F1|BLEU|MFU|loss|perplexity) (?:of|is) \d"
    rf"|\b(?:twice|{IN_WORDS} times) (?:as|the|faster)\b"
    rf"|\b(?:\w+ and a half|{MANY}) times\b"  # fewer may count what is done: "trains five times"
    rf"|\b{IN_WORDS} (?:percent|per cent|seconds?|minutes?|hours?|points)\b"
    r"|\b(?:half|thirds?|quarters?|fifths?|tenths?) (?:of )?(?:as much|the (?:memory|disk|run|speed))\b"
    r"|\bhalf (?:of )?the time\b"
)
THOUSANDS = re.compile(r"\d[\d,]{3,}")

CLAIMS: dict[str, list[str]] = {
    "README.md": [
        "reads {gpu_speed[parts][encoder-150m][contenders][lacuna, one text][tokens_per_second]:,.0f} tokens a "
        "second of rows that are one text each, and "
        "{gpu_speed[parts][encoder-150m][contenders][lacuna][tokens_per_second]:,.0f} of rows",
        "reads {gpu_speed[parts][encoder-150m][contenders][modernbert][tokens_per_second]:,.0f} of the former, and "
        "BERT "
        "{gpu_speed[parts][encoder-150m][contenders][bert][tokens_per_second]:,.0f} (",
        "reads {gpu-loss-tried[rows][2][tokens per second]:,} and GPT-2 itself, one text a row, "
        "{gpu-loss-tried[rows][4][tokens per second]:,} (",
        "trains at {tokenizer_speed[summary][training][sentencepiece][ratio]:.2f} times its speed and encodes at "
        "{tokenizer_speed[summary][encoding][sentencepiece][ratio]:.2f}",
        "from, 500 labels: accuracy | {transfer-topics[models][runs/own_text][0][words]:.3f} | "
        "{transfer-topics[models][runs/own_text][0][first_weights][0]:.3f} ± "
        "{transfer-topics[models][runs/own_text][0][first_weights][1]:.3f} | "
        "{transfer-topics[models][runs/own_text][0][pretrained][0]:.3f} ± "
        "{transfer-topics[models][runs/own_text][0][pretrained][1]:.3f} |",
        "the same, 3,440 labels | {transfer-topics[models][runs/own_text][1][words]:.3f} | "
        "{transfer-topics[models][runs/own_text][1][first_weights][0]:.3f} ± "
        "{transfer-topics[models][runs/own_text][1][first_weights][1]:.3f} | "
        "{transfer-topics[models][runs/own_text][1][pretrained][0]:.3f} ± "
        "{transfer-topics[models][runs/own_text][1][pretrained][1]:.3f} |",
        "same text have {transfer-topics[models][runs/own_text][0][skip_gram]:.3f} with 500 labels (",
        "the default of a parameter: F1 | {transfer-own-text[models][runs/own_text][2][words]:.3f} | "
        "{transfer-own-text[models][runs/own_text][2][first_weights][0]:.3f} ± "
        "{transfer-own-text[models][runs/own_text][2][first_weights][1]:.3f} | "
        "{transfer-own-text[models][runs/own_text][2][pretrained][0]:.3f} ± "
        "{transfer-own-text[models][runs/own_text][2][pretrained][1]:.3f} |",
        "TF-IDF has {transfer-curve[models][runs/novels_20_minutes][3][words]:.3f}, it is at "
        "{transfer-curve[models][runs/novels_5_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_5_minutes][3][pretrained][1]:.3f} after 5 minutes, "
        "{transfer-curve[models][runs/novels_20_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][3][pretrained][1]:.3f} after 20 and "
        "{transfer-curve[models][runs/novels_60_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_60_minutes][3][pretrained][1]:.3f} after 60 (",
        "reciprocal rank | {search-tried[rows][0][MRR at 10]} | {search-tried[rows][5][with words: MRR at 10]} | "
        "{search-tried[rows][7][with words: MRR at 10]} |",
        "and then, from {demo-labels-tried[rows][0][labels]} labelled docstrings of that text, which of eight",
        "messages: F1 | {transfer-curve[models][runs/novels_20_minutes][7][words]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][7][first_weights][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][7][first_weights][1]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][7][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][7][pretrained][1]:.3f} |",
        "(SQuAD): F1 | {transfer-spans[models][runs/spans_after_13_minutes][0][words]:.3f} | "
        "{transfer-spans[models][runs/spans_after_13_minutes][0][first_weights][0]:.3f} ± "
        "{transfer-spans[models][runs/spans_after_13_minutes][0][first_weights][1]:.3f} | "
        "{transfer-spans[models][runs/spans_after_13_minutes][0][pretrained][0]:.3f} ± "
        "{transfer-spans[models][runs/spans_after_13_minutes][0][pretrained][1]:.3f} |",
        "2,000 labels: accuracy | {transfer-curve[models][runs/novels_20_minutes][2][words]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][2][first_weights][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][2][first_weights][1]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][2][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][2][pretrained][1]:.3f} |",
        "the same, all labels | {transfer-curve[models][runs/novels_20_minutes][3][words]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][3][first_weights][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][3][first_weights][1]:.3f} | "
        "{transfer-curve[models][runs/novels_20_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-curve[models][runs/novels_20_minutes][3][pretrained][1]:.3f} |",
        "(Multi30k): BLEU | {transfer-translation[models][runs/novels_denoising][0][guess]:.3f} | "
        "{transfer-translation[models][runs/novels_denoising][0][first_weights][0]:.3f} | "
        "{transfer-translation[models][runs/novels_denoising][0][pretrained][0]:.3f} |",
        "has, after {time_to_loss-amx[summary][compared][0][our shortest run at or below it, minutes]:.2f} "
        "minutes of training, the held-out loss of a native ModernBERT that was tuned and trained with Muon for "
        "{time_to_loss-amx[summary][compared][0][its minutes]:.0f}, in one seed and at the rate that "
        "was best in runs of one minute (",
        "an older encoder from {soup-tried[rows][4][mean of three runs]} to {soup-tried[rows][4][taught]} (",
        "the model alone has {search-tried[rows][7][MRR at 10]} (",
        "an encoder that does has a held-out loss of {distillation-tried[rows][7][held-out loss]}, "
        "one that learns alone {distillation-tried[rows][6][held-out loss]}, and token frequencies "
        "{distillation-tried[rows][9][held-out loss]} (",
    ],
    "docs/speed.md": [
        "ours is {side_by_side[speed][cpu][pairs][3][lacuna_faster_by]:.3f} times as fast with AVX512-BF16, and "
        "{side_by_side-amx[speed][cpu][pairs][3][lacuna_faster_by]:.3f} times with AMX.",
        "it is {side_by_side[speed][AVX2][pairs][0][lacuna_faster_by]:.3f} times there",
        "BERT ends at {time_to_loss-adamw[summary][compared][1][its loss]:.3f} nats",
    ],
    "docs/evaluation.md": [
        "in turn: {blimp-tried[rows][0][minutes]} minutes for a micro encoder and "
        "{blimp-tried[rows][1][minutes]} for a tiny one",
    ],
    "docs/pretraining.md": [
        "Three encoders of {transfer-three-seeds[pretraining][runs/novels_20_minutes][steps]:,} steps, which took 20 "
        "minutes on a slower machine",
        "in three seeds by {families-tried[rows][6][held-out loss]} nats, and accuracy on 2,000 phrases of SST-2 "
        "higher by {families-tried[rows][6][SST-2, 2,000 phrases]} (",
        "{qwen3-encoder-tried[rows][4][held-out loss]} nats and ahead by "
        "{qwen3-encoder-tried[rows][4][SST-2, 2,000 phrases]} on those",
        "gained {transfer[models][runs/novels_20_minutes][0][gained][0]:+.3f} ± "
        "{transfer[models][runs/novels_20_minutes][0][gained][1]:.3f} on the 2,000 phrases after novels alone, and "
        "{transfer[models][runs/novels_and_task_texts][0][gained][0]:+.3f} ± "
        "{transfer[models][runs/novels_and_task_texts][0][gained][1]:.3f} with them",
        "AMX nearly the same command takes {transfer-twenty[pretraining][runs/novels_20_minutes][steps]:,} steps: "
        "such an encoder had {transfer-twenty[models][runs/novels_20_minutes][2][pretrained][0]:.3f} ± "
        "{transfer-twenty[models][runs/novels_20_minutes][2][pretrained][1]:.3f} on 2,000 phrases and "
        "{transfer-twenty[models][runs/novels_20_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-twenty[models][runs/novels_20_minutes][3][pretrained][1]:.3f} on all,",
        "without AMX ({transfer-curve[pretraining][runs/novels_20_minutes][steps]:,} steps)",
        "half the speed takes {transfer-twenty-avx512[pretraining][runs/novels_20_minutes][steps]:,} steps in that "
        "time, and had on 2,000 and on all phrases "
        "{transfer-twenty-avx512[models][runs/novels_20_minutes][2][pretrained][0]:.3f} ± "
        "{transfer-twenty-avx512[models][runs/novels_20_minutes][2][pretrained][1]:.3f} and "
        "{transfer-twenty-avx512[models][runs/novels_20_minutes][3][pretrained][0]:.3f} ± "
        "{transfer-twenty-avx512[models][runs/novels_20_minutes][3][pretrained][1]:.3f} (",
        "over {embedding-rates-tried[rows][0][draws]} draws of 2,000 phrases it has "
        "{embedding-rates-tried[rows][0][score]}, TF-IDF {embedding-rates-tried[rows][0][without a model]} (",
        "({transfer-curve[pretraining][runs/novels_60_minutes][steps]:,} steps in an hour",
        "other encoders had {curve-tried[rows][2][steps of 150 minutes]} and "
        "{curve-tried[rows][3][steps of 150 minutes]} on all phrases (",
        "It takes {transfer-twenty-avx512[core_minutes]} minutes of one core, on two cores half of them",
        "is at {gpu-model-tried[rows][0][accuracy]} on the 2,000 phrases, and at {gpu-model-tried[rows][1][accuracy]} "
        "as the mean of three runs.",
        "has {transfer-novels[models][runs/novels_alone][0][pretrained][0]:.3f} ± "
        "{transfer-novels[models][runs/novels_alone][0][pretrained][1]:.3f} in the linear probe and "
        "{transfer-novels[models][runs/novels_alone][1][pretrained][0]:.3f} ± "
        "{transfer-novels[models][runs/novels_alone][1][pretrained][1]:.3f} on BLiMP",
        "an F1 of {spans-and-rates-tried[built-in questions][after four minutes of spans][F1]} after them and "
        "{spans-and-rates-tried[built-in questions][without spans][F1]} without, one seed",
    ],
    "docs/tried.md": [
        "promises {babylm[promised][blimp]:.3f} after all ten passes",
        "is that of GPT-BERT, {babylm[record]:.4f}.",
        "six passes, with {babylm-gpu-tried[rows][5][blimp]}, and ends at {babylm-gpu-tried[rows][9][blimp]}, so that",
    ],
}
FACTS: dict[str, list[str]] = {
    "README.md": [
        "20 minutes on two cores with AVX512-BF16",
        "13 minutes of masked tokens and 7 of",
        "after 20 minutes of `--objective denoising` on English novels",
    ],
    "docs/corpus.md": [
        "up to 128 MiB |",
        "up to 32 MiB. A longer",
        "pieces of about 2 MiB",
        "files of 16 MiB and more",
    ],
    "docs/distributed.md": ["within 1e-5 relative over four steps"],  # test_sharding.py
    "docs/evaluation.md": [
        "over the last 64 MiB",
        "must stand there 5 times, and is read among 64 tokens",
        "the ends of 95 % intervals by",
        "know after the steps that 20 minutes on two cores make",
    ],
    "docs/exactness.md": [  # test_grouping.py, test_sharding.py
        "within 1e-5 relative, without dropout",
        "lengths (spread 0.7)",
        "padding falls from 71 % of the positions to 9 %; in micro-batches of 8 out of 32 from 57 % to 2 %; for 1,000 "
        "lengths from 71 % to 31 %",
    ],
    "docs/fine_tuning.md": [
        "The default is 0.2 with up to",
        "SQuAD's JSON (1.1, or 2.0 with",
        "up to 1 % are skipped",
    ],
    "docs/models.md": ["a vocabulary of 32,768 tokens"],
    "docs/objectives.md": [
        "A tokenizer that is learned for it has 16,384 tokens in small letters",
        "Rows of 128 tokens",
        "more than one in 24 tokens would be",
        "geometric with p = 0.2, 3.8 on average (SpanBERT",
        "30 % of the tokens are removed in spans",
        "masked at 0.15 (`denoising` 0.3)",
        "for the first 90 % of the run",
        "70 % come from `web/` and 30 % from `books/`",
        "divided by 0.05 (nearly as DeCLUTR",
        "by chance 0.0625, one of 16",
        "half of the time B follows A, half of the time it comes from another document (Devlin",
    ],
    "docs/optimizers.md": [
        "0.006 for `muon`, 0.001 for `adamw`",
        "`tiny` 0.7 of them, `mini` half, `base` 0.29",
        "| 0.3; 1 in fine-tuning |",
        "| 0.1; 0.01 in fine-tuning |",
        "at 0.9 the top layer learns at 0.9 of the rate, the next at 0.81",
        "the default is 0.003",
        "float32 (4 bytes per weight)",
        "LoRA usually wants ten times the",
        "and at least 1e-5",
        "their RMS is 0.02 in a new model",
        "uses 0.015 times the RMS",
        "use 0.03 times the RMS, however many steps they make",
    ],
    "docs/planning.md": [
        "30 % by default",
        "within 3 % of what torch's allocator counts",
        "within 15 % of the growth",
    ],
    "docs/pretraining.md": [
        "of the benchmarks for 20 minutes on two cores with AVX512-BF16",
        "In the same 20 minutes as masked tokens alone",
        "four minutes of spans bring nothing",
        "that has read English novels for 20 minutes (`--objective denoising`)",
        "Embeddings learn at 0.3 of the rate",
        "also after the steps of 150 minutes",
        "after as many steps as five minutes make",
        "The same after 5, 20 and 60 minutes on one machine",
        "After 60 minutes the encoder",
        "After as many steps as 150 minutes make on a slower machine",
        "to reach after 20 minutes of pretraining on two cores",
        "leaves out that of the held-out rows (0.015 of 872)",
        "Weight decay of 0.1** (`--weight_decay`). At 0.01 and",
    ],
    "docs/reliability.md": ["waits three seconds for the Hub"],
    "docs/speed.md": [
        "for up to twenty minutes each",
        "beside ours of one and two minutes",
        "the frequencies of tokens in the train text give 6.667",  # of `Material`, scored on the held-out targets
        "it is for 20 minutes; this race takes 5",
        "(256 wide, 6 layers) on the same rows of 32 x 128 tokens, 15 % masked",
        "The goals are 5 times",
        "with rows of 1,024 tokens",
        "The goals were 400,000 tokens a second for the larger",
        "encoder and 900,000 for the smaller one: one of two is reached",
        "the goal was an MFU of 0.5",
        "in float32 and 3 times",
        "for two cores (6e13 operations)",
        "with `--dropout 0.1` the native Qwen3 drops attention only",
        "30 % of the tokens masked. Learning rate",
        "Muon at 0.006, 64 rows, 30 % masked in training",
    ],
    "docs/tokenizer.md": [
        "on up to 32 MB of",
        "a vocabulary of 32,000 tokens",
        "about 1 %, as whole documents",
        "more than 1 % of the",
        "about two bytes of memory",
        "documents take about 150 bytes each",
    ],
    "docs/transformer.md": ["half an hour is enough"],
    "docs/tried.md": [
        "With a vocabulary of 8,192 tokens as they are written",
        "as one core did in 100 minutes",
    ],
}
"""Numbers of the design, in the words around them."""


class Reports(dict[str, Any]):
    """The newest JSON of each benchmark, by its name."""

    def __missing__(self, name: str) -> Any:
        return json.loads(newest(name).with_suffix(".json").read_text(encoding="utf-8"))


class Scaled(Formatter):
    """`{share!p:.1f}` is in percent, `!M` in millions."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value * {"p": 100, "M": 1e-6}.get(conversion, 1)


def newest(name: str) -> Path:
    """The newest report of a benchmark."""
    return max(RESULTS.glob(f"????-??-??-{name}.md"))


def told(claim: str) -> str:
    """A claim with the numbers of its report."""
    return Scaled().vformat(claim, (), Reports())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def quoted(mark: re.Match[str]) -> str:
    """What a mark's table is to be."""
    name, after, table = mark.groups()
    head, keys = cells(table.splitlines()[0]), {cells(line)[0] for line in table.splitlines()[2:]}
    report = newest(name[11:]).read_text(encoding="utf-8")
    for found in re.findall(r"(?:^\|.*\n)+", report[report.index(after or "") :], flags=re.MULTILINE):
        names, _, *rows = map(cells, found.splitlines())
        if set(head) <= set(names):
            places = [names.index(name) for name in head]
            chosen = [[row[place] for place in places] for row in rows]
            lines = [head, ["---"] * len(head), *(row for row in chosen if not keys or row[0] in keys)]
            mark_line = mark[0].split("\n")[0].replace(name, newest(name[11:]).stem)
            return "\n".join([mark_line, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"
    raise AssertionError(f"{name} has no table with the columns {head}")


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def quotes(page: str) -> set[str]:
    """The benchmarks whose numbers a page has."""
    fields = [field for claim in CLAIMS.get(page, []) for _, field, *_ in Formatter().parse(claim) if field]
    return {mark[1][11:] for mark in MARK.finditer(read(page))} | {field.split("[")[0] for field in fields}


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_those_of_the_newest_reports(page: str) -> None:
    text = read(page)
    for mark in MARK.finditer(text):
        assert mark[0] == quoted(mark)
    assert text.count("<!-- from") == len(MARK.findall(text))
    prose = " ".join(text.split())
    for claim in CLAIMS.get(page, []):
        assert told(claim) in prose
    linked = set(re.findall(r"\]\([./]*benchmarks/results/([\w-]+)\.md\)", text))
    assert {newest(name).stem for name in quotes(page)} <= linked, "a page links to the reports that it quotes"
    assert linked <= {newest(name).stem for name in LINK.findall(text)}, "it links to the newest"


@pytest.mark.parametrize("page", PAGES)
def test_every_other_number_is_a_fact_of_the_design(page: str) -> None:
    text = BLOCKS.sub("", GENERATED.sub("", MARK.sub("", read(page))))
    large = [line for line in text.splitlines() if line[:1] == "|" and any(map(THOUSANDS.fullmatch, cells(line)))]
    assert not large, "a table of measurements? then name its report in a mark"
    prose = " ".join(text.split())
    for claim in CLAIMS.get(page, []):
        prose = prose.replace(told(claim), "")
    for fact in FACTS.get(page, []):
        assert fact in prose, f"no longer there: {fact}"
        prose = prose.replace(fact, "")
    prose = INLINE.sub("", prose).replace("*", "")
    found = [prose[max(0, match.start() - 40) : match.end() + 20] for match in MEASURED.finditer(prose)]
    assert not found, "measured? then name a report in CLAIMS or a mark; a fact of the design? then in FACTS"


def test_numbers_in_words_are_seen() -> None:
    numbers = ["4 GiB", "32,000 tokens", "an accuracy of 81", "an F1 of 58", "81 percent", "1e-5", "0.7", "0,7", "9×"]
    numbers += ["twice as fast", "three times faster", "9-fold", "two minutes", "half an hour", "12 min", "7 per cent"]
    numbers += ["two thirds of the memory", "half as much", "400,000 tok/s", "ninety percent", "81 of 100"]
    numbers += ["two and a half times", "ten times as many", "half the time", "forty times"]
    for words in numbers:
        assert MEASURED.search(f"It has {words}, or so"), words
    assert MEASURED.search("It ends at 6.684. Then") and not MEASURED.search("of version 2.10.1, or so")


def test_reports_say_how_to_make_them_again() -> None:
    for path in RESULTS.glob("*.md"):
        text, record = path.read_text(encoding="utf-8"), path.with_suffix(".json").read_text(encoding="utf-8")
        machine = json.loads(record)["machine"]
        assert not re.search(r"(?<![\w.])/(home|work|root|mnt|Users)/", text + record), path
        by_hand = path.stem.endswith("-tried") and "\nCollected by hand: " in text  # of code that was thrown away
        command = re.search(r"\nCommand: `python (-m pytest|(?:benchmarks|tests)/\S+?\.py)", text)
        assert by_hand or command, path
        if command and command[1] != "-m pytest" and not (REPOSITORY / command[1]).is_file():
            pages = [page for page in PAGES if path.name in read(page)]
            assert all(machine["commit"] in read(page) for page in pages), f"{path}: say which commit has {command[1]}"
        assert ("uncommitted changes" in text) == machine["commit"].endswith("-dirty"), path
    names = set().union(*map(quotes, PAGES))
    assert not [name for name in names if "do not publish" in newest(name).read_text(encoding="utf-8")]


if __name__ == "__main__":
    for page in PAGES:
        text = MARK.sub(quoted, read(page))
        text = LINK.sub(lambda link: f"benchmarks/results/{newest(link[1]).name}", text)
        (REPOSITORY / page).write_text(text, encoding="utf-8")
        for claim in map(told, CLAIMS.get(page, [])):
            if claim not in " ".join(text.split()):
                print(f"{page} is to say: {claim}")
