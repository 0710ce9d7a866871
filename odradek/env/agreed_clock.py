"""The time that may be relied on while the wall clock jumps: the earliest and the latest that it may be. PURE.

The wall clock is held against the monotonic one. Their difference is stable, but for drift and for jumps. A jump beyond
`TOLERANCE_MS` is believed when the clock has kept its new time for an interval. Until then two times are possible: the one
before the jump, which goes on with the monotonic clock, and the new one.

* **Whatever is deleted or aborted because of its age** must have expired by the earliest of the two. So one jump deletes nothing.
* **A credential that expires** must not have expired by the latest of the two, in whichever direction the clock has
  jumped. The times from which age is counted are taken from the latest as well.
* A jump backward leaves the earliest time at once, and a jump forward the latest. Nothing waits for a time that is far ahead.

A process that starts with a wrong clock believes it: there is nothing to hold it against.
"""

from __future__ import annotations

import attrs

from odradek.env.ports import Clock, Log

__all__ = ["INTERVAL_MS", "TOLERANCE_MS", "AgreedClock", "Moment"]

TOLERANCE_MS = 10_000
"""The distance that a clock may move at once, as one does that a time server sets right."""
INTERVAL_MS = 300_000
"""Kafka's default of `log.retention.check.interval.ms`. A node sets its own value by `follow`."""


@attrs.frozen
class Moment:
    """One moment by this node's clock and its bounds, in milliseconds since 1970: `earliest_ms <= wall_ms <= latest_ms`."""

    earliest_ms: int
    wall_ms: int
    latest_ms: int

    @classmethod
    def agreed(cls, wall_ms: int) -> Moment:
        """Make a moment at which the clocks agree."""
        return cls(wall_ms, wall_ms, wall_ms)


class _Side:
    """The assumed distance of the wall clock from the monotonic clock. It falls at once, and rises after an interval.

    Two threads may look at the same time, so each deciding value is read once.
    """

    __slots__ = ("_jumped", "believed")

    def __init__(self, distance_ms: int) -> None:
        self.believed = distance_ms
        self._jumped: tuple[int, int] | None = None
        """A rise that is not believed yet: the new distance, and the monotonic time at which it was first seen."""

    def observe(self, distance_ms: int, now_ms: int, interval_ms: int) -> int:
        """Record the distance. Return the size of a rise that was first seen in this call, else 0."""
        believed, jumped = self.believed, self._jumped
        if distance_ms <= believed + TOLERANCE_MS:
            self.believed, self._jumped = distance_ms, None
        elif jumped is None or abs(distance_ms - jumped[0]) > TOLERANCE_MS:
            self._jumped = distance_ms, now_ms
            return distance_ms - believed
        elif now_ms - jumped[1] >= interval_ms:
            self.believed, self._jumped = distance_ms, None
        return 0


class AgreedClock:
    """A node's wall clock, with the bounds of the right time. Each look compares both clocks; call it each second."""

    __slots__ = ("_backward", "_clock", "_forward", "_interval_ms", "_log")

    def __init__(self, clock: Clock, interval_ms: int = INTERVAL_MS, log: Log | None = None) -> None:
        """`interval_ms` is the time after which a jump is believed. `log` gets a line for each jump."""
        self._clock = clock
        self._interval_ms = interval_ms
        self._log = log
        self._believe()

    def follow(self, interval_ms: int, log: Log) -> None:
        """Begin anew: take the present time as right, believe later jumps only after `interval_ms`, and log each
        jump.
        """
        self._interval_ms, self._log = interval_ms, log
        self._believe()

    def _believe(self) -> None:
        ahead_ms = self._clock.wall_ms() - int(self._clock.monotonic() * 1000)
        self._forward, self._backward = _Side(ahead_ms), _Side(-ahead_ms)

    def observe(self) -> int:
        """Compare both clocks, and log a jump that was first seen in this call. Return the monotonic milliseconds."""
        now_ms = int(self._clock.monotonic() * 1000)
        ahead_ms = self._clock.wall_ms() - now_ms
        jump_ms = self._forward.observe(ahead_ms, now_ms, self._interval_ms)
        jump_ms -= self._backward.observe(-ahead_ms, now_ms, self._interval_ms)
        if jump_ms and self._log is not None:
            self._log.warning(
                "clock.jumped", seconds=jump_ms // 1000, believed_in_seconds=self._interval_ms // 1000
            )
        return now_ms

    def earliest_ms(self) -> int:
        """Return the earliest time that it may be. Things that are deleted for their age have expired by then."""
        return self.observe() + self._forward.believed

    def latest_ms(self) -> int:
        """Return the latest time that it may be. Credentials that have expired by then let nobody in."""
        return self.observe() - self._backward.believed

    def moment(self) -> Moment:
        """Return the present moment by the clocks."""
        now_ms, wall_ms = self.observe(), self._clock.wall_ms()
        return Moment(
            min(wall_ms, now_ms + self._forward.believed),
            wall_ms,
            max(wall_ms, now_ms - self._backward.believed),
        )
