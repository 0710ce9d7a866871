"""The scrub of one log: reads its segments past the page cache, and checks each batch against its checksum;
`disks/scrubber.py` calls it.

Only the checksum decides. Compacted replicas differ in bytes although all are sound, so a comparison of
replicas would show nothing. Only bytes on the device are read: finished segments, and the active segment if
all of it is synced.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.rot import Rot
from odradek.data_plane.log.segments.scan import SegmentScan
from odradek.env.pausing import pause
from odradek.env.ports import File, UncachedFile
from odradek.named_states import reached

CHUNK_BYTES = 4 << 20


@attrs.define(eq=False)
class SegmentScrub:
    """The scrub of one segment, up to the position `end`. `file` is pinned until `close`."""

    file: File
    base_offset: int
    end: int
    position: int = 0
    next_offset: int = attrs.field(init=False)
    _reader: UncachedFile | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.next_offset = self.base_offset

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    def check_chunk(self, buffer: bytearray) -> Rot | None:
        """Check the next few batches, about as many bytes as `buffer` holds (blocking). Returns the first
        damage, or None. Raises `DiskError`.
        """
        if self._reader is None:
            self._reader = self.file.open_past_cache()
        pause()
        scan = SegmentScan(
            self._reader, self.position, self.end, self.next_offset, check_crc=True, buffer=buffer
        )
        stop_at = self.position + len(buffer)
        for _ in scan:
            if scan.position >= stop_at:
                break
        pause()
        self.position, self.next_offset = scan.position, scan.next_offset
        if self.is_done or scan.damage is not None:
            # Close the file here, in the worker, because closing the last descriptor of a large removed file
            # takes long.
            self._close_reader()
        if scan.damage is None:
            return None
        reached("rot.found_by_scrub")
        return Rot(self.file.path, scan.position, scan.next_offset, scan.damage)

    def close(self) -> None:
        """Unpin the file and close it."""
        self._close_reader()
        self.file.unpin()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def segment_scrub(log: PartitionLog, from_offset: int) -> SegmentScrub | None:
    """Return the scrub of the first nonempty segment that begins at `from_offset` or later (on the loop).
    Returns None if no such segment exists, or if only the active segment is left and has unsynced records.

    Raises `DiskError`.
    """
    for segment in log.segments:
        if segment.base_offset < from_offset or not segment.size:
            continue
        if segment.is_active and log.recovery_point < log.log_end_offset:
            # Skip the segment, because its unsynced bytes may be only in memory. The next round checks them.
            return None
        return SegmentScrub(segment.pinned_file(), segment.base_offset, segment.size)
    return None
