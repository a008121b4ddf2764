"""Look into a model while it reads: what each token attends to, what is expected in its place, what it becomes.

    python recipes/inspect_model.py --model runs/model                                          # a laptop, seconds
    python recipes/inspect_model.py --model runs/model --text "A dog sleeps." --text "A dog barks." --output_dir look

Writes a page, inspection.html, which a browser opens from the folder without a network, and pictures beside it.
--model is an encoder, a decoder or an encoder-decoder with its language head, also of the Hub. docs/inspection.md says
how to read them.
"""

import math
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import progress_bar
from lacuna.common.files import write_text
from lacuna.common.loading import commit_of
from lacuna.common.private import shown, shown_command
from lacuna.evaluation import InspectionArguments, load_language_model
from lacuna.evaluation import inspection as inside
from lacuna.tokenization import check_output_dir
from lacuna.training import use_all_cores


def draw(inspections: list[inside.Inspection], folder: Path) -> None:
    """Pictures of each text, and of how the others differ from the first."""
    inside.draw_tokens(sides=[it.sides[0] for it in inspections], path=folder / "tokens.png")
    texts = progress_bar(inspections, total=len(inspections), doing="drawing", unit="text")
    for number, it in enumerate(texts, start=1):
        inside.draw_predictions(inspection=it, path=folder / f"predictions_{number}.png")
        for side in (side for side in it.sides if side.neighbours):
            name = f"neighbours_{number}" + f"_{side.name}" * bool(side.name)
            inside.draw_neighbours(side=side, path=folder / f"{name}.png", text=it.text)
        for kind, attention in enumerate(it.attention):
            name = f"{number}" + f"_{attention.kind}" * (attention.kind != "self")
            for what, against in (("attention", None), ("difference", inspections[0]))[: min(number, 2)]:
                inside.draw_attention(inspection=it, number=kind, path=folder / f"{what}_{name}.png", against=against)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, load, read, write the page and the pictures; returns the page."""
    (arguments,) = parse_arguments((InspectionArguments,), words, description=__doc__)
    start = time.perf_counter()
    use_all_cores()
    name, code, place = arguments.model, arguments.trust_remote_code, Path(arguments.model or "")
    folder = Path(arguments.output_dir or (place if place.is_dir() else Path()) / "inspection").expanduser()
    check_output_dir(folder)
    commit = commit_of(name, revision=arguments.revision)
    loaded = load_language_model(model=name, trust_remote_code=code, revision=commit, inspected=True)
    model = loaded.model
    print(f"model: {type(model).__name__} ({loaded.kind}) from {name}", flush=True)
    inspections = [
        inside.inspect_text(language_model=loaded, text=text, where=f"--text {number} ({shown(text)[:40]!r})")
        for number, text in enumerate(arguments.text, start=1)
    ]
    guess = math.log2(len(loaded.tokenizer))
    for inspection in inspections:
        bits = [each.bits for each in inspection.predictions if each.bits is not None]
        mean = sum(bits) / len(bits)
        print(f"{len(bits)} tokens, {mean:.2f} bits each ({guess:.2f} by a guess): {shown(inspection.text)}")
    facts = [f"{model.num_parameters():,} weights", f"{len(loaded.tokenizer):,} tokens in its vocabulary"]
    about = {
        "model": place.resolve().name if place.is_dir() else name,
        "head": type(model).__name__,
        "kind": loaded.kind,
        "facts": [*facts, f"revision {commit}"] if commit else facts,
        "made_with": f"{shown_command()} · torch {version('torch')}, transformers {version('transformers')}",
    }
    page = inside.render_page(inspections=inspections, about=about)
    write_text(folder / "inspection.html", page, hint=". See --output_dir")
    draw(inspections, folder)
    seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s; open {folder / 'inspection.html'} in a browser; pictures are beside it")
    return str(folder / "inspection.html")


if __name__ == "__main__":
    exit_cleanly(main)
