"""Delivery of fetched records to `poll` and `poll_batches`: order, positions, hidden and aborted records,
deserializers. PURE.

A poll that needs the records of a batch opens the batch. Polls then decode some of its records at a time. The
position moves when a poll returns records. It also moves past everything that is hidden from applications:
control batches, aborted transactions, and the gaps that compaction has left.

A poll that meets a record that cannot be decoded returns the records before it. The next poll starts with
that record and raises `UndecodableRecord`. The position stays at that record until the application seeks past
it. Damaged bytes are fetched again, because another replica may have undamaged bytes. If a deserializer has
refused a record, the record's bytes are kept, and the next poll tries them again.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from odradek.client.consumer.consumer_records import BatchRecords
from odradek.client.consumer.consumer_types import (
    ConsumerRecord,
    NoOffsetForPartition,
    RawBatch,
    TruncationDetected,
    UndecodableRecord,
)
from odradek.client.consumer.record_runs import LastShapes
from odradek.client.consumer.subscription import Chunk, PartitionState
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import BatchHeader, check_crc, parse_header
from odradek.wire.batches.records import records
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_keys import ConsumerSettings

__all__ = ["Delivery"]

DECOMPRESSED_BYTES_MAX = 256 << 20
_PIECE_RECORDS = 1000
"""The number of records that are decoded at once from a batch."""
_CONTROL_KEY = Struct(">hh")
_ABORT = 0


class Delivery:
    """Turns fetched bytes into records for polls.

    `ready` has the partitions with fetched data, in the order in which polls read them.
    """

    def __init__(self, settings: ConsumerSettings, ready: dict[PartitionState, None]) -> None:
        self._settings = settings
        self._ready = ready
        self._read_committed = settings.isolation_level == "read_committed"
        self._deserialize = settings.key_deserializer is not None or settings.value_deserializer is not None
        self._last_shapes = LastShapes()
        self.bytes_parsed = 0
        self.positions_before: dict[PartitionState, tuple[int, int]] = {}
        """The partitions whose records the last `take_records` returned, each with the position and epoch
        that it had before that call.
        """
        self.chunk_used_up = False
        """Set to True when a whole chunk has been read, so that another fetch may be sent. The consumer machine sets
        it back to False.
        """

    def take_records(self, count_max: int) -> list[ConsumerRecord]:
        """Take at most `count_max` records from the fetched data. If a partition's error comes before the
        first record that was found, raise that error.
        """
        found: list[ConsumerRecord] = []
        self.positions_before = {}
        for state in list(self._ready):
            if state.paused:
                continue
            if state.position is not None:
                self.positions_before[state] = state.position, state.position_epoch
            if state.returned:
                self._hand_over_returned(state, found, count_max - len(found))
            while len(found) < count_max:
                if not state.parsed and not self._next_piece(state):
                    break
                if not self._hand_over(state, found, count_max - len(found)):
                    break
            if not state.chunks and not state.returned and not found:
                self._raise_error(state)
            if not state.has_data:
                del self._ready[state]
            if len(found) >= count_max:
                break
        return found

    def _raise_error(self, state: PartitionState) -> None:
        if isinstance(state.error, (NoOffsetForPartition, TruncationDetected)):
            reached("client.position_error_raised_again")
            # Raise the error at each poll until the application seeks. If it were raised once only, an application that
            # missed it would wait for ever, or skip records.
            raise state.error.with_traceback(None)
        if state.error is not None:
            error, state.error = state.error, None
            del self._ready[state]
            self.chunk_used_up = True
            raise error

    def _next_piece(self, state: PartitionState) -> bool:
        """Decode the next records of a partition into `state.parsed`. Return False if there are none, because
        an error comes first or nothing is fetched.
        """
        while state.chunks:
            chunk = state.chunks[0]
            try:
                if state.batch is None:
                    if chunk.position >= chunk.end:
                        self._drop_chunk(state)
                    else:
                        self._open_batch(state, chunk)
                    continue
                found = state.batch.take(_PIECE_RECORDS)
            except KafkaError as error:
                self._undecodable(state, chunk, error)
                return False
            position = state.position
            assert position is not None
            if found and found[0].offset < position:
                found = [record for record in found if record.offset >= position]
            if found:
                state.parsed = found
                state.parsed_index = 0
                return True
            if state.batch.is_used_up:
                self._end_batch(state, state.batch.header)
        return False

    def _open_batch(self, state: PartitionState, chunk: Chunk) -> None:
        header = parse_header(chunk.data, chunk.position)
        position = state.position
        assert position is not None
        visible = self._is_visible(chunk, header) and header.next_offset > position
        self.bytes_parsed += header.size
        state.bytes_taken += header.size
        if not visible:
            self._end_batch(state, header)
            return
        state.batch = BatchRecords(
            *state.key,
            chunk.data,
            chunk.position,
            header,
            decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            crc=self._settings.check_crcs,
            last_shapes=self._last_shapes,
        )

    def _end_batch(self, state: PartitionState, header: BatchHeader) -> None:
        """Move the position to the end of the batch, even if compaction has removed its last records."""
        state.batch = None
        state.chunks[0].position += header.size
        self._move(state, header.next_offset, header.partition_leader_epoch)

    def _undecodable(self, state: PartitionState, chunk: Chunk, error: KafkaError) -> None:
        """Store an error for a batch that cannot be decoded, and fetch the batch again: another replica may have
        undamaged bytes.
        """
        offset = state.position
        assert offset is not None
        next_offset = offset + 1
        try:
            header = parse_header(chunk.data, chunk.position)
        except KafkaError:
            pass  # without a header, the end of the batch is unknown, so skip one offset
        else:
            offset = max(offset, header.base_offset)
            next_offset = max(next_offset, header.next_offset)
        state.drop_fetched()
        state.error = UndecodableRecord(state.key, offset, next_offset, error)
        self.chunk_used_up = True

    def _hand_over(self, state: PartitionState, found: list[ConsumerRecord], count_max: int) -> bool:
        """Move decoded records to `found`, up to the first record that a deserializer refuses. Return False
        if a record was refused. If `found` is empty in that case, raise the `UndecodableRecord` instead.
        """
        parsed, start = state.parsed, state.parsed_index
        end = min(start + count_max, len(parsed))
        given = parsed if end - start == len(parsed) else parsed[start:end]
        refused: UndecodableRecord | None = None
        if self._deserialize:
            given, refused = self._deserialized(given)
            end = start + len(given)
        found += given
        state.records_taken += len(given)
        if end == len(parsed):
            state.parsed = []
            batch = state.batch
            assert batch is not None
            if batch.is_used_up:
                self._end_batch(state, batch.header)
                return True
        state.parsed_index = end
        if given:
            self._move(state, given[-1].offset + 1, given[-1].leader_epoch)
        if refused is not None and not found:
            raise refused
        return refused is None

    def _deserialized(
        self, records: list[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord], UndecodableRecord | None]:
        """Apply the deserializers up to the first record that one of them refuses. Return the finished records, and
        the error or None.
        """
        key, value = self._settings.key_deserializer, self._settings.value_deserializer
        found: list[ConsumerRecord] = []
        for record in records:
            try:
                found.append(
                    record._replace(
                        key=record.key if key is None else key(record.key),
                        value=record.value if value is None else value(record.value),
                    )
                )
            except Exception as error:  # noqa: BLE001 - the application gets any error, together with the record's position
                partition = TopicPartition(record.topic, record.partition)
                return found, UndecodableRecord(partition, record.offset, record.offset + 1, error, record)
        return found, None

    def give_back(
        self, state: PartitionState, given: list[ConsumerRecord], position: int, position_epoch: int
    ) -> None:
        """Put back records that the last poll returned and the application did not use. The next poll returns them
        again, unchanged.
        """
        if not state.returned:
            assert state.position is not None
            state.returned_end = state.position, state.position_epoch
        state.returned.extendleft(reversed(given))
        state.records_taken -= len(given)
        state.position, state.position_epoch = position, position_epoch
        self._ready[state] = None

    def _hand_over_returned(self, state: PartitionState, found: list[ConsumerRecord], count_max: int) -> None:
        returned = state.returned
        while returned and count_max:
            count_max -= 1
            record = returned.popleft()
            found.append(record)
            state.records_taken += 1
            state.position, state.position_epoch = record.offset + 1, record.leader_epoch
        if not returned:
            state.position, state.position_epoch = state.returned_end

    def _move(self, state: PartitionState, offset: int, epoch: int) -> None:
        assert state.position is not None
        state.position = max(state.position, offset)
        state.position_epoch = epoch
        if state.chunks and state.chunks[0].position >= state.chunks[0].end:
            self._drop_chunk(state)

    def _drop_chunk(self, state: PartitionState) -> None:
        chunk = state.chunks.popleft()
        state.buffered_bytes -= chunk.end
        self.chunk_used_up = True

    def take_batches(self, bytes_max: int) -> list[RawBatch]:
        """Take whole fetched batches, from one or more partitions. Stop when the batches have `bytes_max`
        bytes or more, or when no fetched batch is left.
        """
        found: list[RawBatch] = []
        size = 0
        for state in list(self._ready):
            if state.paused:
                continue
            if state.batch is not None or state.returned:
                # A poll has returned a part of this batch, so fetch the batch again from the position.
                state.drop_fetched()
                self.chunk_used_up = True
            while state.chunks and (size < bytes_max or not found):
                chunk = state.chunks[0]
                try:
                    size += self._take_batch(state, chunk, found)
                except KafkaError as error:
                    self._undecodable(state, chunk, error)
            if not state.chunks and not found:
                self._raise_error(state)
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
                raise CorruptBatch(
                    f"{state.key}: the checksum of the batch at offset {header.base_offset} is wrong"
                )
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
            state.records_taken += header.record_count
        state.bytes_taken += size
        chunk.position += size
        self._move(state, header.next_offset, header.partition_leader_epoch)
        return size

    def _is_visible(self, chunk: Chunk, header: BatchHeader) -> bool:
        """True if applications may see the batch. Control batches are hidden, and with read_committed also
        the batches of aborted transactions.

        The broker lists the transactions that were aborted in the fetched range. Each begins at its first offset and
        ends at its abort marker.
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
    """True if the batch is an abort marker (KIP-98), by the type in its record's key. False if compaction has removed
    the record.
    """
    found = records(chunk.data, chunk.position, decompressed_bytes_max=1 << 16)
    key = found[0].key if found else None
    return key is not None and len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT
