"""Writes the checkpoint of log start offsets as soon as records were deleted on request. PORTED.

A DeleteRecords request is acknowledged when all live replicas have the new log start offset in their
checkpoints. So the deleted records stay deleted even if all these replicas restart. Apache Kafka 4.3
acknowledges the request at once, and writes the checkpoint once a minute.

One write stores all start offsets that were raised before the write began. Start offsets that are raised
during a write share the next write. If the disk refuses a write, the next upkeep turn tries it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from odradek.data_plane.log.directory.checkpoints import LOG_START_FILE
from odradek.env.ports import DiskError, Event

if TYPE_CHECKING:
    from odradek.data_plane.log.partition_log import PartitionLog

RisingStarts = list[tuple["PartitionLog", int]]
"""Pairs of a log and its raised start offset, which will be stored by the next write of the checkpoint."""


class StartsOwner(Protocol):
    """The interface of the log directory that `LogStarts` uses."""

    @property
    def is_served(self) -> bool: ...

    def disk_failed(self, error: DiskError) -> None: ...

    def start_stored(self, log: PartitionLog, offset: int) -> None: ...


class LogStarts:
    """Writes the checkpoint of log start offsets of one log directory."""

    def __init__(
        self,
        log_dir: StartsOwner,
        text: Callable[[RisingStarts], bytes],
        write: Callable[[str, Callable[[], bytes]], Awaitable[bool]],
    ) -> None:
        """Take the directory and two functions. `text` returns the checkpoint's text. If the text has a start
        offset that is not stored yet, `text` appends it with its log to the list in its argument. `write`
        replaces a checkpoint durably. It returns False if the disk refuses, and raises `DiskError` for any
        other failure.
        """
        self._log_dir = log_dir
        self._text = text
        self._write = write
        self._wake: Event | None = None
        self.is_wanted = False
        """True if a start offset was raised after the last write began."""

    def want(self) -> None:
        """Request a write of the checkpoint, because a log's start offset was raised."""
        self.is_wanted = True
        if self._wake is not None:
            self._wake.set()

    async def run(self, new_event: Callable[[], Event]) -> None:
        """Write the checkpoint whenever it is requested, as long as the directory is served. A failed write
        takes the directory offline.
        """
        try:
            while self._log_dir.is_served:
                self._wake = new_event()
                if not self.is_wanted or not await self.store():
                    await self._wake.wait()
        except DiskError as error:
            self._log_dir.disk_failed(error)

    async def store(self) -> bool:
        """Write the checkpoint, and report the stored starts to the directory. Returns False if the disk
        refuses. Raises `DiskError`.
        """
        self.is_wanted = False
        rising: RisingStarts = []
        if not await self._write(LOG_START_FILE, lambda: self._text(rising)):
            self.is_wanted = True
            return False
        for log, offset in rising:
            self._log_dir.start_stored(log, offset)
        return True
