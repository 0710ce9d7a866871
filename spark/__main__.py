"""The command `odradek spark NAME ...`: runs jobs (which spark-submit can run as well) and tools. In a checkout,
`python -m spark` does the same.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

JOBS = {
    "flights": (
        "odradek.spark.pipelines.flights",
        "write flights of 2013 into a topic, as test data for the other jobs",
    ),
    "offline-load": (
        "odradek.spark.pipelines.offline_load",
        "load a topic into partitioned Parquet, exactly once",
    ),
    "derived-feed": (
        "odradek.spark.pipelines.derived_feed",
        "sum a stream of flights by windows, into another topic",
    ),
    "changelog": (
        "odradek.spark.pipelines.changelog",
        "keep a table of the latest value of each key of a topic, updated step by step",
    ),
    "weather": (
        "odradek.spark.pipelines.weather",
        "write the weather of 2013 into a topic, as test data for enrichment",
    ),
    "enrichment": (
        "odradek.spark.pipelines.enrichment",
        "join a stream of flights with tables and with a stream of the weather, into another topic",
    ),
    "fleet-changes": (
        "odradek.spark.pipelines.cdc.fleet",
        "write Debezium's change events of a table of aircraft into a topic, as test data for cdc",
    ),
    "cdc": (
        "odradek.spark.pipelines.cdc.command",
        "keep a Delta table equal to a table of a database, by Debezium's change events",
    ),
    "spoilt-flights": (
        "odradek.spark.pipelines.spoilt",
        "write flights into a topic, some of them broken, repeated or late, as test data for clean",
    ),
    "clean": (
        "odradek.spark.pipelines.cleaning",
        "copy good rows of JSON to a topic, each once, and bad ones to a topic of dead letters; replay those",
    ),
    "sessions": (
        "odradek.spark.pipelines.sessions",
        "follow each aircraft by state and timers: its sessions and alerts, into compacted topics",
    ),
    "operate": (
        "odradek.spark.pipelines.operating.command",
        "run two queries in one application: restarts, alerts on lag and failure, new code, roll-back",
    ),
    "two-phase": (
        "odradek.spark.delivery.undecided",
        "show or end transactions that queries with delivery=two-phase have left open (needs neither Spark nor Java)",
    ),
    "finish": (
        "odradek.spark.delivery.finish",
        "show how far a query's last batch is, and end a batch whose plan is gone (needs neither Spark nor Java)",
    ),
    "file": (
        "odradek.spark.__main__",
        'print the file of a job, for spark-submit: spark-submit ... "$(odradek spark file cdc)" ...',
    ),
    "quiet": (
        "odradek.spark.quiet",
        'print the folder of settings that make Spark print only errors: export SPARK_CONF_DIR="$(odradek spark quiet)"',
    ),
    "pyspark-archive": (
        "odradek.spark.pyspark_archive",
        "compile the Python modules in Spark's archives, if Spark comes from a tarball",
    ),
    "mirror": ("odradek.spark.pipelines.mirror.command", "the same as `odradek mirror`"),
    "history-check": (
        "jepsen_tests.history_check",
        "check recorded histories of clients for lost, doubled or reordered records (only in a checkout)",
    ),
}
CHECKOUT_ONLY = "history-check"
FILE = "file"


def main(words: Sequence[str] | None = None) -> int:
    """Run the job that `words` names, with its arguments, and return its exit status."""
    given = list(sys.argv[1:] if words is None else words)
    if not given or given[0] in ("-h", "--help"):
        print("usage: odradek spark NAME [--help]\n")
        for name, (_, about) in JOBS.items():
            print(f"  {name:15} {about}")
        return 0 if given else 2
    name, *rest = given
    if name not in JOBS:
        print(f"the job {name!r} does not exist; the jobs are {', '.join(JOBS)}", file=sys.stderr)
        return 2
    if name == CHECKOUT_ONLY and not (Path(__file__).parents[2] / "jepsen_tests").is_dir():
        print(f"the job {name} runs only in a checkout of the sources", file=sys.stderr)
        return 1
    if name == FILE:
        return print_file(rest)
    try:
        module = importlib.import_module(JOBS[name][0])
    except ModuleNotFoundError as error:
        package = (error.name or "odradek").partition(".")[0]
        if package == "odradek":
            raise
        print(f"{name}: this job needs the package {package}: pip install 'odradek[spark]'", file=sys.stderr)
        return 1
    status: int = module.main(rest)
    return status


def print_file(words: Sequence[str]) -> int:
    """Print the path of a job's file, and return the exit status. The job is not imported, so PySpark may be missing."""
    on_spark = [name for name, (module, _) in JOBS.items() if ".pipelines." in module and name != "mirror"]
    parser = argparse.ArgumentParser(
        prog=f"odradek spark {FILE}",
        description="Print the file of a job, by which spark-submit runs it. Neither Spark nor Java is needed.",
    )
    parser.add_argument("job", choices=on_spark, metavar="NAME", help=f"one of: {', '.join(on_spark)}")
    spec = find_spec(JOBS[parser.parse_args(words).job][0])
    assert spec is not None, "each job has a module"
    print(spec.origin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
