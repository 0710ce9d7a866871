"""The pace of searches and downloads: the bytes per second that all of a console together fetch. SHELL.

A fetch is no long work in a broker: it is answered between the requests of other clients (`odradek/serving/long_work.py`).
With TLS, though, the broker's loop encrypts each byte, about 1 GB/s. A search for a word that is not there reads as
fast as brokers send. So the console gives them a pause. At `BYTES_PER_SECOND`, even one broker that leads all
partitions spends less than a twelfth of its loop on searches. Brokers give long work as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["BYTES_PER_SECOND", "Pace"]

BYTES_PER_SECOND = 64 << 20
BURST_BYTES = 16 << 20
"""After a while, so many bytes are fetched before the first pause. Most looks at a topic need fewer."""


class Pace:
    """The common pace of several searches, each in a thread of its own."""

    def __init__(
        self, bytes_per_second: int = BYTES_PER_SECOND, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._burst_seconds = BURST_BYTES / BYTES_PER_SECOND
        self._now = now
        self._lock = threading.Lock()
        self._paid_until = float("-inf")
        """The time at which all bytes so far would have been fetched at this pace."""

    def rest_seconds(self, count: int) -> float:
        """Note that a search has fetched so many bytes. Return the seconds for which it must rest now; 0 for none."""
        with self._lock:
            now = self._now()
            self._paid_until = (
                max(self._paid_until, now - self._burst_seconds) + count / self._bytes_per_second
            )
            return max(0.0, self._paid_until - now)
