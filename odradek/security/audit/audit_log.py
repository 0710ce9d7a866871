"""The audit log: logins, denials, and changes of the metadata, as lines of JSON. PORTED.

`put` costs a few microseconds and never waits. A task writes the lines in a worker, several times a second. Waiting
lines that differ only in their time become one line with a `count`. So a client that is denied a thousand times a
second costs a few lines.

There are two rings of files. One has logins and changes; the other has refusals, which are denials and failed logins.
So refused clients displace no lines about other clients. Within a ring, the bytes that one client causes are limited
(`audit_budgets.py`). Further lines are only counted, and a line with `"further": true` reports how many.

Memory is limited, too: at most `LINES_MAX` lines or `WAITING_BYTES_MAX` bytes of a ring wait. Further lines are lost,
and the next line that is written reports how many.

If a file cannot be written, the node continues. The lines are counted as lost, and the node's log reports it.
"""

from __future__ import annotations

import attrs

from odradek.env.ports import Dir, DiskError, Env, Log
from odradek.security.audit.audit_budgets import Budgets, Further
from odradek.security.audit.audit_file import AuditFile
from odradek.security.audit.audit_lines import (
    FURTHER,
    MISSING,
    REFUSALS,
    Line,
    Payer,
    PreparedLine,
    Value,
    prepared,
)

__all__ = ["LOG_NAME", "REFUSALS_NAME", "AuditLog", "AuditSettings"]

LOG_NAME = "audit.log"
REFUSALS_NAME = "audit-refusals.log"
LINES_MAX = 10_000
WAITING_BYTES_MAX = 16 << 20
WRITE_SECONDS = 0.2
STOP_SECONDS_MAX = 5.0
REPORT_SECONDS = 10.0
"""Seconds between two lines in the node's log about the same error."""


@attrs.frozen
class AuditSettings:
    """Limits for the files of the audit log."""

    bytes_max: int = 64 << 20
    """The size of a file in bytes after which it is rotated."""
    files_max: int = 10
    """The number of files with logins and changes that are kept, including the newest."""
    refusals_files_max: int = 5
    """The number of files with refusals that are kept, including the newest."""


@attrs.define
class _Ring:
    """The lines that wait to be written to one ring of files."""

    file: AuditFile
    waiting: dict[bytes, Line] = attrs.field(factory=dict)
    waiting_bytes: int = 0
    missing: int = 0
    """The number of lines lost since the last line that was written."""
    missing_total: int = 0
    """The number of lines lost since the start."""

    def join(self, body: bytes, count: int) -> bool:
        """Add `count` to a waiting line that is equal. Return false if there is none."""
        line = self.waiting.get(body)
        if line is None:
            return False
        line.count += count
        return True

    def add(self, time_ms: int, body: bytes, count: int, *, has_count: bool = False) -> None:
        """Add a line to the waiting ones, or count it as lost if there are too many."""
        if len(self.waiting) >= LINES_MAX or self.waiting_bytes >= WAITING_BYTES_MAX:
            self.missing += count
            self.missing_total += count
        else:
            self.waiting[body] = Line(time_ms, body, count, has_count)
            self.waiting_bytes += len(body)

    def take(self, time_ms: int) -> _Taken:
        """Remove and return all waiting lines, together with a line that reports the number of lost lines."""
        lines, self.waiting, self.waiting_bytes = list(self.waiting.values()), {}, 0
        missing, self.missing = self.missing, 0
        if missing:
            lines.append(Line(time_ms, prepared(MISSING, None).body, missing, True))
        return _Taken(self, lines, missing)

    def lose(self, taken: _Taken) -> None:
        """Count taken lines as lost, because they could not be written. If a taken line reported a number of
        lost lines, count these lines again, so that a later line reports them.
        """
        lost = sum(line.count for line in taken.lines)
        self.missing += lost
        self.missing_total += lost - taken.missing


@attrs.frozen
class _Taken:
    ring: _Ring
    lines: list[Line]
    missing: int


class AuditLog:
    """One node's audit log, in its own directory."""

    def __init__(self, env: Env, log: Log, directory: Dir, settings: AuditSettings) -> None:
        self._env = env
        self._log = log
        self._directory = directory
        size = settings.bytes_max
        self._changes = _Ring(AuditFile(directory, LOG_NAME, size, settings.files_max))
        self._refusals = _Ring(AuditFile(directory, REFUSALS_NAME, size, settings.refusals_files_max))
        self._rings = (self._changes, self._refusals)
        self._budgets = Budgets()
        self._wanted = env.event()
        self._stopping = env.event()
        self._stopped = env.event()
        self._report_at = float("-inf")

    def note(self, event: str, /, payer: Payer | None = None, count: int = 1, **fields: Value) -> None:
        """Write a line with these fields, in this order, to the log. No field may hold a secret.

        `payer` pays for the line's bytes. `count` is the number of equal lines that it represents.
        """
        self.put(prepared(event, payer, **fields), count)

    def put(self, line: PreparedLine, count: int = 1) -> None:
        """Write a prepared line to the log, as `note` does."""
        ring = self._ring(line.event)
        if ring.join(line.body, count):
            return
        if self._budgets.admits(line, count, self._env.clock.monotonic()):
            ring.add(self._env.clock.wall_ms(), line.body, count)
        self._wanted.set()

    def _ring(self, event: str) -> _Ring:
        return self._refusals if event in REFUSALS else self._changes

    async def run(self) -> None:
        """Write the waiting lines to the files several times a second, until `stop` is called."""
        clock = self._env.clock
        while not self._stopping.is_set():
            with clock.timeout_at(self._budgets.next_report_at()):
                await self._wanted.wait()
            self._wanted = self._env.event()
            taken = self._take()
            if not await self._env.workers.run(self._write, taken):
                self._lose(taken)
            with clock.timeout_at(clock.monotonic() + WRITE_SECONDS):
                await self._stopping.wait()
        self._stopped.set()

    async def stop(self) -> None:
        """Write the remaining lines and close the files. Do not wait for a disk that hangs."""
        clock = self._env.clock
        self._stopping.set()
        self._wanted.set()
        with clock.timeout_at(clock.monotonic() + STOP_SECONDS_MAX):
            await self._stopped.wait()
            await self._env.workers.run(self.close)

    def close(self) -> None:
        """Write the waiting lines and close the files. This blocks, and no other thread may write meanwhile."""
        taken = self._take(is_last=True)
        if not self._write(taken):
            self._lose(taken)
        for ring in self._rings:
            ring.file.close()

    def statistics(self) -> dict[str, int]:
        """Return how many lines wait now, and how many lines were lost or only counted since the start."""
        return {
            "lines_waiting": sum(len(ring.waiting) for ring in self._rings),
            "lines_missing": sum(ring.missing_total for ring in self._rings),
            "lines_further": self._budgets.further_total,
        }

    def _take(self, *, is_last: bool = False) -> list[_Taken]:
        now_ms = self._env.clock.wall_ms()
        for further in self._budgets.take_further(self._env.clock.monotonic(), is_last=is_last):
            self._ring(further.event).add(now_ms, _further(further), further.count, has_count=True)
        return [ring.take(now_ms) for ring in self._rings]

    def _write(self, taken: list[_Taken]) -> bool:
        """Append the lines to their rings, and remove the written ones from `taken`. Return false if a write fails."""
        while taken:
            data = b"".join(line.encoded() for line in taken[0].lines)
            try:
                if data:
                    taken[0].ring.file.write(data)
            except DiskError as error:
                now = self._env.clock.monotonic()
                if now >= self._report_at:
                    self._report_at = now + REPORT_SECONDS
                    self._log.error("audit.not_written", directory=self._directory.path, reason=str(error))
                return False
            del taken[0]
        return True

    def _lose(self, taken: list[_Taken]) -> None:
        for each in taken:
            each.ring.lose(each)


def _further(further: Further) -> bytes:
    names = (
        {"principal": further.principal} if further.principal is not None else {"address": further.address}
    )
    return prepared(further.event, None, **names, **{FURTHER: True}).body
