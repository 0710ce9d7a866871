"""Values that several views of one user share for a moment. Threads that want the same value compute it once. SHELL.

While the cluster is silent, each attempt takes many seconds. So threads that have waited for an attempt which has failed
do not try again one after the other: they get its error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

__all__ = ["KeptValues", "LastFailure"]

T = TypeVar("T")

KEPT_MAX = 512


class LastFailure:
    """The last error of work that threads do one after the other, under a lock of theirs."""

    __slots__ = ("_at", "_error")

    def __init__(self) -> None:
        self._at = float("-inf")
        self._error: Exception | None = None

    def note(self, error: Exception, at: float) -> None:
        """Note that the work has failed now."""
        self._at, self._error = at, error

    def raise_since(self, at: float) -> None:
        """Raise the error, if the work has failed since then."""
        if self._error is not None and self._at >= at:
            raise self._error.with_traceback(None)

    def forget(self) -> None:
        """Note that the work has succeeded."""
        self._error = None


class _Kept:
    """A value with its age, and the lock of the thread that computes it."""

    __slots__ = ("at", "failure", "lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure = LastFailure()
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

        Another thread that wants it meanwhile waits for it. An error of `make` is raised in all of them, and nothing is
        kept.
        """
        asked_at = self._now()
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        with kept.lock:
            if self._now() - kept.at > seconds:
                kept.failure.raise_since(asked_at)
                try:
                    kept.value = make()
                except Exception as error:
                    kept.failure.note(error, self._now())
                    raise
                kept.failure.forget()
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
