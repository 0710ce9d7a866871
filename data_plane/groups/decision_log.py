"""A partition of `__consumer_offsets` as the log of a replicated state machine, and reading it back. PORTED colours
apart, everything here returns at once; `read_latest` blocks and belongs into a worker.

A decision is answered when the partition's high watermark has reached it. With one replica in sync the high watermark
follows the append. With more, it rises with the followers' fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from data_plane.groups.records import CoordinatorRecord
from data_plane.log.log_types import Origin
from data_plane.log.partition_log import PartitionLog
from data_plane.replication.partition import Partition
from metadata_quorum.ports import CommitListener
from wire.batches.batch_errors import InvalidRecord
from wire.batches.batch_header import parse_header
from wire.batches.records import records
from wire.record_batch import RecordBatchBuilder

READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 20
"""Bytes of keys and values after which a decision goes on in another batch."""
DECOMPRESSED_BYTES_MAX = 256 << 20


class CoordinatorLog:
    """A `DecisionLog` over a led partition. Nobody else appends to it while it is led."""

    def __init__(self, partition: Partition, wall_ms: Callable[[], int], compression_type: int) -> None:
        self._partition = partition
        self._wall_ms = wall_ms
        self._compression_type = compression_type
        self._listeners: list[CommitListener] = []
        self._told = partition.log.high_watermark
        self.epoch = partition.leader_epoch

    @property
    def log_end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.log.high_watermark

    @property
    def has_room(self) -> bool:
        """True, always: a full disk shows at the append."""
        return True

    def subscribe(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def append_batch(self, records: Sequence[CoordinatorRecord]) -> int:
        """Append the records; the last one's offset. Many records (tombstones of all offsets in a topic) make several
        batches.

        A crash between two of them leaves a part of the decision, which no rule of groups forbids. Only decisions
        about offsets are larger than one batch, and each offset stands for itself.

        Raises:
            DiskError
            KafkaError: the partition takes no appends; the coordinator then begins anew.
        """
        last_offset = self.log_end_offset - 1
        builder: RecordBatchBuilder | None = None
        size = 0
        now_ms = self._wall_ms()
        for record in records:
            key, value = record.encoded_key(), record.encoded_value()
            more = len(key) + len(value or b"")
            if builder is not None and size + more > BATCH_BYTES:
                last_offset = self._write(builder, now_ms)
                builder = None
            if builder is None:
                builder = RecordBatchBuilder(compression_type=self._compression_type)
                size = 0
            builder.append(now_ms, key, value)
            size += more
        return last_offset if builder is None else self._write(builder, now_ms)

    def _write(self, builder: RecordBatchBuilder, now_ms: int) -> int:
        result = self._partition.log.append(
            memoryview(builder.build()), Origin.COORDINATOR, self.epoch, now_ms
        )
        return result.last_offset

    def catch_up(self) -> None:
        """Report how far the high watermark is; called after an append and when the partition wakes its watchers."""
        self._partition.advance_high_watermark()
        high_watermark = self._partition.log.high_watermark
        if high_watermark > self._told:
            self._told = high_watermark
            for listener in self._listeners:
                listener(high_watermark)


def read_latest(log: PartitionLog, skipped: list[str]) -> dict[bytes, bytes | None]:
    """The latest value of every key in the log; None for a tombstone. Blocking.

    A batch whose checksum is right, but whose records contradict each other, was a client's: `skipped` tells of it. Raises `KafkaError` (the log cannot be read or is damaged), `DiskError`.
    """
    latest: dict[bytes, bytes | None] = {}
    offset, end_offset = log.log_start_offset, log.log_end_offset
    while offset < end_offset:
        data = log.read_bytes(offset, READ_BYTES, upper_bound=end_offset, min_one=True)
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            if not header.is_control:
                try:
                    for record in records(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                        if record.key is not None:
                            latest[record.key] = record.value
                except InvalidRecord as error:
                    skipped.append(f"{error}, batch at offset {header.base_offset}")
            position += header.size
            offset = header.last_offset + 1
        if not data:
            break
    return latest
