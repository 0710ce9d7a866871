"""Collects lines for a client's log in the core, until the shell writes them. PURE.

A core must not call loggers, because their handlers are code of the application. So the core stores notes.
The shell logs these notes later, at a point where a slow handler delays nothing else. A lasting problem is
logged at once, and then once a minute. Notes with the same `key` as a note of the last minute are only
counted. A call of `settled` marks the problem as over, so that its next occurrence is logged at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import attrs

__all__ = ["DEBUG", "ERROR", "INFO", "WARNING", "Note", "Notes"]

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of Python's `logging`."""
AGAIN_SECONDS = 60.0
NOTES_MAX = 1000
"""The maximum number of notes that may wait for a shell. Each further note displaces the oldest note."""
KEYS_MAX = 10_000


@attrs.frozen
class Note:
    """One line for the log."""

    level: int
    text: str


@attrs.define
class _Said:
    at: float
    passed_over: int = 0


class Notes:
    """The notes of one core. `now` returns the core's time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: deque[Note] = deque(maxlen=NOTES_MAX)
        self._said: dict[Hashable, _Said] = {}

    def add(self, level: int, text: str, *, key: Hashable = None) -> None:
        """Add a note. If a note with this key was added within the last minute, only count it."""
        if key is not None:
            now = self._now()
            said = self._said.get(key)
            if said is not None and now < said.at + AGAIN_SECONDS:
                said.passed_over += 1
                return
            if said is not None and said.passed_over:
                text += f" (and {said.passed_over} times more in the last {now - said.at:.0f} s)"
            if len(self._said) >= KEYS_MAX:
                del self._said[next(iter(self._said))]
            self._said[key] = _Said(now)
        self._waiting.append(Note(level, text))

    def settled(self, key: Hashable) -> bool:
        """Forget a key, because its problem is over. Return True if a note with this key had been added."""
        return self._said.pop(key, None) is not None

    def take(self) -> list[Note]:
        """Return the waiting notes, the oldest first, and remove them."""
        found = list(self._waiting)
        self._waiting.clear()
        return found
