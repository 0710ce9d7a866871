"""Models of `__consumer_offsets` and `__transaction_state`: for each key the newest value counts. PURE.

* A group's committed offset is that of the last commit record in the log. A commit in a transaction takes effect when
  the transaction's commit marker is written. Even then it does not replace a commit whose record is later in the log.
  A tombstone also removes the pending offsets of its key.
* A group has its newest metadata until a tombstone.
* A transactional id has its newest state until a tombstone.

A model may also judge each record by laws (`group_laws.py`, `transaction_laws.py`). A law compares a record with former
ones. The cleaner may have removed records in between. So a record is judged only if all batches since the former one are
complete and without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
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
from sim.checks.folds.group_laws import classic_complaint, consumer_complaint, expiry_complaint, marks_of
from sim.checks.folds.transaction_laws import TransactionJudge
from sim.history import SafetyViolation

__all__ = ["GroupsFold", "MayRemove", "OffsetKey", "TransactionsFold"]

DECOMPRESSED_BYTES_MAX = 1 << 20
TRANSACTIONAL = 0x10
KEY_BYTES_MIN = 2
OffsetKey: TypeAlias = tuple[str, str, int]
"""(group id, topic name, partition number)."""
Placed: TypeAlias = tuple[int, OffsetCommitValue]
"""(log offset of the record, its value)."""
MayRemove: TypeAlias = Callable[[OffsetKey, OffsetCommitValue], bool]
"""A function that returns True if an offset may be removed at any time: by request, or because its topic is gone."""


class _Gaps:
    """The end of the batches that were read from a log, and the keys that were read since the last gap."""

    def __init__(self) -> None:
        self._next_offset = 0
        self.is_whole = True
        """False once a record may be missing."""
        self._read: set[object] = set()
        self._judges = True

    def enter(self, header: BatchHeader) -> None:
        """Note the next batch. Records may be missing before the batch, or in it."""
        has_all = header.record_count > header.last_offset_delta
        if header.base_offset != self._next_offset or not has_all:
            self.is_whole = False
            self._read.clear()
        self._judges = has_all
        self._next_offset = header.next_offset

    def read(self, key: object) -> bool:
        """Note a record of this key. Returns True if the former record of the key is certain."""
        is_certain = self.knows(key)
        if self._judges and not self.is_whole:
            self._read.add(key)
        return is_certain

    def knows(self, key: object) -> bool:
        """True if the newest record of this key is certain."""
        return self._judges and (self.is_whole or key in self._read)


class GroupsFold:
    """The model of all groups in one partition of `__consumer_offsets`.

    If `may_remove` is given, the model judges all records by laws.
    """

    def __init__(self, may_remove: MayRemove | None = None, retention_ms: int = 0) -> None:
        self._may_remove = may_remove
        self._retention_ms = retention_ms
        self._gaps = _Gaps()
        self.metadata: dict[str, GroupMetadataValue] = {}
        self.offsets: dict[OffsetKey, Placed] = {}
        self.pending: dict[int, dict[OffsetKey, Placed]] = {}
        """Offsets that open transactions have committed, by producer id."""
        self.consumers = ConsumersFold()

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Apply the next batch. Raises `SafetyViolation` if a record breaks a law."""
        self._gaps.enter(header)
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
                is_certain = self._gaps.read(place)
                if not isinstance(value, OffsetCommitValue):
                    if is_certain:
                        self._judge_removed(place, header.max_timestamp)
                    self._forget(place)
                elif is_transactional:
                    self.pending.setdefault(header.producer_id, {})[place] = (record.offset, value)
                else:
                    self.offsets[place] = (record.offset, value)
            elif isinstance(key, GroupMetadataKey):
                self._take_classic(key.group, value)
            elif key is not None:
                self._take_consumer(key, value)

    def _take_classic(self, group_id: str, value: Message | None) -> None:
        is_certain = self._gaps.read(group_id)
        if not isinstance(value, GroupMetadataValue):
            self.metadata.pop(group_id, None)
            return
        if is_certain and self._may_remove is not None:
            _must_obey(group_id, classic_complaint(self.metadata.get(group_id), value))
        self.metadata[group_id] = value

    def _take_consumer(self, key: Message, value: Message | None) -> None:
        group_id = getattr(key, "group_id", None)
        if group_id is None or self._may_remove is None:
            self.consumers.take(key, value)
            return
        # The records of a consumer group have many keys, so all of them must be certain.
        is_certain = self._gaps.is_whole
        member_id = getattr(key, "member_id", "")
        before = marks_of(self.consumers.groups.get(group_id), member_id)
        self.consumers.take(key, value)
        if is_certain:
            after = marks_of(self.consumers.groups.get(group_id), member_id)
            _must_obey(group_id, consumer_complaint(before, after))

    def _judge_removed(self, place: OffsetKey, now_ms: int) -> None:
        """Check that an offset is removed by request, with its topic, or because it has expired."""
        placed, (group_id, topic, _) = self.offsets.get(place), place
        if self._may_remove is None or placed is None:
            return
        consumers = self.consumers.groups.get(group_id)
        is_certain = self._gaps.is_whole or (consumers is None and self._gaps.knows(group_id))
        if not is_certain or self._may_remove(place, placed[1]):
            return
        groups = self.metadata.get(group_id), consumers
        complaint = expiry_complaint(topic, placed[1], groups, now_ms, self._retention_ms)
        if any(place in offsets for offsets in self.pending.values()):
            complaint = "an open transaction may change it"
        if complaint is not None:
            raise SafetyViolation(
                f"removed offset: {placed[1]} of {place} is removed at {now_ms} ms: {complaint}"
            )

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
    """The model of all transactional ids in one partition of `__transaction_state`. If `judge` is given, it judges each
    record.
    """

    def __init__(self, judge: TransactionJudge | None = None) -> None:
        self._judge = judge
        self._gaps = _Gaps()
        self.values: dict[str, TransactionLogValue] = {}

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Apply the next batch. Raises `SafetyViolation` if a record breaks a law."""
        self._gaps.enter(header)
        if header.is_control:
            return
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            key, value = _decoded(record.key, record.value, "transaction")
            if isinstance(key, TransactionLogKey):
                is_certain = self._gaps.read(key.transactional_id)
                if is_certain and self._judge is not None:
                    assert value is None or isinstance(value, TransactionLogValue)
                    self._judge(key.transactional_id, self.values.get(key.transactional_id), value)
                if isinstance(value, TransactionLogValue):
                    self.values[key.transactional_id] = value
                else:
                    self.values.pop(key.transactional_id, None)


def _must_obey(group_id: str, complaint: str | None) -> None:
    if complaint is not None:
        raise SafetyViolation(f"group record: {group_id} breaks a law: {complaint}")


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
