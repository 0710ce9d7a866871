"""Rebuild producer state from what is on disk: the last good snapshot, and the batch headers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from data_plane.log.producer_state import DamagedSnapshot, ProducerState
from data_plane.log.segments.scan import HeaderTuple, SegmentScan
from data_plane.log.segments.segment import (
    SNAPSHOT_SUFFIX,
    Segment,
    file_name,
    remove_if_present,
    sync_file,
    write_whole,
)
from odradek.env.ports import DiskRefused, FileMissing
from wire.errors import KafkaError
from wire.record_batch import CONTROL_MASK, SIZE_PREFIX, TRANSACTIONAL_MASK, Buffer, records

if TYPE_CHECKING:
    from data_plane.log.partition_log import PartitionLog

_MARKER_BYTES_MAX = 4096


def note_batch(
    state: ProducerState, header: Any, base_offset: int, timestamp_ms: int, batch: Buffer | None
) -> None:
    """Bring the state up to date with an appended batch; `batch` is needed for control batches only."""
    attributes = header[5]
    if not attributes & CONTROL_MASK:
        delta = header[6]
        state.update(
            header[9],
            header[10],
            header[11],
            base_offset + delta,
            delta,
            timestamp_ms,
            bool(attributes & TRANSACTIONAL_MASK),
        )
    elif attributes & TRANSACTIONAL_MASK:
        epoch = -1 if batch is None else marker_coordinator_epoch(batch)
        state.end_transaction(header[9], header[10], timestamp_ms, epoch)


def marker_coordinator_epoch(batch: Buffer) -> int:
    """The coordinator epoch in a transaction marker's value (version int16, epoch int32); -1 if unreadable."""
    try:
        (marker,) = records(batch, decompressed_bytes_max=_MARKER_BYTES_MAX, crc=False)
    except (KafkaError, ValueError):
        return -1
    value = marker.value
    return int.from_bytes(value[2:6], "big", signed=True) if value is not None and len(value) >= 6 else -1


def note_scanned(state: ProducerState, segment: Segment, position: int, header: HeaderTuple) -> None:
    """As `note_batch`, for a batch that a scan has found at `position` of a segment's file."""
    if header[9] >= 0:
        batch = None
        if header[5] & CONTROL_MASK:
            batch = segment.file.pread(header[1] + SIZE_PREFIX, position)
        note_batch(state, header, header[0], header[8], batch)


def snapshot_offsets(names: list[str]) -> list[int]:
    """Offsets of the producer snapshots among a directory's names, ascending."""
    return sorted(
        int(name[: -len(SNAPSHOT_SUFFIX)])
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX) and len(name) == 20 + len(SNAPSHOT_SUFFIX) and name[:20].isdigit()
    )


def latest_state(log: PartitionLog, end_offset: int, names: list[str]) -> tuple[ProducerState, int]:
    """The newest good snapshot at or below `end_offset`, and its offset; damaged ones are removed.

    Without one, an empty state as of the log's first offset.
    """
    for offset in reversed(snapshot_offsets(names)):
        if offset > end_offset:
            continue
        name = file_name(offset, SNAPSHOT_SUFFIX)
        try:
            return ProducerState.decode(log.directory.read_bytes(name)), offset
        except (DamagedSnapshot, FileMissing):
            remove_if_present(log.directory, name)
    return ProducerState(), log.segments[0].base_offset


def rebuild_producers(log: PartitionLog, end_offset: int) -> ProducerState:
    """The state as of `end_offset`. Reads the headers behind the last good snapshot (blocking, mostly short)."""
    state, offset = latest_state(log, end_offset, log.directory.list())
    replay(log, state, offset, end_offset)
    return state


def replay(log: PartitionLog, state: ProducerState, offset: int, end_offset: int) -> None:
    """Note all batches in `[offset, end_offset)`."""
    interval = log.config.index_interval_bytes
    segments = log.segments
    for at, segment in enumerate(segments):
        after = segments[at + 1].base_offset if at + 1 < len(segments) else log.log_end_offset
        if after <= offset or segment.base_offset >= end_offset:
            continue
        start = 0
        if offset > segment.base_offset:
            start, _ = segment.position_of(offset, segment.file, interval)
        scan = SegmentScan(segment.file, start, segment.size, segment.base_offset)
        for position, header in scan:
            if header[0] >= end_offset:
                return
            note_scanned(state, segment, position, header)
        if at + 1 < len(segments):
            segment.file.rest()


def write_snapshot(log: PartitionLog, *, sync: bool = False) -> None:
    """`<log end offset>.snapshot`, on the device if `sync`. A disk that refuses is no failure: the log has it all."""
    state = log.load_producers() if log.lazy_producers_offset >= 0 else log.producers
    name = file_name(log.log_end_offset, SNAPSHOT_SUFFIX)
    try:
        write_whole(log.directory, name, (state or ProducerState()).encode())
        if sync:
            sync_file(log.directory, name)
    except DiskRefused:
        remove_if_present(log.directory, name)
    log.entry_is_dirty = True
