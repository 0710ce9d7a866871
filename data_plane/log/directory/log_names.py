"""Keeps the names of log directories that a new log must not get yet. For each such name, either the rename of
a removed log's directory is pending, or a log of that name is being made. PORTED.

A removed log keeps its name until its directory is renamed, and a hung device delays the rename. The making
of a log may be given up. Its name is then free only after its files are removed. Meanwhile no task may make a
log of that name. Otherwise the new log might get the records of the old log, or lose its own files when the
old files are removed.

A disk that is full to the last byte may have no room for the longer new name. In this case `Background` tries
the rename again later. If the log is to be deleted anyway, `Background` removes it at once, which makes room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from odradek.data_plane.log.directory.late_changes import LateChanges
from odradek.env.ports import Dir, DiskError, DiskFull, DiskHung
from odradek.named_states import reached

__all__ = ["LogNames", "Rename"]


@attrs.frozen
class Rename:
    """A pending rename of a directory. `done` is called after the rename. If the disk is too full for the
    rename and `may_remove` is true, the directory is removed instead.
    """

    name: str
    renamed: str
    may_remove: bool
    done: Callable[[], None]


class LogNames:
    """The names in one log directory that no new log may have yet."""

    def __init__(
        self,
        directory: Dir,
        changes: LateChanges,
        failed: Callable[[DiskError], None],
        full: Callable[[DiskFull], None],
    ) -> None:
        """Take the directory and two callbacks. `full` is called with the error of a rename on a full disk,
        `failed` with any other error of a rename.
        """
        self._directory = directory
        self._changes = changes
        self._failed = failed
        self._full = full
        self._renames: deque[Rename] = deque()
        self._reserved: dict[str, None] = {}
        self._refused: dict[str, Rename] = {}

    # --- names that are in use

    def check_free(self, name: str) -> None:
        """Raise `DiskHung` or `DiskFull` if no new log may have this name yet."""
        if name in self._refused:
            reached("log.name_waits_for_room")
            path = self._directory.path
            raise DiskFull(
                path,
                f"{path}/{name}",
                "create",
                0,
                "the disk has no room to rename an older log of the same name",
            )
        if name in self._reserved or any(each.name == name for each in self._renames):
            reached("log.name_waits_for_disk")
            path = self._directory.path
            raise DiskHung(path, f"{path}/{name}", "create", 0, "the disk does not answer")

    def reserve(self, name: str) -> None:
        """Reserve a name. No log of this name may be made until `free` is called, or the device has answered."""
        self.check_free(name)
        self._reserved[name] = None

    def free(self, name: str) -> None:
        """Release a name, because its log is made, or has been removed completely."""
        self._reserved.pop(name, None)

    def settle(self) -> None:
        """Release all reserved names. Called when the device has answered, and the late calls that made logs
        are undone.
        """
        self._reserved.clear()

    # --- directories that are set aside

    def set_aside(self, name: str, renamed: str, done: Callable[[], None], *, may_remove: bool) -> None:
        """Queue the rename of a directory. `carry_out` makes the rename and calls `done`."""
        self._renames.append(Rename(name, renamed, may_remove, done))

    def carry_out(self) -> None:
        """Make the queued renames, in order. Raises `DiskHung`; then the remaining renames stay in the queue."""
        while self._renames:
            first = self._renames[0]

            def rename(first: Rename = first) -> None:
                self._directory.rename(first.name, first.renamed)

            try:
                self._changes.make(rename, self._renamed, self._not_renamed)
            except DiskHung:
                raise
            except DiskError as error:
                self._not_renamed(error)

    def _renamed(self, result: None) -> None:
        self._renames.popleft().done()

    def _not_renamed(self, error: Exception) -> None:
        if not isinstance(error, DiskError):
            raise error
        rename = self._renames.popleft()
        if isinstance(error, DiskFull):
            self._refused[rename.name] = rename
            self._full(error)
        else:
            self._failed(error)

    # --- renames that a full disk has refused

    @property
    def refused(self) -> tuple[Rename, ...]:
        """The renames that a full disk has refused, oldest first."""
        return tuple(self._refused.values())

    def end_refused(self, rename: Rename) -> None:
        """Remove a refused rename from the list, because its directory has its new name now, or is gone."""
        del self._refused[rename.name]
        rename.done()
