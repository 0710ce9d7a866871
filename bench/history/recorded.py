"""A recorded run: its commit, its machine, and our figures as ratios to Apache Kafka's in the same run.

Rates and seconds of different days cannot be compared, because machines and their load differ. So only ratios to a
reference in the same run are drawn.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import cattrs

from bench.report import OURS, REFERENCE

DIRECTORY = Path(__file__).parent / "runs"


class NotRecordable(Exception):
    """Raised if a run cannot be recorded. The text has the reason, and advice."""


@attrs.frozen
class Measured:
    """One of our figures and the reference's figure, both in `unit`."""

    name: str
    unit: str
    value: float
    reference: float

    @property
    def ratio(self) -> float:
        return self.value / self.reference


@attrs.frozen
class Machine:
    """The machine on which a run was made."""

    cpus: int
    kernel: str
    python: str


@attrs.frozen
class Method:
    """The options with which a run was made."""

    quick: bool
    pinning: str
    topic_partitions: int


@attrs.frozen
class RecordedRun:
    """One recorded run. `date` is the date of the commit (YYYY-MM-DD)."""

    date: str
    commit: str
    machine: Machine
    method: Method
    figures: tuple[Measured, ...]

    @property
    def file_name(self) -> str:
        return f"{self.date}-{self.commit}.json"


def figures_of(found: Mapping[str, object]) -> tuple[Measured, ...]:
    """Return the figures of a run of `python -m bench` for which there is a reference. `found` is the run's JSON."""
    measured = cattrs.structure(found, _Found)
    return (
        *_of_throughput(measured.throughput),
        *_of_rest(measured.footprint),
        *_of_requests(measured.requests),
    )


def record(found: Mapping[str, object], repository: Path, directory: Path = DIRECTORY) -> Path:
    """Write a run's figures to a file and return its path. A second run of the same commit replaces the first.

    Raises NotRecordable for a quick run, a run without Kafka, and a checkout with uncommitted changes.
    """
    measured = cattrs.structure(found, _Found)
    if measured.method.quick:
        raise NotRecordable("a quick run is an impression: leave out --quick to record it")
    figures = figures_of(found)
    if not figures:
        raise NotRecordable(
            "the run has no figure beside Apache Kafka: leave out --no-kafka, and install Java"
        )
    if _git(repository, "status", "--porcelain", "--untracked-files=no"):
        raise NotRecordable(
            "the checkout has changes: commit them first, so that the figures belong to a commit"
        )
    date, commit = _git(repository, "log", "-1", "--format=%cs %h", "--abbrev=8").split()
    run = RecordedRun(date, commit, measured.machine, measured.method, figures)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / run.file_name
    path.write_text(json.dumps(cattrs.unstructure(run), indent=2) + "\n")
    return path


def recorded_runs(directory: Path = DIRECTORY) -> list[RecordedRun]:
    """Read all recorded runs, the oldest first."""
    return [
        cattrs.structure(json.loads(each.read_text()), RecordedRun)
        for each in sorted(directory.glob("*.json"))
    ]


@attrs.frozen
class _Pass:
    workload: str
    action: str
    server: str
    messages_per_second: float
    cpu_seconds_per_gb: float


@attrs.frozen
class _Figure:
    server: str
    name: str
    value: float
    unit: str


@attrs.frozen
class _Request:
    server: str
    kind: str
    cpu_microseconds: float


@attrs.frozen
class _Found:
    """The parts of a run's JSON that are recorded."""

    machine: Machine
    method: Method
    throughput: list[_Pass] = attrs.field(factory=list)
    footprint: list[_Figure] = attrs.field(factory=list)
    requests: list[_Request] = attrs.field(factory=list)


def _of_throughput(passes: Iterable[_Pass]) -> Iterable[Measured]:
    by_place = {(each.workload, each.action, each.server): each for each in passes}
    for (workload, action, server), ours in by_place.items():
        theirs = by_place.get((workload, action, REFERENCE))
        if server == OURS and theirs is not None:
            name = f"{action} {workload}"
            yield Measured(
                f"{name}: rate", "messages/s", ours.messages_per_second, theirs.messages_per_second
            )
            yield Measured(f"{name}: CPU", "s/GB", ours.cpu_seconds_per_gb, theirs.cpu_seconds_per_gb)


def _of_rest(figures: Iterable[_Figure]) -> Iterable[Measured]:
    by_place = {(each.name, each.server): each for each in figures}
    for (name, server), ours in by_place.items():
        theirs = by_place.get((name, REFERENCE))
        if server == OURS and theirs is not None:
            yield Measured(name, ours.unit, ours.value, theirs.value)


def _of_requests(requests: Iterable[_Request]) -> Iterable[Measured]:
    by_place = {(each.kind, each.server): each for each in requests}
    for (kind, server), ours in by_place.items():
        theirs = by_place.get((kind, REFERENCE))
        if server == OURS and theirs is not None:
            yield Measured(f"request {kind}: CPU", "us", ours.cpu_microseconds, theirs.cpu_microseconds)


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
