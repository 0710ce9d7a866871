"""`python -m sim --seed N`: one run of the simulator. The last lines that it prints report the outcome.

`python -m sim --campaign --hours H --workers 2` makes many runs (`sim.campaign`). `python -m sim --census DIR` prints
which named states the runs of the campaign in DIR have reached.

Exit status: 0 ok, 1 safety, 2 liveness, 3 crash (an unexpected exception); 64 a wrong command.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from odradek.named_states import counting
from sim.alone.parts import PARTS, knobs_of, run_part
from sim.census.states import STATES
from sim.knobs.turning import described
from sim.load.own_workload import OwnWorkload, found_in
from sim.machine.world import Liveness
from sim.options import PROFILES, RunOptions
from sim.replay import options_with, replay_command
from sim.run import EXIT_STATUS, RunResult, commit, is_event, run
from sim.scenarios.lone_node_scenario import SafetyViolation, Scenario
from sim.scenarios.recovery_scenario import RecoveryScenario

USAGE = 64
"""The exit status after a wrong command line. Argparse uses 2, which means a liveness failure here."""
PROGRESS_VIRTUAL_SECONDS = 10.0
LAST_EVENTS = 12
"""How many of the last readable events are printed when a run fails."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command given by `arguments` (default: `sys.argv[1:]`), and return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--campaign" in given:
        from sim.campaign.command import main as campaign

        return campaign([each for each in given if each != "--campaign"])
    if any(each.partition("=")[0] == "--census" for each in given):
        from sim.campaign.census import main as census

        return census(given)
    parser = _parser()
    options = parser.parse_args(given)
    if options.alone is not None:
        try:
            knobs = knobs_of(options.alone, options.seed)
            if options.options is not None:
                knobs = _read_options(options.options).get("knobs", knobs)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        return _run_alone(options.alone, options.seed, knobs, given)
    if options.recover:
        return _run_recoveries(options)
    if options.nodes == 1 or options.crashes is not None:
        return _run_one_node(options, given)
    try:
        chosen = RunOptions.draw(
            options.seed,
            options.profile,
            nodes=options.nodes,
            controllers=options.controllers,
            seconds=options.seconds,
        )
        if options.options is not None:
            chosen = options_with(chosen, _read_options(options.options))
        own = None if options.workload is None else found_in(runpy.run_path(options.workload))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return _run_cluster(options, chosen, own)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m sim",
        description="Run one simulation from a seed. With --campaign: run many (see --campaign --help). With --census DIR: print the named states that runs have reached.",
    )
    parser.add_argument("--seed", type=int, required=True, help="the number that determines the whole run")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="default",
        help="how many faults to inject (default: %(default)s)",
    )
    parser.add_argument(
        "--options",
        metavar="JSON|FILE",
        help="options that replace drawn options: any part of the JSON object that a run prints as `options:`",
    )
    parser.add_argument(
        "--workload", metavar="FILE", help="Python file with your own workload (docs/simulation.md)"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        help="number of brokers, each with all partitions; 1: a single node without a cluster (default: drawn from the seed)",
    )
    parser.add_argument(
        "--controllers",
        type=int,
        help="for a cluster: number of nodes that are only controllers; 0: brokers are also controllers",
    )
    parser.add_argument(
        "--seconds", type=float, help="for a cluster: duration of the storm in seconds of virtual time"
    )
    parser.add_argument("--crashes", type=int, help="for a single node: number of crashes (default: 3)")
    parser.add_argument(
        "--alone",
        choices=PARTS,
        help="simulate one part of the product instead of a cluster (sim/alone/README.md)",
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        help="run the scenario in which voters lose their metadata disks twice and an operator recovers the quorum",
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="with --recover: the number of seeds, from --seed on"
    )
    parser.add_argument("--trace", action="store_true", help="print every event of the run, one per line")
    parser.add_argument(
        "--log", action="store_true", help="print what the nodes log, and the faults that hit them"
    )
    return parser


def _read_options(text: str) -> dict[str, Any]:
    """Parse JSON options: `text` is the JSON object itself, or the path of a file with it. Raises `ValueError`,
    `OSError`.
    """
    given = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
    if not isinstance(given, dict):
        raise ValueError(f"--options must be a JSON object, not {type(given).__name__}")
    return given


def _run_cluster(given: argparse.Namespace, options: RunOptions, own: OwnWorkload | None) -> int:
    seed, every_event, log = given.seed, given.trace, given.log
    print(f"seed: {seed}")
    print(f"shape: {options.shape}")
    print(f"storm: {options.storm}")
    print(f"weather: {options.weather}")
    print(f"knobs: {described(options.knobs)}")
    print(f"options: {options.to_json()}", flush=True)
    result = run(seed, options, trace=_Printer(every_event, log), own=() if own is None else (own,))
    if result.verdict == "ok":
        print(f"summary: {dict(result.statistics)}")
        print(f"states: {len(result.states)} of {len(STATES)} named states reached")
    else:
        _print_failure(result, given.workload, with_end=not (every_event or log))
    _print_end(result.verdict, result.digest, result.virtual_seconds, result.real_seconds)
    return EXIT_STATUS[result.verdict]


class _Printer:
    """Prints each traced event if the user asked for events. Prints a line of progress every 10 virtual seconds."""

    def __init__(self, every_event: bool, log: bool) -> None:
        self._every_event = every_event
        self._log = log
        self._began = time.monotonic()
        self._next = PROGRESS_VIRTUAL_SECONDS
        self._events = 0

    def __call__(self, word: str, line: str) -> None:
        self._events += 1
        if self._every_event or (self._log and is_event(word)):
            print(line)
        now = float(line[: line.index(" ")])
        if now >= self._next:
            self._next = now - now % PROGRESS_VIRTUAL_SECONDS + PROGRESS_VIRTUAL_SECONDS
            real = time.monotonic() - self._began
            print(f"progress: {now:.0f} s virtual, {real:.1f} s real, {self._events} events", flush=True)


def _print_failure(result: RunResult, workload: str | None, *, with_end: bool) -> None:
    if with_end:
        events = [line for line in result.last_lines if is_event(line.split(" ", 3)[2])]
        for line in events[-LAST_EVENTS:]:
            print(f"before: {line}")
    print(f"{result.verdict}: {result.message.rstrip()}")
    print(f"signature: {result.signature}")
    own = "" if workload is None else f" --workload {shlex.quote(workload)}"
    print(f"repeat with: {replay_command(result.seed, result.options)}{own} (commit {commit()})")


def _print_end(verdict: str, digest: str, virtual_seconds: float, real_seconds: float) -> None:
    print(f"verdict: {verdict}")
    print(f"digest: {digest}")
    print(f"virtual: {virtual_seconds:.3f}")
    print(f"real: {real_seconds:.3f}")


def _run_alone(part: str, seed: int, knobs: Mapping[str, int], given: list[str]) -> int:
    """Run a schedule of one single part (`sim.alone.parts`), and return the exit status. No digest is printed, since
    such a schedule has no trace.
    """
    print(f"seed: {seed}")
    print(f"knobs: {described(knobs)}")
    states: dict[str, int] = {}
    with counting(states):
        verdict = _verdict_of(lambda: run_part(part, seed, knobs))
    print(f"states: {dict(sorted(states.items()))}")
    if verdict != "ok":
        print(f"repeat with: {shlex.join(['python', '-m', 'sim', *given])} (commit {commit()})")
    print(f"verdict: {verdict}")
    return EXIT_STATUS[verdict]


def _run_one_node(options: argparse.Namespace, given: list[str]) -> int:
    """Run `sim.scenarios.lone_node_scenario`: one node that crashes and restarts. Return the exit status."""
    scenario = Scenario(options.seed, crashes=3 if options.crashes is None else options.crashes)
    print(f"seed: {options.seed}")
    print(f"weather: {scenario.world.weather}")
    scenario.world.trace.on_line = _Printer(options.trace, options.log)
    began = time.monotonic()
    verdict = _verdict_of(scenario.run)
    if verdict != "ok":
        print(f"repeat with: {shlex.join(['python', '-m', 'sim', *given])} (commit {commit()})")
    _print_end(verdict, scenario.world.digest(), scenario.world.now, time.monotonic() - began)
    return EXIT_STATUS[verdict]


def _run_recoveries(options: argparse.Namespace) -> int:
    """Run `sim.scenarios.recovery_scenario` for `--runs` seeds, until one fails. Return the exit status."""
    for seed in range(options.seed, options.seed + options.runs):
        scenario = RecoveryScenario(seed)
        print(f"seed: {seed}")
        print(f"shape: {scenario.shape}")
        scenario.world.trace.on_line = _Printer(options.trace, options.log)
        began = time.monotonic()
        verdict = _verdict_of(scenario.run)
        if verdict != "ok":
            print(f"repeat with: python -m sim --recover --seed {seed} (commit {commit()})")
        _print_end(verdict, scenario.world.digest(), scenario.world.now, time.monotonic() - began)
        if verdict != "ok":
            return EXIT_STATUS[verdict]
    return EXIT_STATUS["ok"]


def _verdict_of(scenario: Callable[[], object]) -> str:
    try:
        print(f"summary: {scenario()}")
    except Liveness as error:
        print(f"liveness: {error}")
        return "liveness"
    except SafetyViolation as error:
        print(f"safety: {error}")
        return "safety"
    except Exception:  # noqa: BLE001 - any other exception is a crash of a node, and is reported
        traceback.print_exc(file=sys.stdout)
        return "crash"
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
