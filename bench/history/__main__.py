"""Draws docs/benchmarks.md and docs/benchmarks.svg from the recorded runs: `python -m bench.history`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.history.page import markdown, svg
from bench.history.recorded import recorded_runs

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Write the page and its drawing; return the exit status."""
    runs = recorded_runs()
    if not runs:
        print("no run is recorded yet: python -m bench --all --record", file=sys.stderr)
        return 1
    (DOCS / "benchmarks.svg").write_text(svg(runs))
    (DOCS / "benchmarks.md").write_text(markdown(runs, "benchmarks.svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
