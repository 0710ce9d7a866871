"""The open sessions by their secret, and the limit of failed logins. PURE.

The table keeps only a hash of each secret. So the time of a look-up says nothing about secrets.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Generic, TypeVar

import attrs

__all__ = ["IDLE_SECONDS_MAX", "LIFE_SECONDS_MAX", "FailedLogins", "SessionTable"]

T = TypeVar("T")

SESSIONS_MAX = 256
IDLE_SECONDS_MAX = 30 * 60.0
"""The seconds without a request after which a session ends."""
LIFE_SECONDS_MAX = 12 * 3600.0
"""The seconds after which a session ends although it is in use."""
FAILURES_MAX = 5
FAILURE_SECONDS = 60.0
"""An address that has failed `FAILURES_MAX` times within these seconds has to wait."""
HOSTS_MAX = 1024
HOLD_ALL_FAILURES = 50
"""With so many failures of all addresses together in this time, everybody has to wait."""


@attrs.define
class _Open(Generic[T]):
    value: T
    opened_at: float
    used_at: float


class SessionTable(Generic[T]):
    """Values of open sessions. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Open[T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, secret: str, value: T, now: float) -> list[T]:
        """Open a session. Return the values of sessions that ended, because they are too old or too many."""
        ended = self.expire(now)
        while len(self._open) >= SESSIONS_MAX:
            oldest = min(self._open, key=lambda each: self._open[each].used_at)
            ended.append(self._open.pop(oldest).value)
        self._open[_hash(secret)] = _Open(value, now, now)
        return ended

    def find(self, secret: str, now: float) -> T | None:
        """Return the value of a session that is still open; None if there is none."""
        found = self._open.get(_hash(secret))
        if found is None or self._is_old(found, now):
            return None
        found.used_at = now
        return found.value

    def close(self, secret: str) -> T | None:
        """Close a session, and return its value; None if there is none."""
        found = self._open.pop(_hash(secret), None)
        return None if found is None else found.value

    def expire(self, now: float) -> list[T]:
        """Close the sessions that are too old. Return their values."""
        old = [key for key, each in self._open.items() if self._is_old(each, now)]
        return [self._open.pop(key).value for key in old]

    def values(self) -> list[T]:
        """Return the values of all sessions."""
        return [each.value for each in self._open.values()]

    @staticmethod
    def _is_old(each: _Open[T], now: float) -> bool:
        return now - each.used_at > IDLE_SECONDS_MAX or now - each.opened_at > LIFE_SECONDS_MAX


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


class FailedLogins:
    """The failed logins of the last minute, by address."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def wait_seconds(self, host: str, now: float) -> float:
        """Return the seconds that an address has to wait before its next attempt; 0 if it may try now."""
        self._forget(now)
        mine = self._failures.get(host, deque())
        everybody = sum(map(len, self._failures.values()))
        if len(mine) < FAILURES_MAX and everybody < HOLD_ALL_FAILURES:
            return 0.0
        first = mine[0] if len(mine) >= FAILURES_MAX else min(each[0] for each in self._failures.values())
        return max(0.0, first + FAILURE_SECONDS - now)

    def add(self, host: str, now: float) -> None:
        """Note that a login from this address has failed."""
        self._forget(now)
        while len(self._failures) >= HOSTS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures.setdefault(host, deque()).append(now)

    def _forget(self, now: float) -> None:
        for host, times in list(self._failures.items()):
            while times and now - times[0] >= FAILURE_SECONDS:
                times.popleft()
            if not times:
                del self._failures[host]
