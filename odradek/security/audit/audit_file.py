"""One ring of files of the audit log: it is appended to, and rotated by size. PORTED: it blocks, so it runs in a worker.

`NAME` is the newest file, `NAME.1` the one before. A failed write leaves no partial line behind.
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from odradek.env.ports import Dir, DiskError, File, FileMissing

__all__ = ["AuditFile"]


@attrs.define
class AuditFile:
    """The files of one ring, in the audit log's directory. For one thread at a time."""

    directory: Dir
    name: str
    bytes_max: int
    """A file beyond this size is rotated."""
    files_max: int
    """Files that are kept, with the newest one."""
    _file: File | None = None

    def write(self, data: bytes) -> None:
        """Append whole lines, in the file that has room. Raises `DiskError`."""
        file = self._file
        if file is None:
            file = self._file = self.directory.open(self.name, create=True)
            if file.size and file.pread(1, file.size - 1) != b"\n":
                # A process that was killed has left half a line, and the next line must not join it.
                data = b"\n" + data
        if file.size and file.size + len(data) > self.bytes_max:
            file = self._rotate(file)
        size = file.size
        try:
            file.append(data)
        except DiskError:
            # All or nothing: a half line would join the next one.
            file.truncate(size)
            raise

    def close(self) -> None:
        """Close the newest file if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self, full: File) -> File:
        full.close()
        self._file = None
        directory, last = self.directory, self.files_max - 1
        names = [self.name, *(f"{self.name}.{number}" for number in range(1, last + 1))]
        with suppress(FileMissing):
            directory.remove(names[-1])
        for old, new in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
            if directory.exists(old):
                directory.rename(old, new)
        self._file = directory.open(self.name, create=True)
        return self._file
