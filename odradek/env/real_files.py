"""Files and directories of this machine (SHELL).

Theory of operation
-------------------
A `RealFile` is a name in a directory, a size that it tracks itself, and a descriptor. The descriptor is opened at first
need, because a node holds tens of thousands of segments and reads few of them. Its path is put together at need for the
same reason. The inode is remembered from the first look. So an open after a rename never reads another file that has
taken the name.

References are counted under one lock for the whole process. A worker that syncs must keep the loop from closing the
descriptor, whose number could then be reused. Everything else is called by one thread at a time.

Reads and appends block. `odradek.env.ports` says which calls may be made on the loop. After `RealDir.bound_calls` its
appends and creations go through a thread (`bounded_calls`), for which the loop waits only so long.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import threading
from typing import IO

from odradek.env import ports
from odradek.env.bounded_calls import BoundedCalls, CallHangs, Undo
from odradek.env.ports import Buffer, DiskError, DiskHung, FileClosed, FileMissing
from odradek.env.real_uncached_files import RealUncachedFile, open_uncached

_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_FILE_MODE = 0o644
_PAGE_BYTES = 4096
_PROBES_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
"""The file system cannot say what it has in memory."""
_LOCK_NAME = ".lock"
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""`struct flock` of a lock on all of a file: type, whence, start, length, process."""
_references_lock = threading.Lock()
_FREED_AT_ONCE_BYTES = 1 << 20
_probe = (bytearray(1),)
"""The buffer that probes read into; its content is never used."""


def disk_error(directory: str, path: str, operation: str, error: OSError) -> DiskError:
    """The port's exception for a system's exception."""
    return ports.disk_error(directory, path, operation, error.errno or 0, error.strerror or str(error))


class RealFile:
    """`odradek.env.ports.File` over a descriptor."""

    __slots__ = ("_calls", "_fd", "_folder", "_inode", "_name", "_references", "_size", "_sync_failure")

    def __init__(
        self,
        folder: RealDir,
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
        """The descriptor, opened now if need be. Raises `DiskError`."""
        return self._fd if self._fd >= 0 else self._open()

    def _open(self) -> int:
        with _references_lock:
            if self._references <= 0:
                raise self._closed()
            if self._fd < 0:
                self._fd = self._open_anew()
            return self._fd

    def _open_anew(self) -> int:
        try:
            fd = os.open(self.path, _OPEN_FLAGS)
        except OSError as error:
            raise self._error("open", error) from error
        if os.fstat(fd).st_ino != self._inode:
            os.close(fd)
            raise FileMissing(self.directory, self.path, "open", errno.ENOENT, "another file has this name")
        return fd

    def _closed(self) -> FileClosed:
        return FileClosed(self.directory, self.path, "open", 0, "it is closed")

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
            raise _hung(self.directory, self.path, "append") from None
        self._size += written
        if error is not None:
            raise self._error("append", error) from error

    def _abandon_append(self) -> Undo:
        """Keep the descriptor for the thread that writes still; returns what cuts off what it will have written."""
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
            _raise_unless_refused(error)

        return undo

    def _append_rest(self, rest: memoryview) -> None:
        """Write the rest after a short write. The next write succeeds, or its error says why it cannot (a full disk,
        mostly)."""
        while rest:
            written = os.write(self._fd, rest)
            self._size += written
            rest = rest[written:]

    def pread(self, count: int, offset: int) -> bytes:
        fd = self._fd
        try:
            data = os.pread(fd if fd >= 0 else self._open(), count, offset)
            while len(data) < count and (rest := os.pread(self._fd, count - len(data), offset + len(data))):
                data += rest
        except OSError as error:
            raise self._error("read", error) from error
        return data

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
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
        """Probe the first and the last page. True where the file system cannot say (tmpfs is memory anyhow)."""
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
            raise ValueError(f"cannot truncate {self.path} of {self._size} bytes to {size}")
        if self._calls is not None and self._calls.hangs and self._calls.is_for_me():
            # What an abandoned append has written is cut off at the size that the file has now.
            raise _hung(self.directory, self.path, "truncate")
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise self._error("truncate", error) from error
        self._size = size

    def sync(self) -> int:
        """See the port. Safe in a worker while the loop appends, closes or removes the file."""
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
                os.close(fd)

    def _descriptor_for_sync(self) -> tuple[int, bool]:
        """The descriptor, pinned; or one to be closed again: a recovery syncs thousands of files that nobody reads."""
        with _references_lock:
            if self._references <= 0:
                raise self._closed()
            if self._fd < 0:
                return self._open_anew(), False
            self._references += 1
            return self._fd, True

    def pin(self) -> None:
        with _references_lock:
            if self._references <= 0:
                raise self._closed()
            if self._fd < 0:
                self._fd = self._open_anew()
            self._references += 1

    def unpin(self) -> None:
        with _references_lock:
            self._references -= 1
            if self._references < 0:
                raise ValueError(f"{self.path} has been released more often than pinned")
            if self._references or self._fd < 0:
                return
            fd, self._fd = self._fd, -1
        _let_go(fd)

    def rest(self) -> bool:
        with _references_lock:
            if self._references > 1:
                return False
            fd, self._fd = self._fd, -1
        if fd >= 0:
            _let_go(fd)
        return True

    def close(self) -> None:
        self.unpin()


def _write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
    """The bytes written, and the error that has kept the rest out."""
    written = 0
    try:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])
    except OSError as error:
        return written, error
    return written, None


def _create(path: str) -> tuple[int, OSError | None]:
    """A descriptor, or -1 and the error."""
    try:
        return os.open(path, _OPEN_FLAGS | os.O_CREAT, _FILE_MODE), None
    except OSError as error:
        return -1, error


def _abandon_create() -> Undo:
    return _close_created


def _close_created(result: tuple[int, OSError | None]) -> None:
    """The file stays, empty: who creates it again finds it so."""
    fd, error = result
    if fd >= 0:
        os.close(fd)
    _raise_unless_refused(error)


def _hung(directory: str, path: str, operation: str) -> DiskHung:
    return DiskHung(directory, path, operation, 0, "the device does not answer")


def _raise_unless_refused(error: OSError | None) -> None:
    """Raise what an abandoned call has met, if that is final."""
    if error is not None and not isinstance(disk_error("", "", "append", error), ports.DiskRefused):
        raise error


def _let_go(fd: int) -> None:
    """Close a descriptor.

    The last one of a removed file frees the file's room. For 64 MiB that took 16 ms on ext4, so a thread does it.
    """
    found = os.fstat(fd)
    if found.st_nlink or found.st_size < _FREED_AT_ONCE_BYTES:
        os.close(fd)
        return
    try:
        threading.Thread(target=os.close, args=(fd,), name="closes a removed file", daemon=True).start()
    except RuntimeError:  # no thread is to be had
        os.close(fd)


class _Disk:
    """What all directories of one log directory share."""

    __slots__ = ("calls", "lock", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        """The path of the log directory, which errors name."""
        self.calls: BoundedCalls | None = None
        self.lock: IO[bytes] | None = None


class RealDir:
    """`odradek.env.ports.Dir` over a path. Holds no descriptor, but the lock's.

    Its path is put together at need: a node has a directory for each of its thousands of partitions.
    """

    __slots__ = ("_disk", "_name")

    def __init__(self, disk: _Disk, name: str = "") -> None:
        """`name` is the path below the log directory; it is empty for that itself."""
        self._disk = disk
        self._name = name

    @property
    def path(self) -> str:
        return os.path.join(self._disk.path, self._name) if self._name else self._disk.path

    @property
    def root(self) -> str:
        """The path of the log directory."""
        return self._disk.path

    def _error(self, path: str, operation: str, error: OSError) -> DiskError:
        return disk_error(self._disk.path, path, operation, error)

    def open(self, name: str, *, create: bool = False) -> RealFile:
        path = os.path.join(self.path, name)
        fd = -1
        try:
            if create:
                fd = self._create(path)
                found = os.fstat(fd)
            else:
                found = os.stat(path)
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise self._error(path, "open", error) from error
        return RealFile(self, name, found.st_size, found.st_ino, fd, self._disk.calls)

    def _create(self, path: str) -> int:
        """Raises `OSError`, `DiskHung`."""
        calls = self._disk.calls
        if calls is None or not calls.is_for_me():
            return os.open(path, _OPEN_FLAGS | os.O_CREAT, _FILE_MODE)
        try:
            fd, error = calls.run(_create, _abandon_create, path)
        except CallHangs:
            raise _hung(self.root, path, "open") from None
        if error is not None:
            raise error
        return fd

    def bound_calls(self, wait_seconds: float) -> None:
        self._disk.calls = BoundedCalls(wait_seconds)

    def settle(self) -> None:
        if self._disk.calls is not None:
            try:
                self._disk.calls.settle()
            except OSError as error:
                raise self._error(self.path, "append", error) from error

    def subdir(self, name: str, *, create: bool = False) -> RealDir:
        path = os.path.join(self.path, name)
        try:
            if create:
                os.makedirs(path, exist_ok=True)
            elif not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            raise self._error(path, "open", error) from error
        return RealDir(self._disk, os.path.join(self._name, name))

    def list(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except OSError as error:
            raise self._error(self.path, "list", error) from error

    def exists(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.path, name))

    def is_dir(self, name: str) -> bool:
        return os.path.isdir(os.path.join(self.path, name))

    def file_size(self, name: str) -> int:
        return self._stat(name).st_size

    def modified_ms(self, name: str) -> int:
        return self._stat(name).st_mtime_ns // 1_000_000

    def _stat(self, name: str) -> os.stat_result:
        path = os.path.join(self.path, name)
        try:
            return os.stat(path)
        except OSError as error:
            raise self._error(path, "stat", error) from error

    def read_bytes(self, name: str, size_max: int = 64 << 20) -> bytes:
        path = os.path.join(self.path, name)
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > size_max:
                    raise DiskError(
                        self.root, path, "read", errno.EFBIG, f"{size} bytes, more than {size_max}"
                    )
                return file.readall()
        except OSError as error:
            raise self._error(path, "read", error) from error

    def write_atomic(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        temporary = path + ".tmp"
        operation = "write"
        try:
            # First, so that a want of descriptors leaves the old file.
            directory = _open_directory(os.path.dirname(path))
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(fd, rest) :]
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.rename(temporary, path)
                operation = "sync"
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._error(path, operation, error) from error

    def rename(self, old: str, new: str) -> None:
        if os.path.dirname(old) != os.path.dirname(new):
            raise ValueError(f"cannot rename {old} to {new}, in another directory")
        path = os.path.join(self.path, old)
        try:
            os.rename(path, os.path.join(self.path, new))
        except OSError as error:
            raise self._error(path, "rename", error) from error

    def remove(self, name: str) -> None:
        path = os.path.join(self.path, name)
        try:
            os.unlink(path)
        except OSError as error:
            raise self._error(path, "remove", error) from error

    def remove_tree(self, name: str) -> None:
        path = os.path.join(self.path, name)
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise self._error(path, "remove", error) from error

    def sync(self) -> None:
        try:
            fd = _open_directory(self.path)
        except OSError as error:
            raise self._error(self.path, "open", error) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise self._error(self.path, "sync", error) from error
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        found = self._statvfs()
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        found = self._statvfs()
        return found.f_blocks * found.f_frsize

    def _statvfs(self) -> os.statvfs_result:
        try:
            return os.statvfs(self.path)
        except OSError as error:
            raise self._error(self.path, "stat", error) from error

    def lock(self) -> None:
        """Lock Kafka's `.lock` file, so that Kafka and Odradek keep out of each other's way too.

        Java's locks are those of POSIX, which `flock` does not see. A lock of the open file
        conflicts with them. It stays when the process closes the file elsewhere, where theirs would go (F_OFD_SETLK in
        fcntl(2)).
        """
        if self._disk.lock is not None:
            return
        path = os.path.join(self.path, _LOCK_NAME)
        try:
            file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until the process ends
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            except OSError:
                file.close()
                raise
        except BlockingIOError as error:
            raise DiskError(self.root, path, "lock", errno.EWOULDBLOCK, "another process holds it") from error
        except OSError as error:
            raise self._error(path, "lock", error) from error
        self._disk.lock = file

    def unlock(self) -> None:
        """Give the lock back, and end the thread; for a process that outlives its node (tests, embedded nodes)."""
        if self._disk.calls is not None:
            self._disk.calls.close()
        if self._disk.lock is not None:
            self._disk.lock.close()
            self._disk.lock = None


def _open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def is_blank_disk(path: str) -> bool:
    """See `odradek.env.ports.Env.is_blank_disk`."""
    path = os.path.abspath(path)
    mount = path
    while not os.path.ismount(mount):
        mount = os.path.dirname(mount)
    if mount == os.path.sep:
        return False
    try:
        for folder, folders, files in os.walk(mount, onerror=_raise):
            if folder == mount and "lost+found" in folders:
                folders.remove("lost+found")
            above = [each for each in folders if not f"{path}/".startswith(f"{os.path.join(folder, each)}/")]
            if above or [each for each in files if each != _LOCK_NAME]:
                return False
    except OSError as error:
        raise disk_error(path, path, "list", error) from error
    return True


def _raise(error: OSError) -> None:
    raise error


def open_dir(path: str, *, create: bool = False) -> RealDir:
    """A log directory. Raises `FileMissing` unless it exists or `create`; `DiskError`."""
    path = os.path.abspath(path)
    try:
        if create:
            os.makedirs(path, exist_ok=True)
        elif not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise disk_error(path, path, "open", error) from error
    return RealDir(_Disk(path))
