"""The trace of a run: all events at the ports of nodes, hashed into one digest.

Two runs of the same seed must have the same digest, in any process. Lines have virtual times, names, sizes and
checksums. Addresses of objects, and orders that depend on the hash seed, are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

LINES_KEPT_DEFAULT = 2000
EVENTS_FOLDED = 1000
_PLAIN = (int, float, str)


class Trace:
    """The SHA-256 of all events. The last events are also kept for human readers.

    A run has thousands of events per second. So events are hashed in groups, and formatted as lines only if a reader
    wants lines.
    """

    def __init__(self, lines_kept: int = LINES_KEPT_DEFAULT) -> None:
        self._hash = hashlib.sha256()
        self._lines_kept = lines_kept
        self._folded: list[tuple[object, ...]] = []
        """The last events that are already in the digest."""
        self._folded_count = 0
        self._fresh: list[tuple[object, ...]] = []
        self.on_line: Callable[[str, str], None] | None = None
        """Called for each event with its word (such as "log") and its line."""

    def record(self, now: float, who: str, what: str, *details: object) -> None:
        """Record an event. `details` are numbers and strings; of other objects the text is recorded."""
        self.add((now, who, what, *(each if type(each) in _PLAIN else str(each) for each in details)))

    def add(self, event: tuple[object, ...]) -> None:
        """Record an event: a virtual time, a node, a word, and details that are numbers and strings."""
        fresh = self._fresh
        fresh.append(event)
        if len(fresh) >= EVENTS_FOLDED:
            self._fold()
        if self.on_line is not None:
            self.on_line(str(event[2]), _line(event))

    def _fold(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh:
            self._hash.update(f"{repr(fresh)[1:-1]}, ".encode())
            self._folded_count += len(fresh)
            self._folded = (self._folded + fresh)[-self._lines_kept :]

    @property
    def lines(self) -> list[str]:
        """The last lines of the trace, oldest first."""
        return [_line(event) for event in (self._folded + self._fresh)[-self._lines_kept :]]

    def digest(self) -> str:
        """Return the hex digest of all events so far."""
        self._fold()
        return self._hash.hexdigest()


def _line(event: tuple[object, ...]) -> str:
    now, who, what, *details = event
    return f"{now!r} {who} {what} {' '.join(map(str, details))}"
