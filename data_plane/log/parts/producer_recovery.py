"""Rebuild producer state from what is on disk: the last good snapshot, and the batch headers behind it."""

from __future__ import annotations

from collections.abc import Sequence

from data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState
from data_plane.log.segments.scan import SegmentScan
from data_plane.log.segments.segment import (
    SNAPSHOT_SUFFIX,
    Segment,
    file_name,
    remove_if_present,
    sync_file,
    write_whole,
)
from odradek.env.ports import Dir, DiskRefused, FileMissing
from wire.batches.batch_header import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, Buffer
from wire.batches.records import records
from wire.errors import KafkaError

_MARKER_BYTES_MAX = 4096


def note_batch(
    state: ProducerState, header: BatchHeader, base_offset: int, timestamp_ms: int, batch: Buffer | None
) -> None:
    """Bring the state up to date with an appended batch; `batch` is needed for control batches only."""
    attributes = header.attributes
    if not attributes & CONTROL_MASK:
        delta = header.last_offset_delta
        state.update(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            base_offset + delta,
            delta,
            timestamp_ms,
            bool(attributes & TRANSACTIONAL_MASK),
        )
    elif attributes & TRANSACTIONAL_MASK:
        epoch = -1 if batch is None else marker_coordinator_epoch(batch)
        state.end_transaction(header.producer_id, header.producer_epoch, timestamp_ms, epoch)


def marker_coordinator_epoch(batch: Buffer) -> int:
    """The coordinator epoch in a transaction marker's value (version int16, epoch int32); -1 if unreadable."""
    try:
        (marker,) = records(batch, decompressed_bytes_max=_MARKER_BYTES_MAX, crc=False)
    except (KafkaError, ValueError):
        return -1
    value = marker.value
    return int.from_bytes(value[2:6], "big", signed=True) if value is not None and len(value) >= 6 else -1


def note_scanned(state: ProducerState, segment: Segment, position: int, header: BatchHeader) -> None:
    """Note a batch as `note_batch` does, for one that a scan has found at `position` of a segment's file."""
    if header.producer_id >= 0:
        batch = None
        if header.attributes & CONTROL_MASK:
            batch = segment.file.pread(header.size, position)
        note_batch(state, header, header.base_offset, header.max_timestamp, batch)


def snapshot_offsets(names: list[str]) -> list[int]:
    """Offsets of the producer snapshots among a directory's names, ascending."""
    return sorted(
        int(name[: -len(SNAPSHOT_SUFFIX)])
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX) and len(name) == 20 + len(SNAPSHOT_SUFFIX) and name[:20].isdigit()
    )


def latest_state(
    directory: Dir, first_offset: int, end_offset: int, names: list[str]
) -> tuple[ProducerState, int]:
    """The newest good snapshot at or below `end_offset`, and its offset; damaged ones are removed.

    Without one, an empty state as of `first_offset`, where the log's files begin.
    """
    for offset in reversed(snapshot_offsets(names)):
        if offset > end_offset:
            continue
        name = file_name(offset, SNAPSHOT_SUFFIX)
        try:
            return ProducerState.decode(directory.read_bytes(name)), offset
        except (DamagedSnapshot, FileMissing):
            remove_if_present(directory, name)
    return ProducerState(), first_offset


def rebuild_producers(
    directory: Dir, segments: Sequence[Segment], end_offset: int, index_interval_bytes: int
) -> ProducerState:
    """The state as of `end_offset`. Reads the headers behind the last good snapshot (blocking, mostly short)."""
    state, offset = latest_state(directory, segments[0].base_offset, end_offset, directory.list())
    replay(segments, state, offset, end_offset, index_interval_bytes)
    return state


def replay(
    segments: Sequence[Segment],
    state: ProducerState,
    offset: int,
    end_offset: int,
    index_interval_bytes: int,
) -> None:
    """Note all batches in `[offset, end_offset)`, where the log ends behind `end_offset` or there."""
    for at, segment in enumerate(segments):
        after = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if after <= offset or segment.base_offset >= end_offset:
            continue
        start = 0
        if offset > segment.base_offset:
            start, _ = segment.position_of(offset, segment.file, index_interval_bytes)
        scan = SegmentScan(segment.file, start, segment.size, segment.base_offset)
        for position, header in scan:
            if header.base_offset >= end_offset:
                return
            note_scanned(state, segment, position, header)
        if at + 1 < len(segments):
            segment.file.rest()


def write_snapshot(directory: Dir, state: ProducerState, offset: int, *, sync: bool = False) -> None:
    """`<offset>.snapshot`, on the device if `sync`. A disk that refuses is no failure: the log has it all."""
    name = file_name(offset, SNAPSHOT_SUFFIX)
    try:
        write_whole(directory, name, state.encode())
        if sync:
            sync_file(directory, name)
    except DiskRefused:
        remove_if_present(directory, name)


def remove_snapshots_above(directory: Dir, offset: int, names: list[str]) -> None:
    """Remove those that tell of what lies behind `offset`. Raises `DiskError`."""
    for each in snapshot_offsets(names):
        if each > offset:
            remove_if_present(directory, file_name(each, SNAPSHOT_SUFFIX))
