"""Shows and verifies the files of a partition: `odradek log dump` prints the result. PURE except for reads of
files.

Each item is a dict whose `kind` says what it is: `batch`, `record`, `index_entry`, `time_index_entry`,
`producer`, `aborted_transaction`, `epoch`, or `damage` (with `file`, `position` and `reason`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from odradek.data_plane.log.parts.leader_epochs import FILE_NAME as EPOCHS_FILE_NAME
from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs, MalformedCheckpoint
from odradek.data_plane.log.parts.producer_state import DamagedSnapshot, ProducerState
from odradek.data_plane.log.segments.aborted_index import AbortedIndex, DamagedTransactionIndex
from odradek.data_plane.log.segments.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.data_plane.log.segments.segment_index import DamagedIndex, SegmentIndex
from odradek.env.ports import Dir, File, FileMissing
from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.records import records
from odradek.wire.batches.transaction_markers import UNREADABLE_EPOCH, parse_marker
from odradek.wire.errors import KafkaError

_DECOMPRESSED_BYTES_MAX = 1 << 30


def dump_segment(
    directory: Dir, name: str, *, verify: bool = False, with_records: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the contents of one file in a partition's directory. The file's suffix decides how it is read.

    For a `.log` file, the first batch that cannot be read gives a `damage` item, which is the last item. With
    `verify`, the checksums are checked too, and the indexes are compared with the batches. Verification
    continues after a batch if only its checksum is wrong.

    Raises:
        FileMissing, DiskError
        ValueError: no file of a partition has that name.
    """
    if name.endswith(LOG_SUFFIX):
        yield from _dump_log(directory, name, verify=verify, with_records=with_records)
    elif name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
        yield from _dump_index(directory, name)
    elif name.endswith(SNAPSHOT_SUFFIX):
        yield from _dump_snapshot(directory, name)
    elif name.endswith(TXN_INDEX_SUFFIX):
        yield from _dump_aborted(directory, name)
    elif name == EPOCHS_FILE_NAME:
        yield from _dump_epochs(directory, name)
    else:
        raise ValueError(f"{name} is not a segment, index, producer snapshot or leader epoch file")


def verify_partition(directory: Dir) -> Iterator[dict[str, Any]]:
    """Yield the `damage` items of all files of a partition's directory."""
    for name in directory.list():
        if name.endswith((LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)) or name == EPOCHS_FILE_NAME:
            for item in dump_segment(directory, name, verify=True):
                if item["kind"] == "damage":
                    yield item


def _damage(file: str, position: int, reason: str) -> dict[str, Any]:
    return {"kind": "damage", "file": file, "position": position, "reason": reason}


def _dump_log(directory: Dir, name: str, *, verify: bool, with_records: bool) -> Iterator[dict[str, Any]]:
    file = directory.open(name)
    base_offset = int(name[: -len(LOG_SUFFIX)])
    batches: dict[int, tuple[int, int, int]] = {}
    try:
        position, next_offset = 0, base_offset
        while True:
            scan = SegmentScan(file, position, file.size, next_offset, check_crc=verify)
            for at, header in scan:
                batches[at] = (header.base_offset, header.last_offset, header.max_timestamp)
                yield _batch(at, header) | _marker(file, at, header)
                if with_records:
                    yield from _records(file, name, at, header)
            if scan.damage is None:
                break
            yield _damage(name, scan.position, scan.damage)
            bad = _header_at(file, scan.position, scan.next_offset) if verify else None
            if bad is None:
                break
            batches[scan.position] = (bad.base_offset, bad.last_offset, bad.max_timestamp)
            position, next_offset = scan.position + bad.size, bad.next_offset
        if verify:
            yield from _compare_index(directory, base_offset, file.size, batches)
    finally:
        file.close()


def _header_at(file: File, position: int, next_offset: int) -> BatchHeader | None:
    """Parse the header of a batch with a wrong checksum. Returns None if the header is implausible, so that
    verification cannot continue beyond it.
    """
    for _, header in SegmentScan(file, position, file.size, next_offset):
        return header
    return None


def _batch(position: int, header: BatchHeader) -> dict[str, Any]:
    known = header.compression_type <= CompressionType.ZSTD
    return {
        "kind": "batch",
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon": header.base_timestamp if header.has_delete_horizon else None,
        "compression": CompressionType(header.compression_type).name.lower() if known else "unknown",
        "crc": header.crc,
    }


def _marker(file: File, position: int, header: BatchHeader) -> dict[str, Any]:
    """Return the outcome and the coordinator's epoch in a transaction's marker; an empty dict for other
    batches.
    """
    if not (header.is_control and header.is_transactional):
        return {}
    marker = parse_marker(file.pread(header.size, position))
    if marker is None:
        # Compaction has removed the record, so the outcome is unknown.
        return {"marker": None, "coordinator_epoch": None}
    epoch = None if marker.coordinator_epoch == UNREADABLE_EPOCH else marker.coordinator_epoch
    return {"marker": "abort" if marker.is_abort else "commit", "coordinator_epoch": epoch}


def _records(file: File, name: str, position: int, header: BatchHeader) -> Iterator[dict[str, Any]]:
    batch = file.pread(header.size, position)
    try:
        found = records(batch, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX, crc=False)
    except KafkaError as error:
        yield _damage(name, position, error.message)
        return
    for record in found:
        yield {
            "kind": "record",
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": record.headers,
        }


def _compare_index(
    directory: Dir, base_offset: int, log_bytes: int, batches: dict[int, tuple[int, int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield a `damage` item for each index entry that contradicts the log. An offset entry must point at a
    batch whose last offset is the entry's offset. Up to the offset of a time entry, no record may be newer
    than the entry's time.
    """
    name, time_name = file_name(base_offset, INDEX_SUFFIX), file_name(base_offset, TIME_INDEX_SUFFIX)
    try:
        index = SegmentIndex.from_bytes(
            directory.read_bytes(name), directory.read_bytes(time_name), log_bytes
        )
    except FileMissing:
        # This is no damage, because the active segment of a running node has no index file yet.
        return
    except DamagedIndex as error:
        yield _damage(name, 0, f"index: {error}")
        return
    for entry, (offset, position) in enumerate(zip(index.offsets, index.positions, strict=True)):
        batch = batches.get(position)
        if batch is None or not batch[0] <= base_offset + offset <= batch[1]:
            yield _damage(
                name,
                entry * 8,
                f"the index entry (offset {base_offset + offset}, position {position}) points "
                "at no batch with this offset",
            )
    newest, at = -1, 0
    ends = sorted((last_offset, timestamp) for _, last_offset, timestamp in batches.values())
    for entry, (offset, timestamp) in enumerate(zip(index.time_offsets, index.times, strict=True)):
        while at < len(ends) and ends[at][0] <= base_offset + offset:
            newest = max(newest, ends[at][1])
            at += 1
        if newest > timestamp:
            yield _damage(
                time_name,
                entry * 12,
                f"the time index entry ({timestamp}, offset {base_offset + offset}) is older than "
                f"the records before that offset ({newest})",
            )


def _dump_index(directory: Dir, name: str) -> Iterator[dict[str, Any]]:
    data = directory.read_bytes(name)
    base_offset = int(name.partition(".")[0])
    try:
        if name.endswith(TIME_INDEX_SUFFIX):
            index = SegmentIndex.from_bytes(b"", data, 1 << 31)
        else:
            index = SegmentIndex.from_bytes(data, b"", 1 << 31)
    except DamagedIndex as error:
        yield _damage(name, 0, str(error))
        return
    for offset, position in zip(index.offsets, index.positions, strict=True):
        yield {"kind": "index_entry", "offset": base_offset + offset, "position": position}
    for timestamp, offset in zip(index.times, index.time_offsets, strict=True):
        yield {"kind": "time_index_entry", "timestamp": timestamp, "offset": base_offset + offset}


def _dump_snapshot(directory: Dir, name: str) -> Iterator[dict[str, Any]]:
    try:
        state = ProducerState.decode(directory.read_bytes(name))
    except DamagedSnapshot as error:
        yield _damage(name, 0, str(error))
        return
    for producer in state.active_producers():
        yield {"kind": "producer", **producer._asdict()}


def _dump_aborted(directory: Dir, name: str) -> Iterator[dict[str, Any]]:
    try:
        index = AbortedIndex.decode(directory.read_bytes(name))
    except DamagedTransactionIndex as error:
        yield _damage(name, 0, str(error))
        return
    for entry in index:
        yield {"kind": "aborted_transaction", **entry._asdict()}


def _dump_epochs(directory: Dir, name: str) -> Iterator[dict[str, Any]]:
    try:
        epochs = LeaderEpochs.decode(directory.read_bytes(name))
    except MalformedCheckpoint as error:
        yield _damage(name, 0, str(error))
        return
    for epoch, start_offset in epochs.entries:
        yield {"kind": "epoch", "epoch": epoch, "start_offset": start_offset}
