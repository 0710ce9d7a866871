"""Run a Spark job repeatedly until it ends with status 0, while drivers, executors and nodes are killed."""

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
"""The interval is shorter than a batch. A still shorter one would use a tenth of a core."""


class Nemesis(Protocol):
    """One kind of kill. `kills` counts the kills that have happened."""

    kills: int

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        """Decide whether to kill now.

        `under_way` are the batches that are in the offset log, but not in the commit log.
        """

    def explains(self, status: int) -> bool:
        """True if these kills explain a process that ended with this status."""


@attrs.define
class DriverKills:
    """Kills of the driver's process group while a batch is in the offset log only, at most one for each batch."""

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
        """True if the status is that of SIGKILL."""
        return status == -signal.SIGKILL


@attrs.define
class StepKills:
    """Kills of the driver's Python process during a commit. The process kills itself, and the query then restarts.

    `folder` has a file for each kill that is left, and `pattern` matches these files.
    """

    folder: Path
    pattern: str
    kills: int = 0
    _wanted: int = attrs.field(init=False)

    @_wanted.default
    def _count(self) -> int:
        return len(list(self.folder.glob(self.pattern)))

    def look(self, process: subprocess.Popen[bytes], under_way: set[str]) -> None:
        """Do nothing, because the processes kill themselves."""

    def explains(self, status: int) -> bool:
        """Update the count of kills. Return False, because the driver survives."""
        self.kills = self._wanted - self._count()
        return False


@attrs.define
class ExecutorKills:
    """Kills of an executor's Java process at a random time within a batch, at most one for each batch."""

    most: int
    rng: random.Random
    executors: Callable[[], list[int]]
    """Returns the current executor processes."""
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
        """Return False: Spark replaces an executor itself."""
        return False


@attrs.define
class NodeKills:
    """Kills of one node after another during batches.

    Each node returns after some seconds, and is in sync before the next kill.
    """

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
            # Each node is killed equally often.
            number = sorted(self.cluster.nodes)[self.kills % len(self.cluster.nodes)]
            self.cluster.kill(number)
            self.kills += 1
            self._away = number, time.monotonic() + self.rng.random() * _AWAY_SECONDS_MAX

    def explains(self, status: int) -> bool:
        """Return False: clients wait until the node is back."""
        return False


def run_to_the_end(
    command: Sequence[str], environment: Mapping[str, str], checkpoint: Path, nemeses: Sequence[Nemesis]
) -> int:
    """Run the command until it ends with status 0; return the number of starts.

    Raises `AssertionError` if it hangs or fails without a kill that explains it. Its stderr is kept beside the
    checkpoint.
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
                assert time.monotonic() < deadline, "the query does not end in time"
                under_way = _names(checkpoint / "offsets") - _names(checkpoint / "commits")
                for nemesis in nemeses:
                    nemesis.look(process, under_way)
                time.sleep(_LOOK_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Call all of them, because each updates its count.
        explained = [nemesis.explains(process.returncode) for nemesis in nemeses]
        if process.returncode == 0:
            return starts
        told = errors.read_text(errors="replace")
        assert any(explained), (
            f"the query ended with {process.returncode}, and no kill explains this:\n{told}"
        )


def _names(log: Path) -> set[str]:
    return {file.name for file in log.glob("[0-9]*")} if log.is_dir() else set()
