"""The processor time of whole simulated runs, beside another checkout's: how much faster the simulator has become.

    python -m bench.programs.simulator                                             # this tree
    python -m bench.programs.simulator --before /other/checkout/.venv/bin/python   # and the ratio to another one

`simulator_runs.json` pins the options of six seeds: shapes, weather, kinds of trouble and workloads, as the default profile
once drew them. So both trees do the same work, whatever the seeds draw today. Both run each seed in turn, one run after the
other, in a process of their own that has run one before. What counts is user and system time of that process.

A run is chaotic: when a step is left out, other records meet other troubles. So one seed decides little. `--rounds` runs
the same options with more seeds (100, 1100, 2100, ...), and the sums decide. Beside the time stand the troubles of the nodes, the
steps of clients and the acknowledged records. A step is a record that was sent, or that a reader got. All three must agree within
a tenth, or the work was another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from bench.instruments.tables import table

OPTIONS = Path(__file__).with_name("simulator_runs.json")
NEWER = {"weather": {"torn_share": 0.25}}
"""What options have in this tree alone, with the values that seeds draw today."""
NEXT_ROUND = 1000
"""How far the seeds of a round lie behind those of the round before."""
_REPOSITORY = Path(__file__).resolve().parents[2]


@attrs.frozen
class Cost:
    """What a run took, and what was done for it. Costs add up."""

    cpu_seconds: float = 0.0
    virtual_seconds: float = 0.0
    faults: int = 0
    steps: int = 0
    acknowledged: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            *(mine + its for mine, its in zip(attrs.astuple(self), attrs.astuple(other), strict=True))
        )


class Simulator:
    """A worker of a checkout's campaigns: it runs one seed after the other."""

    def __init__(self, python: str) -> None:
        """`python` is the interpreter of the checkout's own environment."""
        root = Path(python).absolute().parent.parent.parent
        self._process = subprocess.Popen(
            [python, "-m", "sim.campaign.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=root,
        )

    def run(self, seed: int, options: Mapping[str, Any]) -> Cost:
        """Run a seed, and return its cost. Raises `RuntimeError` when it fails."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        began = self._cpu_seconds()
        job = {"seed": seed, "options": json.dumps(options), "commit": "bench"}
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process died in seed {seed}")
        spent = self._cpu_seconds() - began
        outcome = json.loads(line)
        if outcome["verdict"] != "ok":
            raise RuntimeError(f"seed {seed}: {outcome['verdict']}: {outcome['message']}")
        counts = outcome["statistics"]
        steps = counts["sent"] + counts["read"]
        return Cost(spent, outcome["virtual_seconds"], counts["troubles"], steps, counts["acknowledged"])

    def _cpu_seconds(self) -> float:
        return time.clock_gettime(((~self._process.pid) << 3) | 2)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def measure(pythons: Sequence[str], rounds: int) -> dict[str, list[Cost]]:
    """Return for each pinned seed the costs of each tree, over all rounds, run by turns."""
    pinned: dict[str, Mapping[str, Any]] = json.loads(OPTIONS.read_text())
    simulators = [Simulator(python) for python in pythons]
    costs = {name: [Cost() for _ in simulators] for name in pinned}
    try:
        for simulator in simulators:  # so that modules and codecs are loaded
            simulator.run(*next((int(name), options) for name, options in pinned.items()))
        for number in range(rounds):
            for name, options in pinned.items():
                for place, simulator in enumerate(simulators):
                    given = options if place else _with_newer(options)
                    costs[name][place] += simulator.run(int(name) + number * NEXT_ROUND, given)
    finally:
        for simulator in simulators:
            simulator.stop()
    return costs


def _with_newer(options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**options, **{part: {**options[part], **values} for part, values in NEWER.items()}}


def _row(name: str, costs: Sequence[Cost]) -> list[str]:
    now = costs[0]
    row = [name, f"{now.cpu_seconds:.2f}", f"{now.virtual_seconds:.0f}", str(now.faults), str(now.steps)]
    row.append(str(now.acknowledged))
    for before in costs[1:]:
        ratio = now.cpu_seconds / before.cpu_seconds
        row += [f"{before.cpu_seconds:.2f}", f"{before.virtual_seconds:.0f}", str(before.faults)]
        row += [str(before.steps), str(before.acknowledged), f"{ratio:.3f}"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.programs.simulator", description=__doc__)
    parser.add_argument(
        "--before", metavar="PYTHON", help="the interpreter of another checkout's environment"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how many seeds for each of the six options")
    arguments = parser.parse_args()
    pythons = [str(_REPOSITORY / ".venv/bin/python"), *([arguments.before] if arguments.before else [])]
    costs = measure(pythons, arguments.rounds)
    head = ["seed", "CPU s", "virtual s", "faults", "steps", "acknowledged"]
    if arguments.before:
        head += [f"{column} before" for column in head[1:]] + ["CPU now / before"]
    rows = [_row(name, found) for name, found in costs.items()]
    totals = [sum((found[place] for found in costs.values()), Cost()) for place in range(len(pythons))]
    sys.stdout.write(table(head, [*rows, _row("all", totals)]) + "\n")


if __name__ == "__main__":
    main()
