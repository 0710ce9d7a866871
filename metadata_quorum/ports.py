"""Interfaces (ports) between the metadata quorum and the parts around it.

There are two kinds of logs. `ReplicatedLog` is the storage below a quorum: bytes with offsets and epochs.
`odradek.data_plane.metadata_log` implements it with the log class that topics use; tests implement it in
memory. `DecisionLog` is the log above a quorum: a replicated state machine appends records to it. All records
below its high watermark are final. `QuorumLeader` is a `DecisionLog`, and so are the partitions of
`__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from odradek.env.ports import Buffer
from odradek.wire.structure import Message

if TYPE_CHECKING:
    from odradek.metadata_quorum.envelope import Sender


class MetadataLogCorrupt(Exception):
    """Raised if the metadata log has damage that cannot come from a crash.

    The node must stop, since committed records may be missing.
    """


class RecoveryBrokenOff(MetadataLogCorrupt):
    """Raised if a recovery of the quorum was begun in the node's directory and did not finish."""


@attrs.frozen(order=True)
class OffsetAndEpoch:
    """The end offset of a log or snapshot, and the epoch of the record before it.

    The epoch is -1 for an empty log.
    """

    offset: int
    epoch: int


@attrs.frozen
class Snapshot:
    """The contents of a snapshot: the cluster's state at its end offset."""

    last_contained_log_timestamp: int
    control_records: tuple[Message, ...]
    records: Sequence[Message]
    """The records of the snapshot. For a stored snapshot, each iteration decodes the records again, because
    decoded records take ten times the memory.
    """


@attrs.frozen
class StoredSnapshot:
    """A snapshot on disk.

    The snapshot replaces all records below `end_offset`. The last of these records has the epoch `epoch`.
    """

    end_offset: int
    epoch: int
    contents: Snapshot

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.epoch)


class ReplicatedLog(Protocol):
    """The storage of a replicated log: whole record batches, in order, each with its offset and epoch."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch; -1 for an empty log."""

    def append(self, batches: bytearray, leader_epoch: int, *, count: int = 1) -> int:
        """Append `count` batches that begin at `log_end_offset`. Returns the last offset. The batches are
        durable only after `flush`. Earlier appends must be flushed before.

        Raises `DiskRefused` (nothing was appended, the caller may retry later) or `DiskError` (the directory
        is offline).
        """

    def read(self, offset: int, bytes_max: int, *, upper_bound: int | None = None) -> bytes:
        """Read whole batches, beginning with the batch that has `offset`. At least one batch is returned,
        unless `offset` is the end.

        With `upper_bound`, only batches that end below `upper_bound` are returned.
        """

    def flush(self) -> int:
        """Make all appended batches durable. Returns the end offset of the durable log. Blocks."""

    def truncate_to(self, end_offset: int) -> None:
        """Remove all records from `end_offset` on, durably: they do not come back after a crash. Blocks."""

    def drop_prefix(self, offset: int) -> int:
        """Remove the records below `offset`, which a snapshot covers, and older snapshots. Records and
        snapshots that the retention requires stay. Returns the new log start offset. Blocks.
        """

    def expire(self, offset: int) -> int:
        """Remove the records below `offset` that are older than the retention. A snapshot ends at `offset`.
        Returns the new log start offset. Blocks.
        """

    def install(self, end_offset: int) -> None:
        """Replace the whole log by an empty log, which begins at `end_offset`, where an installed snapshot
        ends. The change is durable. Blocks.
        """


@attrs.frozen
class QuorumState:
    """The state that a voter must not lose (Kafka's QuorumStateData, version 1).

    A field of -1 means unknown, or no vote.
    """

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: bytes = bytes(16)


class QuorumStateStore(Protocol):
    """A durable store of a voter's `QuorumState`."""

    def load(self) -> QuorumState | None:
        """Load the state. Returns None on the first start of the node. Raises `MetadataLogCorrupt` if the
        state cannot be decoded.
        """

    def save(self, state: QuorumState) -> None:
        """Store the state, durably. Raises `DiskError`."""


class SnapshotDraft(Protocol):
    """A snapshot that is being written. The node makes it itself, or fetches it from a leader. All methods
    block.
    """

    @property
    def size(self) -> int:
        """The number of bytes appended so far."""

    def append(self, chunk: Buffer) -> None:
        """Append a chunk of bytes.

        Raises `DiskRefused` or `DiskError`; afterwards the draft can only be discarded.
        """

    def finish(self) -> StoredSnapshot:
        """Check that the snapshot is complete and undamaged, make it durable, and give it its final name.

        If the snapshot is damaged, discard it and raise `MetadataLogCorrupt`. Also raises `DiskError`.
        """

    def discard(self) -> None:
        """Remove the draft. Does nothing after `finish`."""


class SnapshotStore(Protocol):
    """The snapshots beside a metadata log. All methods block, so call them in a worker thread."""

    def newest(self) -> StoredSnapshot | None:
        """Open the newest snapshot. Returns None if the store has no snapshot. Raises `MetadataLogCorrupt` if
        the snapshot is damaged, or `DiskError`.
        """

    def read(self, end: OffsetAndEpoch, position: int, bytes_max: int) -> tuple[bytes, int]:
        """Read up to `bytes_max` bytes of a snapshot from `position` on. Returns the bytes and the snapshot's
        size.

        Raises `KafkaError` SNAPSHOT_NOT_FOUND or POSITION_OUT_OF_RANGE, `DiskError`.
        """

    def begin(self, end: OffsetAndEpoch) -> SnapshotDraft:
        """Begin to write the snapshot that ends at `end`. Several drafts may be open. Raises `DiskError`."""

    def delete_older(self) -> None:
        """Remove all snapshots except the newest. Raises `DiskError`."""


CommitListener = Callable[[int], None]
"""A function that is called with the new high watermark, each time it advances."""


class DecisionLog(Protocol):
    """A log to which one leader appends decisions. A record gets its offset when it is appended; it becomes
    durable later.
    """

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed, so that they survive all assumed faults."""

    @property
    def epoch(self) -> int: ...

    @property
    def has_room(self) -> bool:
        """True if decisions may be appended. It is False while too many bytes wait to be written to the disk."""

    def encode_batch(self, records: Sequence[Any]) -> Any:
        """Encode the records of one decision for `append_batch`. Nothing is written. Raises
        `LocalProtocolError` if a value does not fit into a record.
        """

    def append_batch(self, batch: Any) -> int:
        """Append the result of `encode_batch`, as a whole or not at all.

        Returns the offset of the last record.
        """

    def subscribe(self, listener: CommitListener) -> None: ...


class PeerChannel(Protocol):
    """A channel for requests to one peer: the active controller or another voter. The peer may be in this
    process.
    """

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request in this version (None: the newest), and return the response message.

        `deadline` is a time of the node's monotonic clock. Raises `KafkaError` REQUEST_TIMED_OUT at the
        deadline, or `ConnectionLost` if the peer cannot be reached. In both cases the peer may have performed
        the request.
        """


class PeerChannels(Protocol):
    """A node's channels to the other nodes, by address."""

    def channel(self, host: str, port: int, *, address: str | None = None) -> PeerChannel:
        """Return the channel to this host and port. `address` selects one of the host's IP addresses."""

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all IP addresses to which a host name resolves. Raises `ConnectionLost`."""

    def close(self) -> None:
        """Close all connections. Requests fail from now on."""


class ControllerPort(PeerChannel, Protocol):
    """The broker's channel to the active controller: `request` is on behalf of the broker, `forward` on
    behalf of a client.
    """

    @property
    def leader_epoch(self) -> int:
        """The epoch of the newest leader that this node knows; -1 before it knows a leader."""

    async def forward(self, sender: Sender, message: Any, version: int, deadline: float) -> Any:
        """Send a request for a client: in an Envelope that names the client (KIP-590), and otherwise like
        `request`.
        """


__all__ = [
    "Buffer",
    "CommitListener",
    "ControllerPort",
    "DecisionLog",
    "MetadataLogCorrupt",
    "PeerChannel",
    "PeerChannels",
    "QuorumState",
    "QuorumStateStore",
    "ReplicatedLog",
    "SnapshotDraft",
    "SnapshotStore",
]
