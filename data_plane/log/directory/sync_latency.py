"""Compares the duration of one disk's syncs with their usual duration. PURE.

A dying disk often gets slow first. Kinds of disks differ, so each disk is compared with its own past. A sync
is slow if it takes `SLOW_FACTOR` times the usual duration, and at least `SLOW_SECONDS_MIN`. Only syncs count,
because they wait for the device and happen regularly.
"""

from __future__ import annotations

SLOW_FACTOR = 10.0
NORMAL_FACTOR = 3.0
"""A slow disk counts as normal again when its syncs take less than the usual duration times this factor."""
SLOW_SECONDS_MIN = 0.05
SYNCS_MIN = 20
"""The number of syncs before a disk can count as slow. By then the usual duration is known."""
_RECENT = 0.2
_USUAL = 0.01


class SyncLatency:
    """Two moving averages of a disk's sync durations: over the last few syncs, and over the last few hundred."""

    __slots__ = ("count", "is_slow", "recent_seconds", "usual_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.recent_seconds = 0.0
        self.usual_seconds = 0.0
        self.is_slow = False

    def note(self, seconds: float) -> bool:
        """Add the duration of a sync in seconds. Returns True if `is_slow` has changed."""
        self.count += 1
        share = 1 / self.count
        self.recent_seconds += max(_RECENT, share) * (seconds - self.recent_seconds)
        was_slow = self.is_slow
        if self.count > SYNCS_MIN:
            factor = NORMAL_FACTOR if was_slow else SLOW_FACTOR
            self.is_slow = self.recent_seconds >= max(SLOW_SECONDS_MIN, factor * self.usual_seconds)
        if not self.is_slow:
            # While the disk is slow, its syncs must not raise the usual duration.
            self.usual_seconds += max(_USUAL, share) * (seconds - self.usual_seconds)
        return self.is_slow is not was_slow
