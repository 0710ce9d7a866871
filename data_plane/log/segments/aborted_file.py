"""The aborted transactions of one segment that has abort markers: in memory, and in its `.txnindex` file. PURE.

The transactions of an active segment are always in memory, and its file is written when the segment is
finished, closed or recovered. The transactions of an inactive segment are read from the file when they are
first needed.
"""

from __future__ import annotations

from odradek.data_plane.log.segments.aborted_index import NONE_ABORTED, AbortedIndex, AbortedTransaction
from odradek.data_plane.log.segments.file_names import TXN_INDEX_SUFFIX, file_name
from odradek.data_plane.log.segments.small_files import remove_if_present, sync_file, write_whole
from odradek.env.ports import Dir, FileClosed, FileMissing


class AbortedFile:
    """The aborted transactions of one segment, and their file."""

    __slots__ = ("_base_offset", "_directory", "_is_closed", "index")

    def __init__(self, directory: Dir, base_offset: int, index: AbortedIndex | None = None) -> None:
        """Begin with the transactions in `index`. If it is None, the file has them, and they are read when
        they are needed.
        """
        self._directory = directory
        self._base_offset = base_offset
        self.index = index
        """The transactions in memory; None until they are read from the file."""
        self._is_closed = False
        """True if the segment was removed. The file's name may belong to another segment by now."""

    @property
    def _name(self) -> str:
        return file_name(self._base_offset, TXN_INDEX_SUFFIX)

    @property
    def _path(self) -> str:
        return f"{self._directory.path}/{self._name}"

    # --- in memory

    def add(self, entry: AbortedTransaction) -> None:
        """Record an abort marker that was appended, or found by a scan."""
        index = self.index
        if index is None:
            raise AssertionError(
                f"{self._path}: the aborted transactions of an active segment must be taken from "
                "memory, not from the file"
            )
        if index is NONE_ABORTED:
            index = self.index = AbortedIndex()
        index.append(entry)

    def forget(self) -> None:
        """Forget the recorded abort markers, because a scan will record all of them again. The file stays
        until it is written or removed.
        """
        self.index = NONE_ABORTED

    def unload(self) -> None:
        """Drop the transactions from memory, because the file has them as well."""
        if self.index is not NONE_ABORTED:
            self.index = None

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose marker is at `offset` or later, and the outdated file. Raises the same
        errors as `load`.
        """
        if self.index is not NONE_ABORTED:
            self.load().truncate(offset)
            self.remove()

    def close(self) -> None:
        """Refuse to read the file from now on, because the segment was removed."""
        self._is_closed = True

    # --- the file

    def load(self) -> AbortedIndex:
        """Return the aborted transactions. At the first call, reads them from their file.

        Raises `DamagedTransactionIndex`, `FileClosed` for a segment that was removed, `DiskError`.
        """
        index = self.index
        if index is None:
            if self._is_closed:
                raise FileClosed(self._directory.path, self._path, "open", 0, "removed meanwhile")
            try:
                index = AbortedIndex.decode(self._directory.read_bytes(self._name))
            except FileMissing:
                index = NONE_ABORTED
            self.index = index if len(index) else NONE_ABORTED
        return index

    def write(self) -> bool:
        """Write the file, if there are any transactions in memory. Returns True if it was written; `sync`
        makes it durable. Raises `DiskError`.
        """
        if self.index is None or not len(self.index):
            return False
        write_whole(self._directory, self._name, self.index.encode())
        return True

    def sync(self) -> None:
        """Sync the file, if it exists (blocking). Raises `DiskError`."""
        if self.index is not NONE_ABORTED:
            sync_file(self._directory, self._name)

    def remove(self) -> None:
        """Remove the outdated file. Raises `DiskError`."""
        remove_if_present(self._directory, self._name)
