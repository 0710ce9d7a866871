"""The trace of a run: every event that passes a port, folded into one digest.

Two runs of one seed must give one digest, in any process. Lines hold virtual times, names, sizes and checksums,
never addresses of objects or anything that the hash seed orders.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

LINES_KEPT_DEFAULT = 2000


class Trace:
    """A running SHA-256 over lines; the last lines are kept for a human."""

    def __init__(self, lines_kept: int = LINES_KEPT_DEFAULT) -> None:
        self._hash = hashlib.sha256()
        self.lines: deque[str] = deque(maxlen=lines_kept)
        self.event_count = 0
        self.on_line: Callable[[str, str], None] | None = None
        """Called with the word of each event and its line."""

    def record(self, now: float, who: str, what: str, *details: object) -> None:
        """One event. `details` are numbers and strings."""
        line = f"{now!r} {who} {what} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.lines.append(line)
        self.event_count += 1
        if self.on_line is not None:
            self.on_line(what, line)

    def digest(self) -> str:
        """Hex digest of all events so far."""
        return self._hash.hexdigest()
