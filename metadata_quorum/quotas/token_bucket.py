"""A token bucket: how much a client may use now, and how long it has to wait after it used more. PURE.

Tokens come at a steady rate, up to a burst. A client may overdraw: it is served, and then waits until the debt is
repaid. So over any long time, its rate is the quota, however large its requests are. (Kafka compares a rate over the last
windows with the quota. KIP-599 has a bucket like this one for changes of the metadata.)
"""

from __future__ import annotations

__all__ = ["WAIT_MS_MAX", "TokenBucket", "wait_ms"]

WAIT_MS_MAX = (1 << 31) - 1
"""The longest wait that an answer can name: its field has 32 bits."""
_RATE_MIN = 1e-12
"""A quota may be any positive number. Divided among brokers, the smallest one would become 0, and a debt would
never be repaid.
"""


def wait_ms(seconds: float) -> int:
    """Convert a wait to the milliseconds that a client gets, rounded up. A quota near 0 makes a debt that lasts for
    ever.
    """
    return min(WAIT_MS_MAX, int(min(seconds, WAIT_MS_MAX / 1000) * 1000) + 1)


class TokenBucket:
    """Units per second, with a bounded burst. Times are seconds of the monotonic clock."""

    __slots__ = ("burst", "charged_at", "rate", "tokens", "used")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = max(rate, _RATE_MIN)
        self.burst = burst
        self.used = 0.0
        """The units that were taken since the bucket was made."""
        self.tokens = burst
        """The units that were left after the last charge. A negative number is a debt, part of which may be repaid
        by now.
        """
        self.charged_at = now

    def charge(self, amount: float, now: float) -> float:
        """Take `amount` units. Return the seconds that the client has to wait after this."""
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
        """Compute the seconds until the debt is repaid; 0 if there is none."""
        tokens = self.tokens + (now - self.charged_at) * self.rate
        return -tokens / self.rate if tokens < 0.0 else 0.0

    def has(self, amount: float, now: float) -> bool:
        """True if that many units can be taken without a debt."""
        return min(self.tokens + (now - self.charged_at) * self.rate, self.burst) >= amount

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """Change the quota. A debt stays, but is cut to one burst, because under a lower quota it could last for
        hours.

        An equal quota changes nothing, even if it is lower than the bucket's rate.
        """
        rate = max(rate, _RATE_MIN)
        if (rate, burst) == (self.rate, self.burst):
            return
        tokens = self.tokens
        if now != self.charged_at:  # in no time no units come, even at an infinite rate
            tokens = min(tokens + (now - self.charged_at) * self.rate, self.burst)
            self.charged_at = now
        self.rate, self.burst = rate, burst
        self.tokens = max(-burst, min(tokens, burst))
