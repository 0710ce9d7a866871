"""The log position in each partition for which a parked fetch waits.

A parked fetch lacks a number of bytes, over all its partitions together. A partition's share is this number,
divided by the number of partitions. At least one partition must grow by its share before there are enough
bytes. So each partition waits for its share. The first partition that has grown by its share wakes the fetch,
and the bytes still missing are divided again. If there is one partition, the next read finds enough bytes. If
there are many, each read leaves fewer bytes missing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from odradek.data_plane.fetch_sessions import FetchedPartition
from odradek.data_plane.handlers.fetching.fetch_job import FetchJob, FetchRound
from odradek.data_plane.log.log_types import FileRange
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.waiting_fetches import Mark, Until
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.wire.batches.batch_header import HEADER_SIZE
from odradek.wire.errors import KafkaError

Wait: TypeAlias = tuple[Partition, Until, Mark]


def what_to_wait_for(job: FetchJob, attempt: FetchRound) -> list[Wait] | None:
    """Compute for each partition the log position (mark) that wakes the fetch.

    Returns None if the fetch must be answered now, because a range ends with its segment (as in Kafka's
    DelayedFetch).
    """
    found: list[tuple[FetchedPartition, Partition, Any]] = []
    for fetched, answer in attempt.answers:
        partition = job.hosted(fetched)
        if partition is None:
            continue
        if _range_is_cut(partition.log, fetched.fetch_offset, job.upper_bound(partition.log), answer.records):
            reached("fetch.answered_at_segment_end")
            return None
        found.append((fetched, partition, answer.records))
    growing = len(found) - len(attempt.full)
    missing = job.min_bytes - attempt.bytes_read - attempt.bytes_cut_off
    share = -(-missing // max(1, growing))
    full = {fetched.key for fetched in attempt.full}
    waits: list[Wait] = []
    for fetched, partition, records in found:
        # The answer has no room for more bytes of a full partition. But a change of its leader must wake the
        # fetch. So let the fetch wait for a mark that new records hardly ever reach.
        bytes_wanted = share if fetched.key not in full else job.desk.settings.fetch_max_bytes
        waits.append((partition, *_mark(job, partition, records, bytes_wanted)))
    return waits


def _range_is_cut(log: PartitionLog, offset: int, upper_bound: int, records: Any) -> bool:
    """True if the records read from `offset` end with their segment, so that they cannot grow.

    False if only a gap without records lies between `offset` and the bound, since new records will follow
    there.
    """
    if not log.segment_list.passes_segment_end(offset, upper_bound):
        return False
    if records:
        return True
    try:
        found = log.read(offset, 1, upper_bound=upper_bound, min_one=True)
    except (KafkaError, DiskError):
        return True
    found.release()
    return found.count > 0


def _mark(job: FetchJob, partition: Partition, records: Any, bytes_wanted: int) -> tuple[Until, Mark]:
    """Compute the mark for a fetch that needs `bytes_wanted` bytes more than `records`, which it has read
    from this partition. If the mark cannot be computed, return the mark of the next record instead.
    """
    log = partition.log
    upper_bound = job.upper_bound(log)
    active = log.active
    next_mark = job.bounded_by, (upper_bound + 1, 0)
    if bytes_wanted <= HEADER_SIZE or upper_bound < active.base_offset:
        return next_mark
    if records.__class__ is FileRange:
        end = records.position + records.count
    elif upper_bound == log.log_end_offset:
        end = active.size
    else:
        return next_mark
    if end + bytes_wanted <= active.size:
        # The log already has these bytes, but they are above the high watermark. So wait until that rises.
        return next_mark
    return Until.SIZE, (active.base_offset, end + bytes_wanted)
