"""Ports of the metadata quorum to the parts around it.

Two logs meet here. `ReplicatedLog` is the storage below a quorum: bytes with offsets and epochs.
`odradek.data_plane.metadata_log` implements it over the log class that topics use, tests in memory. `DecisionLog` is what a
replicated state machine sees above a quorum. Records go in, and a high watermark says which of them will never be
taken back. The quorum's `QuorumLeader` is such a log, and so are the partitions of `__consumer_offsets`.
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
    """Raised if the metadata log has damage that no crash explains. The node must stop, since the rest may lack
    committed records.
    """


class RecoveryBrokenOff(MetadataLogCorrupt):
    """Raised if a recovery of the quorum has begun in a node's directory and has not come to its end there."""


@attrs.frozen(order=True)
class OffsetAndEpoch:
    """The end offset of a log (or of a snapshot) and the epoch of the record before it, -1 for an empty log."""

    offset: int
    epoch: int


@attrs.frozen
class Snapshot:
    """The contents of a snapshot."""

    last_contained_log_timestamp: int
    control_records: tuple[Message, ...]
    records: Sequence[Message]
    """The records of a stored snapshot. Each iteration decodes them anew: in memory they take ten times their bytes."""


@attrs.frozen
class StoredSnapshot:
    """A snapshot as it was found on disk. It replaces the log below `end_offset`, whose last epoch is `epoch`."""

    end_offset: int
    epoch: int
    contents: Snapshot

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.epoch)


class ReplicatedLog(Protocol):
    """Storage of a replicated log: whole record batches, appended in order, each with its offset and epoch."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last batch, -1 for an empty log."""

    def append(self, batches: bytearray, leader_epoch: int, *, count: int = 1) -> int:
        """Append `count` batches that begin at `log_end_offset`. Return their last offset. They are durable only
        after `flush`. Earlier appends must be flushed already.

        Raises `DiskRefused` (nothing was appended, try again later) or `DiskError` (the directory is offline).
        """

    def read(self, offset: int, bytes_max: int, *, upper_bound: int | None = None) -> bytes:
        """Read whole batches from the batch with `offset` on, at least one unless `offset` is the end.

        With `upper_bound`, only batches that end below it.
        """

    def flush(self) -> int:
        """Make durable all earlier appends; return the end offset that this covers. Blocks."""

    def truncate_to(self, end_offset: int) -> None:
        """Remove the records from `end_offset` on, durably: they never come back. Blocks."""

    def drop_prefix(self, offset: int) -> int:
        """Remove records below `offset`, which a snapshot covers, and older snapshots, unless they must be kept.
        Return the log's new start. Blocks.
        """

    def expire(self, offset: int) -> int:
        """Remove records below `offset`, where a snapshot ends, if they are too old to be kept. Return the log's
        new start. Blocks.
        """

    def install(self, end_offset: int) -> None:
        """Begin the log anew at `end_offset`, since a snapshot has replaced all of it. Durable; blocks."""


@attrs.frozen
class QuorumState:
    """The state that a voter must never forget (Kafka's QuorumStateData, version 1). A field of -1 means: unknown,
    or no vote.
    """

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: bytes = bytes(16)


class QuorumStateStore(Protocol):
    """The durable store of a voter's `QuorumState`."""

    def load(self) -> QuorumState | None:
        """Load the state; None on the very first start. Raises `MetadataLogCorrupt` when it cannot be understood."""

    def save(self, state: QuorumState) -> None:
        """Store the state; it is durable when this returns. Raises `DiskError`."""


class SnapshotDraft(Protocol):
    """A snapshot that is being written, by this node or while it is loaded from a leader. All methods block."""

    @property
    def size(self) -> int:
        """Bytes appended so far."""

    def append(self, chunk: Buffer) -> None:
        """Append a chunk. Raises `DiskRefused` or `DiskError`; then the draft can only be discarded."""

    def finish(self) -> StoredSnapshot:
        """Check that the snapshot is whole and sound, make it durable, and only then give it its final name.

        Raises `MetadataLogCorrupt` if it is damaged, and discards it. Raises `DiskError`.
        """

    def discard(self) -> None:
        """Remove the draft; does nothing once it is finished."""


class SnapshotStore(Protocol):
    """The snapshots beside a metadata log. All methods block: call them in a worker."""

    def newest(self) -> StoredSnapshot | None:
        """Open the newest snapshot. Raises `MetadataLogCorrupt` when it is damaged, `DiskError`."""

    def read(self, end: OffsetAndEpoch, position: int, bytes_max: int) -> tuple[bytes, int]:
        """Read up to `bytes_max` bytes of a snapshot from `position`; also returns its size.

        Raises `KafkaError` SNAPSHOT_NOT_FOUND or POSITION_OUT_OF_RANGE, `DiskError`.
        """

    def begin(self, end: OffsetAndEpoch) -> SnapshotDraft:
        """Begin the snapshot that ends at `end`; several drafts may be open. Raises `DiskError`."""

    def delete_older(self) -> None:
        """Remove all snapshots but the newest. Raises `DiskError`."""


CommitListener = Callable[[int], None]
"""Called with the new high watermark whenever it has advanced."""


class DecisionLog(Protocol):
    """A log that one leader appends decisions to. Offsets are assigned at once, durability comes later."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """Everything below this offset survives all faults of the fault model."""

    @property
    def epoch(self) -> int: ...

    @property
    def has_room(self) -> bool:
        """True if decisions may be appended; false while too many wait for the disk."""

    def encode_batch(self, records: Sequence[Any]) -> Any:
        """Encode one decision's records, for `append_batch`. Changes nothing. Raises `LocalProtocolError` for a
        value that fits no record.
        """

    def append_batch(self, batch: Any) -> int:
        """Append the result of `encode_batch`, all of it or nothing; return the offset of the last record."""

    def subscribe(self, listener: CommitListener) -> None: ...


class PeerChannel(Protocol):
    """Requests to one peer (the active controller, another voter), whether or not it is in this process."""

    async def request(self, message: Any, deadline: float, *, version: int | None = None) -> Any:
        """Send a request, and return the response message; `version` is the request's version (the newest if None).

        `deadline` is of the node's monotonic clock. Raises `KafkaError` REQUEST_TIMED_OUT when it passes, or
        `ConnectionLost` when the peer cannot be reached; either way the peer may have acted on the request.
        """


class PeerChannels(Protocol):
    """A node's channels to the other nodes, by address."""

    def channel(self, host: str, port: int, *, address: str | None = None) -> PeerChannel:
        """Return the channel to this host and port; with `address`, to this one of the host's addresses."""

    async def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return all addresses to which a host's name resolves. Raises `ConnectionLost`."""

    def close(self) -> None:
        """End all connections; requests fail from now on."""


class ControllerPort(PeerChannel, Protocol):
    """The broker's port to the active controller: `request` acts in the broker's name, `forward` in the name of a
    client.
    """

    @property
    def leader_epoch(self) -> int:
        """The epoch of the newest leader that is known here; -1 before the first."""

    async def forward(self, sender: Sender, message: Any, version: int, deadline: float) -> Any:
        """Send a request as `request` does, in an Envelope that names the client (KIP-590)."""


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
