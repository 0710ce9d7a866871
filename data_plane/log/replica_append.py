"""Appends batches that already have offsets: batches that a follower has fetched, and batches of the metadata
quorum.

Offsets may have gaps (compaction on the leader), but never overlap. The batches of one append are written
with one call per segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import AppendResult
from odradek.data_plane.log.parts.lazy_producers import LazyProducers
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_offsets import LogOffsets
from odradek.data_plane.log.parts.producer_recovery import note_batch
from odradek.data_plane.log.parts.rolling import roll
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from odradek.data_plane.log.truncation import Truncation
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import (
    HEADER_SIZE,
    SIZE_PREFIX,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_crc,
    parse_header,
)
from odradek.wire.errors import ErrorCode, KafkaError

_Taken: TypeAlias = tuple[int, int, int, BatchHeader]
"""A batch to append: (position, size in bytes, last offset, header)."""


@attrs.define
class ReplicaAppend:
    """The parts of a log that an append changes. An object is made for each call."""

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
        truncation: Callable[[], Truncation],
        *,
        takes_sound: bool,
    ) -> AppendResult:
        """Append batches with the leader's offsets. Leaves out an incomplete batch at the end. The first
        batch of a later epoch than `leader_epoch`, and all batches after it, are left out as well.

        If `takes_sound` is true, a batch with a wrong checksum is left out, and also all batches after it.
        The next fetch then begins at that batch. If `takes_sound` is false, or the first batch is damaged,
        nothing is appended.
        """
        taken = self._parse(batches, leader_epoch, takes_sound=takes_sound)
        if self.producers.state is None and any(header.producer_id >= 0 for _, _, _, header in taken):
            # Load the producers before anything is written, because reading them may fail.
            self.producers.load(self.segments, self.config.index_interval_bytes)
        base_offset = taken[0][3].base_offset
        if base_offset < self.offsets.log_end_offset:
            with self.segments.home.reporting_failures():
                truncation().reach_back(base_offset)
        self._write(batches, taken, now_ms)
        _, _, last_offset, header = taken[-1]
        return AppendResult(base_offset, last_offset, -1, header.partition_leader_epoch, False)

    def _parse(self, batches: memoryview, leader_epoch: int, *, takes_sound: bool) -> list[_Taken]:
        """Parse the batches, and return those to append (at least one). Raises `KafkaError`."""
        position = 0
        taken: list[_Taken] = []
        next_offset = self.offsets.log_end_offset
        length = len(batches)
        while length - position >= HEADER_SIZE:
            header = parse_header(batches, position)
            size = header.batch_length + SIZE_PREFIX
            if size > length - position:
                break
            if header.partition_leader_epoch > leader_epoch >= 0:
                reached("replication.batch_of_later_epoch_left_out")
                break
            if not check_crc(batches, position, size):
                if taken and takes_sound:
                    reached("replication.sound_batches_before_damage_taken")
                    break
                raise CorruptBatch("the checksum of the record batch is wrong")
            base_offset = header.base_offset
            last_offset = base_offset + header.last_offset_delta
            if base_offset < next_offset <= last_offset and takes_sound and not taken and self._is_empty():
                reached("replication.began_within_first_batch")
                # Accept this batch, although it begins below the log's end. The log is empty and starts
                # within the leader's first batch, because records were deleted up to the middle of that
                # batch.
                next_offset = base_offset
            if base_offset < next_offset or last_offset < base_offset:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{self.segments.home}: a batch with the base offset {base_offset} cannot follow "
                    f"the log end offset {next_offset}",
                )
            taken.append((position, size, last_offset, header))
            next_offset = last_offset + 1
            position += size
        if not taken:
            raise CorruptBatch("the leader's answer holds no whole batch to append")
        return taken

    def _is_empty(self) -> bool:
        return self.offsets.log_end_offset == self.offsets.log_start_offset

    def _write(self, batches: memoryview, taken: list[_Taken], now_ms: int) -> None:
        """Write all batches. Begins a new segment when one is full, and where a gap between offsets is too
        wide for one segment.
        """
        segments, config = self.segments, self.config
        active = segments.active
        begun = run_start = 0
        for at, (position, size, last_offset, header) in enumerate(taken):
            pending = position - begun
            if active.size + pending and (
                active.size + pending + size > config.segment_bytes
                or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
                or (not pending and segments.must_roll(config, header.max_timestamp, now_ms))
            ):
                if pending:
                    self._write_run(batches, taken[run_start:at])
                begun, run_start = position, at
                active = self._roll(now_ms)
            if last_offset - active.base_offset > RELATIVE_OFFSET_MAX:
                active = self._roll(now_ms, header.base_offset)
        self._write_run(batches, taken[run_start:] if run_start else taken)

    def _roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        end_offset = self.offsets.log_end_offset
        roll(self.segments, self.producers, self.config, end_offset, now_ms, base_offset)
        return self.segments.active

    def _write_run(self, batches: memoryview, run: list[_Taken]) -> None:
        """Write consecutive batches to the active segment with one call."""
        start = run[0][0]
        position, size, end_offset, _ = run[-1]
        active = self.segments.active
        base = active.size
        try:
            written_at = active.file.append(batches[start : position + size])
        except DiskError as error:
            self.segments.undo_append(base, error)
            raise
        if written_at != base:
            raise AssertionError(
                f"{active.file.path}: batches were written at position {written_at} instead of "
                f"position {base}"
            )
        interval = self.config.index_interval_bytes
        epochs = self.epochs
        base -= start
        for position, size, last_offset, header in run:
            active.note_batch(base + position, size, last_offset, header.max_timestamp, interval)
            if header.partition_leader_epoch != epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                state = self.producers.load(self.segments, interval)
                batch = batches[position : position + size]
                ended = note_batch(state, header, header.base_offset, header.max_timestamp, batch)
                if header.attributes & TRANSACTIONAL_MASK:
                    high_watermark = self.offsets.high_watermark
                    self.producers.note_transaction(active, header.producer_id, None, ended, high_watermark)
        self.offsets.extend(end_offset + 1)
