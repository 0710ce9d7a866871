"""`python -m sim --seed N`: one run of the simulator; its last lines say how it ended.

Exit status: 0 ok, 1 safety, 2 liveness, 3 crash (an exception that nobody expected); 64: the command was not understood.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from typing import NoReturn

from sim.cluster_scenario import ClusterScenario
from sim.scenario import SafetyViolation, Scenario
from sim.world import Liveness

LOUD = ("log", "boot", "exit", "poll", "group")
"""Words of the trace that `--log` prints."""
EXIT = {"ok": 0, "safety": 1, "liveness": 2, "crash": 3}
USAGE = 64
"""argparse's own status for this, 2, would be taken for liveness."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the scenario of a seed and print `verdict`, `digest`, `virtual` and `real`."""
    parser = _Parser(prog="python -m sim", description="One run of a virtual world, from a seed.")
    parser.add_argument("--seed", type=int, required=True, help="what the whole run hangs on")
    parser.add_argument(
        "--crashes", type=int, default=3, help="how often the node dies (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=1, help="3 and more: a cluster (default: %(default)s)")
    parser.add_argument(
        "--controllers", type=int, help="of a cluster: 0: each node is one too; else so many of their own"
    )
    parser.add_argument("--seconds", type=float, help="of a cluster: how long the storm is, in virtual time")
    parser.add_argument("--trace", action="store_true", help="print the last events of the run")
    parser.add_argument("--log", action="store_true", help="print what the nodes log, and what befalls them")
    options = parser.parse_args(arguments)

    scenario: Scenario | ClusterScenario
    print(f"seed: {options.seed}")
    if options.nodes > 1:
        scenario = ClusterScenario(
            options.seed, nodes=options.nodes, controllers=options.controllers, seconds=options.seconds
        )
        print(f"shape: {scenario.shape}")
        print(f"storm: {scenario.plan}")
    else:
        scenario = Scenario(options.seed, crashes=options.crashes)
    print(f"weather: {scenario.world.weather}")
    if options.log:
        scenario.world.trace.on_line = _print_if_told
    began = time.monotonic()
    verdict = "ok"
    try:
        summary = scenario.run()
        print(f"summary: {summary}")
    except Liveness as error:
        verdict = "liveness"
        print(f"liveness: {error}")
    except SafetyViolation as error:
        verdict = "safety"
        print(f"safety: {error}")
    except Exception:  # noqa: BLE001 - any other exception is a crash of a node, which is what is reported
        verdict = "crash"
        traceback.print_exc(file=sys.stdout)
    if options.trace:
        print("\n".join(scenario.world.trace.lines))
    if verdict != "ok":
        given = " ".join(sys.argv[1:] if arguments is None else arguments)
        print(f"again: python -m sim {given} (commit {_commit()})")
    print(f"verdict: {verdict}")
    print(f"digest: {scenario.world.digest()}")
    print(f"virtual: {scenario.world.now:.3f}")
    print(f"real: {time.monotonic() - began:.3f}")
    return EXIT[verdict]


def _print_if_told(what: str, line: str) -> None:
    """What a human wants to read of a run: the nodes' logs, deaths, starts, and the storm."""
    if what in LOUD or what.startswith("crash"):
        print(line)


def _commit() -> str:
    """The commit that this tree stands on, as far as git knows."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
