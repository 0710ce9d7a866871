"""Computes bounds of the present time when the wall clock jumps: an earliest and a latest possible time. PURE.

The wall clock is compared with the monotonic clock. Their difference is stable except for drift and jumps. A
jump of more than `TOLERANCE_MS` is accepted when the wall clock has kept its new time for an interval. Until
then two times are possible: the wall clock's new time, and the old time plus what the monotonic clock has
counted since.

* **Data that is deleted, and transactions that are aborted, because of their age** must have expired by the
  earlier of the two times. So one jump deletes nothing.
* **A credential that expires** must not have expired by the later of the two times, whatever the direction of
  the jump. Start times, from which an age is counted, use the later time as well.
* A jump backward moves the earliest time at once; a jump forward moves the latest time at once. So nothing
  waits for a time in the far future.

A process that starts while the clock is wrong accepts the wrong time, because there is no other clock to
compare with.
"""

from __future__ import annotations

import attrs

from odradek.env.ports import Clock, Log

__all__ = ["INTERVAL_MS", "TOLERANCE_MS", "AgreedClock", "Moment"]

TOLERANCE_MS = 10_000
"""The change of the wall clock in ms that is accepted at once, such as a correction by a time server."""
INTERVAL_MS = 300_000
"""Kafka's default of `log.retention.check.interval.ms`. A node sets its configured value with `follow`."""


@attrs.frozen
class Moment:
    """The present time by the wall clock and its bounds, in milliseconds since 1970: `earliest_ms <= wall_ms <=
    latest_ms`.
    """

    earliest_ms: int
    wall_ms: int
    latest_ms: int

    @classmethod
    def agreed(cls, wall_ms: int) -> Moment:
        """Make a moment whose bounds equal the wall clock."""
        return cls(wall_ms, wall_ms, wall_ms)


class _Side:
    """The accepted difference of the wall clock and the monotonic clock in ms. If the difference falls, the
    new value is accepted at once. If it rises by more than `TOLERANCE_MS`, the new value is accepted only
    after an interval.

    Two threads may call `observe` at the same time, so a call reads each value only once.
    """

    __slots__ = ("_jumped", "believed")

    def __init__(self, distance_ms: int) -> None:
        self.believed = distance_ms
        self._jumped: tuple[int, int] | None = None
        """A rise that is not accepted yet: the new difference, and the monotonic time at which it was first seen."""

    def observe(self, distance_ms: int, now_ms: int, interval_ms: int) -> int:
        """Compare a new difference with the accepted difference. Return the size of a rise that is seen for
        the first time, otherwise 0.
        """
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
    """A node's wall clock, with bounds for the true time. Jumps are found when the clock is read, so it must be read
    every second.
    """

    __slots__ = ("_backward", "_clock", "_forward", "_interval_ms", "_log")

    def __init__(self, clock: Clock, interval_ms: int = INTERVAL_MS, log: Log | None = None) -> None:
        """Accept the wall clock's present time. A jump is accepted after `interval_ms`; `log` gets a line for each
        jump.
        """
        self._clock = clock
        self._interval_ms = interval_ms
        self._log = log
        self._believe()

    def follow(self, interval_ms: int, log: Log) -> None:
        """Accept the wall clock's present time, use another `interval_ms`, and log each further jump."""
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
        """Return the earliest possible value of the present time (ms since 1970). Use it to decide whether data is old
        enough to be deleted.
        """
        return self.observe() + self._forward.believed

    def latest_ms(self) -> int:
        """Return the latest possible value of the present time (ms since 1970). Use it to decide whether a credential
        has expired.
        """
        return self.observe() - self._backward.believed

    def moment(self) -> Moment:
        """Return the present time by the wall clock, with its earliest and its latest possible value."""
        now_ms, wall_ms = self.observe(), self._clock.wall_ms()
        return Moment(
            min(wall_ms, now_ms + self._forward.believed),
            wall_ms,
            max(wall_ms, now_ms - self._backward.believed),
        )
