"""Checks a suspected place of a log, where a read has failed: reads its batches again and compares their
checksums. PURE except for reads of files.

Only a part of a log that is suspected of damage is checked. Each append has checked its batch already, and
reading all logs again would take too long. The caller passes the offset at which reads have failed.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.env.ports import File
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError


@attrs.frozen
class Rot:
    """The place of damage in a log: `position` in `file`. The batch with `offset` should begin there."""

    file: str
    position: int
    offset: int
    reason: str


@attrs.frozen
class Suspected:
    """Bytes to be checked: `[position, end)` of a file that is pinned until `check` has run.

    `truncations` is the log's count of truncations. If it changes during the check, the result must be
    ignored.
    """

    file: File
    position: int
    end: int
    base_offset: int
    """The base offset of the segment."""
    offset: int
    truncations: int

    def check(self) -> Rot | None:
        """Read the bytes and compare their checksums (blocking, in a worker). Returns the first damage, or
        None. Raises `DiskError`.
        """
        try:
            scan = SegmentScan(self.file, self.position, self.end, self.base_offset, check_crc=True)
            for _ in scan:
                continue
        finally:
            self.file.unpin()
        if scan.damage is None:
            return None
        reached("rot.suspicion_confirmed")
        offset = self.offset if scan.position == self.position else scan.next_offset
        return Rot(self.file.path, scan.position, offset, scan.damage)


def suspected(log: PartitionLog, offset: int, bytes_max: int) -> Suspected | None:
    """Find the bytes to check: the bytes that a fetch at `offset` returns. If such a read finds damage, the
    whole segment is checked instead.

    Returns None if there is nothing to check, or if the log is closed or offline.

    Raises:
        DiskError: the directory is offline now.
    """
    at = log.segment_list.index_of(offset)
    if at < 0:
        return None
    segment = log.segments[at]
    try:
        found = log.read(offset, bytes_max, upper_bound=log.log_end_offset, min_one=True)
    except KafkaError as error:
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            return None
        base = segment.base_offset
        return Suspected(segment.pinned_file(), 0, segment.size, base, base, log.durability.truncations)
    if found.file is None:
        return None
    end = found.position + found.count
    return Suspected(found.file, found.position, end, segment.base_offset, offset, log.durability.truncations)
