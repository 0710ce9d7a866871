"""Uses a partition of an internal topic as the log of a replicated state machine: appends decisions and reads
them back. PORTED. Every function here returns at once, except `read_latest`, which blocks and must run in a
worker thread.

A decision is answered when the partition's high watermark has reached it. If only the leader is in sync, the
high watermark rises at the append. Otherwise the high watermark rises when the followers fetch.

Offsets that a producer commits in a transaction are one decision, written as one batch of that producer. The
end of the transaction is another decision, and its record is the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from odradek.data_plane.coordination.records import CoordinatorRecord, RecordProducer, TransactionEnd
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.partition import Partition
from odradek.env.pausing import pause
from odradek.metadata_quorum.ports import CommitListener
from odradek.wire.batches.batch_errors import InvalidRecord
from odradek.wire.batches.batch_header import BatchHeader, Buffer, parse_header
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import build_marker, parse_marker
from odradek.wire.record_batch import RecordBatchBuilder

READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 20
"""The limit of one batch, in bytes of keys and values. A larger decision continues in another batch."""
DECOMPRESSED_BYTES_MAX = 256 << 20


@attrs.frozen
class EncodedRecords:
    """The encoded keys and values of one decision. `producer` is set if they belong to a transaction."""

    pairs: list[tuple[bytes, bytes | None]]
    producer: RecordProducer | None


@attrs.frozen
class EncodedEnd:
    """The encoded marker batch that ends a transaction."""

    marker: memoryview
    now_ms: int
    transaction_version: int


EncodedDecision: TypeAlias = EncodedRecords | EncodedEnd


class CoordinatorLog:
    """The `DecisionLog` of a partition that this broker leads.

    While the broker leads the partition, nothing else appends to this log.
    """

    def __init__(self, partition: Partition, wall_ms: Callable[[], int], compression_type: int) -> None:
        self._partition = partition
        self._wall_ms = wall_ms
        self._compression_type = compression_type
        self._listeners: list[CommitListener] = []
        self._announced = partition.log.high_watermark
        self.epoch = partition.leader_epoch

    @property
    def log_end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.log.high_watermark

    @property
    def has_room(self) -> bool:
        """Always True, because a full disk is detected only when a batch is appended."""
        return True

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def encode_batch(self, records: Sequence[CoordinatorRecord | TransactionEnd]) -> EncodedDecision:
        """Encode a decision's records. Raises `LocalProtocolError` if a value does not fit into its field."""
        first = records[0]
        if isinstance(first, TransactionEnd):
            assert len(records) == 1, "the end of a transaction must be a decision of its own"
            now_ms = self._wall_ms()
            marker = build_marker(
                first.producer_id,
                first.producer_epoch,
                first.coordinator_epoch,
                is_commit=first.is_commit,
                timestamp_ms=now_ms,
            )
            return EncodedEnd(memoryview(marker), now_ms, first.transaction_version)
        pairs = []
        for record in records:
            assert isinstance(record, CoordinatorRecord), (
                "a decision mixes a transaction's end with other records"
            )
            assert record.producer is first.producer, "a decision has records of several transactions"
            pairs.append((record.encoded_key(), record.encoded_value()))
        return EncodedRecords(pairs, first.producer)

    def append_batch(self, batch: EncodedDecision) -> int:
        """Append one decision to the log, and return the offset of its last record. A large decision, e.g.
        the tombstones of all offsets in a topic, takes several batches.

        After a crash between two batches, the log has only a part of the decision. Such a part does no harm.
        Only decisions about offsets need several batches, and each offset is independent.

        Raises:
            DiskError
            KafkaError: the partition refuses the append; the coordinator then reloads its state from the
                log
        """
        if isinstance(batch, EncodedEnd):
            return self._partition.append_marker(
                batch.marker, batch.now_ms, batch.transaction_version
            ).last_offset
        last_offset = self.log_end_offset - 1
        builder: RecordBatchBuilder | None = None
        size = 0
        now_ms = self._wall_ms()
        producer = batch.producer
        for key, value in batch.pairs:
            more = len(key) + len(value or b"")
            if builder is not None and size + more > BATCH_BYTES:
                last_offset = self._write(builder, now_ms, producer)
                builder = None
            if builder is None:
                builder = self._new_builder(producer)
                size = 0
            builder.append(now_ms, key, value)
            size += more
        return last_offset if builder is None else self._write(builder, now_ms, producer)

    def _new_builder(self, producer: RecordProducer | None) -> RecordBatchBuilder:
        if producer is None:
            return RecordBatchBuilder(compression_type=self._compression_type)
        return RecordBatchBuilder(
            compression_type=self._compression_type,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_transactional=True,
        )

    def _write(self, builder: RecordBatchBuilder, now_ms: int, producer: RecordProducer | None) -> int:
        guard = None if producer is None else producer.guard
        result = self._partition.log.append(
            memoryview(builder.build()), Origin.COORDINATOR, self.epoch, now_ms, guard=guard
        )
        return result.last_offset

    def catch_up(self) -> None:
        """Advance the high watermark. If it has risen, pass it to all commit listeners.

        Called after each append, and when the partition wakes its watchers.
        """
        self._partition.advance_high_watermark()
        high_watermark = self._partition.log.high_watermark
        if high_watermark > self._announced:
            self._announced = high_watermark
            for listener in self._listeners:
                listener(high_watermark)


@attrs.define(eq=False)
class PendingRecord:
    """A record that was written in a transaction which is still open."""

    offset: int
    key: bytes
    value: bytes | None


@attrs.define(eq=False)
class Latest:
    """The latest value of every key in a log (None for a tombstone), and the records of open transactions.

    A record in a transaction takes effect at its commit marker, unless a later record has the same key.
    """

    values: dict[bytes, bytes | None] = attrs.field(factory=dict)
    pending: dict[int, list[PendingRecord]] = attrs.field(factory=dict)
    """The records of open transactions, by the producer's id."""
    _offsets: dict[bytes, int] = attrs.field(factory=dict)
    """The offset of the latest value of each key that was written while a transaction was open."""

    def put(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Store the value of a record that belongs to no transaction."""
        self.values[key] = value
        if self.pending:
            self._offsets[key] = offset
            if value is None:
                for records in self.pending.values():
                    records[:] = [record for record in records if record.key != key]

    def put_pending(self, producer_id: int, offset: int, key: bytes, value: bytes | None) -> None:
        """Add a record to the open transaction of this producer."""
        self.pending.setdefault(producer_id, []).append(PendingRecord(offset, key, value))

    def end(self, producer_id: int, is_commit: bool) -> None:
        """End the producer's open transaction: apply its records if it commits, drop them if it aborts."""
        for record in self.pending.pop(producer_id, ()):
            if is_commit and record.offset > self._offsets.get(record.key, -1):
                self.values[record.key] = record.value
                self._offsets[record.key] = record.offset
        if not self.pending:
            self._offsets.clear()

    def is_overtaken(self, record: PendingRecord) -> bool:
        """True if the log has a later record with the same key, and that later record is already in effect."""
        return record.offset < self._offsets.get(record.key, -1)


def read_latest(log: PartitionLog, skipped: list[str]) -> Latest:
    """Read the whole log, and return the latest value of each key. The call blocks.

    A batch with a valid checksum but malformed records was written by a client. Such a batch is left out, and
    a text about it is appended to `skipped`. Raises `KafkaError` (the log cannot be read or is damaged),
    `DiskError`.
    """
    latest = Latest()
    offset, end_offset = log.log_start_offset, log.log_end_offset
    while offset < end_offset:
        pause()
        data = log.read_bytes(offset, READ_BYTES, upper_bound=end_offset, min_one=True)
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            try:
                _take_batch(latest, data, position, header)
            except InvalidRecord as error:
                skipped.append(f"the batch at offset {header.base_offset} cannot be read: {error}")
            position += header.size
            offset = header.last_offset + 1
        if not data:
            break
    return latest


def _take_batch(latest: Latest, data: Buffer, position: int, header: BatchHeader) -> None:
    """Apply the records or the marker of one batch to `latest`. Raises `InvalidRecord`."""
    if header.is_control:
        if header.is_transactional:
            marker = parse_marker(memoryview(data)[position : position + header.size])
            # If `marker` is None, compaction has emptied the marker's batch, so its outcome is unknown. Treat
            # it as a commit. That is right even after an abort, because compaction has then also removed the
            # transaction's records.
            latest.end(header.producer_id, marker is None or not marker.is_abort)
        return
    found = records(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    if header.is_transactional:
        for record in found:
            if record.key is not None:
                latest.put_pending(header.producer_id, record.offset, record.key, record.value)
    elif latest.pending:
        for record in found:
            if record.key is not None:
                latest.put(record.offset, record.key, record.value)
    else:
        values = latest.values
        for record in found:
            if record.key is not None:
                values[record.key] = record.value
