"""Much text and few labels of it: the descriptions of Debian's packages, and the section that each is in.

    python benchmarks/packages.py --work_dir runs/packages      # reads two files of a mirror, 15 MB
    python recipes/pretrain.py --data runs/packages/text.jsonl --objective mlm_contrastive --max_minutes 20 \\
        --output_dir runs/of_packages
    python benchmarks/transfer.py --models runs/of_packages --train_files runs/packages/labels-*.jsonl \\
        --eval_file runs/packages/held_out.jsonl

A text is the description of a source package (that of its package of the same name, or the longest). Labels are the
sections that name a topic rather than a language or a kind of file, and have 200 texts. The held-out ones are no part
of text.jsonl. Which labels are known is drawn anew for each labels file.
"""

import argparse
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.request import urlopen

from lacuna.tasks.base.rows import write_rows

DESCRIPTIONS, PACKAGES = "i18n/Translation-en.xz", "binary-amd64/Packages.xz"
SECTIONS = {"admin", "devel", "editors", "fonts", "games", "graphics", "mail", "math", "net", "science", "sound"}
SECTIONS |= {"text", "utils", "web", "x11"}
HELD_OUT, COUNTS, DRAWS, SHORTEST = 2000, (500, 2000), 3, 80  # rows, files for each count, characters


def paragraphs(address: str) -> Iterator[dict[str, str]]:
    """The fields of each paragraph of an index of Debian."""
    try:
        with urlopen(address) as file:
            text = lzma.decompress(file.read()).decode()
    except OSError as error:
        raise SystemExit(f"--mirror: cannot read {address}: {error}") from error
    for block in text.split("\n\n"):
        yield dict(re.findall(r"^([\w-]+): ?(.*(?:\n .*)*)", block, re.MULTILINE))


def plain(description: str) -> str:
    """The first line as a sentence, and the paragraphs, which have a line with a dot between them, a line each."""
    first, _, rest = description.partition("\n")
    parts = [" ".join(part.split()) for part in re.split(r"\n +\.(?=\n|$)", "\n" + rest)]
    return "\n".join([f"{first[:1].upper()}{first[1:]}.", *filter(None, parts)])


def read_packages(mirror: str) -> list[dict[str, str]]:
    """`text`, `label` and `source` of each description, by the name of the source package."""
    said = {it["Package"]: plain(it["Description-en"]) for it in paragraphs(mirror + DESCRIPTIONS) if it}
    made: dict[str, list[tuple[bool, int, str, str]]] = defaultdict(list)
    for it in paragraphs(mirror + PACKAGES):
        if text := said.get(it.get("Package", "")):
            source = it.get("Source", it["Package"]).split()[0]
            made[source].append((source == it["Package"], len(text), text, it["Section"]))
    best = {source: max(them)[2:] for source, them in sorted(made.items())}
    first = {text: source for source, (text, _) in reversed(best.items())}  # some share a description
    return [
        {"text": text, "label": label, "source": source}
        for source, (text, label) in best.items()
        if len(text) >= SHORTEST and first[text] == source
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work_dir", default="runs/packages", help="for text.jsonl and labelled files (%(default)s)")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian/dists/bookworm/main/", help="%(default)s")
    options = parser.parse_args()
    work, rows = Path(options.work_dir), read_packages(options.mirror)
    labelled = [row for row in rows if row["label"] in SECTIONS]
    Random(0).shuffle(labelled)
    held_out, known = labelled[:HELD_OUT], labelled[HELD_OUT:]
    hidden = {row["source"] for row in held_out}
    work.mkdir(parents=True, exist_ok=True)
    write_rows(rows=[{"text": row["text"]} for row in rows if row["source"] not in hidden], path=work / "text.jsonl")
    parts = {"held_out": held_out, f"labels-{len(known)}": known}
    for draw in range(DRAWS):
        drawn = Random(draw).sample(known, max(COUNTS))
        parts |= {f"labels-{count}-{draw}": drawn[:count] for count in COUNTS}
    for name, part in parts.items():
        texts = ({"text": row["text"], "label": row["label"]} for row in part)
        write_rows(rows=texts, path=work / f"{name}.jsonl")
        print(f"{work / name}.jsonl: {len(part):,} descriptions with a label")
    print(f"{work / 'text.jsonl'}: {len(rows) - HELD_OUT:,} descriptions without")


if __name__ == "__main__":
    main()
