"""Measures the time and memory of `python -m jepsen_tests.history_check` for a long history without anomalies.

    python -m bench.programs.history_check [--operations 10000000] [--keys 400] [--directory DIR]

The history is written first (140 bytes per operation; by default into a temporary directory). Memory is the largest
proportional set size of Java, and of any Python process below it, measured twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from odradek.spark.worker_process import worker_python

_BATCH = 500
"""The number of records in one poll."""


def lines(operations: int, keys: int) -> Iterator[str]:
    """Yield a history without anomalies: in each round, records are sent to each key, and a consumer polls them.

    It has one operation for each record, and two more for each key and round.
    """
    written = offset = now = 0
    while written < operations:
        for number in range(keys):
            key = f"t-{number}"
            records = []
            for place in range(_BATCH):
                now += 2
                value = (offset + place) * keys + number
                records.append([offset + place, value])
                yield (
                    f'{{"kind": "send", "process": "p-{number}", "invoked": {now}, "key": "{key}", "value": {value}, '
                    f'"completed": {now + 1}, "outcome": "ok", "offset": {offset + place}, "error": ""}}\n'
                )
            now += 2
            poll = {
                "kind": "poll",
                "process": "c",
                "invoked": now,
                "completed": now + 1,
                "outcome": "ok",
                "records": {key: records},
                "rebalanced": [],
                "final": False,
            }
            yield json.dumps(poll) + "\n"
            written += _BATCH + 1
            if written >= operations:
                return
        offset += _BATCH


def memory_mib(parent: int) -> dict[str, float]:
    """Return the largest proportional set size in MiB of the processes below `parent`, by program."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = {parent}
    while more := {pid for pid, above in parents.items() if above in below} - below:
        below |= more
    found: dict[str, float] = {}
    for pid in below:
        with suppress(OSError, StopIteration):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            size = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1024
            command = Path(f"/proc/{pid}/comm").read_text().strip()
            program = "java" if command == "java" else "python"
            found[program] = max(found.get(program, 0.0), size)
    return found


def main() -> None:
    """Write a history, run the check, and print its time and memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--directory", help="directory for the history and Spark's own files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        history = Path(name, "history.jsonl")
        with history.open("w") as file:
            file.writelines(lines(arguments.operations, arguments.keys))
        environment = {**os.environ, "PYSPARK_PYTHON": worker_python(), "SPARK_LOCAL_DIRS": name}
        began = time.monotonic()
        job = subprocess.Popen([sys.executable, "-m", "jepsen_tests.history_check", history], env=environment)
        largest: dict[str, float] = {}
        while job.poll() is None:
            for program, size in memory_mib(job.pid).items():
                largest[program] = max(largest.get(program, 0.0), size)
            time.sleep(0.5)
        seconds = time.monotonic() - began
        print(
            f"{arguments.operations:,} operations, {history.stat().st_size >> 20:,} MiB: {seconds:.0f} s, "
            f"the largest Python process took {largest.get('python', 0):.0f} MiB, Java {largest.get('java', 0):.0f} MiB"
        )
        sys.exit(job.returncode)


if __name__ == "__main__":
    main()
