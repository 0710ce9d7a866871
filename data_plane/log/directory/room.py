"""The free space of one disk: the reserve that records must leave free, and how soon the disk will be full. PURE.

Records of clients and of leaders are refused while only the reserve (`odradek.log.dir.reserve.bytes`) is left.
Metadata, deletes, retention, compaction, checkpoints and coordinators may use the reserve: they need space
themselves before they can free the disk.

The free space is measured, at least once a second when little is left. Writes between two measurements may use a
part of the reserve. So the bytes written since the last one are assumed to come once more.
"""

from __future__ import annotations

from collections import deque

RESERVE_BYTES_MAX = 1 << 30
RESERVE_SHARE = 100
"""The default reserve is the device's size divided by this, at most `RESERVE_BYTES_MAX`."""
_CONFIGURED_SHARE_MAX = 2
"""A configured reserve counts up to half of the device: a larger one would refuse everything for ever."""
_RESUME_SHARE = 8
"""Records are accepted again when the room exceeds the reserve by 1 / `_RESUME_SHARE` of it."""
_NEAR_FACTOR = 4
TREND_SECONDS = 3600.0
_SAMPLE_SECONDS = 10.0
ALARM_HOURS = 24.0
"""With fewer hours left the operator gets a warning in the log."""


class Room:
    """The reserve of one directory's device, and the trend of its room."""

    __slots__ = ("_growth", "_reserve_bytes", "_samples", "free_bytes", "is_short", "total_bytes")

    def __init__(self, reserve_bytes: int = -1) -> None:
        """`reserve_bytes` as configured; negative: a hundredth of the device, at most 1 GiB."""
        self._reserve_bytes = reserve_bytes
        self._samples: deque[tuple[float, int]] = deque()
        self._growth = 0
        self.total_bytes = self.free_bytes = -1
        self.is_short = False
        """True while records are refused because only the reserve is left."""

    @property
    def reserve_bytes(self) -> int:
        """The free bytes of the disk that records may not use; 0 while the device is unknown."""
        if self.total_bytes < 0:
            return 0
        if self._reserve_bytes < 0:
            return min(RESERVE_BYTES_MAX, self.total_bytes // RESERVE_SHARE)
        return min(self._reserve_bytes, self.total_bytes // _CONFIGURED_SHARE_MAX)

    @property
    def is_near(self) -> bool:
        """True if so little room is left that it should be measured at every look."""
        reserve = self.reserve_bytes
        return self.free_bytes >= 0 and self.free_bytes < reserve * _NEAR_FACTOR + 2 * self._growth

    def note(self, now: float, total_bytes: int, free_bytes: int) -> bool:
        """Apply a measurement of monotonic seconds `now`. Returns True if `is_short` has changed."""
        before = self.free_bytes
        self._growth = max(0, before - free_bytes) if before >= 0 else 0
        self.total_bytes, self.free_bytes = total_bytes, free_bytes
        self._sample(now, free_bytes)
        reserve = self.reserve_bytes
        was_short = self.is_short
        if was_short:
            self.is_short = free_bytes <= reserve + reserve // _RESUME_SHARE and reserve > 0
        else:
            # The next look comes after an equal time, so the reserve begins that much earlier. A burst far
            # from the reserve is no reason to refuse: at most the reserve itself is added.
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
        """The space that was used up in the last hour, as bytes per second; 0 if free space has grown.

        It is also 0 in the first hour of a process, because a burst of copies after a start is no trend.
        """
        if not self._samples:
            return 0.0
        return max(0.0, (self._samples[0][1] - self.free_bytes) / TREND_SECONDS)

    @property
    def hours_left(self) -> float | None:
        """Hours until the free space is down to the reserve, at the rate of the last hour; None if the disk does
        not fill up.
        """
        rate = self.fill_bytes_per_second
        if self.is_short:
            return 0.0
        if rate <= 0.0:
            return None
        return max(0, self.free_bytes - self.reserve_bytes) / rate / 3600
