"""One page on a run, to keep or to send: what was asked, what it read, curves, scores, faults, samples, fine-tunes.

    python recipes/report_run.py --run runs/model                       # seconds; writes runs/model/run.html
    python recipes/report_run.py --run runs/one runs/two --output_file compared.html

--run takes folders that recipes have trained into, also while they train. Several stand side by side. The page is one
file that needs no network. Samples are there after pretraining with --probe_prompts, evaluations after
recipes/evaluate_language_model.py, and fine-tuned models where their folders are beside that of their model.
"""

from collections.abc import Sequence
from pathlib import Path

from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.training.reports.page import ReportArguments, write_page


def main(words: Sequence[str] | None = None) -> str:
    """Parse, read, write; returns the page."""
    (arguments,) = parse_arguments((ReportArguments,), words, description=__doc__)
    if not arguments.run:
        raise InputError("--run is missing: name the folder of a run, as in --run runs/model")
    folders = [Path(name).expanduser() for name in arguments.run]
    path = Path(arguments.output_file).expanduser() if arguments.output_file else folders[0] / "run.html"
    if arguments.output_file and not path.parent.is_dir():
        raise InputError(f"--output_file {path}: there is no folder {path.parent}; make it, or name another place")
    if path.is_dir() or path.suffix != ".html":
        what = "is a folder" if path.is_dir() else "is not HTML"
        raise InputError(f"--output_file {path} {what}; name a file that ends in .html")
    write_page(folders, path)
    print(f"the page is {path}")
    return str(path)


if __name__ == "__main__":
    exit_cleanly(main)
