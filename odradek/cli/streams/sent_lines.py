"""The input lines that `odradek produce` sends: how many are written to the cluster, and from which line to
continue.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from odradek.cli.output import Progress, counted

if TYPE_CHECKING:
    from odradek.client.shells.producer import RecordFuture

__all__ = ["SentLines"]

_RECORD_BYTES = 100
"""The bytes of memory that the producer needs for a record in addition to the bytes of its line."""


class SentLines:
    """The sent lines that still have no outcome, in order, each as (number, bytes, future). Lines with an
    outcome are only counted.
    """

    def __init__(self) -> None:
        self.begun = 0
        """The number of the last line that was passed to the producer, or is about to be."""
        self.written = 0
        self.bytes = 0
        self.by_partition: dict[int, int] = {}
        self.pending_bytes = 0
        self.progress = Progress("records written", always=True)
        self._pending: deque[tuple[int, int, RecordFuture]] = deque()
        self._sent = 0
        self._unknown = 0
        self.first_failed: tuple[int, Exception] | None = None
        """The number of the first line that failed, and its error."""

    def add(self, number: int, size: int, future: RecordFuture) -> None:
        """Add a line that the producer has accepted."""
        self._pending.append((number, size, future))
        self._sent = number
        self.pending_bytes += size + _RECORD_BYTES

    def wait_oldest(self) -> None:
        """Wait until the oldest pending line is acknowledged or has failed."""
        self._pending[0][2].exception()

    def count_done(self, *, wait: bool = False) -> None:
        """Count the lines that are acknowledged or have failed, in order. With `wait`, first wait for all
        lines.
        """
        from odradek.wire.errors import KafkaError

        before = self.written
        pending = self._pending
        while pending and (wait or pending[0][2].done()):
            number, size, future = pending.popleft()
            self.pending_bytes -= size + _RECORD_BYTES
            error = future.exception()
            if error is None:
                self.written += 1
                self.bytes += size
                partition = future.result().partition
                self.by_partition[partition] = self.by_partition.get(partition, 0) + 1
                continue
            if self.first_failed is None:
                self.first_failed = number, error
            self._unknown += not isinstance(error, KafkaError)
        self.progress.add(self.written - before)

    def report(self) -> str:
        """Describe how many lines are written and from which line to continue. The caller must first count
        all lines with `count_done`.
        """
        go_on = self._sent + 1 if self.first_failed is None else self.first_failed[0]
        text = (
            f"{counted(self.written, 'line')} {'is' if self.written == 1 else 'are'} written: go on "
            f"from line {go_on}"
        )
        unknown = self._unknown + (self.begun > self._sent)
        if behind := self.written - (go_on - 1):
            text += f" ({behind:,} of them {'is' if behind == 1 else 'are'} behind that line, and would be written twice)"
        if unknown:
            text += f"; {counted(unknown, 'line')} more may be written, because the brokers did not answer"
        return text
