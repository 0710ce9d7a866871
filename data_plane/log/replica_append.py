"""Append batches that have their offsets already: a follower's, from its leader, and the quorum's.

Offsets may have gaps (compaction on the leader), never overlap. The batches of one call go to the file with one
call per segment.
"""

from __future__ import annotations

import attrs

from data_plane.log.log_config import LogConfig
from data_plane.log.log_types import AppendResult
from data_plane.log.parts.lazy_producers import LazyProducers
from data_plane.log.parts.leader_epochs import LeaderEpochs
from data_plane.log.parts.log_offsets import LogOffsets
from data_plane.log.parts.producer_recovery import note_batch
from data_plane.log.parts.rolling import roll
from data_plane.log.parts.segment_list import SegmentList
from data_plane.log.segments.segment import RELATIVE_OFFSET_MAX
from data_plane.log.truncation import Truncation
from odradek.env.ports import DiskError
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import HEADER_SIZE, BatchHeader, CorruptBatch, check_crc, parse_header


@attrs.frozen
class ReplicaAppend:
    """The parts of a log that an append changes. Made for one call."""

    offsets: LogOffsets
    segments: SegmentList
    epochs: LeaderEpochs
    producers: LazyProducers
    config: LogConfig

    def append(
        self,
        batches: memoryview,
        leader_epoch: int,
        now_ms: int,
        truncation: Truncation,
        *,
        takes_sound: bool,
    ) -> AppendResult:
        """Batches with their offsets. A cut tail, and what is of a later epoch than the leader's, is left out.

        With `takes_sound`, so is a batch with a wrong checksum and what follows it: the next fetch then begins with it.
        Without, it is reason to refuse everything.
        """
        headers, next_offset = self._headers(batches, leader_epoch, takes_sound=takes_sound)
        if self.producers.state is None and any(header.producer_id >= 0 for _, header in headers):
            # It may have to be read, which may fail: before anything is written.
            self.producers.load(self.segments, self.config.index_interval_bytes)
        if headers[0][1].base_offset < self.offsets.log_end_offset:
            with self.segments.home.telling_failures():
                truncation.reach_back(headers[0][1].base_offset)
        self._write(batches, headers, now_ms)
        last = headers[-1][1]
        return AppendResult(
            headers[0][1].base_offset, next_offset - 1, -1, last.partition_leader_epoch, False
        )

    def _headers(
        self, batches: memoryview, leader_epoch: int, *, takes_sound: bool
    ) -> tuple[list[tuple[int, BatchHeader]], int]:
        """Position and header of the batches to append, and the offset behind them. Raises `KafkaError`."""
        position = 0
        headers: list[tuple[int, BatchHeader]] = []
        next_offset = self.offsets.log_end_offset
        while len(batches) - position >= HEADER_SIZE:
            header = parse_header(batches, position)
            size = header.size
            if size > len(batches) - position or header.partition_leader_epoch > leader_epoch >= 0:
                break
            if not check_crc(batches, position, size):
                if headers and takes_sound:
                    break
                raise CorruptBatch("batch checksum is wrong")
            base_offset, last_offset = header.base_offset, header.last_offset
            if base_offset < next_offset <= last_offset and takes_sound and self._is_begun_anew(headers):
                next_offset = base_offset
            if base_offset < next_offset or header.last_offset_delta < 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{self.segments.home}: a batch at {base_offset} cannot follow offset {next_offset}",
                )
            headers.append((position, header))
            next_offset = last_offset + 1
            position += size
        if not headers:
            raise CorruptBatch("no whole batch to append")
        return headers, next_offset

    def _is_begun_anew(self, headers: list[tuple[int, BatchHeader]]) -> bool:
        """Whether an empty log begins within the leader's first batch, where records were deleted up to the middle of it."""
        return not headers and self.offsets.log_end_offset == self.offsets.log_start_offset

    def _write(self, batches: memoryview, headers: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write all batches; a new segment begins where one is full, and where a gap is too wide for one."""
        segments, config = self.segments, self.config
        run_start = 0
        for at, (position, header) in enumerate(headers):
            begun = headers[run_start][0]
            pending = position - begun
            active = segments.active
            if active.size + pending and (
                active.size + position + header.size - begun > config.segment_bytes
                or header.last_offset - active.base_offset > RELATIVE_OFFSET_MAX
                or (not pending and segments.must_roll(config, header.max_timestamp, now_ms))
            ):
                self._write_run(batches, headers[run_start:at])
                run_start = at
                self._roll(now_ms)
            if header.last_offset - segments.active.base_offset > RELATIVE_OFFSET_MAX:
                self._roll(now_ms, header.base_offset)
        self._write_run(batches, headers[run_start:])

    def _roll(self, now_ms: int, base_offset: int | None = None) -> None:
        end_offset = self.offsets.log_end_offset
        roll(self.segments, self.producers, self.config, end_offset, now_ms, base_offset)

    def _write_run(self, batches: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
        """Write neighbouring batches to the active segment with one call."""
        if not run:
            return
        start = run[0][0]
        end = run[-1][0] + run[-1][1].size
        active = self.segments.active
        base = active.size
        try:
            written_at = active.file.append(batches[start:end])
        except DiskError as error:
            self.segments.undo_append(base, error)
            raise
        if written_at != base:
            raise AssertionError(f"{active.file.path}: batches for position {base} are at {written_at}")
        interval = self.config.index_interval_bytes
        epochs = self.epochs
        for position, header in run:
            size = header.size
            active.note_batch(
                base + position - start, size, header.last_offset, header.max_timestamp, interval
            )
            if header.partition_leader_epoch != epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                state = self.producers.load(self.segments, interval)
                batch = batches[position : position + size]
                note_batch(state, header, header.base_offset, header.max_timestamp, batch)
        self.offsets.extend(run[-1][1].next_offset)
