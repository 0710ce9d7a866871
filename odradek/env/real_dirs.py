"""Directories of this machine: implements `odradek.env.ports.Dir` for a path. SHELL.

`odradek.env.ports` says which calls may be made on the loop. After `RealDir.bound_calls`, a separate thread makes the
calls that read, open, create and append. The loop waits for each call only for a limited time (`bounded_calls`).
`RealDir.in_time` limits all other calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TypeVar

from odradek.env.bounded_calls import BoundedCalls, CallHangs, Outcome, Undo, outcome_of
from odradek.env.ports import DiskError
from odradek.env.real_descriptors import close_descriptor, disk_error, stat_opened
from odradek.env.real_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    OPEN_FLAGS,
    RealFile,
    disk_hung,
    raise_unless_passing,
)

T = TypeVar("T")

_LOCK_NAME = ".lock"
_OPEN_FILES = "/proc/self/fd"
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""`struct flock` for a lock on a whole file: type, whence, start, length, process."""


class _Disk:
    """The state that all directories below one log directory share."""

    __slots__ = ("calls", "lock", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        """The path of the log directory, for errors."""
        self.calls: BoundedCalls | None = None
        self.lock: IO[bytes] | None = None


class RealDir:
    """Implements `odradek.env.ports.Dir` for a path. It keeps no descriptor open, except that of the lock.

    The path is built each time that it is needed. This saves memory, because a node has a directory for each
    of its thousands of partitions.
    """

    __slots__ = ("_disk", "_name")

    def __init__(self, disk: _Disk, name: str = "") -> None:
        """`name` is the path below the log directory; it is empty for the log directory itself."""
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
                found = stat_opened(fd)
            else:
                found = self._ask(path, "open", os.stat, path)
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise self._error(path, "open", error) from error
        return RealFile(self, name, found.st_size, found.st_ino, fd, self._disk.calls)

    def _create(self, path: str) -> int:
        """Create a file, and return its descriptor. Raises `OSError`, `DiskHung`."""
        calls = self._disk.calls
        if calls is None or not calls.is_for_me():
            return os.open(path, OPEN_FLAGS | os.O_CREAT, FILE_MODE)
        try:
            fd, error = calls.run(_create, _abandon_create, path)
        except CallHangs:
            raise disk_hung(self.root, path, "open") from None
        if error is not None:
            raise error
        return fd

    def _ask(self, path: str, operation: str, look: Callable[..., T], *args: object) -> T:
        """Make a call that changes nothing on the disk, and return its result. The loop waits for it only for a
        limited time. Raises `DiskError`.
        """
        calls = self._disk.calls
        try:
            if calls is None or not calls.looks_for_me():
                return look(*args)
            result, error = calls.run(outcome_of, _abandon_look, lambda: look(*args))
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # without an error there is a result
        except CallHangs:
            raise disk_hung(self.root, path, operation) from None
        except OSError as error:
            raise self._error(path, operation, error) from error

    def bound_calls(self, wait_seconds: float, *, looks: bool = True) -> None:
        self._disk.calls = BoundedCalls(wait_seconds, bounds_looks=looks)

    def in_time(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        calls = self._disk.calls
        if calls is None or not calls.is_for_me():
            return work()

        def abandon() -> Undo:
            return end

        def end(outcome: Outcome[T]) -> None:
            result, error = outcome
            if error is None and undo is not None:
                undo(result)  # type: ignore[arg-type]  # without an error there is a result
            raise_unless_passing(error)

        try:
            result, error = calls.run(outcome_of, abandon, work)
        except CallHangs as hang:
            failure = disk_hung(self.root, self.path, "change")
            failure.goes_on = hang.has_begun and undo is None
            raise failure from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error there is a result

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
                os.makedirs(path, mode=DIRECTORY_MODE, exist_ok=True)
            elif not stat.S_ISDIR(self._ask(path, "open", os.stat, path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            raise self._error(path, "open", error) from error
        return RealDir(self._disk, os.path.join(self._name, name))

    def list_directories(self) -> list[str]:
        return sorted(self._ask(self.path, "list", _directories_of, self.path))

    def list(self) -> list[str]:
        return sorted(self._ask(self.path, "list", os.listdir, self.path))

    def exists(self, name: str) -> bool:
        path = os.path.join(self.path, name)
        return self._ask(path, "stat", _stat_if_there, os.lstat, path) is not None

    def is_dir(self, name: str) -> bool:
        path = os.path.join(self.path, name)
        found = self._ask(path, "stat", _stat_if_there, os.stat, path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def file_size(self, name: str) -> int:
        return self._stat(name).st_size

    def modified_ms(self, name: str) -> int:
        return self._stat(name).st_mtime_ns // 1_000_000

    def _stat(self, name: str) -> os.stat_result:
        path = os.path.join(self.path, name)
        return self._ask(path, "stat", os.stat, path)

    def read_bytes(self, name: str, size_max: int = 64 << 20) -> bytes:
        path = os.path.join(self.path, name)
        return self._ask(path, "read", self._read_all, path, size_max)

    def _read_all(self, path: str, size_max: int) -> bytes:
        # A node reads tens of thousands of small files at its start. A Python file object would make twice as
        # many system calls for each file.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size > size_max:
                raise DiskError(
                    self.root,
                    path,
                    "read",
                    errno.EFBIG,
                    f"the file has {size} bytes, but at most {size_max} are allowed",
                )
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size - len(data))):
                data += more
            return data
        finally:
            close_descriptor(fd)

    def write_atomic(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        temporary = path + ".tmp"
        operation = "write"
        try:
            # Open the directory before the new file replaces the old one. If there are no descriptors left,
            # the old file must stay in place.
            directory = _open_directory(os.path.dirname(path))
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(fd, rest) :]
                    os.fsync(fd)
                finally:
                    close_descriptor(fd)
                os.rename(temporary, path)
                operation = "sync"
                os.fsync(directory)
            finally:
                close_descriptor(directory)
        except OSError as error:
            raise self._error(path, operation, error) from error

    def rename(self, old: str, new: str) -> None:
        if os.path.dirname(old) != os.path.dirname(new):
            raise ValueError(f"{old} cannot be renamed to {new}, which is in another directory")
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
            close_descriptor(fd)

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
        """Lock Kafka's `.lock` file, so that Kafka and Odradek never use the same directory.

        Java uses POSIX locks. Locks by `flock` do not conflict with them, but locks of an open file description do
        (F_OFD_SETLK in fcntl(2)). Unlike a POSIX lock, such a lock also stays when the process opens the file a second
        time and closes it.
        """
        if self._disk.lock is not None:
            return
        path = os.path.join(self.path, _LOCK_NAME)
        try:
            file = open(path, "ab", buffering=0, opener=_open_own)  # noqa: SIM115 - held until the process ends
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            except OSError:
                file.close()
                raise
        except BlockingIOError as error:
            raise DiskError(
                self.root, path, "lock", errno.EWOULDBLOCK, "another process has locked the directory"
            ) from error
        except OSError as error:
            raise self._error(path, "lock", error) from error
        self._disk.lock = file

    def unlock(self) -> None:
        """Release the lock, and end the thread that makes the limited calls. Only a process that goes on
        after its node has stopped needs this (tests, embedded nodes).
        """
        if self._disk.calls is not None:
            self._disk.calls.close()
        if self._disk.lock is not None:
            with suppress(OSError):  # the kernel closes it anyway, and a dead device cannot release the lock
                self._disk.lock.close()
            self._disk.lock = None

    def is_open(self) -> bool:
        root = os.path.realpath(self.root)
        within = os.path.join(root, "")
        for name in os.listdir(_OPEN_FILES):
            try:
                path = os.readlink(os.path.join(_OPEN_FILES, name))
            except OSError:
                # The descriptor was closed meanwhile, or it belonged to the listing itself.
                continue
            if path == root or path.startswith(within):
                return True
        return False


def _create(path: str) -> tuple[int, OSError | None]:
    """Create a file. Return its descriptor and None, or -1 and the error."""
    try:
        return os.open(path, OPEN_FLAGS | os.O_CREAT, FILE_MODE), None
    except OSError as error:
        return -1, error


def _abandon_create() -> Undo:
    return _close_created


def _close_created(result: tuple[int, OSError | None]) -> None:
    """Close a file that an abandoned call has created. The empty file stays on the disk, and the next attempt
    to create the file uses it.
    """
    fd, error = result
    if fd >= 0:
        close_descriptor(fd)
    raise_unless_passing(error)


def _abandon_look() -> Undo:
    return _forget_look


def _forget_look(outcome: Outcome[object]) -> None:
    raise_unless_passing(outcome[1])


def _stat_if_there(look: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    """Return the `stat` of a path; None if there is no such file. Raises `OSError` if the device answers with
    an error.
    """
    try:
        return look(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _directories_of(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def is_blank_disk(path: str) -> bool:
    """Return True for a blank disk; `odradek.env.ports.Env.is_blank_disk` defines the term."""
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
    """Open a log directory. Raises `FileMissing` if it does not exist and `create` is false. Also raises `DiskError`."""
    path = os.path.abspath(path)
    try:
        if create:
            os.makedirs(path, mode=DIRECTORY_MODE, exist_ok=True)
        elif not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise disk_error(path, path, "open", error) from error
    return RealDir(_Disk(path))
