"""The interface of the driving loop for the parts of a running replica, and the settings that they share. PORTED.

`raft_quorum.py` is the driver. Its parts (`quorum_leader.py`, `quorum_requests.py`, `quorum_snapshots.py`, and
those in `asking/`) report to the core through the driver, which also does all work that waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from odradek.env.ports import Clock, DiskRefused, Env, Log
from odradek.metadata_quorum.ports import OffsetAndEpoch, ReplicatedLog, SnapshotStore, StoredSnapshot
from odradek.metadata_quorum.raft.core import RaftCore
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.voters import ReplicaKey, VoterSet
from odradek.metadata_quorum.replica.turns import Turns
from odradek.metadata_quorum.replica.wire_messages import Endpoint

__all__ = [
    "NO_VOTERS",
    "DropBelow",
    "ExpireOld",
    "InstallSnapshot",
    "QuorumDriver",
    "QuorumSettings",
    "SnapshotEffect",
]

T = TypeVar("T")

NO_VOTERS = VoterSet(())


@attrs.frozen
class QuorumSettings:
    """The identity of this replica, and the ways to find the other nodes."""

    me: ReplicaKey
    cluster_id: str
    raft: RaftConfig = attrs.field(factory=RaftConfig)
    static_voters: VoterSet = NO_VOTERS
    """`controller.quorum.voters`: they apply as long as the log names no voters. Empty if the log names them."""
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    """(host, port) of nodes to ask for the leader."""
    endpoints: tuple[Endpoint, ...] = ()
    """The addresses at which this node listens as a controller, in the order of `controller.listener.names`."""
    listener: str | None = None
    """The name of the listener at which this node reaches controllers: the first of `controller.listener.names`.
    None: use the first endpoint that they advertise.
    """

    def chosen(self, endpoints: Sequence[Endpoint]) -> tuple[str, int]:
        """Choose the endpoint at which this node reaches another node: the endpoint of the listener with the same name."""
        mine = (each for each in endpoints if each[0] == self.listener)
        return next(mine, endpoints[0])[1:]


@attrs.frozen
class InstallSnapshot:
    """Replace the log by a snapshot that a leader sent."""

    stored: StoredSnapshot


@attrs.frozen
class DropBelow:
    """Remove the part of the log that a snapshot of this node covers."""

    end: OffsetAndEpoch


@attrs.frozen
class ExpireOld:
    """Remove parts of the log that snapshots of this node cover and that are too old to be kept."""


SnapshotEffect = InstallSnapshot | DropBelow | ExpireOld


class QuorumDriver(Protocol):
    """The loop of a running replica, as its parts use it."""

    @property
    def env(self) -> Env: ...

    @property
    def clock(self) -> Clock:
        """The clock of `env`."""

    @property
    def settings(self) -> QuorumSettings: ...

    @property
    def logger(self) -> Log: ...

    @property
    def log(self) -> ReplicatedLog: ...

    @property
    def snapshot_store(self) -> SnapshotStore: ...

    @property
    def reading(self) -> Turns:
        """A lock for `async with`: while it is held, the log is not cut."""

    @property
    def core(self) -> RaftCore:
        """The core that decides. There is none before the driver has opened the log."""

    @property
    def is_running(self) -> bool:
        """True if the quorum accepts requests."""

    @property
    def has_dynamic_voters(self) -> bool:
        """True if the log (or the snapshot before it) names the voters: kraft.version 1."""

    def report(self, report: Callable[..., None], *args: Any, **options: Any) -> None:
        """Report an event at the present time to the core, and perform its effects."""

    def wake(self) -> None:
        """Wake the driver's task, because there may be something to write."""

    def perform_later(self, effect: SnapshotEffect) -> None:
        """Perform this work on the log after the present effects of the core."""

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a task that ends with the node."""

    def notify_observers(self) -> None:
        """Notify the observers that a value may have changed that they wait for."""

    async def patiently(self, work: Callable[[], T]) -> T:
        """Do this work on the disk, in a worker; try again every second while the disk is full."""

    def report_no_room(self, error: DiskRefused) -> None:
        """Report a write that the disk refused, and that will be tried again. A leader with other voters resigns if
        this goes on.
        """

    def report_room(self) -> None:
        """Report that a write has succeeded."""
