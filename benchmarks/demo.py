"""`make demo` with a dated report of its table.

python benchmarks/demo.py                              # runs recipes/demo.py, six or seven minutes on two cores
python benchmarks/demo.py --report_only                # reports the last run in runs/demo
"""

import json
import subprocess
import sys
from typing import Any

from harness import REPOSITORY, Report, make_parser, table


def main() -> None:
    options = make_parser(__doc__, ("report_only", False, "run nothing, report runs/demo")).parse_args()
    report = Report(options)
    if not options.report_only:
        code = subprocess.run([sys.executable, "recipes/demo.py"], cwd=REPOSITORY).returncode
        if code:
            sys.exit(code)
    report.body |= json.loads((REPOSITORY / "runs/demo/demo.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for stage, took in report.body["seconds"].items():
        first, *more = [row for row in report.body["rows"] if row["stage"] == stage] or [{}]
        rows += [{"stage": stage, "seconds": round(took), **first}, *more]
    rows.append({"stage": "all", "seconds": round(sum(report.body["seconds"].values()))})
    report.write("The demo", table(rows))


if __name__ == "__main__":
    main()
