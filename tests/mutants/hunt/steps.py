"""Steps of the hunt: a part's schedules for a seed, a cluster with the seed's options, or an aimed driver."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import attrs

from sim.alone.parts import SCHEDULES, run_part
from sim.options import RunOptions
from sim.run import run
from tests.mutants.bugs import BY_NAME, MUTANTS
from tests.mutants.drivers import DRIVERS
from tests.mutants.hunt.reach import counted
from tests.mutants.mutant import search

CLUSTER = "cluster"
AIMED = "aimed"
SOUND = ""
"""The name that stands for unchanged code."""
_OUTLASTS = 5.0
_SPARE_SECONDS = 10.0


@attrs.frozen(order=True)
class Step:
    """One step of the hunt. `kind` is a part, `CLUSTER` or `AIMED`, and `seed` is a seed of the campaign."""

    kind: str
    seed: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == AIMED else f"{self.kind} {self.seed}"


@attrs.frozen
class Outcome:
    """The outcome of a step with a mutant or with unchanged code. `verdict` is empty if nothing failed."""

    mutant: str
    step: Step
    verdict: str
    cpu_seconds: float
    reached: dict[str, int] = attrs.field(factory=dict)
    seeds: int = 1


class RunsOn(BaseException):
    """A run with a bug has taken many times the CPU time of unchanged code."""


def perform(name: str, step: Step, sound_seconds: float) -> Outcome:
    """Perform a step with a mutant, or with unchanged code that counts how often it reaches each mutant's place."""
    if step.kind == AIMED:
        return _aimed(name)
    counts: Counter[str] = Counter()
    began = time.process_time()
    planted = counted(MUTANTS) if name == SOUND else BY_NAME[name].planted()
    limit = nullcontext() if name == SOUND else _limited(_OUTLASTS * sound_seconds + _SPARE_SECONDS)
    with planted as found, limit:
        try:
            verdict = _verdict(step)
        except RunsOn as error:
            verdict = str(error)
        if found is not None:
            counts += found
    return Outcome(name, step, verdict, time.process_time() - began, dict(counts))


def _verdict(step: Step) -> str:
    if step.kind == CLUSTER:
        result = run(step.seed, RunOptions.draw(step.seed))
        return "" if result.verdict == "ok" else result.signature
    count = SCHEDULES[step.kind]
    for each in range(step.seed * count, (step.seed + 1) * count):
        try:
            run_part(step.kind, each)
        except Exception as error:  # noqa: BLE001 - any failure shows the mutant
            return f"{step.kind} {each} alone: {type(error).__name__}: {error}".partition("\n")[0]
    return ""


def _aimed(name: str) -> Outcome:
    found = search(BY_NAME[name], DRIVERS)
    verdict = "" if found.seed is None else f"seed {found.seed}: {found.verdict}"
    return Outcome(name, Step(AIMED), verdict, found.cpu_seconds, seeds=found.seeds)


@contextmanager
def _limited(cpu_seconds: float) -> Iterator[None]:
    """Raise `RunsOn` in the block once it has used its CPU time, and every second after that."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise RunsOn(f"it runs on for {cpu_seconds:.0f} s of CPU time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
