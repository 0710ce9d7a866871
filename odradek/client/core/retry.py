"""The delays between attempts: exponential backoff with jitter (KIP-580)."""

from __future__ import annotations

import random

import attrs

__all__ = ["RetryPolicy"]


@attrs.frozen
class RetryPolicy:
    """Delays in seconds: `backoff * 2 ** attempt`, at most `backoff_max`, changed at random by up to 20 % (KIP-580)."""

    backoff: float = 0.1
    backoff_max: float = 1.0
    jitter: float = 0.2

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Compute the seconds to wait after failure number `attempt`, which counts from 0."""
        # The exponent is limited, because a float cannot be as large as 2 ** 1024. Any sensible maximum is
        # reached at much smaller exponents.
        delay = min(self.backoff * 2.0 ** min(attempt, 60), self.backoff_max)
        return delay * rng.uniform(1 - self.jitter, 1 + self.jitter)
