"""The audit log: who was let in, what was denied, who changed the metadata. One line of JSON for each. PORTED.

`put` costs a few microseconds and never waits. A task writes the lines in a worker, some times a second. Lines that are
alike but for their time become one line with a `count`, as long as they wait. So a client that is denied a thousand times
a second costs a few lines.

There are two rings of files. One has logins and changes, the other one refusals: denials and failed logins. So a
client that is kept out displaces no line about other clients. Within a ring, everybody writes a bounded number of
bytes (`audit_budgets.py`). Lines beyond it are counted, and a line with `"further": true` reports how many.

Memory is bounded, too. At most `LINES_MAX` lines of a ring wait, of `WAITING_BYTES_MAX` bytes. Beyond that they are
missing: only counted, and the next line that is written reports how many.

The node goes on when a file cannot be written. Its lines are counted as missing, and the node's log says so.
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
"""Time between two lines of the node's log about the same trouble."""


@attrs.frozen
class AuditSettings:
    """Bounds of the files."""

    bytes_max: int = 64 << 20
    """A file beyond this size is rotated."""
    files_max: int = 10
    """Files of logins and changes that are kept, with the newest one."""
    refusals_files_max: int = 5
    """Files of refusals that are kept, with the newest one."""


@attrs.define
class _Ring:
    """Lines that wait for one ring of files."""

    file: AuditFile
    waiting: dict[bytes, Line] = attrs.field(factory=dict)
    waiting_bytes: int = 0
    missing: int = 0
    """Lines lost since the last line that was written."""
    missing_total: int = 0
    """Lines lost since the start."""

    def join(self, body: bytes, count: int) -> bool:
        """True if an equal line waits, which counts this one from now on."""
        line = self.waiting.get(body)
        if line is None:
            return False
        line.count += count
        return True

    def add(self, time_ms: int, body: bytes, count: int, *, has_count: bool = False) -> None:
        """Let a line wait, or count it as missing."""
        if len(self.waiting) >= LINES_MAX or self.waiting_bytes >= WAITING_BYTES_MAX:
            self.missing += count
            self.missing_total += count
        else:
            self.waiting[body] = Line(time_ms, body, count, has_count)
            self.waiting_bytes += len(body)

    def take(self, time_ms: int) -> _Taken:
        """Take all lines that wait, and a line that reports how many are missing."""
        lines, self.waiting, self.waiting_bytes = list(self.waiting.values()), {}, 0
        missing, self.missing = self.missing, 0
        if missing:
            lines.append(Line(time_ms, prepared(MISSING, None).body, missing, True))
        return _Taken(self, lines, missing)

    def lose(self, taken: _Taken) -> None:
        """Count lines that could not be written, and once more the missing lines that their last line reported."""
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
        """Put a line into the log; the fields' order is kept. Secrets do not belong into any field.

        `payer` is charged for the line's bytes; `count` is the number of equal lines that it represents.
        """
        self.put(prepared(event, payer, **fields), count)

    def put(self, line: PreparedLine, count: int = 1) -> None:
        """Put a prepared line into the log, as `note` does."""
        ring = self._ring(line.event)
        if ring.join(line.body, count):
            return
        if self._budgets.admits(line, count, self._env.clock.monotonic()):
            ring.add(self._env.clock.wall_ms(), line.body, count)
        self._wanted.set()

    def _ring(self, event: str) -> _Ring:
        return self._refusals if event in REFUSALS else self._changes

    async def run(self) -> None:
        """Write the waiting lines, again and again, until `stop`."""
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
        """Write the rest, and close the files, without waiting for a disk that hangs."""
        clock = self._env.clock
        self._stopping.set()
        self._wanted.set()
        with clock.timeout_at(clock.monotonic() + STOP_SECONDS_MAX):
            await self._stopped.wait()
            await self._env.workers.run(self.close)

    def close(self) -> None:
        """Write the lines that still wait, and close the files. It blocks, and nobody else may write meanwhile."""
        taken = self._take(is_last=True)
        if not self._write(taken):
            self._lose(taken)
        for ring in self._rings:
            ring.file.close()

    def statistics(self) -> dict[str, int]:
        """Count the lines that wait now, and since the start the lines that were lost, or only counted."""
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
        """Append the lines to their rings; false where that fails. The lines that are written leave `taken`."""
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
