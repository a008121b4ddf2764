"""Every measured number in README and docs is that of the newest dated file in benchmarks/results.

- A table under `<!-- from benchmarks/results/DATE-NAME.md -->` is a part of a table in that report: its columns, and the
  rows whose first cell it has. `: TEXT` before the end of the mark takes the first such table after TEXT.
- A sentence is in CLAIMS, with the place of each number in DATE-NAME.json; `!p` makes it a percentage, `!M` millions.
- Any other number with a unit is in FACTS: a default, a limit, a formula, a setting, a published figure.

To write tables and links anew after a benchmark, and see which sentences are to be mended: `python -m tests.test_claims`.
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
LINK = re.compile(r"benchmarks/results/\d{4}-\d\d-\d\d-(\w+)")
GENERATED = re.compile(r"<!-- table: .+? -->.*?<!-- end of table -->", flags=re.DOTALL)  # test_model_page.py
BLOCKS = re.compile(r"^```.*?^```$|^    [^\n]*$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`[^`]+`|\]\([^)]*\)|arXiv:[\d.]+")
UNITS = (
    r"times|%|tokens/s|tokens a second|[kMG]i?B(?:/s)?|[mµn]?s|microseconds|milliseconds|seconds?|minutes?|hours?|points|"
    r"nats|bits|BLEU|chrF|F1|T?FLOP/s|x"
)
MEASURED = re.compile(rf"(?<![\w.])[\d,.]*\d(?: (?:million|to|and|or) [\d,.]*)? ?(?:{UNITS})(?![\w-])|(?<![\w.])\d+\.\d+(?![\w.])")

CLAIMS: dict[str, list[str]] = {
    "README.md": [
        "translation (+{finetune[rows][4][scores][bleu][added]:.0f} BLEU)",
        "named entities (+{finetune[rows][3][scores][f1][added]!p:.0f} F1)",
        "questions ({finetune[rows][2][scores][f1][added]:.0f} F1)",
        "(accuracy {linear_baseline[rows][0][accuracy]:.3f} against "
        "{finetune[rows][0][scores][accuracy][pretrained]:.3f})",
        "an accuracy of {linear_baseline[rows][2][accuracy]:.3f}",
    ],
    "docs/reliability.md": [
        "({checkpoint_cost[summary][checkpoint_bytes]!M:.0f} MB with AdamW's state)",
        "every {checkpoint_cost[summary][seconds_between_saves]:.0f} seconds: training waits "
        "{checkpoint_cost[summary][waited_for_each]:.2f} s for each one, "
        "{checkpoint_cost[summary][waited_share]!p:.1f} % of the time, and all steps together took "
        "{checkpoint_cost[summary][slower_steps_share]!p:.0f} % longer",
    ],
    "docs/objectives.md": [
        "{example_speed[objectives][mlm, spans][tokens_per_second]!M:.1f} million tokens a second (span masking)",
        "{example_speed[objectives][clm, best fit][tokens_per_second]!M:.1f} million tokens a second (next tokens)",
    ],
}
FACTS: dict[str, list[str]] = {}
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
    report = newest(name[11:]).read_text(encoding="utf-8").partition(after or "")
    for found in re.findall(r"(?:^\|.*\n)+", report[2 if after else 0], flags=re.MULTILINE):
        names, _, *rows = map(cells, found.splitlines())
        if set(head) <= set(names):
            places = [names.index(name) for name in head]
            chosen = [[row[place] for place in places] for row in rows]
            lines = [head, ["---"] * len(head), *(row for row in chosen if row[0] in keys)]
            mark_line = mark[0].split("\n")[0].replace(name, newest(name[11:]).stem)
            return "\n".join([mark_line, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"
    raise AssertionError(f"{name} has no table with the columns {head}")


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


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
    names = {mark[1][11:] for mark in MARK.finditer(text)}
    names |= {field.split("[")[0] for claim in CLAIMS.get(page, []) for _, field, *_ in Formatter().parse(claim) if field}
    assert {newest(name).stem for name in names} <= linked, "a page links to the reports that it quotes"
    assert linked <= {newest(name).stem for name in LINK.findall(text)}, "it links to the newest"


@pytest.mark.parametrize("page", PAGES)
def test_every_other_number_is_a_fact_of_the_design(page: str) -> None:
    prose = " ".join(BLOCKS.sub("", GENERATED.sub("", MARK.sub("", read(page)))).split())
    for claim in CLAIMS.get(page, []):
        prose = prose.replace(told(claim), "")
    for fact in FACTS.get(page, []):
        assert fact in prose, f"no longer there: {fact}"
        prose = prose.replace(fact, "")
    prose = INLINE.sub("", prose)
    found = [prose[max(0, match.start() - 40) : match.end() + 20] for match in MEASURED.finditer(prose)]
    assert not found, "measured? then name a report in CLAIMS or a mark; a fact of the design? then in FACTS"


def test_reports_say_how_to_make_them_again() -> None:
    for path in RESULTS.glob("*.md"):
        text, machine = path.read_text(encoding="utf-8"), json.loads(path.with_suffix(".json").read_text())["machine"]
        assert "\nCommand: `python benchmarks/" in text, path
        assert ("uncommitted changes" in text) == machine["commit"].endswith("-dirty"), path


if __name__ == "__main__":
    for page in PAGES:
        text = MARK.sub(quoted, read(page))
        text = LINK.sub(lambda link: f"benchmarks/results/{newest(link[1]).stem}", text)
        (REPOSITORY / page).write_text(text, encoding="utf-8")
        for claim in map(told, CLAIMS.get(page, [])):
            if claim not in " ".join(text.split()):
                print(f"{page} is to say: {claim}")
