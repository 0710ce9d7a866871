"""A log's recovery point: the flush that raises it, the truncation that lowers it.

Below the recovery point everything is known to be on the device, so recovery after a crash starts there. A
truncation lowers the recovery point before any bytes are removed. `flush` runs in a worker, and a truncation
may happen meanwhile. So a flush remembers the number of truncations at its beginning. The result of a flush
counts only if that number is still the same, and no truncation is running.
"""

from __future__ import annotations

from itertools import pairwise

from odradek.data_plane.log.parts.leader_epochs import LeaderEpochs
from odradek.data_plane.log.parts.log_home import LogHome
from odradek.data_plane.log.parts.segment_list import SegmentList
from odradek.data_plane.log.segments.file_names import SNAPSHOT_SUFFIX, file_name
from odradek.env.pausing import pause
from odradek.env.ports import DiskFull

_NOTHING = (0, 0)
"""The durable state of a log without records, shared by all such logs."""


class Durability:
    """The durable state of one log: its recovery point, the time of its last flush, and its truncations."""

    __slots__ = (
        "_durable",
        "_home",
        "_is_cutting",
        "_synced_segment",
        "_truncated_to",
        "is_unsaved",
        "last_flush_ms",
        "truncations",
    )

    def __init__(self, home: LogHome, recovery_point: int) -> None:
        self._home = home
        self.truncations = 0
        """A counter that grows twice with each truncation, once when it begins and once when it ends."""
        self._is_cutting = False
        self.is_unsaved = False
        """True if a truncation has lowered the recovery point, and the checkpoint on disk may still have the
        higher value.
        """
        self._truncated_to = recovery_point
        self._durable = (0, recovery_point) if recovery_point else _NOTHING
        """The result of the last flush: (number of truncations, offset). The number shows whether a
        truncation came after the flush.
        """
        self.last_flush_ms = 0
        self._synced_segment = _NOTHING
        """What the last flush has synced of the segment that was the last one then: (base offset, bytes)."""

    @property
    def recovery_point(self) -> int:
        truncations, offset = self._durable
        return offset if truncations == self.truncations else min(offset, self._truncated_to)

    def note_flush(self, now_ms: int) -> None:
        """Record that a flush begins. `now_ms` is the present time by the caller's clock, in milliseconds."""
        self.last_flush_ms = now_ms

    def note_synced(self, segment: tuple[int, int]) -> None:
        """Record that a flush has ended. `segment` is the base offset of the log's last segment, and its bytes when the
        flush began.
        """
        self._synced_segment = segment

    def unsynced_bytes(self, base_offset: int, size_bytes: int) -> int:
        """Return how many bytes of the log's last segment no flush has synced. It has this base offset and size."""
        synced_base, synced_bytes = self._synced_segment
        return max(0, size_bytes - synced_bytes) if synced_base == base_offset else size_bytes

    def begin_cut(self, offset: int) -> None:
        """Called before a truncation removes anything. Lowers the recovery point to `offset` if it is higher.
        The result of a flush that is running no longer counts.
        """
        recovery_point = self.recovery_point
        self._truncated_to = min(offset, recovery_point)
        self._synced_segment = _NOTHING
        self._is_cutting = True
        self._outdate()
        self.is_unsaved = self.is_unsaved or offset < recovery_point

    def save_lowered(self) -> None:
        """Write the recovery point to its checkpoint if a truncation has lowered it (blocking). Raises
        `DiskError`.
        """
        if self.is_unsaved:
            self._home.save_recovery_point(self._truncated_to)
            self.is_unsaved = False

    def end_cut(self) -> None:
        """Called when a truncation has ended or was refused. A flush that begins from now on may raise the
        recovery point again.
        """
        self._is_cutting = False
        self._outdate()

    def _outdate(self) -> None:
        self.truncations += 1
        self._durable = (self.truncations, self._truncated_to)

    def check_end(self, log_end_offset: int) -> None:
        """Raise `AssertionError` unless the recovery point is within the log. Call it on the loop, because
        only the loop moves the log's end.
        """
        if self.recovery_point > log_end_offset:
            raise AssertionError(
                f"{self._home}: the recovery point {self.recovery_point} is above the log end offset "
                f"{log_end_offset}"
            )

    def flush(self, end_offset: int, segments: SegmentList, epochs: LeaderEpochs, truncations: int) -> None:
        """Sync everything below `end_offset`, and raise the recovery point (blocking, in a worker).

        If the disk has no room for the leader epochs, everything else is synced nevertheless. After these
        syncs retention can remove segments, and so make room. But the recovery point is not raised, because
        recovery would otherwise miss an epoch. The caller must read `truncations` before `end_offset`. Raises
        `DiskError`.
        """
        listed = segments.segments
        recovery_point = self.recovery_point
        no_room: DiskFull | None = None
        pause()
        # Do not save the epoch of a log without records. It is of no use, and at every start thousands of empty
        # logs begin an epoch.
        if epochs.is_dirty and end_offset:
            with self._home.small_files():
                # Write nothing for a closed log, because a new log may use the same path by now.
                if not self._home.is_closed:
                    try:
                        epochs.save(self._home.directory)
                    except DiskFull as error:
                        no_room = error
        segments.sync_topic_id()
        for segment, following in pairwise(listed):
            pause()
            if following.base_offset > recovery_point or segment.needs_sync:
                segment.flush(file_name(following.base_offset, SNAPSHOT_SUFFIX))
        pause()
        if end_offset > recovery_point or listed[-1].needs_sync:
            listed[-1].flush()
        pause()
        segments.sync_entry()
        pause()
        if no_room is not None:
            raise no_room
        # Compare again, because another flush that began later may have raised the recovery point already.
        if end_offset > self.recovery_point and not self._is_cutting:
            self._durable = (truncations, end_offset)
