"""Reads of a log for consumers, which skip batches without records. A batch is skipped only if another one
follows.

Compaction leaves empty batches, and a segment may have only such batches. librdkafka takes an answer without
records as a sign that its limit was too small for the next record. Each time, librdkafka doubles the limit.
After ten such answers in a row it fails. So consumers get the next batches with records. Followers get all
batches.
"""

from __future__ import annotations

from odradek.data_plane.log.log_types import LogRead
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.env.ports import DiskError
from odradek.named_states import reached
from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches
from odradek.wire.errors import KafkaError

_BYTES_MAX = 64 * HEADER_SIZE
_READS_MAX = 200
"""The most reads for one partition of a request, to bound the work on the event loop."""


def read_records(
    log: PartitionLog, offset: int, max_bytes: int, *, upper_bound: int, min_one: bool
) -> LogRead:
    """Read like `PartitionLog.read`, but skip batches without records if other batches follow.

    Raises the same errors as `PartitionLog.read`.
    """
    found = log.read(offset, max_bytes, upper_bound=upper_bound, min_one=min_one)
    for _ in range(_READS_MAX):
        if found.next_offset >= upper_bound or not _is_empty(found):
            break
        try:
            behind = log.read(found.next_offset, max_bytes, upper_bound=upper_bound, min_one=min_one)
        except (KafkaError, DiskError):
            reached("fetch.error_behind_empty_batches")
            # The error is about later batches. So ignore it here; the next request will get and report it.
            break
        if behind.file is None:
            break
        found.release()
        found = behind
    return found


def _is_empty(found: LogRead) -> bool:
    """True if the bytes are in the page cache, and none of their batches has a record."""
    if found.file is None or found.count > _BYTES_MAX or found.count % HEADER_SIZE:
        return False
    data = found.file.read_warm(found.count, found.position)
    return data is not None and all(not header.record_count for _, header in iter_batches(data))
