"""Figures of one disk's free space: the reserve's size, the fill rate, the hours until it is full; `log_dir.py`
acts on them. PURE.

Records of clients and of leaders are refused while only the reserve (`odradek.log.dir.reserve.bytes`) is left.
Metadata, deletes, retention, compaction, checkpoints and coordinators may use the reserve, because they need
space themselves before they can free the disk.

The free space is measured now and then, and at least once a second when little is left. Between two
measurements, writes may use a part of the reserve. So if the free space has just shrunk, records are refused
before only the reserve is left. They are refused earlier by the number of bytes by which the free space has
shrunk since the previous measurement.
"""

from __future__ import annotations

from collections import deque

RESERVE_BYTES_MAX = 1 << 30
RESERVE_SHARE = 100
"""The divisor of the default reserve. The default reserve is the device's size divided by this number, but at
most `RESERVE_BYTES_MAX`.
"""
_CONFIGURED_SHARE_MAX = 2
"""The divisor that limits a configured reserve. The reserve is at most the device's size divided by this
number, because a reserve as large as the device would refuse all records permanently.
"""
_RESUME_SHARE = 8
"""The divisor of the margin above the reserve. After a refusal, records are accepted again when the free space
reaches the reserve plus the reserve divided by this number.
"""
_NEAR_FACTOR = 4
TREND_SECONDS = 3600.0
_SAMPLE_SECONDS = 10.0
ALARM_HOURS = 24.0
"""The operator gets a warning in the log if the disk will be full in fewer hours than this."""


class Room:
    """The free space of one directory's device, its reserve, and how fast it fills."""

    __slots__ = ("_growth", "_reserve_bytes", "_samples", "free_bytes", "is_short", "total_bytes")

    def __init__(self, reserve_bytes: int = -1) -> None:
        """Begin without a measurement. `reserve_bytes` is the configured reserve. If it is negative, the
        reserve is a hundredth of the device, but at most 1 GiB.
        """
        self._reserve_bytes = reserve_bytes
        self._samples: deque[tuple[float, int]] = deque()
        self._growth = 0
        self.total_bytes = self.free_bytes = -1
        self.is_short = False
        """True while records are refused because only the reserve is left."""

    @property
    def reserve_bytes(self) -> int:
        """The free bytes of the disk that records must not use; 0 while the device's size is unknown."""
        if self.total_bytes < 0:
            return 0
        if self._reserve_bytes < 0:
            return min(RESERVE_BYTES_MAX, self.total_bytes // RESERVE_SHARE)
        return min(self._reserve_bytes, self.total_bytes // _CONFIGURED_SHARE_MAX)

    @property
    def is_near(self) -> bool:
        """True if so little room is left that the free space must be measured in every upkeep turn."""
        reserve = self.reserve_bytes
        return self.free_bytes >= 0 and self.free_bytes < reserve * _NEAR_FACTOR + 2 * self._growth

    def note(self, now: float, total_bytes: int, free_bytes: int) -> bool:
        """Store a measurement, made at `now` (monotonic seconds). Returns True if `is_short` has changed."""
        before = self.free_bytes
        self._growth = max(0, before - free_bytes) if before >= 0 else 0
        self.total_bytes, self.free_bytes = total_bytes, free_bytes
        self._sample(now, free_bytes)
        reserve = self.reserve_bytes
        was_short = self.is_short
        if was_short:
            self.is_short = free_bytes <= reserve + reserve // _RESUME_SHARE and reserve > 0
        else:
            # Refuse records earlier by the number of bytes that were written since the previous measurement,
            # because as many may follow. A single burst is no reason to refuse records, so limit this margin to
            # a fraction of the reserve.
            self.is_short = (
                free_bytes <= reserve + min(self._growth, reserve // _RESUME_SHARE) and reserve > 0
            )
        return self.is_short is not was_short

    def _sample(self, now: float, free_bytes: int) -> None:
        samples = self._samples
        if not samples or now >= samples[-1][0] + _SAMPLE_SECONDS:
            samples.append((now, free_bytes))
        while len(samples) > 1 and samples[0][0] < now - TREND_SECONDS:
            samples.popleft()

    @property
    def fill_bytes_per_second(self) -> float:
        """The rate at which free space has shrunk in the last hour, in bytes per second; 0 if it has grown.

        In the first hour of a process, the change so far is still divided by a whole hour. So a burst of
        copies after a start counts less.
        """
        if not self._samples:
            return 0.0
        return max(0.0, (self._samples[0][1] - self.free_bytes) / TREND_SECONDS)

    @property
    def hours_left(self) -> float | None:
        """The hours until the free space is down to the reserve, at the last hour's rate; None if the disk
        does not fill up.
        """
        rate = self.fill_bytes_per_second
        if self.is_short:
            return 0.0
        if rate <= 0.0:
            return None
        return max(0, self.free_bytes - self.reserve_bytes) / rate / 3600
