"""The throttle of `log.cleaner.io.max.bytes.per.second`: the bytes that all cleaner threads together may read and
write. PORTED.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from odradek.env.ports import Clock

LOOK_SECONDS = 1.0
"""The interval in seconds at which a wait checks whether its pass is over."""


class Throttle:
    """Limits the bytes that all passes together read and write per second. Passes wait in the order of their
    requests.
    """

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._asked_bytes = 0.0
        self._allowed_bytes = 0.0
        """The number of bytes that the rate has allowed until `_counted_at`. It is at most the requested
        bytes, so that a pause allows no burst.
        """
        self._counted_at = clock.monotonic()

    def change_rate(self, bytes_per_second: float) -> None:
        """Change the rate at once. Running waits use it within `LOOK_SECONDS`."""
        self._count()
        self._rate = bytes_per_second

    async def wait(self, size: int, is_over: Callable[[], bool]) -> None:
        """Wait until the rate allows for `size` bytes more, or until the pass is over."""
        self._count()
        self._asked_bytes += size
        wanted = self._asked_bytes
        clock = self._clock
        while not is_over():
            now = clock.monotonic()
            look_at = now + min(self._seconds_until(wanted), LOOK_SECONDS)
            # Return if the rest of the wait is shorter than the clock can measure.
            if look_at <= now:
                return
            await clock.sleep_until(look_at)
            self._count()

    def _count(self) -> None:
        """Add the bytes that the rate has allowed since the last call."""
        now = self._clock.monotonic()
        if self._is_unlimited:
            self._allowed_bytes = self._asked_bytes
        else:
            gained = self._rate * (now - self._counted_at)
            self._allowed_bytes = min(self._asked_bytes, self._allowed_bytes + gained)
        self._counted_at = now

    @property
    def _is_unlimited(self) -> bool:
        """True if the rate sets no limit, because Kafka's throttler would never wait at this rate."""
        return not 0 <= self._rate < math.inf

    def _seconds_until(self, wanted_bytes: float) -> float:
        missing = wanted_bytes - self._allowed_bytes
        if self._is_unlimited or missing <= 0:
            return 0.0
        return missing / self._rate if self._rate else math.inf
