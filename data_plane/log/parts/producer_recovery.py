"""Rebuilds producer state from the last good snapshot and the batch headers after it; writes and removes
snapshot files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, EndedTransaction, ProducerState
from odradek.data_plane.log.segments.aborted_file import AbortedFile
from odradek.data_plane.log.segments.aborted_index import (
    NONE_ABORTED,
    AbortedIndex,
    AbortedTransaction,
    DamagedTransactionIndex,
)
from odradek.data_plane.log.segments.file_names import SNAPSHOT_SUFFIX, file_name
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment import Segment
from odradek.data_plane.log.segments.small_files import remove_if_present, sync_file, write_whole
from odradek.env.ports import Dir, DiskHung, DiskRefused, FileMissing
from odradek.named_states import reached
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, Buffer
from odradek.wire.batches.transaction_markers import parse_marker

_UNKNOWN = -1
"""The value of the high watermark if the caller does not need it."""


def note_batch(
    state: ProducerState, header: BatchHeader, base_offset: int, timestamp_ms: int, batch: Buffer | None
) -> EndedTransaction | None:
    """Update the state with an appended batch; `batch` is needed for control batches only.

    Returns the transaction that the batch ends, or None.
    """
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
    elif attributes & TRANSACTIONAL_MASK and batch is not None:
        marker = parse_marker(batch)
        if marker is not None:
            # `parse_marker` returns None for a marker without a record. Then compaction has removed all
            # records of the transaction, and there is nothing to end.
            producer_id, epoch = header.producer_id, header.producer_epoch
            return state.end_transaction(producer_id, epoch, base_offset, timestamp_ms, marker)
    return None


def note_ended(segment: Segment, state: ProducerState, ended: EndedTransaction) -> None:
    """Add an ended transaction to the segment's aborted transactions if it was aborted. Its marker must be in
    this segment.
    """
    if ended.is_aborted:
        last_offset = ended.last_offset
        stable = state.stable_behind(last_offset)
        if segment.aborted is None:
            segment.aborted = AbortedFile(segment.directory, segment.base_offset, NONE_ABORTED)
        segment.aborted.add(AbortedTransaction(ended.producer_id, ended.first_offset, last_offset, stable))


def note_scanned(
    state: ProducerState, segment: Segment, position: int, header: BatchHeader
) -> EndedTransaction | None:
    """Update the state with a batch that a scan has found at `position` of a segment's file. Returns the
    transaction that the batch ends, or None.
    """
    if header.producer_id < 0:
        return None
    batch = None
    if header.attributes & CONTROL_MASK:
        batch = segment.file.pread(header.size, position)
    return note_batch(state, header, header.base_offset, header.max_timestamp, batch)


def snapshot_offsets(names: list[str]) -> list[int]:
    """Return the offsets of all producer snapshots among the names of a directory, ascending."""
    return sorted(
        int(name[: -len(SNAPSHOT_SUFFIX)])
        for name in names
        if name.endswith(SNAPSHOT_SUFFIX) and len(name) == 20 + len(SNAPSHOT_SUFFIX) and name[:20].isdigit()
    )


def latest_state(
    directory: Dir, first_offset: int, end_offset: int, high_watermark: int, names: list[str]
) -> tuple[ProducerState, int]:
    """Read the newest good snapshot at or below `end_offset`. Returns its state and its offset. Removes
    damaged snapshots.

    Without a snapshot, returns an empty state as of `first_offset`, where the log's files begin.

    A snapshot above the high watermark is not used, unless the high watermark is unknown (-1). Such a
    snapshot does not list ended transactions, although a truncation may still remove their markers. The
    caller replays the batches after the snapshot, which lists these transactions again.
    """
    if high_watermark >= 0:
        end_offset = min(end_offset, max(high_watermark, first_offset))
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
    directory: Dir,
    segments: Sequence[Segment],
    end_offset: int,
    index_interval_bytes: int,
    high_watermark: int = _UNKNOWN,
) -> ProducerState:
    """Rebuild the producer state as of `end_offset`, from the last good snapshot and the batch headers after
    it. It blocks, usually for a short time.
    """
    names, first_offset = directory.list(), segments[0].base_offset
    state, offset = latest_state(directory, first_offset, end_offset, high_watermark, names)
    replay(segments, state, offset, end_offset, index_interval_bytes)
    return state


def replay(
    segments: Sequence[Segment],
    state: ProducerState,
    offset: int,
    end_offset: int,
    index_interval_bytes: int,
) -> None:
    """Update the state with all batches in `[offset, end_offset)`; the log ends there or later.

    If a segment is damaged, its batches after the damage are left out. Recovery has not read the segments below
    the recovery point, so damage there is first found here. One damaged batch must not prevent the start of a
    node. Readers of that batch will find the damage.
    """
    for at, segment in enumerate(segments):
        after = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if after <= offset or segment.base_offset >= end_offset:
            continue
        start = 0
        if offset > segment.base_offset:
            try:
                start, _ = segment.position_of(offset, segment.file, index_interval_bytes)
            except CorruptBatch:
                continue
        scan = SegmentScan(segment.file, start, segment.size, segment.base_offset)
        for position, header in scan:
            if header.base_offset >= end_offset:
                return
            note_scanned(state, segment, position, header)
        if at + 1 < len(segments):
            segment.file.rest()


def aborted_in(
    aborted: AbortedFile,
    directory: Dir,
    segments: Sequence[Segment],
    segment: Segment,
    index_interval_bytes: int,
) -> AbortedIndex:
    """Return the aborted transactions of `segment`, whose file is `aborted`. At the first call, reads them from
    the file.

    If the index file is damaged, they are read from the batches, and the file is rewritten (blocking). Raises
    `DiskError`.
    """
    try:
        return aborted.load()
    except DamagedTransactionIndex:
        reached("log.aborted_index_repaired")
        repair = partial(_repair_aborted, aborted, directory, segments, segment, index_interval_bytes)
        return directory.in_time(repair, _keep)


def _keep(index: AbortedIndex) -> None:
    """Do nothing. Called with a rebuilt index when the device answers late. By then the index file is written,
    and the caller no longer waits.
    """


def _repair_aborted(
    aborted: AbortedFile,
    directory: Dir,
    segments: Sequence[Segment],
    segment: Segment,
    index_interval_bytes: int,
) -> AbortedIndex:
    aborted.remove()
    start_offset = segment.base_offset
    state, offset = latest_state(directory, segments[0].base_offset, start_offset, _UNKNOWN, directory.list())
    replay(segments, state, offset, start_offset, index_interval_bytes)
    aborted.forget()
    for position, header in SegmentScan(segment.file, 0, segment.size, start_offset):
        ended = note_scanned(state, segment, position, header)
        if ended is not None:
            note_ended(segment, state, ended)
    aborted.write()
    return aborted.load()


def write_snapshot(directory: Dir, state: ProducerState, offset: int, *, sync: bool = False) -> bool:
    """Write `<offset>.snapshot`, and sync it if `sync` is true. Returns False if the disk refuses. Then nothing is
    lost, since the batches in the log have the same state, or an earlier file of that name stays.
    """
    name, data = file_name(offset, SNAPSHOT_SUFFIX), state.encode()
    if sync and directory.exists(name):
        return _write_again(directory, name, data)
    try:
        write_whole(directory, name, data)
        if sync:
            sync_file(directory, name)
    except DiskHung:
        # Leave the file alone, because removing it would block until the device answers.
        raise
    except DiskRefused:
        remove_if_present(directory, name)
        return False
    return True


def _write_again(directory: Dir, name: str, data: bytes) -> bool:
    """Replace a snapshot in one step. Retention may have removed the batches below it, so it must not be lost in a
    crash.
    """
    if directory.file_size(name) == len(data) and directory.read_bytes(name, len(data)) == data:
        sync_file(directory, name)
        return True
    reached("log.snapshot_replaced")
    try:
        directory.write_atomic(name, data)
    except DiskHung:
        raise
    except DiskRefused:
        return False
    return True


def removable(
    directory: Dir, segments: Sequence[Segment], offset: int, count: int, index_interval_bytes: int
) -> int:
    """Return how many of the first `count` segments, which end at `offset`, may be removed (blocking).

    If a full disk has refused the snapshot as of `offset`, their batches are the only record of their producers. So it
    is written now. If the disk refuses again, only the segments before the newest snapshot may be removed. Raises
    `DiskError`.
    """
    if directory.exists(file_name(offset, SNAPSHOT_SUFFIX)):
        return count
    reached("log.snapshot_made_late")
    state = rebuild_producers(directory, segments, offset, index_interval_bytes)
    if not state.entries or write_snapshot(directory, state, offset, sync=True):
        return count
    reached("log.kept_for_its_producers")
    fewer = count - 1
    while fewer and not directory.exists(file_name(segments[fewer].base_offset, SNAPSHOT_SUFFIX)):
        fewer -= 1
    return fewer


def remove_snapshots_above(directory: Dir, offset: int, names: list[str]) -> None:
    """Remove the snapshots with an offset above `offset`. Raises `DiskError`."""
    for each in snapshot_offsets(names):
        if each > offset:
            remove_if_present(directory, file_name(each, SNAPSHOT_SUFFIX))
