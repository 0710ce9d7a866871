"""File descriptors of this machine: checks and closes them even on a dead device, waits for bytes, and reads past the
page cache. SHELL. The module works only on Linux.

A dead device answers every call with an error, even a `stat` of an open file. Only closing a descriptor never fails:
Linux frees it whatever the device answers (close(2)).

A search for silent rot must read the bytes that are on the device now. The page cache may have the bytes that
were once written, and it serves readers of newer records. So the file is opened with O_DIRECT (open(2)):
reads neither use nor fill the cache. If a file system does not support such reads, the cached pages of a
range are dropped before it is read (posix_fadvise(2)). Then the bytes also come from the device, but other
readers of this range no longer find it in the cache.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
from collections.abc import Iterable

from odradek.env import ports
from odradek.env.ports import DiskError, FileMissing

_ALIGNMENT_BYTES = 4096
"""The alignment of uncached reads, in bytes: the largest block size of devices in common use."""
_BUFFER_BYTES = 1 << 20
_BYTES_OR_END = select.POLLIN | select.POLLHUP | select.POLLERR


def disk_error(directory: str, path: str, operation: str, error: OSError) -> DiskError:
    """Convert a system exception to a `DiskError`."""
    return ports.disk_error(directory, path, operation, error.errno or 0, error.strerror or str(error))


def stat_opened(fd: int) -> os.stat_result:
    """Return the `stat` of a file that was just opened. If `stat` fails, close the file and raise `OSError`.
    The device may have died after the file was opened.
    """
    try:
        return os.fstat(fd)
    except OSError:
        close_descriptor(fd)
        raise


def close_descriptor(fd: int) -> None:
    """Close a descriptor. It is free afterwards, even if the device answers with an error.

    Such an error means that written bytes may be lost. It needs no handling: bytes that must be durable were
    synced before, and that sync has reported the loss.
    """
    try:
        os.close(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise AssertionError(f"descriptor {fd} was closed twice") from error


def readable(descriptors: Iterable[int], seconds_max: float | None = None) -> list[int]:
    """Wait until at least one descriptor has bytes or has ended, and return each such one; none if the time is over.

    `None` waits without a limit, and zero only looks. `select.select` would fail on a descriptor of 1024 or more
    (select(2)), and a process with many connections has such ones. Raises `ValueError` for a closed descriptor.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    found = poll.poll(None if seconds_max is None else seconds_max * 1000)
    if closed := [descriptor for descriptor, events in found if not events & _BYTES_OR_END]:
        raise ValueError(f"descriptors {closed} are closed")
    return [descriptor for descriptor, _ in found]


class RealUncachedFile:
    """Implements `odradek.env.ports.UncachedFile` with its own descriptor."""

    __slots__ = ("_buffer", "_directory", "_fd", "_is_direct", "_path")

    def __init__(self, directory: str, path: str, fd: int, *, is_direct: bool) -> None:
        self._directory = directory
        self._path = path
        self._fd = fd
        self._is_direct = is_direct
        # `mmap` returns memory at a page boundary. The device needs such an aligned address.
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        wanted, count = memoryview(buffer), 0
        try:
            while count < len(wanted):
                at = offset + count
                start = at - at % _ALIGNMENT_BYTES
                got = self._read_block(start) - (at - start)
                if got <= 0:
                    break
                got = min(got, len(wanted) - count)
                wanted[count : count + got] = memoryview(self._buffer)[at - start : at - start + got]
                count += got
        except OSError as error:
            raise disk_error(self._directory, self._path, "read", error) from error
        return count

    def _read_block(self, start: int) -> int:
        """Fill the buffer from an aligned position. Return the number of bytes read."""
        if not self._is_direct:
            os.posix_fadvise(self._fd, start, _BUFFER_BYTES, os.POSIX_FADV_DONTNEED)
        return os.preadv(self._fd, (self._buffer,), start)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_descriptor(fd)
            self._buffer.close()


def open_uncached(directory: str, path: str, inode: int) -> RealUncachedFile:
    """Open the file at `path` for uncached reads, if it still has this inode. Raises `FileMissing`, `DiskError`."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    is_direct = True
    try:
        try:
            fd = os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            is_direct = False
            fd = os.open(path, flags)
        if stat_opened(fd).st_ino != inode:
            close_descriptor(fd)
            raise FileMissing(directory, path, "open", errno.ENOENT, "another file has taken this name")
    except OSError as error:
        raise disk_error(directory, path, "open", error) from error
    return RealUncachedFile(directory, path, fd, is_direct=is_direct)
