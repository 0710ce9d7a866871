"""The time by which records grow old: a wall clock that has jumped forward is believed when it has agreed for a while. PURE.

The wall clock is held against the monotonic one. Their difference is stable, but for drift and for jumps.

* A jump forward, beyond `TOLERANCE_MS`, is no reason to delete anything: the time goes on as before. When the clock has
  kept its new time for the check interval of retention, it is believed.
* A jump backward is believed at once. Records look younger then, and nothing waits for a time that is far ahead.
* Records with timestamps in the future are kept until their time has passed, as in Kafka.
"""

from __future__ import annotations

__all__ = ["TOLERANCE_MS", "AgreedClock"]

TOLERANCE_MS = 10_000
"""The change of a clock that is allowed at once, such as a correction by a time server."""


class AgreedClock:
    """Times in milliseconds: `wall_ms` since 1970, `now_ms` of the monotonic clock."""

    __slots__ = ("_agreed", "_interval_ms", "_jumped", "_jumped_at")

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._agreed: int | None = None
        """The distance of the wall clock from the monotonic one, when they agreed last."""
        self._jumped: int | None = None
        """The same since a jump forward that is not believed yet."""
        self._jumped_at = 0

    def observe(self, wall_ms: int, now_ms: int) -> int:
        """Look at both clocks. Returns the milliseconds of a jump forward that was seen just now, or else 0."""
        ahead = wall_ms - now_ms
        if self._agreed is None or ahead <= self._agreed + TOLERANCE_MS:
            self._agreed, self._jumped = ahead, None
        elif self._jumped is None or abs(ahead - self._jumped) > TOLERANCE_MS:
            self._jumped, self._jumped_at = ahead, now_ms
            return ahead - self._agreed
        elif now_ms - self._jumped_at >= self._interval_ms:
            self._agreed, self._jumped = ahead, None
        return 0

    def time_ms(self, now_ms: int) -> int:
        """Compute the time by which to judge the age of records; `observe` was called before."""
        assert self._agreed is not None
        return self._agreed + now_ms
