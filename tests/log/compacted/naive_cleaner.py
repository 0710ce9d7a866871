"""A slow and simple log cleaner. It keeps the latest record of every key, by a dict."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from odradek.data_plane.log.cleaning_pass import Cleaning, Group, begin_cleaning
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.records import Record, RecordBatchBuilder, records
from tests.log.support import content

BYTES_MAX = 1 << 30


@attrs.frozen
class Visible:
    """A record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    leader_epoch: int


def visible(log: PartitionLog) -> list[Visible]:
    """Return all records of the log."""
    data = content(log)
    return [
        Visible(record.offset, record.timestamp, record.key, record.value, header.partition_leader_epoch)
        for at, header in iter_batches(data)
        for record in records(data, at, decompressed_bytes_max=BYTES_MAX)
    ]


def latest_values(found: list[Visible]) -> dict[bytes | None, bytes | None]:
    """Return the last value of every key."""
    return {record.key: record.value for record in found}


def latest_offsets(log: PartitionLog, end_offset: int) -> dict[bytes | None, int]:
    """Return the last offset of every key below `end_offset`."""
    return {record.key: record.offset for record in visible(log) if record.offset < end_offset}


def rewritten(header: BatchHeader, kept: list[Record], horizon_ms: int | None = None) -> bytearray:
    """Return a batch of only these records, in the batch's old range of offsets."""
    builder = RecordBatchBuilder(
        base_offset=header.base_offset,
        compression_type=header.compression_type,
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
        delete_horizon_ms=horizon_ms,
    )
    for record in kept:
        builder.append(record.timestamp, record.key, record.value, record.headers, record.offset)
    if not kept or header.timestamp_type:
        builder.max_timestamp = header.max_timestamp
    return builder.build(last_offset=header.last_offset)


def last_batches(log: PartitionLog) -> set[int]:
    """Return the base offsets of the last batch of each producer, which stays even if it is empty."""
    last = {
        header.producer_id: header.base_offset
        for _, header in iter_batches(content(log))
        if header.producer_id >= 0
    }
    return set(last.values())


def clean_group(cleaning: Cleaning, group: Group, latest: dict[bytes | None, int], last: set[int]) -> bool:
    """Clean a group of segments, and swap the result in. Return the result of `Cleaning.swap`."""
    cleaned = cleaning.begin_segment(group)
    try:
        header = None
        for source in group.sources:
            data = source.file.pread(source.size, 0)
            for at, header in iter_batches(data):
                kept = [
                    record
                    for record in records(data, at, decompressed_bytes_max=BYTES_MAX)
                    if latest.get(record.key, record.offset) == record.offset
                ]
                if kept or header.base_offset in last:
                    cleaned.append(rewritten(header, kept))
        end_offset = group.base_offset if header is None else header.next_offset
        aborted = cleaning._log.aborted_transactions(group.base_offset, end_offset)
        cleaned.finish(header, [each for each in aborted if each.last_offset < end_offset])
        done = cleaning.swap(group, cleaned)
    except Exception:
        cleaned.discard()
        raise
    finally:
        group.release()
    if done:
        cleaning.settle()
    else:
        cleaned.discard()
    return done


def clean(
    log: PartitionLog,
    end_offset: int,
    random: Random,
    between: Callable[[], None] = lambda: None,
    groups_of: int = 3,
) -> Cleaning:
    """Run a pass below `end_offset`. `between` is called after each swap."""
    cleaning = begin_cleaning(log, end_offset)
    latest, last = latest_offsets(log, end_offset), last_batches(log)
    bases = [segment.base_offset for segment in log.segments if segment.base_offset < end_offset]
    try:
        while bases:
            count = random.randint(1, groups_of)
            base, bases = bases[0], bases[count:]
            group = cleaning.take_group(base, bases[0] if bases else end_offset)
            if group is None or not clean_group(cleaning, group, latest, last):
                continue
            between()
        cleaning.complete(end_offset)
    finally:
        cleaning.end()
    return cleaning
