"""Facts that were read in the directories of stopped nodes: the basis of a recovery. PURE."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.ports import OffsetAndEpoch
from odradek.wire.structure import ZERO_UUID

__all__ = ["BROKEN_OFF", "NO_NUMBER", "CopyFiles", "FoundDirectory", "FoundNode", "FoundReplica"]

NO_NUMBER = -1
"""Below all epochs, offsets and ids: nothing was found."""
BROKEN_OFF = "has a recovery that was broken off between its last two steps"
"""The `copy_problem` of a node whose old log is set aside, and whose new log has no name yet."""


@attrs.frozen
class CopyFiles:
    """A copy of the metadata log as bytes: its newest snapshot, and the whole batches of its log."""

    snapshot_end: OffsetAndEpoch | None
    snapshot: bytes = attrs.field(repr=False)
    log: bytes = attrs.field(repr=False)


@attrs.frozen
class FoundDirectory:
    """A log directory, or the directory of the metadata log. `directory_id` is None where it was never formatted."""

    path: str
    directory_id: bytes | None


@attrs.frozen
class FoundReplica:
    """A replica that lies on a disk. `topic_id` has only zeros where the file that says it is damaged or missing."""

    topic: str
    partition: int
    topic_id: bytes
    directory_id: bytes
    leader_epoch: int
    """The greatest leader epoch in its checkpoint or in one of its batches."""
    end_offset: int


@attrs.frozen
class FoundNode:
    """A stopped node: its configuration as far as it matters, and the facts in its directories."""

    node_id: int
    cluster_id: str
    """Empty where none of its directories is formatted."""
    is_broker: bool
    is_controller: bool
    endpoints: tuple[tuple[str, str, int], ...]
    """Where its controller listens, by its configuration: listener, host, port."""
    static_voters: tuple[int, ...]
    """The voters that its configuration names (`controller.quorum.voters`)."""
    metadata_path: str
    directories: tuple[FoundDirectory, ...]
    copy: CopyFiles | None = None
    copy_problem: str = ""
    """The reason why there is no copy; empty if there is one."""
    quorum_epoch: int = NO_NUMBER
    """The epoch in its `quorum-state`."""
    producer_id: int = NO_NUMBER
    """The greatest producer id in its logs and their snapshots of producers."""
    replicas: tuple[FoundReplica, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""
    servers: tuple[tuple[str, int], ...] = ()
    """Where it looks for controllers, by its configuration."""
    missing: tuple[tuple[str, int], ...] = ()
    """Partitions whose replica here could not be read, or has left only an unfinished copy."""

    @property
    def blank_directories(self) -> list[str]:
        """List the blank log directories of a node that was formatted: their disks may be unmounted."""
        if not self.cluster_id:
            return []
        return [
            each.path
            for each in self.directories
            if each.directory_id is None and each.path != self.metadata_path
        ]

    def may_hold(self, topic: str, partition: int) -> bool:
        """True if the node may have a replica of this partition that was not read."""
        nameless = ((each.topic, each.partition) for each in self.replicas if each.topic_id == ZERO_UUID)
        return bool(self.blank_directories) or (topic, partition) in (*self.missing, *nameless)

    @property
    def metadata_directory_id(self) -> bytes | None:
        """Return the id of the directory that holds the metadata log."""
        return next(each.directory_id for each in self.directories if each.path == self.metadata_path)
