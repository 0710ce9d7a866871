"""`python -m spark NAME ...`: the jobs of `odradek.spark.pipelines`, which can be given to spark-submit, too, and a tool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

JOBS = {
    "flights": (
        "odradek.spark.pipelines.flights",
        "flights of 2013 into a topic: data to try the others with",
    ),
    "offline-load": (
        "odradek.spark.pipelines.offline_load",
        "a topic into partitioned Parquet, exactly once",
    ),
    "mirror": (
        "odradek.spark.pipelines.mirror.command",
        "topics of one cluster into another, exactly once (needs neither Spark nor Java)",
    ),
    "derived-feed": (
        "odradek.spark.pipelines.derived_feed",
        "a stream of flights into windowed sums, in another topic",
    ),
    "changelog": (
        "odradek.spark.pipelines.changelog",
        "a keyed topic into a table of the latest values, refreshed in steps",
    ),
    "two-phase": (
        "odradek.spark.delivery.undecided",
        "what queries with delivery=two-phase have left open, and its end (needs neither Spark nor Java)",
    ),
    "history-check": (
        "jepsen_tests.history_check",
        "what clients did and saw: was anything lost, doubled or reordered? (in a checkout)",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the job that is named; its exit status."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given[0] in ("-h", "--help"):
        print("usage: python -m spark NAME [--help]\n")
        for name, (_, about) in JOBS.items():
            print(f"  {name:15} {about}")
        return 0 if given else 2
    name, *rest = given
    if name not in JOBS:
        print(f"there is no job {name!r}: {', '.join(JOBS)}", file=sys.stderr)
        return 2
    module = importlib.import_module(JOBS[name][0])
    status: int = module.main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
