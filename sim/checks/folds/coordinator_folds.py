"""Models of `__consumer_offsets` and `__transaction_state`: for each key the newest value counts. PURE.

* A group's committed offset is that of the last commit record in the log. A commit in a transaction takes effect when
  the transaction's commit marker is written. Even then it does not replace a commit whose record is later in the log.
  A tombstone also removes the pending offsets of its key.
* A group has its newest metadata until a tombstone.
* A transactional id has its newest state until a tombstone.
"""

from __future__ import annotations

from typing import TypeAlias

from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker
from odradek.wire.errors import MalformedMessage
from odradek.wire.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from odradek.wire.metadata_frames import (
    CoordinatorLog,
    UnknownRecord,
    decode_coordinator_key,
    decode_coordinator_value,
)
from odradek.wire.structure import Message
from sim.checks.folds.consumer_fold import ConsumersFold

__all__ = ["GroupsFold", "OffsetKey", "TransactionsFold"]

DECOMPRESSED_BYTES_MAX = 1 << 20
TRANSACTIONAL = 0x10
KEY_BYTES_MIN = 2
OffsetKey: TypeAlias = tuple[str, str, int]
"""(group id, topic name, partition number)."""
Placed: TypeAlias = tuple[int, OffsetCommitValue]
"""(log offset of the record, its value)."""


class GroupsFold:
    """The model of all groups in one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self.metadata: dict[str, GroupMetadataValue] = {}
        self.offsets: dict[OffsetKey, Placed] = {}
        self.pending: dict[int, dict[OffsetKey, Placed]] = {}
        """Offsets that open transactions have committed, by producer id."""
        self.consumers = ConsumersFold()

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Apply the next batch."""
        is_transactional = bool(header.attributes & TRANSACTIONAL)
        if header.is_control:
            marker = parse_marker(batch) if is_transactional else None
            if marker is not None:
                self._ended(header.producer_id, is_commit=not marker.is_abort)
            return
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            key, value = _decoded(record.key, record.value, "group")
            if isinstance(key, OffsetCommitKey):
                place = (key.group, key.topic, key.partition)
                if not isinstance(value, OffsetCommitValue):
                    self._forget(place)
                elif is_transactional:
                    self.pending.setdefault(header.producer_id, {})[place] = (record.offset, value)
                else:
                    self.offsets[place] = (record.offset, value)
            elif isinstance(key, GroupMetadataKey):
                if isinstance(value, GroupMetadataValue):
                    self.metadata[key.group] = value
                else:
                    self.metadata.pop(key.group, None)
            elif key is not None:
                self.consumers.take(key, value)

    def _forget(self, place: OffsetKey) -> None:
        self.offsets.pop(place, None)
        for offsets in self.pending.values():
            offsets.pop(place, None)

    def _ended(self, producer_id: int, *, is_commit: bool) -> None:
        for place, placed in self.pending.pop(producer_id, {}).items():
            newest = self.offsets.get(place)
            if is_commit and (newest is None or newest[0] < placed[0]):
                self.offsets[place] = placed


class TransactionsFold:
    """The model of all transactional ids in one partition of `__transaction_state`."""

    def __init__(self) -> None:
        self.values: dict[str, TransactionLogValue] = {}

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Apply the next batch."""
        if header.is_control:
            return
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            key, value = _decoded(record.key, record.value, "transaction")
            if isinstance(key, TransactionLogKey):
                if isinstance(value, TransactionLogValue):
                    self.values[key.transactional_id] = value
                else:
                    self.values.pop(key.transactional_id, None)


def _decoded(
    raw_key: bytes | None, raw_value: bytes | None, kind: CoordinatorLog
) -> tuple[Message | None, Message | None]:
    """Decode a record into (key, value); (None, None) if its format is unknown."""
    if raw_key is None or len(raw_key) < KEY_BYTES_MIN:
        return None, None
    try:
        key = decode_coordinator_key(raw_key, kind)
        return key, None if raw_value is None else decode_coordinator_value(key, raw_value)
    except (UnknownRecord, MalformedMessage):
        return None, None
