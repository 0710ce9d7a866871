"""The trace of a run: every event that passes a port, folded into one digest.

Two runs of one seed must give one digest, in any process. Lines hold virtual times, names, sizes and checksums,
never addresses of objects or anything that the hash seed orders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

LINES_KEPT_DEFAULT = 2000
LINES_FOLDED = 1000


class Trace:
    """A running SHA-256 over lines; the last lines are kept for a human.

    There are thousands of lines per second of a core, so they are folded into the digest many at a time.
    """

    def __init__(self, lines_kept: int = LINES_KEPT_DEFAULT) -> None:
        self._hash = hashlib.sha256()
        self._lines_kept = lines_kept
        self._folded: list[str] = []
        """The last of those lines that are in the digest."""
        self._folded_count = 0
        self._fresh: list[str] = []
        self._now = -1.0
        self._now_text = ""
        self.on_line: Callable[[str, str], None] | None = None
        """Called with the word of each event and its line."""

    def record(self, now: float, who: str, what: str, *details: object) -> None:
        """One event. `details` are numbers and strings."""
        if now != self._now:
            self._now, self._now_text = now, repr(now)
        line = f"{self._now_text} {who} {what} {' '.join(map(str, details))}"
        fresh = self._fresh
        fresh.append(line)
        if len(fresh) >= LINES_FOLDED:
            self._fold()
        if self.on_line is not None:
            self.on_line(what, line)

    def _fold(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh:
            self._hash.update("\n".join((*fresh, "")).encode())
            self._folded_count += len(fresh)
            self._folded = (self._folded + fresh)[-self._lines_kept :]

    @property
    def event_count(self) -> int:
        """All events so far."""
        return self._folded_count + len(self._fresh)

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return (self._folded + self._fresh)[-self._lines_kept :]

    def digest(self) -> str:
        """Hex digest of all events so far."""
        self._fold()
        return self._hash.hexdigest()
