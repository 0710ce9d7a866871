"""From fetched chunks to what `poll` and `poll_batches` return: order, positions, aborted transactions. PURE.

One batch at a time is parsed, by the poll that reaches it. The position moves when records are handed over, and past
what no application sees: control batches, aborted transactions, the gaps of compaction.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from odradek.client.consumer_records import consumer_records
from odradek.client.consumer_types import ConsumerRecord, RawBatch
from odradek.client.record_runs import LastShapes
from odradek.client.subscription import Chunk, PartitionState
from wire.batch_header import BatchHeader, check_crc
from wire.record_batch import CorruptBatch, parse_header, records

if TYPE_CHECKING:
    from odradek.client.settings import ConsumerSettings

__all__ = ["Delivery"]

DECOMPRESSED_BYTES_MAX = 256 << 20
_CONTROL_KEY = Struct(">hh")
_ABORT = 0


class Delivery:
    """See the module. `ready` are the partitions with data, in the order in which they are served."""

    def __init__(self, settings: ConsumerSettings, ready: dict[PartitionState, None]) -> None:
        self._settings = settings
        self._ready = ready
        self._read_committed = settings.isolation_level == "read_committed"
        self._deserialize = settings.key_deserializer is not None or settings.value_deserializer is not None
        self._last_shapes = LastShapes()
        self.bytes_parsed = 0
        self.chunk_used_up = False
        """A chunk is used up since this was set to False: there is room to fetch into."""

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """At most so many records. Raises the error of a partition whose turn has come, before it has data."""
        found: list[ConsumerRecord] = []
        for state in list(self._ready):
            if state.paused:
                continue
            while len(found) < count_max:
                if not state.parsed and not self._parse_next(state, found):
                    break
                self._hand_over(state, found, count_max - len(found))
            if not state.has_data:
                del self._ready[state]
            if len(found) >= count_max:
                break
        return found

    def _parse_next(self, state: PartitionState, found: list[ConsumerRecord]) -> bool:
        """Parse the next batch with records; False when there is none. Raises only while `found` is empty."""
        while True:
            if not state.chunks:
                if state.error is not None and not found:
                    error, state.error = state.error, None
                    del self._ready[state]
                    self.chunk_used_up = True
                    raise error
                return False
            chunk = state.chunks[0]
            if chunk.position >= chunk.end:
                self._drop_chunk(state)
                continue
            try:
                self._parse_batch(state, chunk)
            except Exception:
                if found:
                    return False  # the next poll meets it first
                state.drop_fetched()
                self._ready.pop(state, None)
                self.chunk_used_up = True
                raise
            if state.parsed:
                return True

    def _parse_batch(self, state: PartitionState, chunk: Chunk) -> None:
        header = parse_header(chunk.data, chunk.position)
        position = state.position
        assert position is not None
        visible = self._is_visible(chunk, header) and header.next_offset > position
        self.bytes_parsed += header.size
        if visible:
            parsed = consumer_records(
                *state.key,
                chunk.data,
                chunk.position,
                header,
                decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                crc=self._settings.check_crcs,
                last_shapes=self._last_shapes,
            )
            if header.base_offset < position:
                parsed = [record for record in parsed if record.offset >= position]
            if self._deserialize:
                parsed = [self._deserialized(record) for record in parsed]
            state.parsed = parsed
            state.parsed_index = 0
        chunk.position += header.size
        state.parsed_next = header.next_offset
        state.parsed_epoch = header.partition_leader_epoch
        if not visible or not state.parsed:
            self._move(state, header.next_offset, header.partition_leader_epoch)

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = self._settings.key_deserializer, self._settings.value_deserializer
        return record._replace(
            key=record.key if key is None else key(record.key),
            value=record.value if value is None else value(record.value),
        )

    def _hand_over(self, state: PartitionState, found: list[ConsumerRecord], count_max: int) -> None:
        parsed, start = state.parsed, state.parsed_index
        end = start + count_max
        if end >= len(parsed):
            found += parsed[start:] if start else parsed
            state.parsed = []
            self._move(state, state.parsed_next, state.parsed_epoch)
        else:
            found += parsed[start:end]
            state.parsed_index = end
            self._move(state, parsed[end - 1].offset + 1, state.parsed_epoch)

    def _move(self, state: PartitionState, offset: int, epoch: int) -> None:
        assert state.position is not None
        state.position = max(state.position, offset)
        state.position_epoch = epoch
        if state.chunks and state.chunks[0].position >= state.chunks[0].end and not state.parsed:
            self._drop_chunk(state)

    def _drop_chunk(self, state: PartitionState) -> None:
        chunk = state.chunks.popleft()
        state.buffered_bytes -= chunk.end
        self.chunk_used_up = True

    def take_batches(self, bytes_max: int) -> list[RawBatch]:
        """Whole batches, of one partition or more, until they have `bytes_max` bytes (one batch at least)."""
        found: list[RawBatch] = []
        size = 0
        for state in list(self._ready):
            if state.paused:
                continue
            if state.parsed:
                # A poll has handed over part of a batch: fetch that batch again, from the position on.
                state.drop_fetched()
                self.chunk_used_up = True
            while state.chunks and (size < bytes_max or not found):
                size += self._take_batch(state, state.chunks[0], found)
            if not state.chunks and state.error is not None and not found:
                error, state.error = state.error, None
                self.chunk_used_up = True
                del self._ready[state]
                raise error
            if not state.has_data:
                del self._ready[state]
        return found

    def _take_batch(self, state: PartitionState, chunk: Chunk, found: list[RawBatch]) -> int:
        header = parse_header(chunk.data, chunk.position)
        start = state.position
        assert start is not None
        size = header.size
        if self._is_visible(chunk, header) and header.next_offset > start:
            if self._settings.check_crcs and not check_crc(chunk.data, chunk.position, size):
                raise CorruptBatch(f"{state.key}: the checksum of the batch at {header.base_offset} is wrong")
            found.append(
                RawBatch(
                    *state.key,
                    header.base_offset,
                    header.last_offset,
                    max(start, header.base_offset),
                    header.partition_leader_epoch,
                    state.high_watermark if state.high_watermark is not None else -1,
                    header.record_count,
                    chunk.data[chunk.position : chunk.position + size],
                )
            )
        chunk.position += size
        self._move(state, header.next_offset, header.partition_leader_epoch)
        return size

    def _is_visible(self, chunk: Chunk, header: BatchHeader) -> bool:
        """Whether applications see the batch: control batches never, aborted ones not with read_committed.

        The broker names transactions that were aborted within the fetched range; each begins with its first offset
        and ends with its abort marker.
        """
        if self._read_committed and header.producer_id >= 0:
            while chunk.aborted and chunk.aborted[0][0] <= header.last_offset:
                chunk.aborted_producers[chunk.aborted.popleft()[1]] = None
            if header.is_control:
                if _is_abort_marker(chunk):
                    chunk.aborted_producers.pop(header.producer_id, None)
            elif header.is_transactional and header.producer_id in chunk.aborted_producers:
                return False
        return not header.is_control


def _is_abort_marker(chunk: Chunk) -> bool:
    (marker,) = records(chunk.data, chunk.position, decompressed_bytes_max=1 << 16)
    return marker.key is not None and _CONTROL_KEY.unpack_from(marker.key)[1] == _ABORT
