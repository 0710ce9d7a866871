"""Check of OffsetFetch: each answer agrees with the log of the coordinator that gives it. PURE.

An answer is correct if it was correct at some moment between the request and the answer:

1. It has the offset that was committed at that moment. Offsets in a transaction are committed once the transaction's
   commit marker is written.
2. A client that requires stable offsets receives none that an open transaction may change (KIP-447).

The time of a request or an answer is when its last byte is sent. The log is read here without the coordinator's
state, since that state is what the check tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from odradek.data_plane.groups.records import OffsetCommitKey, OffsetCommitValue, decode_key
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.node.node import Node
from odradek.wire.batches.batch_header import TRANSACTIONAL_MASK, BatchHeader
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import parse_marker
from odradek.wire.errors import KafkaError, ProtocolError
from odradek.wire.metadata_frames import decode_coordinator_value
from odradek.wire.schema.versions import OFFSET_FETCH_GROUPS, OFFSET_FETCH_TOPIC_IDS
from sim.checks.stored_logs import stored_batches
from sim.checks.watched import Processes
from sim.checks.wiretap import Exchange
from sim.history import SafetyViolation
from sim.machine.disk_files import SimFile

__all__ = ["OffsetsBook", "ToldOffsets"]

_UNREADABLE = (KafkaError, ProtocolError)
NONE_COMMITTED = -1
DECOMPRESSED_BYTES_MAX = 1 << 20
STABLE_SINCE = 7

Key = tuple[str, str, int]
"""(group id, topic name, partition number)."""
Written = tuple[int, int]
"""(log offset of the record, committed offset)."""


@attrs.define
class OffsetsBook:
    """The committed offsets of all groups, computed from the batches of a log up to offset `end`."""

    end: int = 0
    committed: dict[Key, Written] = attrs.Factory(dict)
    pending: dict[int, dict[Key, Written]] = attrs.Factory(dict)
    """Offsets that open transactions have committed, by producer id."""

    def take(self, header: BatchHeader, batch: bytes) -> None:
        """Apply the next batch."""
        self.end = header.next_offset
        is_transactional = header.attributes & TRANSACTIONAL_MASK
        if header.is_control:
            marker = parse_marker(batch) if is_transactional else None
            if marker is not None:
                self._ended(header.producer_id, is_commit=not marker.is_abort)
            return
        for record in records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            key = None if record.key is None else decode_key(record.key)
            if not isinstance(key, OffsetCommitKey):
                continue
            where = (key.group, key.topic, key.partition)
            value = None if record.value is None else decode_coordinator_value(key, record.value)
            if value is None:
                self._deleted(where)
            elif isinstance(value, OffsetCommitValue):
                of = self.pending.setdefault(header.producer_id, {}) if is_transactional else self.committed
                of[where] = (record.offset, value.offset)

    def _deleted(self, key: Key) -> None:
        self.committed.pop(key, None)
        for offsets in self.pending.values():
            offsets.pop(key, None)

    def _ended(self, producer_id: int, *, is_commit: bool) -> None:
        for key, place in self.pending.pop(producer_id, {}).items():
            if is_commit and place > self.committed.get(key, (NONE_COMMITTED, 0)):
                self.committed[key] = place

    def offset_of(self, key: Key) -> int:
        return self.committed.get(key, (0, NONE_COMMITTED))[1]

    def is_unstable(self, key: Key) -> bool:
        return any(key in offsets for offsets in self.pending.values())

    def of_group(self, group: str) -> OffsetsBook:
        """Copy the part about one group."""
        return OffsetsBook(
            self.end,
            {key: place for key, place in self.committed.items() if key[0] == group},
            {
                producer_id: {key: place for key, place in offsets.items() if key[0] == group}
                for producer_id, offsets in self.pending.items()
            },
        )


@attrs.define
class _Place:
    """A position in a segment's file, from which reading continues."""

    file: object = None
    position: int = 0


@attrs.define
class _Read:
    """The offsets that were read from a log so far, and the position up to which it was read."""

    truncations: int
    book: OffsetsBook = attrs.Factory(OffsetsBook)
    place: _Place = attrs.Factory(_Place)


@attrs.frozen
class _Asked:
    """The committed offsets of a group when the request arrived, and the position in its coordinator's log."""

    shard: Any
    truncations: int
    book: OffsetsBook
    place: _Place
    stable_only: bool


class ToldOffsets:
    """The check of answers to OffsetFetch."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._read: dict[PartitionLog, _Read] = {}
        self.answers_checked = 0

    def asked(self, exchange: Exchange) -> bool:
        """Record the committed and pending offsets of each group in the request. Returns False if there is no
        coordinator.
        """
        found = self._processes.at(exchange.conn.peer)
        if found is None or found[1].broker is None:
            return False
        request = exchange.request
        groups = (
            [each.group_id for each in request.groups]
            if exchange.version >= OFFSET_FETCH_GROUPS
            else [request.group_id]
        )
        stable_only = exchange.version >= STABLE_SINCE and request.require_stable
        memo = {}
        for group in groups:
            shard = _shard(found[1], group)
            log = None if shard is None else shard.partition.log
            if log is None or log.offline or log.is_closed:
                continue
            try:
                read = self._committed(log)
            except _UNREADABLE:
                continue
            book = read.book.of_group(group)
            memo[group] = _Asked(shard, log.durability.truncations, book, read.place, stable_only)
        exchange.memo = memo
        return bool(memo)

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Check the answer against all offsets that were correct since the request. Raises `SafetyViolation`."""
        found = self._processes.at(exchange.conn.peer)
        if found is None or found[1].broker is None:
            return
        names = (
            {topic.topic_id: name for name, topic in found[1].broker.newest.image.topics.items()}
            if exchange.version >= OFFSET_FETCH_TOPIC_IDS
            else {}
        )
        for group, topics in _told(exchange, answer):
            asked: _Asked | None = exchange.memo.get(group)
            if asked is None or _shard(found[1], group) is not asked.shard:
                continue
            log = asked.shard.partition.log
            if log.offline or log.is_closed or log.durability.truncations != asked.truncations:
                continue
            told = {
                (group, names.get(topic.topic_id, "") if names else topic.name, each.partition_index): each
                for topic in topics
                for each in topic.partitions
                if not each.error_code
            }
            try:
                right = _right(log, asked, told)
            except _UNREADABLE:
                continue
            if right is None:
                continue
            for key, each in told.items():
                self.answers_checked += 1
                if key[1] and each.committed_offset not in right[key]:
                    raise SafetyViolation(
                        f"OffsetFetch: {found[0].name} tells {exchange.conn.host_name} that group {group} is at "
                        f"{each.committed_offset} in {key[1]}-{key[2]}; right would have been "
                        f"{_in_words(right[key])}"
                    )

    def _committed(self, log: PartitionLog) -> _Read:
        """Read the committed offsets below the high watermark. Raises one of `_UNREADABLE` if a disk has damaged the
        log.
        """
        read = self._read.get(log)
        if read is None or read.truncations != log.durability.truncations:
            self._read = {each: read for each, read in self._read.items() if not each.is_closed}
            read = self._read[log] = _Read(log.durability.truncations)
        for header, batch, place in _batches(log, read.book.end, read.place):
            if header.next_offset > log.high_watermark:
                break
            read.book.take(header, batch)
            read.place = place
        return read


def _shard(node: Node, group: str) -> Any:
    """Return the coordinator shard of a group on this node, or None."""
    assert node.broker is not None
    groups = node.broker.groups
    index = groups.partition_for(group)
    return None if index is None else groups.shards.get(index)


def _batches(log: PartitionLog, offset: int, place: _Place) -> Iterator[tuple[BatchHeader, bytes, _Place]]:
    """Yield (header, bytes, position after the batch) of each batch from `offset` on. `place` is a known position of
    `offset`.
    """
    segments = log.segments
    for at in range(max(0, log.segment_list.index_of(offset)), len(segments)):
        file = segments[at].file
        assert isinstance(file, SimFile)
        begin = place.position if place.file is file else 0
        content = file.content[begin:]
        for position, header in stored_batches(content):
            end = position + header.size
            if header.next_offset > offset:
                yield header, bytes(content[position:end]), _Place(file, begin + end)


def _right(log: PartitionLog, asked: _Asked, told: Mapping[Key, Any]) -> dict[Key, set[int]] | None:
    """Find for each key the offsets that were correct at some time since the request. Return None if the cleaner has
    removed records that were appended since.
    """
    book = attrs.evolve(
        asked.book,
        committed=dict(asked.book.committed),
        pending={each: dict(offsets) for each, offsets in asked.book.pending.items()},
    )
    right: dict[Key, set[int]] = {key: set() for key in told}

    def note() -> None:
        for key, offsets in right.items():
            if not (asked.stable_only and book.is_unstable(key)):
                offsets.add(book.offset_of(key))

    note()
    for header, batch, _ in _batches(log, book.end, asked.place):
        if header.base_offset != book.end:
            return None
        book.take(header, batch)
        note()
    return right


def _told(exchange: Exchange, answer: Any) -> Iterator[tuple[str, Any]]:
    """Yield (group id, topics) of each group that the answer has without an error."""
    if exchange.version < OFFSET_FETCH_GROUPS:
        if not answer.error_code:
            yield exchange.request.group_id, answer.topics
    else:
        for group in answer.groups:
            if not group.error_code:
                yield group.group_id, group.topics


def _in_words(offsets: set[int]) -> str:
    return " or ".join(map(str, sorted(offsets))) or "nothing, since a transaction is open"
