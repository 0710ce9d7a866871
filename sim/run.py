"""One run of the simulator from a seed and its options, for the command line and for campaigns. SHELL.

`run` raises no error of a node. A violated guarantee, a cluster that does not recover, and an unexpected exception
are verdicts of its result. Two failures with the same `signature` are most likely the same bug.
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
"""Events whose word is one of these, or begins with `crash`, are printed for humans."""
EVENTS_MAX = 50_000
COLLECTED_AFTER = (200_000, 20, 100)
"""The thresholds of Python's garbage collector during a run. With Python's default thresholds, collections cost a
tenth of the run's time. With these thresholds, a run of ten seconds has about 50 MB of cyclic garbage at its end.
"""
_SIGNATURE_CHARACTERS_MAX = 160
_REPOSITORY = Path(__file__).resolve().parent.parent

__all__ = ["EXIT_STATUS", "Event", "RunResult", "commit", "run"]


@attrs.frozen
class Event:
    """An event of a timeline: what happened at machine `who`, at a virtual time in seconds."""

    time: float
    who: str
    what: str
    details: str


@attrs.frozen
class RunResult:
    """The verdict of a run, and its counts.

    `message` is for human readers; for a crash it is the whole traceback. `signature` groups equal failures.
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
    """The first `EVENTS_MAX` events; empty unless `run` was called with `with_events`."""
    statistics: Mapping[str, int]
    last_lines: tuple[str, ...]
    """The last lines of the trace."""
    answers: AnswerCounts
    """Counts of the answers that nodes sent, by API, version and error code."""
    faults: Mapping[str, int]
    """How often each kind of fault was inflicted on the cluster."""
    states: Mapping[str, int]
    """How often each named state of the product was reached."""


def run(
    seed: int,
    options: RunOptions,
    *,
    trace: Callable[[str, str], None] | None = None,
    with_events: bool = False,
    own: Sequence[OwnWorkload] = (),
) -> RunResult:
    """Run the simulation to its end, and return the result. `trace(word, line)` is called for each event, and must
    change nothing. `own` are the user's workloads, which run in addition to the workloads of the options.
    """
    # Drop the clients' log: it would have thousands of lines about faults that the run makes on purpose.
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
    """Collect garbage before the block, and rarely within it. Objects from before the block are never scanned again."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def is_event(word: str) -> bool:
    """True if events with this word are printed for humans."""
    return word in EVENT_WORDS or word.startswith("crash")


def signature_of(message: str) -> str:
    """Remove from a message all that differs between runs: quoted values, digits, and the seed."""
    plain = re.sub(r"seed \d+(, at [\d.]+ s)?: ", "", message)
    plain = re.sub(r"b?'[^']*'", "'..'", plain)
    plain = re.sub(r"\d+(\.\d+)?", "N", plain)
    return plain[:_SIGNATURE_CHARACTERS_MAX]


def signature_of_crash(error: BaseException) -> str:
    """Return the type of the exception, and the innermost function of the repository's own code in its traceback."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(_REPOSITORY) and "site-packages" not in path.parts:
            place = f"{path.relative_to(_REPOSITORY).as_posix()} {frame.name}"
    return f"crash: {type(error).__name__} in {place}"


def commit() -> str:
    """Return the short hash of the commit that is checked out; "unknown" without git."""
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
