"""A Spark job as a process that is started again until it ends well, while drivers, executors and nodes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from jepsen_tests.real_cluster import Cluster
from tests.docs.markdown import ROOT

__all__ = [
    "DriverKills",
    "ExecutorKills",
    "Nemesis",
    "NodeKills",
    "StepKills",
    "run_to_the_end",
]

_SECONDS_MAX = 3600.0
_AWAY_SECONDS_MAX = 3.0
_LOOK_SECONDS = 0.05
"""A batch takes longer; to look at its folders more often would cost a tenth of a core."""


class Nemesis(Protocol):
    """One kind of kill. `kills` counts those that were done."""

    kills: int

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        """Kill, or leave it; `under_way` are the batches that are in the offset log and not in the commit log."""

    def explains(self, status: int) -> bool:
        """True if a process may end with this status because of these kills."""


@attrs.define
class DriverKills:
    """Kills the driver with its process group while a batch is in the offset log alone; each batch once."""

    most: int
    kills: int = 0
    _seen: set[str] = attrs.field(factory=set)

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        fresh = under_way - self._seen
        if fresh and self.kills < self.most:
            self._seen |= fresh
            os.killpg(process.pid, signal.SIGKILL)
            self.kills += 1

    def explains(self, status: int) -> bool:
        """True if the status is that of the signal."""
        return status == -signal.SIGKILL


@attrs.define
class StepKills:
    """Kills of the driver's Python process in a commit, done by that process itself; the query then begins again.

    `folder` has a file for each kill that is left, and `pattern` finds them.
    """

    folder: Path
    pattern: str
    kills: int = 0
    _wanted: int = attrs.field(init=False)

    @_wanted.default
    def _count(self) -> int:
        return len(list(self.folder.glob(self.pattern)))

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        """Do nothing: the processes look for themselves."""

    def explains(self, status: int) -> bool:
        """Count the kills, and return False: the driver continues."""
        self.kills = self._wanted - self._count()
        return False


@attrs.define
class ExecutorKills:
    """Kills the Java process of an executor at a random time within a batch; each batch once."""

    most: int
    rng: random.Random
    executors: Callable[[], list[int]]
    """The Java processes that are executors now."""
    delay_seconds_max: float = 2.0
    kills: int = 0
    _seen: set[str] = attrs.field(factory=set)
    _due: float | None = None

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        if self.kills >= self.most:
            return
        fresh = under_way - self._seen
        if fresh and self._due is None:
            self._seen |= fresh
            self._due = time.monotonic() + self.rng.random() * self.delay_seconds_max
        if self._due is None or time.monotonic() < self._due:
            return
        self._due = None
        found = self.executors()
        if found:
            os.kill(self.rng.choice(found), signal.SIGKILL)
            self.kills += 1

    def explains(self, status: int) -> bool:
        """Return False: Spark starts another executor."""
        return False


@attrs.define
class NodeKills:
    """Kills one node after the other within batches; each comes back after some seconds, and is in sync before the next."""

    most: int
    cluster: Cluster
    rng: random.Random
    kills: int = 0
    _seen: set[str] = attrs.field(factory=set)
    _away: tuple[int, float] | None = None

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        if self._away is not None:
            number, until = self._away
            if time.monotonic() >= until:
                self._away = None
                self.cluster.start(number)
                self.cluster.wait_until_whole()
            return
        fresh = under_way - self._seen
        if fresh and self.kills < self.most:
            self._seen |= fresh
            # All die equally often.
            number = sorted(self.cluster.nodes)[self.kills % len(self.cluster.nodes)]
            self.cluster.kill(number)
            self.kills += 1
            self._away = number, time.monotonic() + self.rng.random() * _AWAY_SECONDS_MAX

    def explains(self, status: int) -> bool:
        """Return False: clients wait until the node is there again."""
        return False


def run_to_the_end(
    command: Sequence[str], environment: Mapping[str, str], checkpoint: Path, nemeses: Sequence[Nemesis]
) -> int:
    """Run the command until it ends well; return the number of its starts. Raises `AssertionError` where it fails
    or hangs.

    Its errors are kept beside the checkpoint, and shown where no kill explains them.
    """
    deadline = time.monotonic() + _SECONDS_MAX
    errors = checkpoint.with_name(f"{checkpoint.name}.errors")
    starts = 0
    while True:
        with errors.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stderr=file, start_new_session=True
            )
        starts += 1
        try:
            while process.poll() is None:
                assert time.monotonic() < deadline, "the query does not end"
                under_way = _names(checkpoint / "offsets") - _names(checkpoint / "commits")
                for nemesis in nemeses:
                    nemesis.look(process, under_way)
                time.sleep(_LOOK_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Each of them counts what has happened.
        explained = [nemesis.explains(process.returncode) for nemesis in nemeses]
        if process.returncode == 0:
            return starts
        told = errors.read_text(errors="replace")
        assert any(explained), f"the query ended with {process.returncode}:\n{told}"


def _names(log: Path) -> set[str]:
    return {file.name for file in log.glob("[0-9]*")} if log.is_dir() else set()
