"""The checkpoint of log start offsets, written as soon as records were deleted on request. PORTED.

DeleteRecords is acknowledged when the new start is in the checkpoints of all replicas that live. So a restart of all
of them does not bring back what was deleted. Apache Kafka 4.3 acknowledges at once, and writes this file each minute.

One write stores all starts that were raised before it began. Starts that are raised meanwhile share the next write.
If the disk refuses a write, the upkeep's next look tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from odradek.data_plane.log.directory.checkpoints import LOG_START_FILE
from odradek.env.ports import DiskError, Event

if TYPE_CHECKING:
    from odradek.data_plane.log.partition_log import PartitionLog

RisingStarts = list[tuple["PartitionLog", int]]
"""Logs whose new start is in the written checkpoint, each with that start."""


class StartsOwner(Protocol):
    """The part of a log directory that this checkpoint needs."""

    @property
    def is_served(self) -> bool: ...

    def disk_failed(self, error: DiskError) -> None: ...

    def start_stored(self, log: PartitionLog, offset: int) -> None: ...


class LogStarts:
    """The writer of one log directory's checkpoint of log starts."""

    def __init__(
        self,
        log_dir: StartsOwner,
        text: Callable[[RisingStarts], bytes],
        write: Callable[[str, Callable[[], bytes]], Awaitable[bool]],
    ) -> None:
        """`text` makes the checkpoint, and names the logs whose starts are not stored yet.

        `write` replaces a checkpoint durably; false if the disk refuses. Raises `DiskError`.
        """
        self._log_dir = log_dir
        self._text = text
        self._write = write
        self._wake: Event | None = None
        self.is_wanted = False
        """True while a start has been raised that no begun write contains."""

    def want(self) -> None:
        """Request that the checkpoint be written, because a start was raised."""
        self.is_wanted = True
        if self._wake is not None:
            self._wake.set()

    async def run(self, new_event: Callable[[], Event]) -> None:
        """Write the checkpoint whenever a start was raised, while the directory is served. A failed write takes the
        directory offline.
        """
        try:
            while self._log_dir.is_served:
                self._wake = new_event()
                if not self.is_wanted or not await self.store():
                    await self._wake.wait()
        except DiskError as error:
            self._log_dir.disk_failed(error)

    async def store(self) -> bool:
        """Write the checkpoint, and report the stored starts; false if the disk refuses. Raises `DiskError`."""
        self.is_wanted = False
        rising: RisingStarts = []
        if not await self._write(LOG_START_FILE, lambda: self._text(rising)):
            self.is_wanted = True
            return False
        for log, offset in rising:
            self._log_dir.start_stored(log, offset)
        return True
