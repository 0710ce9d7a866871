"""Detects disks that hang or are full, logs such disks for the operator, and decides when replicas on other
disks should become leaders. PORTED.

* **Suspected.** A device has not answered a call of the event loop within `odradek.disk.write.wait.ms`. From
  then on the directory's logs refuse appends and reads, until the device answers (`LogDir.is_suspected`,
  `odradek.env.bounded_calls`). If a node has several disks, the loop waits no longer than this for a call.
* **Hung.** When a device leaves a call unanswered for `WARN_SECONDS`, a line is logged for the operator.
  After `hung_seconds` the device's directory is in trouble. In a node with several directories, the logs in
  this directory then refuse appends and reads (KAFKA_STORAGE_ERROR, which clients retry). So the loop makes
  no further calls that could block it. The directory is sound again when the call returns.
* **Full.** A write finds no room when only the reserve is left (`odradek.data_plane.log.directory.room`).
  `full_seconds` later the directory is in trouble, until it has enough room again. Enough room means two
  things. First, beyond the reserve a twentieth of the device or `ROOM_BYTES` is free, whichever is less.
  Second, no write was refused for `full_seconds`. With a weaker condition, an almost full disk would get
  leaders and lose them again every few seconds.

`DirectoryTroubles` reports each trouble to the controller.

Deliberately absent: limited waits for a node's only directory. This directory also has the metadata log, for
which the node has to wait anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.env.ports import Clock, Log
from odradek.named_states import reached
from odradek.serving.disk_troubles import Trouble

LOOK_SECONDS = 1.0
WARN_SECONDS = 10.0
HUNG_SECONDS = 15.0
FULL_SECONDS = 5.0
ROOM_BYTES = 1 << 30
ROOM_SHARE = 20
"""The divisor of a device's size. A full disk counts as sound again when the free space reaches the quotient,
or `ROOM_BYTES` if that is less.
"""


class DiskWatch:
    """Checks all log directories once a second for disks that hang or are full."""

    def __init__(
        self,
        log_dirs: Sequence[LogDir],
        clock: Clock,
        log: Log,
        changed: Callable[[LogDir], None],
        *,
        hung_seconds: float = HUNG_SECONDS,
        full_seconds: float = FULL_SECONDS,
    ) -> None:
        """Take the directories and the limits in seconds. `changed` is called when a directory gets into
        trouble, or its trouble ends.
        """
        self._log_dirs = log_dirs
        self._clock = clock
        self._log = log
        self._changed = changed
        self._hung_seconds = hung_seconds
        self._full_seconds = full_seconds
        self._logged: dict[str, float] = {}

    async def run(self) -> None:
        """Check all directories once a second, until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + LOOK_SECONDS)
            for log_dir in self._log_dirs:
                self.look(log_dir)

    def look(self, log_dir: LogDir) -> None:
        """Check whether the disk of one directory hangs or is full."""
        hung_seconds, call = self._look_for_hang(log_dir)
        full_seconds = self._look_for_room(log_dir)
        trouble, seconds = None, 0.0
        if hung_seconds >= self._hung_seconds:
            trouble, seconds = Trouble.HUNG, hung_seconds
        elif full_seconds >= self._full_seconds:
            trouble, seconds = Trouble.FULL, full_seconds
        if trouble is log_dir.trouble:
            return
        before, log_dir.trouble = log_dir.trouble, trouble
        log_dir.trouble_since_ms = self._clock.wall_ms() - int(seconds * 1000)
        if trouble is Trouble.HUNG:
            self._log.error("directory.stalled", directory=log_dir.path, call=call)
        elif trouble is Trouble.FULL:
            self._log.error("directory.full", directory=log_dir.path, free_bytes=log_dir.space.free_bytes)
        if before is Trouble.FULL and trouble is None:
            self._log.warning(
                "directory.has_room", directory=log_dir.path, free_bytes=log_dir.space.free_bytes
            )
        must_refuse = log_dir.is_suspected or (trouble is Trouble.HUNG and len(self._log_dirs) > 1)
        if must_refuse != log_dir.is_stalled:
            log_dir.set_stalled(must_refuse)
        self._changed(log_dir)

    def _look_for_hang(self, log_dir: LogDir) -> tuple[float, str]:
        """Return the age in seconds, and the name, of the oldest call to the device that is still unanswered."""
        seconds, call = 0.0, ""
        if log_dir.offline_reason is None:
            seconds, call = log_dir.workers.oldest() or (0.0, "")
            if log_dir.unanswered is not None:
                # Count from the moment at which the loop's call became late. The worker that waits for the
                # device may have started later, because long work can delay the upkeep task.
                since, name = log_dir.unanswered
                seconds, call = max((seconds, call), (self._clock.monotonic() - since, name))
        if seconds < min(WARN_SECONDS, self._hung_seconds):
            longest = self._logged.pop(log_dir.path, 0.0)
            if longest:
                self._log.warning("directory.recovered", directory=log_dir.path, seconds=round(longest))
        else:
            if log_dir.path not in self._logged:
                self._log.error("directory.slow", directory=log_dir.path, call=call, seconds=round(seconds))
            self._logged[log_dir.path] = seconds
        return seconds, call

    def _look_for_room(self, log_dir: LogDir) -> float:
        """Return the seconds since a write first found no room; 0 if there is enough room."""
        since = log_dir.full_since
        if since is None or log_dir.offline_reason is not None:
            return 0.0
        now = self._clock.monotonic()
        space = log_dir.space
        enough = log_dir.room.reserve_bytes + min(ROOM_BYTES, space.total_bytes // ROOM_SHARE)
        if now - log_dir.refused_at >= self._full_seconds and space.free_bytes >= enough:
            reached("disks.room_came_back")
            log_dir.full_since = None
            return 0.0
        return now - since
