"""A token bucket: how much a client may use now, and how long it must wait after it has used more. PURE.

Tokens are added at a constant rate, up to a maximum (the burst). A client may use more tokens than there are:
it is served, and then waits until the debt is repaid. So in the long run its rate is at most the quota,
however large its requests are. (Kafka instead compares the rate of the last windows with the quota. KIP-599
uses a bucket like this for metadata changes.)
"""

from __future__ import annotations

__all__ = ["WAIT_MS_MAX", "TokenBucket", "wait_ms"]

WAIT_MS_MAX = (1 << 31) - 1
"""The longest wait, in milliseconds, that fits into the 32-bit field of an answer."""
_RATE_MIN = 1e-12
"""The smallest rate of a bucket. A quota may be any positive number. Divided among brokers, the smallest one
would become 0, and a debt would never be repaid.
"""


def wait_ms(seconds: float) -> int:
    """Convert a wait to milliseconds for the client, rounded up and at most `WAIT_MS_MAX`.

    With a quota near 0 the wait could be infinite.
    """
    return min(WAIT_MS_MAX, int(min(seconds, WAIT_MS_MAX / 1000) * 1000) + 1)


class TokenBucket:
    """A bucket of units (e.g. bytes).

    `rate` is the units added per second, `burst` the maximum. All times are seconds of the monotonic clock.
    """

    __slots__ = ("burst", "charged_at", "rate", "tokens", "used")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = max(rate, _RATE_MIN)
        self.burst = burst
        self.used = 0.0
        """The number of units that were taken since the bucket was created."""
        self.tokens = burst
        """The units that were left after the last charge. A negative number is a debt. Units that were added
        since then are not included.
        """
        self.charged_at = now

    def charge(self, amount: float, now: float) -> float:
        """Take `amount` units. Returns the seconds that the client must wait now."""
        tokens = self.tokens
        if now != self.charged_at:
            tokens += (now - self.charged_at) * self.rate
            self.charged_at = now
            if tokens > self.burst:
                tokens = self.burst
        self.tokens = tokens = tokens - amount
        self.used += amount
        return -tokens / self.rate if tokens < 0.0 else 0.0

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the debt is repaid; 0 if there is none."""
        tokens = self.tokens + (now - self.charged_at) * self.rate
        return -tokens / self.rate if tokens < 0.0 else 0.0

    def has(self, amount: float, now: float) -> bool:
        """True if `amount` units can be taken without a debt."""
        return min(self.tokens + (now - self.charged_at) * self.rate, self.burst) >= amount

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """Change the rate and the burst. A debt stays, but is reduced to at most one burst, because at a
        lower rate it could last for hours.

        The same values again change nothing, also if the rate is below the smallest rate of a bucket.
        """
        rate = max(rate, _RATE_MIN)
        if (rate, burst) == (self.rate, self.burst):
            return
        tokens = self.tokens
        # In no time no units are added, even at an infinite rate (0 * infinity is no number).
        if now != self.charged_at:
            tokens = min(tokens + (now - self.charged_at) * self.rate, self.burst)
            self.charged_at = now
        self.rate, self.burst = rate, burst
        self.tokens = max(-burst, min(tokens, burst))
