"""The recipe prepare_corpus with small pieces: what is done to gigabytes happens to kilobytes.

python small_pieces.py BYTES [options of the recipe]
"""

import runpy
import sys
from pathlib import Path

from lacuna.corpus.store import build

if __name__ == "__main__":
    build.PIECE_BYTES = int(sys.argv.pop(1))
    sys.argv[0] = str(Path(__file__).resolve().parents[2] / "recipes" / "prepare_corpus.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
