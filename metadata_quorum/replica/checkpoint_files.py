"""Snapshot files (`*.checkpoint`): a header control batch, batches of records, a footer control batch.

`bootstrap.checkpoint` holds the first records of a cluster. `OFFSET-EPOCH.checkpoint` in the metadata log's
directory replaces the log below OFFSET; the file for offset 0 has the first voters (KIP-853). A file without
a footer at its end is unfinished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

import attrs

from odradek.env.ports import Buffer
from odradek.metadata_quorum.ports import MetadataLogCorrupt, Snapshot
from odradek.metadata_quorum.replica.metadata_batches import (
    DECOMPRESSED_BYTES_MAX,
    batch_of_control_records,
    batch_of_values,
    encode_values,
    is_whole_batch,
    read_batches,
)
from odradek.wire.batches.batch_header import HEADER_SIZE, BatchHeader, parse_header
from odradek.wire.batches.records import RECORD_SIZE_MIN
from odradek.wire.messages.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from odradek.wire.structure import Message

BOOTSTRAP_FILE = "bootstrap.checkpoint"
SNAPSHOT_BATCH_RECORDS_MAX = 256
"""The most records in one batch. To encode so many takes about 3 ms."""
_FILE_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint\Z")


def snapshot_name(end_offset: int, epoch: int) -> str:
    return f"{end_offset:020d}-{epoch:010d}.checkpoint"


def parse_snapshot_name(name: str) -> tuple[int, int] | None:
    """Parse a file name. Returns (end offset, epoch), or None if the file is no snapshot."""
    match = _FILE_NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


def snapshot_chunks(
    records: Iterable[Message],
    *,
    control_records: Sequence[Message] = (),
    epoch: int,
    timestamp_ms: int,
    last_contained_log_timestamp: int = 0,
) -> Iterator[bytearray]:
    """Yield the bytes of a snapshot file, batch by batch. Offsets in the file count from 0."""
    header: list[Message] = [SnapshotHeaderRecord(0, last_contained_log_timestamp), *control_records]
    yield batch_of_control_records(header, 0, epoch, timestamp_ms)
    offset = len(header)
    source = iter(records)
    while part := list(islice(source, SNAPSHOT_BATCH_RECORDS_MAX)):
        yield batch_of_values(encode_values(part), offset, epoch, timestamp_ms)
        offset += len(part)
    yield batch_of_control_records([SnapshotFooterRecord(0)], offset, epoch, timestamp_ms)


def encode_snapshot(
    records: Sequence[Message],
    *,
    control_records: Sequence[Message] = (),
    epoch: int,
    timestamp_ms: int,
    last_contained_log_timestamp: int = 0,
) -> bytes:
    """Encode a small snapshot file as a whole. `snapshot_chunks` has the same arguments."""
    chunks = snapshot_chunks(
        records,
        control_records=control_records,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        last_contained_log_timestamp=last_contained_log_timestamp,
    )
    return b"".join(chunks)


class _StoredRecords(Sequence[Message]):
    """The metadata records in the bytes of a snapshot, decoded at each iteration.

    The checksums were verified before.
    """

    def __init__(self, data: Buffer, batches: list[tuple[int, int]], count: int, source: str) -> None:
        self._data = memoryview(data)
        self._batches = batches
        self._count = count
        self._source = source

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        """Yield the records. Raises `MetadataLogCorrupt` for a malformed record."""
        for position, size in self._batches:
            for batch in read_batches(self._data[position : position + size], source=self._source):
                yield from (record for record in batch.records if record is not None)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return tuple(self)[index]


def open_snapshot(data: Buffer, *, source: str) -> Snapshot:
    """Check the checksums, the header and the footer of a snapshot. Its records are decoded later.

    Raises `MetadataLogCorrupt` for a damaged or unfinished file.
    """
    header: SnapshotHeaderRecord | None = None
    finished = False
    control: list[Message] = []
    batches: list[tuple[int, int]] = []
    count = position = 0
    while position < len(data):
        size = is_whole_batch(data, position)
        if size is None:
            raise MetadataLogCorrupt(f"{source}: the batch at position {position} is damaged")
        batch_header = parse_header(data, position)
        if finished:
            raise MetadataLogCorrupt(f"{source}: the snapshot has data behind its footer")
        if batch_header.is_control:
            for batch in read_batches(memoryview(data)[position : position + size], source=source):
                for record in batch.records:
                    if header is None:
                        if not isinstance(record, SnapshotHeaderRecord):
                            raise MetadataLogCorrupt(
                                f"{source}: the snapshot does not begin with a snapshot header"
                            )
                        header = record
                    elif finished:
                        raise MetadataLogCorrupt(f"{source}: the snapshot has data behind its footer")
                    elif isinstance(record, SnapshotFooterRecord):
                        finished = True
                    elif record is not None:
                        control.append(record)
        elif header is None:
            raise MetadataLogCorrupt(f"{source}: the snapshot does not begin with a snapshot header")
        else:
            if not _may_hold_its_records(batch_header):
                raise MetadataLogCorrupt(
                    f"{source}: the batch at position {position} claims {batch_header.record_count} "
                    "records, which its bytes or offsets contradict"
                )
            batches.append((position, size))
            count += batch_header.record_count
        position += size
    if header is None or not finished:
        raise MetadataLogCorrupt(f"{source}: the snapshot is incomplete, because it has no footer")
    records = _StoredRecords(data, batches, count, source)
    return Snapshot(header.last_contained_log_timestamp, tuple(control), records)


def _may_hold_its_records(header: BatchHeader) -> bool:
    """True if a batch is long enough for the number of records in its header.

    The decoder allocates memory for this number first.
    """
    room = DECOMPRESSED_BYTES_MAX if header.compression_type else header.size - HEADER_SIZE
    return 0 <= header.record_count * RECORD_SIZE_MIN <= room


def decode_snapshot(data: Buffer, *, source: str) -> Snapshot:
    """Decode a small snapshot as a whole. Raises `MetadataLogCorrupt` for a damaged or unfinished file."""
    snapshot = open_snapshot(data, source=source)
    return attrs.evolve(snapshot, records=tuple(snapshot.records))
