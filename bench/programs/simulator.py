"""Measures the cost of whole simulated runs, compared with another commit: how much faster the simulator has become.

    python -m bench.programs.simulator                               # this tree
    python -m bench.programs.simulator --before 07ec2cab             # and the ratio to a commit
    python -m bench.programs.simulator --before 07ec2cab --counts    # function calls and task steps in place of time

`simulator_runs.json` has the options of six runs: cluster shape, faults, workloads and operators, as drawn by the
default profile at commit 07ec2cab. So both trees do the same work, even if the seeds draw other options today. The two
trees run each seed in turn. Each tree has a separate process, which has made a first run before the measured ones. All
checks are included.

CPU time is user and system time of that process. On a shared machine it differs by a third from run to run. So
`--counts` counts two figures that do not depend on the machine: calls of functions (`cProfile`), and steps of trio's
tasks.

A run is chaotic: if one step is omitted, faults hit other records. So a single seed shows little. `--rounds` runs the
same options with more seeds (100, 1100, 2100, ...), and the sums are compared. The last table divides the work by the
costs. The work is virtual seconds, acknowledged records, and requests that nodes answered.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs

from bench.instruments.tables import table

OPTIONS = Path(__file__).with_name("simulator_runs.json")
NEXT_ROUND = 1000
"""The difference between a seed and the seed of the next round."""
_REPOSITORY = Path(__file__).resolve().parents[2]
_RUNNER = """
import cProfile, json, sys, time
from sim.options import RunOptions
from sim.run import run

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    job = json.loads(line)
    options = RunOptions.from_json(job["options"])
    profile = cProfile.Profile() if job["counts"] else None
    began = time.process_time()
    result = profile.runcall(run, job["seed"], options) if profile else run(job["seed"], options)
    cost = {"cpu_seconds": time.process_time() - began, "virtual_seconds": result.virtual_seconds}
    if profile:
        entries = profile.getstats()
        stepping = [each for each in entries if "_contextvars.Context" in str(each.code)]
        cost["calls"] = sum(each.callcount for each in entries)
        cost["steps"] = sum(each.callcount for each in stepping)
    counts = result.answers.counts.values()
    cost["answers"] = sum(each.get("answers", 0) for each in counts)
    if result.verdict == "ok":
        cost["acknowledged"] = result.statistics["acknowledged"]
        cost["faults"] = result.statistics["troubles"]
    answers.write(json.dumps([result.verdict, result.message, cost]) + "\\n")
    answers.flush()
"""
"""The source of a program that runs jobs with the code of one tree. It reads the jobs from its standard input."""


@attrs.frozen
class Cost:
    """The cost of a run, and the work done in it. Costs can be added."""

    cpu_seconds: float = 0.0
    calls: int = 0
    """The number of function calls; 0 if not counted."""
    steps: int = 0
    """The number of steps of trio's tasks; 0 if not counted."""
    virtual_seconds: float = 0.0
    acknowledged: int = 0
    answers: int = 0
    faults: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            *(mine + its for mine, its in zip(attrs.astuple(self), attrs.astuple(other), strict=True))
        )


WORK = ("virtual_seconds", "acknowledged", "answers")
"""The fields of `Cost` that measure work done."""


class Simulator:
    """A process that runs seeds of one tree, one after the other."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )

    def run(self, seed: int, options: Mapping[str, Any], *, counts: bool) -> Cost:
        """Run a seed, and return its cost. Raises `RuntimeError` if the run fails."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        job = {"seed": seed, "options": json.dumps(options), "counts": counts}
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process died in seed {seed}")
        verdict, message, cost = json.loads(line)
        if verdict != "ok":
            raise RuntimeError(f"seed {seed}: {verdict}: {message}")
        return Cost(**cost)

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def unpack(commit: str, root: Path) -> None:
    """Write the files of a commit into a directory."""
    packed = subprocess.run(
        ["git", "archive", commit], cwd=_REPOSITORY, check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(root, filter="tar")


def measure(
    roots: Sequence[Path], seeds: Sequence[str], rounds: int, *, counts: bool
) -> dict[str, list[Cost]]:
    """Return for each seed the costs in each tree, added up over all rounds. The trees take turns."""
    pinned: dict[str, Mapping[str, Any]] = json.loads(OPTIONS.read_text())
    chosen = {name: options for name, options in pinned.items() if not seeds or name in seeds}
    simulators = [Simulator(root) for root in roots]
    costs = {name: [Cost() for _ in simulators] for name in chosen}
    try:
        for simulator in simulators:  # The first run loads modules and codecs, and is not measured.
            simulator.run(104, pinned["104"], counts=False)
        for number in range(rounds):
            for name, options in chosen.items():
                for place, simulator in enumerate(simulators):
                    seed = int(name) + number * NEXT_ROUND
                    costs[name][place] += simulator.run(seed, options, counts=counts)
    finally:
        for simulator in simulators:
            simulator.stop()
    return costs


def _row(name: str, cost: Cost, measured: str) -> list[str]:
    fields = (measured, *WORK, "faults", *(("steps",) if measured == "calls" else ()))
    return [name, *(f"{getattr(cost, field):.{2 if field == 'cpu_seconds' else 0}f}" for field in fields)]


def _rates(totals: Sequence[Cost], measured: str) -> list[list[str]]:
    """Return table rows with the work of each tree per second (or per million calls), and the ratio of the trees."""
    unit = 1e6 if measured == "calls" else 1.0
    rows = []
    for field in WORK:
        rates = [getattr(total, field) / getattr(total, measured) * unit for total in totals]
        ratio = [f"{rates[0] / rates[1]:.2f}"] if len(rates) > 1 else []
        rows.append([field.replace("_", " "), *(f"{rate:.1f}" for rate in rates), *ratio])
    return rows


def main() -> None:
    """Print the costs of each run, and the work relative to the sum of the costs."""
    parser = argparse.ArgumentParser(prog="python -m bench.programs.simulator", description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="commit to compare with")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="number of seeds for each of the six sets of options (default: 1)",
    )
    parser.add_argument(
        "--seeds", nargs="*", default=[], help="the seeds to run, among the six (default: all)"
    )
    parser.add_argument(
        "--counts", action="store_true", help="count function calls and task steps instead of CPU time"
    )
    arguments = parser.parse_args()
    measured = "calls" if arguments.counts else "cpu_seconds"
    with tempfile.TemporaryDirectory(prefix="odradek-bench-") as directory:
        roots = [_REPOSITORY]
        if arguments.before:
            unpack(arguments.before, Path(directory))
            roots.append(Path(directory))
        costs = measure(roots, arguments.seeds, arguments.rounds, counts=arguments.counts)
    names = ["now", "before"][: len(roots)]
    rows = []
    for name, found in costs.items():
        rows += [_row(f"{name} {tree}", cost, measured) for tree, cost in zip(names, found, strict=True)]
    totals = [sum((found[place] for found in costs.values()), Cost()) for place in range(len(roots))]
    rows += [_row(f"all {tree}", total, measured) for tree, total in zip(names, totals, strict=True)]
    what = "calls" if arguments.counts else "CPU s"
    head = ["seed", what, "virtual s", "acknowledged", "answers", "faults"]
    sys.stdout.write(table([*head, *(["steps"] if arguments.counts else [])], rows) + "\n\n")
    unit = "million calls" if arguments.counts else "CPU second"
    ratio = ["now / before"] if arguments.before else []
    sys.stdout.write(table([f"by the {unit}", *names, *ratio], _rates(totals, measured)) + "\n")


if __name__ == "__main__":
    main()
