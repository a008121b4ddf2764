"""Runs recipes/pretrain.py with the words that it is given, and prints the most memory that it had, in bytes."""

import runpy
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "pretrain.py"

sys.argv[0] = str(RECIPE)
sys.path.insert(0, str(RECIPE.parent))
try:
    runpy.run_path(str(RECIPE), run_name="__main__")
finally:  # it ends by SystemExit
    lines = Path("/proc/self/status").read_text().splitlines()
    print(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024)
