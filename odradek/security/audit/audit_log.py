"""The audit log: who was let in, what was denied, who changed the metadata. One line of JSON for each. PORTED.

`note` costs a few microseconds and never waits. A task writes the lines in a worker, some times a second. Lines that are
alike but for their time become one line with a `count`, as long as they wait. So a client that is denied a thousand times
a second costs a few lines.

A source (an address) that makes many different lines at once gets `LINES_PER_SOURCE_MAX` of them. The others become one
line with a count. So a client that tries names or topics by the thousand does not rotate away what others did.

Memory and disk are bounded. At most `LINES_MAX` lines wait. Beyond that they are only counted, and the next line that is
written tells how many are missing. The file is rotated by size: `audit.log` is the newest, `audit.log.1` the one before.

The node goes on when a file cannot be written. Its lines are counted as missing, and the node's log says so.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeAlias

import attrs

from odradek.env.ports import Dir, DiskError, Env, File, FileMissing, Log

__all__ = ["AuditLog", "AuditSettings", "PreparedLine"]

NAME = "audit.log"
MISSING = "lines.missing"
LINES_MAX = 10_000
LINES_PER_SOURCE_MAX = 100
"""Different lines of one event and source that may wait at the same time."""
TEXT_CHARACTERS_MAX = 1_000
"""Longer texts are cut: names come from strangers."""
WRITE_SECONDS = 0.2
STOP_SECONDS_MAX = 5.0
TELL_SECONDS = 10.0
"""Time between two lines of the node's log about the same trouble."""


PreparedLine: TypeAlias = tuple[str, tuple[tuple[str, str | int | bool | None], ...]]
"""Event and fields."""


@attrs.frozen
class AuditSettings:
    """Bounds of the files."""

    bytes_max: int = 64 << 20
    """A file beyond this size is rotated."""
    files_max: int = 10
    """Files that are kept, with the newest one."""


@attrs.define
class _Line:
    time_ms: int
    event: str
    fields: tuple[tuple[str, str | int | bool | None], ...]
    count: int = 1

    def encoded(self) -> bytes:
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        document = {"time": time, "event": self.event, **dict(self.fields)}
        if self.count > 1 or self.event == MISSING:
            document["count"] = self.count
        return json.dumps(document, ensure_ascii=True).encode() + b"\n"


class AuditLog:
    """One node's audit log, in a directory of its own."""

    def __init__(self, env: Env, log: Log, directory: Dir, settings: AuditSettings) -> None:
        self._env = env
        self._log = log
        self._directory = directory
        self._settings = settings
        self._waiting: dict[PreparedLine, _Line] = {}
        self._of_source: Counter[tuple[str, str]] = Counter()
        self._wanted = env.event()
        self._stopping = env.event()
        self._stopped = env.event()
        self._tell_at = float("-inf")
        self._file: File | None = None
        self.missing = 0
        """Lines that were never written since the last one that was."""
        self.missing_total = 0
        """Lines that were never written since the start."""

    def note(
        self, event: str, /, source: str | None = None, count: int = 1, **fields: str | int | bool | None
    ) -> None:
        """Put a line into the log; the fields' order is kept. Secrets do not belong into any field.

        `source` is who may not fill the log with lines of this event; `count` is how many alike the line stands for.
        """
        self.put(self.prepare(event, **fields), source, count)

    def prepare(self, event: str, /, **fields: str | int | bool | None) -> PreparedLine:
        """A line that may be put into the log many times."""
        return event, tuple((name, _cut(value)) for name, value in fields.items())

    def put(self, key: PreparedLine, source: str | None = None, count: int = 1) -> None:
        """Put a prepared line into the log, as `note` does."""
        line = self._waiting.get(key)
        if line is not None:
            line.count += count
            return
        event, kept = key
        if source is not None:
            self._of_source[event, source] += 1
            if self._of_source[event, source] > LINES_PER_SOURCE_MAX:
                kept = (("address", source), ("further", True))
                key = (event, kept)
                line = self._waiting.get(key)
                if line is not None:
                    line.count += count
                    return
        if len(self._waiting) >= LINES_MAX:
            self._miss(count)
        else:
            self._waiting[key] = _Line(self._env.clock.wall_ms(), event, kept, count)
            self._wanted.set()

    def _miss(self, count: int) -> None:
        self.missing += count
        self.missing_total += count

    def _lose(self, lines: list[_Line]) -> None:
        """Count lines that could not be written, and once more those that an earlier line told of."""
        for line in lines:
            self.missing += line.count
            self.missing_total += 0 if line.event == MISSING else line.count

    async def run(self) -> None:
        """Write what waits, again and again, until `stop`."""
        clock = self._env.clock
        while not self._stopping.is_set():
            await self._wanted.wait()
            self._wanted = self._env.event()
            taken = self._take()
            if not await self._env.workers.run(self._write, taken):
                self._lose(taken)
            with clock.timeout_at(clock.monotonic() + WRITE_SECONDS):
                await self._stopping.wait()
        self._stopped.set()

    async def stop(self) -> None:
        """Write the rest, and close the file. A disk that hangs is not waited for."""
        clock = self._env.clock
        self._stopping.set()
        self._wanted.set()
        with clock.timeout_at(clock.monotonic() + STOP_SECONDS_MAX):
            await self._stopped.wait()
            await self._env.workers.run(self.close)

    def close(self) -> None:
        """Write what still waits, and close the file. It blocks, and nobody else may write."""
        taken = self._take()
        if not self._write(taken):
            self._lose(taken)
        if self._file is not None:
            self._file.close()
            self._file = None

    def statistics(self) -> dict[str, int]:
        """Lines that wait now, and those that were never written since the start."""
        return {"lines_waiting": len(self._waiting), "lines_missing": self.missing_total}

    def _take(self) -> list[_Line]:
        taken, self._waiting = list(self._waiting.values()), {}
        self._of_source.clear()
        if self.missing:
            taken.append(_Line(self._env.clock.wall_ms(), MISSING, (), self.missing))
            self.missing = 0
        return taken

    def _write(self, lines: list[_Line]) -> bool:
        """Append the lines, in the file that has room; false where that fails. For one thread at a time."""
        if not lines:
            return True
        data = b"".join(line.encoded() for line in lines)
        try:
            file = self._file
            if file is None:
                file = self._file = self._directory.open(NAME, create=True)
                if file.size and file.pread(1, file.size - 1) != b"\n":
                    # A process that was killed has left half a line, which the next one must not join.
                    data = b"\n" + data
            if file.size and file.size + len(data) > self._settings.bytes_max:
                file = self._rotate(file)
            self._append(file, data)
        except DiskError as error:
            now = self._env.clock.monotonic()
            if now >= self._tell_at:
                self._tell_at = now + TELL_SECONDS
                self._log.error("audit.not_written", directory=self._directory.path, reason=str(error))
            return False
        return True

    def _append(self, file: File, data: bytes) -> None:
        """All or nothing: a half line would join the next one."""
        size = file.size
        try:
            file.append(data)
        except DiskError:
            file.truncate(size)
            raise

    def _rotate(self, full: File) -> File:
        full.close()
        self._file = None
        last = self._settings.files_max - 1
        names = [NAME, *(f"{NAME}.{number}" for number in range(1, last + 1))]
        with suppress(FileMissing):
            self._directory.remove(names[-1])
        for old, new in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
            if self._directory.exists(old):
                self._directory.rename(old, new)
        self._file = self._directory.open(NAME, create=True)
        return self._file


def _cut(value: str | int | bool | None) -> str | int | bool | None:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        return value[:TEXT_CHARACTERS_MAX] + "..."
    return value
