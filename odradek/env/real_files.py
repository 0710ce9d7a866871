"""Files of this machine: implements `odradek.env.ports.File` with a descriptor. SHELL.

Theory of operation
-------------------
A `RealFile` is a name in a directory, a size that it tracks itself, and a descriptor. The descriptor is
opened at first use, because a node has tens of thousands of segments and reads few of them. For the same
reason the path is built only when it is needed. The inode is remembered from the first `stat`. So another
file that has got the same name later is never read by mistake.

References are counted under one lock for the whole process. A worker that syncs must keep the loop from
closing the descriptor, whose number could then be reused. A thread that holds this lock never calls a device.
If the device hung, all threads would wait for the lock. Except for pins and syncs, one thread at a time calls
the methods.

A dead device answers every call with an error, even a `stat`. All such errors become `DiskError`, with one exception:
closing a file never fails. Linux frees a descriptor whatever the device answers (close(2)).

Reads and appends block. `odradek.env.ports` says which calls may be made on the loop. After `RealDir.bound_calls`, a
separate thread opens the file, appends, and reads from the device (`bounded_calls`). The loop waits for each call
only for a limited time.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from odradek.env.bounded_calls import BoundedCalls, CallHangs, Outcome, Undo, outcome_of
from odradek.env.ports import Buffer, DiskError, DiskHung, DiskRefused, FileClosed, FileMissing
from odradek.env.real_descriptors import (
    RealUncachedFile,
    close_descriptor,
    disk_error,
    open_uncached,
    stat_opened,
)

T = TypeVar("T")

OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
"""The mode of new directories, so that only the node's own user may read records, keys of users and the audit
log. Existing directories keep their modes.
"""
_PAGE_BYTES = 4096
_PROBES_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
"""Errors of file systems that do not report which pages are in memory."""
_references_lock = threading.Lock()
_FREED_AT_ONCE_BYTES = 1 << 20
_probe = (bytearray(1),)
"""The buffer into which probes of the page cache read. Its content is not used."""


class Folder(Protocol):
    """The attributes of a directory object that its files use."""

    @property
    def path(self) -> str: ...

    @property
    def root(self) -> str:
        """The path of the log directory."""


class RealFile:
    """Implements `odradek.env.ports.File` with a descriptor."""

    __slots__ = ("_calls", "_fd", "_folder", "_inode", "_name", "_references", "_size", "_sync_failure")

    def __init__(
        self,
        folder: Folder,
        name: str,
        size: int,
        inode: int,
        fd: int = -1,
        calls: BoundedCalls | None = None,
    ) -> None:
        self._folder = folder
        self._name = name
        self._size = size
        self._inode = inode
        self._fd = fd
        self._references = 1
        self._sync_failure: str | None = None
        self._calls = calls

    @property
    def path(self) -> str:
        return os.path.join(self._folder.path, self._name)

    @property
    def directory(self) -> str:
        return self._folder.root

    @property
    def size(self) -> int:
        return self._size

    def fileno(self) -> int:
        """Return the descriptor; open the file if it is not open. Raises `DiskError`."""
        return self._fd if self._fd >= 0 else self._open()

    def _open(self) -> int:
        if self._references <= 0:
            raise self._closed()
        fd = self._open_in_time()
        with _references_lock:
            is_closed, known = self._references <= 0, self._fd
            if not is_closed and known < 0:
                self._fd = fd
                return fd
        # Another thread has opened the file in the meantime, or the owner has closed it.
        close_descriptor(fd)
        if is_closed:
            raise self._closed()
        return known

    def _open_in_time(self) -> int:
        calls = self._calls
        if calls is None or not calls.looks_for_me():
            return self._open_anew()

        def abandon() -> Undo:
            return _close_late

        try:
            outcome: Outcome[int] = calls.run(outcome_of, abandon, self._open_anew)
        except CallHangs:
            raise disk_hung(self.directory, self.path, "open") from None
        return _result(*outcome)

    def _open_anew(self) -> int:
        try:
            fd = os.open(self.path, OPEN_FLAGS)
            inode = stat_opened(fd).st_ino
        except OSError as error:
            raise self._error("open", error) from error
        if inode != self._inode:
            close_descriptor(fd)
            raise FileMissing(
                self.directory, self.path, "open", errno.ENOENT, "another file has taken this name"
            )
        return fd

    def _closed(self) -> FileClosed:
        return FileClosed(self.directory, self.path, "open", 0, "the file is closed")

    def _error(self, operation: str, error: OSError) -> DiskError:
        return disk_error(self.directory, self.path, operation, error)

    def append(self, data: Buffer) -> int:
        position = self._size
        fd = self._fd
        if self._calls is not None and self._calls.is_for_me():
            self._append_in_time(self._calls, fd if fd >= 0 else self._open(), bytes(data))
            return position
        try:
            written = os.write(fd if fd >= 0 else self._open(), data)
            self._size = position + written
            if written < len(data):
                self._append_rest(memoryview(data)[written:])
        except OSError as error:
            raise self._error("append", error) from error
        return position

    def _append_in_time(self, calls: BoundedCalls, fd: int, data: bytes) -> None:
        try:
            written, error = calls.run(_write_all, self._abandon_append, fd, data)
        except CallHangs:
            raise disk_hung(self.directory, self.path, "append") from None
        self._size += written
        if error is not None:
            raise self._error("append", error) from error

    def _abandon_append(self) -> Undo:
        """Leave the descriptor to the thread that is still writing. Return the function that later removes
        the bytes that this thread writes.
        """
        with _references_lock:
            self._references += 1
            fd = self._fd

        def undo(result: tuple[int, OSError | None]) -> None:
            written, error = result
            try:
                if written:
                    os.ftruncate(fd, self._size)
            finally:
                self.unpin()
            raise_unless_passing(error)

        return undo

    def _append_rest(self, rest: memoryview) -> None:
        """Write the remaining bytes after a short write. The next write either succeeds, or raises the reason
        for the short write (mostly a full disk).
        """
        while rest:
            written = os.write(self._fd, rest)
            self._size += written
            rest = rest[written:]

    def pread(self, count: int, offset: int) -> bytes:
        if self._calls is not None and self._calls.looks_for_me():
            buffer = bytearray(count)
            return bytes(memoryview(buffer)[: self._read_in_time(self._calls, buffer, offset)])
        return self._pread(count, offset)

    def _pread(self, count: int, offset: int) -> bytes:
        fd = self._fd
        try:
            data = os.pread(fd if fd >= 0 else self._open(), count, offset)
            while len(data) < count and (rest := os.pread(self._fd, count - len(data), offset + len(data))):
                data += rest
        except OSError as error:
            raise self._error("read", error) from error
        return data

    def _read_in_time(self, calls: BoundedCalls, buffer: bytearray | memoryview, offset: int) -> int:
        """Read from memory, or let the disk's thread read. That thread reads into its own buffer, because an
        abandoned read must not change the caller's buffer later.
        """
        fd = self._fd
        try:
            count = os.preadv(fd if fd >= 0 else self._open(), (buffer,), offset, os.RWF_NOWAIT)
            if count == len(buffer) or offset + count >= self._size:
                return count
        except OSError as error:
            if not isinstance(error, BlockingIOError) and error.errno not in _PROBES_UNSUPPORTED:
                raise self._error("read", error) from error
        data = self._ask(calls, "read", lambda: self._pread(len(buffer), offset))
        buffer[: len(data)] = data
        return len(data)

    def _ask(self, calls: BoundedCalls, operation: str, work: Callable[[], T]) -> T:
        """Let the disk's thread make a call that changes nothing, and return its result. The descriptor stays
        open until the call has ended. Raises `DiskError`.
        """
        self.pin()

        def abandon() -> Undo:
            return end

        def end(outcome: Outcome[T]) -> None:
            self.unpin()
            raise_unless_passing(outcome[1])

        try:
            outcome: Outcome[T] = calls.run(outcome_of, abandon, work)
        except CallHangs as hang:
            if not hang.has_begun:
                self.unpin()
            raise disk_hung(self.directory, self.path, operation) from None
        self.unpin()
        return _result(*outcome)

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        if self._calls is not None and self._calls.looks_for_me():
            return self._read_in_time(self._calls, buffer, offset)
        fd = self._fd
        try:
            count = os.preadv(fd if fd >= 0 else self._open(), (buffer,), offset)
            if count < len(buffer):
                view = memoryview(buffer)
                while count < len(buffer) and (more := os.preadv(self._fd, (view[count:],), offset + count)):
                    count += more
        except OSError as error:
            raise self._error("read", error) from error
        return count

    def is_warm(self, offset: int, count: int) -> bool:
        """Return True if the first and the last page are in memory. Also return True if the file system does
        not report which pages are in memory (tmpfs, whose files are in memory).
        """
        last = offset + max(count, 1) - 1
        if not self._page_is_warm(offset):
            return False
        return last // _PAGE_BYTES == offset // _PAGE_BYTES or self._page_is_warm(last)

    def _page_is_warm(self, offset: int) -> bool:
        try:
            os.preadv(self.fileno(), _probe, offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _PROBES_UNSUPPORTED:
                return True
            raise self._error("read", error) from error
        return True

    def read_warm(self, count: int, offset: int) -> bytes | bytearray | None:
        buffer = bytearray(count)
        fd = self._fd
        try:
            got = os.preadv(fd if fd >= 0 else self._open(), (buffer,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _PROBES_UNSUPPORTED:
                raise self._error("read", error) from error
            got = self.pread_into(buffer, offset)
        return buffer if got == count else None

    def open_past_cache(self) -> RealUncachedFile:
        return open_uncached(self.directory, self.path, self._inode)

    def truncate(self, size: int) -> None:
        if not 0 <= size <= self._size:
            raise ValueError(f"{self.path} has {self._size} bytes and cannot be truncated to {size}")
        if self._calls is not None and self._calls.hangs and self._calls.is_for_me():
            # Once the device answers, the abandoned append is undone by a truncation to the present size. Until then
            # no other truncation may run.
            raise disk_hung(self.directory, self.path, "truncate")
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise self._error("truncate", error) from error
        self._size = size

    def sync(self) -> int:
        """Make the written bytes durable (`odradek.env.ports.File.sync`). A worker may call this while the loop appends
        to, closes or removes the file.
        """
        fd, is_pinned = self._descriptor_for_sync()
        try:
            if self._sync_failure is not None:
                raise DiskError(self.directory, self.path, "sync", errno.EIO, self._sync_failure)
            size = self._size
            try:
                os.fdatasync(fd)
            except OSError as error:
                self._sync_failure = f"an earlier sync failed: {error.strerror}"
                raise self._error("sync", error) from error
            return size
        finally:
            if is_pinned:
                self.unpin()
            else:
                close_descriptor(fd)

    def _descriptor_for_sync(self) -> tuple[int, bool]:
        """Return the pinned descriptor and False, or a new descriptor and True; the caller must close a new
        one. A new descriptor is opened if the file has none, because a recovery syncs thousands of files that
        are not read.
        """
        return (self._fd, True) if self._pin_open() else (self._open_anew(), False)

    def _pin_open(self) -> bool:
        """Pin the file if it has an open descriptor; return False if it has none. Raises `FileClosed`."""
        with _references_lock:
            if self._references <= 0:
                raise self._closed()
            if self._fd < 0:
                return False
            self._references += 1
            return True

    def pin(self) -> None:
        while not self._pin_open():
            # The loop may close the descriptor again before it is pinned, so try again.
            self._open()

    def unpin(self) -> None:
        with _references_lock:
            self._references -= 1
            if self._references < 0:
                raise ValueError(f"{self.path} was released more often than it was pinned")
            if self._references or self._fd < 0:
                return
            fd, self._fd = self._fd, -1
        _let_go(fd, is_bounded=self._calls is not None)

    def rest(self) -> bool:
        with _references_lock:
            if self._references > 1:
                return False
            fd, self._fd = self._fd, -1
        if fd >= 0:
            _let_go(fd, is_bounded=self._calls is not None)
        return True

    def close(self) -> None:
        self.unpin()


def _write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
    """Write data. Return the number of bytes written, and the error that prevented the rest, or None."""
    written = 0
    try:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])
    except OSError as error:
        return written, error
    return written, None


def disk_hung(directory: str, path: str, operation: str) -> DiskHung:
    """Make the error for a call to which the device has not answered in time."""
    return DiskHung(directory, path, operation, 0, "the disk does not answer")


def _result(result: T | None, error: Exception | None) -> T:
    """Return the result of a call, or raise its error."""
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error there is a result


def _close_late(outcome: Outcome[int]) -> None:
    """Close a descriptor that an abandoned call has opened."""
    fd, error = outcome
    if fd is not None:
        close_descriptor(fd)
    raise_unless_passing(error)


def raise_unless_passing(error: Exception | None) -> None:
    """Raise the error of an abandoned call. Ignore errors of a healthy device: disk full, no descriptors left, file
    removed.
    """
    met = disk_error("", "", "call", error) if isinstance(error, OSError) else error
    if error is not None and not isinstance(met, DiskRefused | FileMissing):
        raise error


def _let_go(fd: int, *, is_bounded: bool) -> None:
    """Close a descriptor, whatever the device answers.

    Closing the last descriptor of a removed file frees its disk space. For a file of 64 MiB, closing took 16 ms on
    ext4; on a hung disk it does not end. So a separate thread closes such a descriptor. A device that answers with an
    error frees nothing, and takes no time.
    """
    try:
        found = os.fstat(fd)
        takes_long = not found.st_nlink and (is_bounded or found.st_size >= _FREED_AT_ONCE_BYTES)
    except OSError:
        takes_long = False
    if not takes_long:
        close_descriptor(fd)
        return
    try:
        threading.Thread(
            target=close_descriptor, args=(fd,), name="closes a removed file", daemon=True
        ).start()
    except RuntimeError:  # if no thread can be started, this thread closes the file
        close_descriptor(fd)
