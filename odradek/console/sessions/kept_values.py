"""Values that several views of one user share for a moment. Threads that want the same value compute it once. SHELL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

__all__ = ["KeptValues"]

T = TypeVar("T")

KEPT_MAX = 512


class _Kept:
    """A value with its age, and the lock of the thread that computes it."""

    __slots__ = ("at", "lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at = float("-inf")
        self.value: object = None


class KeptValues:
    """Values by key, each with the time at which it was computed. At most `KEPT_MAX` are kept, the newest."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def value(self, key: Hashable, seconds: float, make: Callable[[], T]) -> T:
        """Return the value of this key, if it is at most `seconds` old; else compute it by `make`.

        Another thread that wants it meanwhile waits for it. An error of `make` is raised, and nothing is kept.
        """
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        with kept.lock:
            if self._now() - kept.at > seconds:
                kept.value = make()
                kept.at = self._now()
            return cast("T", kept.value)

    def last(self, key: Hashable) -> tuple[float, object] | None:
        """Return the monotonic time of the value of this key, and the value, however old; None if there is none."""
        with self._lock:
            kept = self._kept.get(key)
        return None if kept is None or kept.at == float("-inf") else (kept.at, kept.value)

    def statistics(self) -> dict[str, int]:
        """Return the number of kept values."""
        return {"kept_values": len(self._kept)}
