"""Who has asked for the changes in the metadata log, by the audit logs of controllers on this machine. SHELL.

The metadata log itself names nobody. The audit log of the controller that was active does (`operations/event_authors.py`).
Files are read on at each look. Of large ones, only the end is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from odradek.env.ports import Log
from odradek.operations.cluster_events import Event
from odradek.operations.event_authors import Author, EventAuthors

__all__ = ["AuditAuthors"]

READ_BYTES_MAX = 16 << 20
"""The most bytes of audit logs that are read: the newest. After as many new ones, older authors are forgotten."""
_NAMES = "audit.log*"


class AuditAuthors:
    """The authors of changes. Threads of views share it."""

    def __init__(self, paths: Sequence[str] = (), log: Log | None = None) -> None:
        """`paths` are files, or directories with files of an audit log."""
        self._paths = [Path(each) for each in paths]
        self._log = log
        self._lock = threading.Lock()
        self._authors = EventAuthors()
        self._read: dict[tuple[int, int], int] = {}
        """How far each file was read, by device and inode. A file keeps them when it gets another name."""
        self._taken = 0
        self._failure = ""

    @property
    def knows_files(self) -> bool:
        """True if there is an audit log to read."""
        return bool(self._paths)

    def read_on(self) -> None:
        """Read what was written since the last look. A file that cannot be read is logged once, and left out."""
        with self._lock:
            files = self._files()
            if self._taken > 2 * READ_BYTES_MAX:
                self._authors, self._read, self._taken = EventAuthors(), {}, 0
            left = READ_BYTES_MAX
            fresh: list[list[bytes]] = []
            for path, status in reversed(files):
                key = status.st_dev, status.st_ino
                begin = self._read.get(key, max(0, status.st_size - left))
                if status.st_size > begin and left > 0:
                    lines = self._lines(path, key, begin)
                    left -= sum(map(len, lines))
                    fresh.append(lines)
            present = {(status.st_dev, status.st_ino) for _, status in files}
            self._read = {key: end for key, end in self._read.items() if key in present}
            for lines in reversed(fresh):
                self._taken += sum(map(len, lines))
                self._authors.read(lines)

    def author(self, event: Event) -> Author | None:
        """Return who has asked for a change; None if no audit log says so."""
        with self._lock:
            return self._authors.author(event)

    def gaps(self, events: Iterable[Event], controllers: Mapping[int, int]) -> list[str]:
        """Return a phrase for each epoch in which the authors of changes are not known."""
        with self._lock:
            return self._authors.gaps(events, controllers)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Find the files, the oldest first."""
        found = []
        for path in self._paths:
            for each in path.glob(_NAMES) if path.is_dir() else [path]:
                try:
                    found.append((each, each.stat()))
                except OSError as error:
                    self._complain(each, error)
        return sorted(found, key=lambda file: file[1].st_mtime_ns)

    def _lines(self, path: Path, key: tuple[int, int], begin: int) -> list[bytes]:
        """Read the whole lines of a file from a place on. Remember where the last one ends."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != key:
                    # It has got another name in between; the next look finds it.
                    return []
                file.seek(begin)
                lines = file.read(READ_BYTES_MAX).splitlines(keepends=True)
        except OSError as error:
            self._complain(path, error)
            return []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        is_first = key not in self._read
        self._read[key] = begin + sum(map(len, lines))
        # The first look may begin within a line, which is no JSON then.
        return lines[1:] if begin and is_first else lines

    def _complain(self, path: Path, error: OSError) -> None:
        text = f"{path}: {error.strerror}"
        if self._log is not None and text != self._failure:
            self._failure = text
            self._log.warning("console.audit_unreadable", reason=text)
