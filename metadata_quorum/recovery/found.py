"""The facts that were found in the directories of stopped nodes. A recovery is based on these facts. PURE."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.wire.structure import ZERO_UUID

__all__ = ["BROKEN_OFF", "NO_NUMBER", "CopyFiles", "FoundDirectory", "FoundNode", "FoundReplica"]

NO_NUMBER = -1
"""The number that means "nothing was found". This number is below all epochs, offsets and ids."""
BROKEN_OFF = "has a recovery that was broken off between its last two steps"
"""The `copy_problem` of a node on which a recovery was interrupted: its old log is set aside, but its new log
is not renamed yet.
"""


@attrs.frozen
class CopyFiles:
    """The bytes of a copy of the metadata log: its newest snapshot, and the complete batches of its log."""

    snapshot_end: OffsetAndEpoch | None
    snapshot: bytes = attrs.field(repr=False)
    log: bytes = attrs.field(repr=False)


@attrs.frozen
class FoundDirectory:
    """A log directory, or the directory of the metadata log.

    `directory_id` is None for a blank directory, and for one on a dead disk.
    """

    path: str
    directory_id: bytes | None
    problem: str = ""
    """The reason why nothing in the directory could be read; empty if it could be. The metadata log's directory
    never has one.
    """


@attrs.frozen
class FoundReplica:
    """A replica that was found on a disk. `topic_id` is all zeros if the file with the id is damaged or missing."""

    topic: str
    partition: int
    topic_id: bytes
    directory_id: bytes
    leader_epoch: int
    """The greatest leader epoch in the replica's checkpoint or batches."""
    end_offset: int


@attrs.frozen
class FoundNode:
    """A stopped node: the relevant part of its configuration, and what was found in its directories."""

    node_id: int
    cluster_id: str
    """The cluster id; empty if no directory of the node is formatted."""
    is_broker: bool
    is_controller: bool
    endpoints: tuple[tuple[str, str, int], ...]
    """The addresses of the node's controller, from the node's configuration: (listener, host, port)."""
    static_voters: tuple[int, ...]
    """The voters in the node's configuration (`controller.quorum.voters`)."""
    metadata_path: str
    directories: tuple[FoundDirectory, ...]
    copy: CopyFiles | None = None
    copy_problem: str = ""
    """The reason why the node has no copy; empty if it has one."""
    quorum_epoch: int = NO_NUMBER
    """The epoch in the node's `quorum-state`."""
    producer_id: int = NO_NUMBER
    """The greatest producer id in the node's logs and producer snapshots."""
    replicas: tuple[FoundReplica, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""
    servers: tuple[tuple[str, int], ...] = ()
    """The addresses of controllers in the node's configuration: (host, port)."""
    missing: tuple[tuple[str, int], ...] = ()
    """Partitions whose replica on this node could not be read, or is only an unfinished copy."""

    @property
    def blank_directories(self) -> list[str]:
        """The unformatted log directories of a formatted node. Perhaps their disks are not mounted."""
        if not self.cluster_id:
            return []
        return [
            each.path
            for each in self.directories
            if each.directory_id is None and not each.problem and each.path != self.metadata_path
        ]

    @property
    def dead_directories(self) -> list[FoundDirectory]:
        """The log directories that could not be read, because their disks are dead."""
        return [each for each in self.directories if each.problem]

    @property
    def has_gaps(self) -> bool:
        """True if some replicas could not be read. A replica without a topic id was read: the node sets it aside at
        its start, since its topic is unknown.
        """
        return bool(self.blank_directories or self.dead_directories or self.missing)

    def may_hold(self, topic: str, partition: int) -> bool:
        """True if the node may have a replica of this partition that could not be read."""
        nameless = ((each.topic, each.partition) for each in self.replicas if each.topic_id == ZERO_UUID)
        return bool(self.blank_directories or self.dead_directories) or (topic, partition) in (
            *self.missing,
            *nameless,
        )

    @property
    def metadata_directory_id(self) -> bytes | None:
        """The id of the directory with the metadata log; None if it is not formatted."""
        return next(each.directory_id for each in self.directories if each.path == self.metadata_path)
