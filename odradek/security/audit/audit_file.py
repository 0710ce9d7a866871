"""One ring of audit log files: lines are appended, and files are rotated by size. PORTED. The calls of this
module block, so a worker must make them.

`NAME` is the newest file, `NAME.1` the file before it. A failed write leaves no partial line behind.
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from odradek.env.ports import Dir, DiskError, File, FileMissing

__all__ = ["AuditFile"]


@attrs.define
class AuditFile:
    """The files of one ring in the audit log's directory. Only one thread may use it at a time."""

    directory: Dir
    name: str
    bytes_max: int
    """The size of a file in bytes after which it is rotated."""
    files_max: int
    """The number of files that are kept, including the newest."""
    _file: File | None = None

    def write(self, data: bytes) -> None:
        """Append whole lines. If the present file has no room for them, begin a new file. Raises `DiskError`."""
        file = self._file
        if file is None:
            file = self._file = self.directory.open(self.name, create=True)
            if file.size and file.pread(1, file.size - 1) != b"\n":
                # A process that was killed has left an incomplete line, which must not merge with the next line.
                data = b"\n" + data
        if file.size and file.size + len(data) > self.bytes_max:
            file = self._rotate(file)
        size = file.size
        try:
            file.append(data)
        except DiskError:
            # Remove the incomplete line, because it would merge with the next one.
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
