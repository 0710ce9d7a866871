"""One run from a seed and its options, and its outcome, for the command line and for campaigns. SHELL.

`run` never raises for what a node does. A broken promise, a cluster that stays ill and an unexpected exception are
verdicts. Two failures with the same `signature` are most likely the same bug.
"""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from sim.history import SafetyViolation
from sim.load.own_workload import OwnWorkload
from sim.machine.answer_counts import AnswerCounts
from sim.machine.world import Liveness
from sim.options import RunOptions
from sim.scenarios.cluster_scenario import ClusterScenario

EXIT_STATUS: Mapping[str, int] = {"ok": 0, "safety": 1, "liveness": 2, "crash": 3}
"""The exit status of `python -m sim`, by verdict."""
EVENT_WORDS = ("log", "boot", "exit", "poll", "group")
"""Words of the trace that people want to read, beside those that begin with `crash`."""
EVENTS_MAX = 50_000
COLLECTED_AFTER = (200_000, 20, 100)
"""The thresholds of Python's garbage collector during a run. Its usual ones cost a tenth of the run's time. With these,
a run of ten seconds has some 50 MB of cyclic garbage at its end."""
_SIGNATURE_CHARACTERS_MAX = 160
_REPOSITORY = Path(__file__).resolve().parent.parent

__all__ = ["EXIT_STATUS", "Event", "RunResult", "commit", "run"]


@attrs.frozen
class Event:
    """An event of a timeline: `who` did it, at a virtual time in seconds."""

    time: float
    who: str
    what: str
    details: str


@attrs.frozen
class RunResult:
    """The verdict of a run, with its figures.

    `message` is for a human (of a crash the whole traceback), `signature` for grouping.
    """

    seed: int
    options: RunOptions
    verdict: str
    signature: str
    message: str
    digest: str
    virtual_seconds: float
    real_seconds: float
    events: tuple[Event, ...]
    """The first `EVENTS_MAX` events; empty unless the caller wanted events."""
    statistics: Mapping[str, int]
    last_lines: tuple[str, ...]
    """The last lines of the trace."""
    answers: AnswerCounts
    """How many answers the nodes gave, by API and version."""
    faults: Mapping[str, int]
    """How often each kind of fault befell the cluster."""
    states: Mapping[str, int]
    """How often the product came to each of its named states."""


def run(
    seed: int,
    options: RunOptions,
    *,
    trace: Callable[[str, str], None] | None = None,
    with_events: bool = False,
    own: Sequence[OwnWorkload] = (),
) -> RunResult:
    """Run to the end. `trace(word, line)` is called for each event of the world, which it must not change. `own` are
    workloads of the user on top of those of the options.
    """
    # The clients' own log would be thousands of lines about faults that the run makes on purpose.
    logging.getLogger("odradek.client").addHandler(logging.NullHandler())
    scenario = ClusterScenario.of(seed, options)
    scenario.own = own
    events: list[Event] = []

    def on_line(word: str, line: str) -> None:
        if trace is not None:
            trace(word, line)
        if with_events and len(events) < EVENTS_MAX and is_event(word):
            when, who, rest = line.split(" ", 2)
            events.append(Event(float(when), who, word, rest[len(word) + 1 :]))

    if trace is not None or with_events:
        scenario.world.trace.on_line = on_line
    verdict, signature, message = "ok", "", ""
    statistics: Mapping[str, int] = {}
    began = time.monotonic()
    try:
        with _rare_collections():
            statistics = scenario.run()
    except Liveness as error:
        verdict, signature, message = "liveness", signature_of(f"liveness: {error}"), str(error)
    except SafetyViolation as error:
        verdict, signature, message = "safety", signature_of(f"safety: {error}"), str(error)
    except Exception as error:  # noqa: BLE001 - any other exception is a crash of a node, and is reported
        verdict, signature = "crash", signature_of_crash(error)
        message = "".join(traceback.format_exception(error))
    world = scenario.world
    return RunResult(
        seed,
        options,
        verdict,
        signature,
        message,
        world.digest(),
        world.now,
        time.monotonic() - began,
        tuple(events),
        statistics,
        tuple(world.trace.lines),
        scenario.answers(),
        scenario.faults(),
        dict(sorted(world.states.items())),
    )


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage before the block, and seldom in it. Later collections skip the objects from before the block."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def is_event(word: str) -> bool:
    """True if a word of the trace is for humans."""
    return word in EVENT_WORDS or word.startswith("crash")


def signature_of(message: str) -> str:
    """Strip a message of all that differs between runs: quoted values, digits, and the seed."""
    plain = re.sub(r"seed \d+(, at [\d.]+ s)?: ", "", message)
    plain = re.sub(r"b?'[^']*'", "'..'", plain)
    plain = re.sub(r"\d+(\.\d+)?", "N", plain)
    return plain[:_SIGNATURE_CHARACTERS_MAX]


def signature_of_crash(error: BaseException) -> str:
    """Name the kind of the exception, and its last place in the repository's own code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(_REPOSITORY) and ".venv" not in path.parts:
            place = f"{path.relative_to(_REPOSITORY).as_posix()} {frame.name}"
    return f"crash: {type(error).__name__} in {place}"


def commit() -> str:
    """Name the commit that this tree stands on, as far as git knows."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=_REPOSITORY,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
