"""The open sessions by their secret, and the limit of failed logins. PURE.

The table keeps only a hash of each secret. So the time of a look-up says nothing about secrets.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs

__all__ = ["IDLE_SECONDS_MAX", "LIFE_SECONDS_MAX", "FailedLogins", "SessionTable"]

T = TypeVar("T")

SESSIONS_MAX = 256
SESSIONS_OF_OWNER_MAX = 16
IDLE_SECONDS_MAX = 30 * 60.0
"""The seconds without a request after which a session ends."""
LIFE_SECONDS_MAX = 12 * 3600.0
"""The seconds after which a session ends although it is in use."""
FAILURES_MAX = 5
"""The failures of a network (an IPv4 address, or 64 bits of an IPv6 address) after which it has to wait."""
FAILURES_OF_USER_MAX = 20
"""The failures of a user, from all networks, after which he has to wait. It is greater, since strangers cause them, too."""
FAILURE_SECONDS = 60.0
"""The seconds within which failures count."""
KEYS_MAX = 1024


@attrs.define
class _Open(Generic[T]):
    value: T
    opened_at: float
    used_at: float
    ends_at: float
    owner: object


class SessionTable(Generic[T]):
    """Values of open sessions. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Open[T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self, secret: str, value: T, now: float, *, owner: object, ends_at: float = float("inf")
    ) -> list[T]:
        """Open a session that ends at `ends_at` at the latest. Return the values of sessions that ended: they are too
        old, or too many of the same owner, or too many of all.
        """
        ended = self.expire(now)
        mine = [key for key, each in self._open.items() if each.owner == owner]
        if len(mine) >= SESSIONS_OF_OWNER_MAX:
            ended.append(self._end_oldest(mine))
        elif len(self._open) >= SESSIONS_MAX:
            ended.append(self._end_oldest(list(self._open)))
        self._open[_hash(secret)] = _Open(value, now, now, ends_at, owner)
        return ended

    def _end_oldest(self, keys: Sequence[bytes]) -> T:
        return self._open.pop(min(keys, key=lambda each: self._open[each].used_at)).value

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

    def remove(self, value: T) -> None:
        """Close all sessions with this value."""
        for key in [key for key, each in self._open.items() if each.value is value]:
            del self._open[key]

    def expire(self, now: float) -> list[T]:
        """Close the sessions that are too old. Return their values."""
        old = [key for key, each in self._open.items() if self._is_old(each, now)]
        return [self._open.pop(key).value for key in old]

    def values(self) -> list[T]:
        """Return the values of all sessions."""
        return [each.value for each in self._open.values()]

    @staticmethod
    def _is_old(each: _Open[T], now: float) -> bool:
        return now - each.used_at > IDLE_SECONDS_MAX or now > min(
            each.opened_at + LIFE_SECONDS_MAX, each.ends_at
        )


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


class FailedLogins:
    """The failed logins of the last minute, by what has failed: a network, or a user."""

    def __init__(self, failures_max: int) -> None:
        """With `failures_max` failures within `FAILURE_SECONDS`, a key has to wait."""
        self._failures_max = failures_max
        self._failures: dict[str, deque[float]] = {}

    def wait_seconds(self, key: str, now: float) -> float:
        """Return the seconds that a key has to wait before its next attempt; 0 if it may try now."""
        self._forget(now)
        mine = self._failures.get(key)
        if mine is None or len(mine) < self._failures_max:
            return 0.0
        return max(0.0, mine[0] + FAILURE_SECONDS - now)

    def add(self, key: str, now: float) -> None:
        """Note that a login of this key has failed."""
        self._forget(now)
        while len(self._failures) >= KEYS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures.setdefault(key, deque()).append(now)

    def _forget(self, now: float) -> None:
        for key, times in list(self._failures.items()):
            while times and now - times[0] >= FAILURE_SECONDS:
                times.popleft()
            if not times:
                del self._failures[key]
