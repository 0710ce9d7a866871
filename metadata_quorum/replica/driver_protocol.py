"""The interface between the driver of a running replica and the driver's parts, and the settings that they
share. PORTED.

The driver is in `raft_quorum.py`. Its parts (`quorum_leader.py`, `quorum_requests.py`, `quorum_snapshots.py`,
and those in `asking/`) report events to the core through the driver. The driver also does all work that waits
for the disk.
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
    """The settings of this replica: its identity, and the addresses of other nodes."""

    me: ReplicaKey
    cluster_id: str
    raft: RaftConfig = attrs.field(factory=RaftConfig)
    static_voters: VoterSet = NO_VOTERS
    """The voters in `controller.quorum.voters`, which apply as long as the log names no voters. The set is
    empty if the log names the voters.
    """
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    """The nodes to ask for the leader: (host, port)."""
    endpoints: tuple[Endpoint, ...] = ()
    """The addresses of this node's controller listeners, in the order of `controller.listener.names`."""
    listener: str | None = None
    """The name of the listener at which this node connects to controllers: the first one in
    `controller.listener.names`. If it is None, this node uses the first endpoint that a controller
    advertises.
    """

    def chosen(self, endpoints: Sequence[Endpoint]) -> tuple[str, int]:
        """Return host and port of the endpoint at which this node connects to another node: the endpoint of
        the listener named `listener`.
        """
        mine = (each for each in endpoints if each[0] == self.listener)
        return next(mine, endpoints[0])[1:]


@attrs.frozen
class InstallSnapshot:
    """Work for the driver: replace the log by a snapshot that the leader of `epoch` has sent."""

    stored: StoredSnapshot
    epoch: int


@attrs.frozen
class DropBelow:
    """Work for the driver: remove the part of the log that one of this node's own snapshots covers."""

    end: OffsetAndEpoch


@attrs.frozen
class ExpireOld:
    """Work for the driver: remove records that are older than the retention, if one of this node's own
    snapshots covers them.
    """


SnapshotEffect = InstallSnapshot | DropBelow | ExpireOld


class QuorumDriver(Protocol):
    """The driver of a running replica, as its parts see it."""

    @property
    def env(self) -> Env: ...

    @property
    def clock(self) -> Clock:
        """The clock of the node (`env.clock`)."""

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
        """A lock for readers of the log (`async with`). While a reader holds it, no part of the log is
        removed.
        """

    @property
    def core(self) -> RaftCore:
        """The Raft core, which decides. It exists after the driver has opened the log."""

    @property
    def is_running(self) -> bool:
        """True while the quorum accepts requests."""

    @property
    def has_dynamic_voters(self) -> bool:
        """True if the log, or the snapshot before it, names the voters (kraft.version 1)."""

    def report(self, report: Callable[..., None], *args: Any, **options: Any) -> None:
        """Report an event to the core. `report` is the method of the core to call, with these arguments and the present
        time. Then perform the core's effects.
        """

    def wake(self) -> None:
        """Wake the driver's task, because something may have to be written."""

    def perform_later(self, effect: SnapshotEffect) -> None:
        """Perform this work on the log after all present effects of the core."""

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a task that ends with the node."""

    def notify_observers(self) -> None:
        """Notify all subscribers of `on_change`, because a value that they use may have changed."""

    async def patiently(self, work: Callable[[], T]) -> T:
        """Run in a worker a call that waits for the disk. While the disk is full, repeat the call every second."""

    def report_no_room(self, error: DiskRefused) -> None:
        """Report that the full disk has refused a write, which will be repeated.

        If the disk stays full, a leader with other voters resigns.
        """

    def report_room(self) -> None:
        """Report that a write has succeeded, so that the disk has room again."""
