"""Notices disks that hang: says so, and keeps their partitions from stopping all others. PORTED.

A call that a device does not answer for `WARN_SECONDS` is told to the operator. After `STALL_SECONDS`, in a node with
several directories, the logs of that one refuse appends and reads (KAFKA_STORAGE_ERROR, which clients retry), so that
the loop does not touch the device and wait there with it; they serve again as soon as the call comes back.

Deliberately absent: appends are written by the loop itself, so one that meets a hang before it has been noticed holds
up the node; only a writer of its own for each disk can prevent that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data_plane.log.log_dir import LogDir
from odradek.env.ports import Clock

LOOK_SECONDS = 1.0
WARN_SECONDS = 10.0
STALL_SECONDS = 30.0


class DiskWatch:
    """Looks at the running calls of all directories once a second."""

    def __init__(
        self, log_dirs: Sequence[LogDir], clock: Clock, log: Any, stalled: Callable[[], None]
    ) -> None:
        """`stalled` is called when a directory has begun or ceased to refuse."""
        self._log_dirs = log_dirs
        self._clock = clock
        self._log = log
        self._stalled = stalled
        self._told: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + LOOK_SECONDS)
            for log_dir in self._log_dirs:
                self.look(log_dir)

    def look(self, log_dir: LogDir) -> None:
        oldest = log_dir.workers.oldest() if log_dir.offline_reason is None else None
        seconds, call = oldest or (0.0, "")
        if seconds < WARN_SECONDS:
            longest = self._told.pop(log_dir.path, 0.0)
            if longest:
                self._log.warning("directory.recovered", directory=log_dir.path, seconds=round(longest))
        else:
            if log_dir.path not in self._told:
                self._log.error("directory.slow", directory=log_dir.path, call=call, seconds=round(seconds))
            self._told[log_dir.path] = seconds
        must_refuse = seconds >= STALL_SECONDS and len(self._log_dirs) > 1
        if must_refuse != log_dir.is_stalled:
            if must_refuse:
                self._log.error("directory.stalled", directory=log_dir.path, call=call)
            log_dir.set_stalled(must_refuse)
            self._stalled()
