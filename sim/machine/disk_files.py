"""The ports `File` and `Dir` on a simulated disk: open, read, write, rename, remove, list, sync, with the errors of
POSIX.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from odradek.env.ports import Buffer, Dir, DiskError, DiskHung, DiskRefused, File, FileClosed, FileMissing
from sim.machine.platter import Folder, Inode, path_parts

if TYPE_CHECKING:
    from sim.machine.disk import SimDisk

T = TypeVar("T")

LOCK_NAME = ".lock"


class PowerCut(BaseException):
    """Raised when the power fails. The disk does not work again until `SimDisk.crash` is called."""


class SimFile:
    """`odradek.env.ports.File` on a `SimDisk`. With `rests` the file takes a file descriptor only at its first use."""

    __slots__ = (
        "_bounds_looks",
        "_disk",
        "_generation",
        "_inode",
        "_references",
        "_rests",
        "_sync_failed",
        "directory",
        "path",
    )

    def __init__(
        self,
        disk: SimDisk,
        inode: Inode,
        directory: str,
        path: str,
        *,
        rests: bool,
        bounds_looks: bool = True,
    ) -> None:
        self._disk = disk
        self._inode = inode
        self._generation = disk.generation
        self._references = 1
        self._rests = rests
        self._bounds_looks = bounds_looks
        self._sync_failed = False
        self.directory = directory
        self.path = path
        inode.handles += 1

    @property
    def size(self) -> int:
        return len(self._inode.data)

    @property
    def content(self) -> bytearray:
        """The file's own buffer, not a copy. Its bytes change, so callers must read them at once."""
        return self._inode.data

    def _check_open(self) -> None:
        if self._references <= 0:
            raise FileClosed(self.directory, self.path, "open", 0, "it is closed")

    def _take_descriptor(self) -> None:
        self._check_open()
        if self._rests:
            if self._bounds_looks:
                self._disk.check_answers(self.directory, self.path, "open")
            if not self._disk.has_descriptors:
                raise self._disk.error(self.directory, self.path, "open", errno.EMFILE)
            self._rests = False

    def _operate(self, operation: str, position: int = 0, count: int = 0) -> None:
        self._take_descriptor()
        self._disk.operate(self._generation, self.directory, self.path, operation, position, count)

    def append(self, data: Buffer) -> int:
        position = len(self._inode.data)
        self._disk.check_alive(self._generation, self.directory, self.path, "append")
        self._take_descriptor()
        self._disk.check_answers(self.directory, self.path, "append")
        try:
            self._operate("append", position, len(data))
        except (DiskError, PowerCut):
            self._disk.write(self._inode, memoryview(data)[: self._disk.random.randint(0, len(data))])
            raise
        if self._disk.write(self._inode, data) < len(data):
            raise self._disk.error(self.directory, self.path, "append", errno.ENOSPC)
        return position

    def pread(self, count: int, offset: int) -> bytes:
        self._operate("read", offset, count)
        return bytes(memoryview(self._inode.data)[offset : offset + count])

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        self._operate("read", offset, len(buffer))
        count = max(0, min(len(buffer), len(self._inode.data) - offset))
        with memoryview(buffer) as target, memoryview(self._inode.data) as source:
            target[:count] = source[offset : offset + count]
        return count

    def is_warm(self, offset: int, count: int) -> bool:
        self._check_open()
        self._disk.check_device(self.directory, self.path, "read")
        return not self._disk.cold_probability or self._disk.random.random() >= self._disk.cold_probability

    def read_warm(self, count: int, offset: int) -> bytes | bytearray | None:
        if not self.is_warm(offset, count):
            return None
        data = self.pread(count, offset)
        return data if len(data) == count else None

    def open_past_cache(self) -> SimUncachedFile:
        self.pin()
        return SimUncachedFile(self)

    def truncate(self, size: int) -> None:
        if not 0 <= size <= len(self._inode.data):
            raise ValueError(f"cannot truncate {self.path} of {len(self._inode.data)} bytes to {size}")
        self._disk.check_bounded(self.directory, self.path, "truncate")
        self._operate("truncate", size)
        self._disk.used_bytes -= len(self._inode.data) - size
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.now_ms()

    def sync(self) -> int:
        size = len(self._inode.data)
        if self._sync_failed:
            raise DiskError(self.directory, self.path, "sync", errno.EIO, "an earlier sync failed")
        self._disk.check_bounded(self.directory, self.path, "sync")
        self._take_descriptor()
        try:
            self._operate("sync", size)
        except DiskError:
            self._sync_failed = True
            self._inode.fail_sync()
            raise
        self._inode.sync()
        return size

    def pin(self) -> None:
        self._take_descriptor()
        self._references += 1

    def unpin(self) -> None:
        self._references -= 1
        if self._references < 0:
            raise ValueError(f"{self.path} was released more often than it was pinned")
        if self._references == 0 and self._generation == self._disk.generation:
            self._inode.handles -= 1
            self._disk.release(self._inode)

    def rest(self) -> bool:
        self._check_open()
        self._rests = self._references == 1
        return self._rests

    def close(self) -> None:
        self.unpin()


class SimUncachedFile:
    """`odradek.env.ports.UncachedFile` on a `SimDisk`. All reads count as disk reads."""

    __slots__ = ("_file",)

    def __init__(self, file: SimFile) -> None:
        self._file = file

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        return self._file.pread_into(buffer, offset)

    def close(self) -> None:
        self._file.unpin()


class SimDir:
    """`odradek.env.ports.Dir` on a `SimDisk`. The object stands for a path, as on a real machine. So the path may
    later lead to another directory.
    """

    __slots__ = ("_bounds_looks", "_disk", "_generation", "_root", "path")

    def __init__(self, disk: SimDisk, path: str, root: str, *, bounds_looks: bool = True) -> None:
        self._disk = disk
        self._generation = disk.generation
        self._root = root
        self._bounds_looks = bounds_looks
        self.path = path

    # --- lookups

    def _operate(self, operation: str, path: str, count: int = 0) -> None:
        self._disk.operate(self._generation, self._root, path, operation, 0, count)

    def _error(self, path: str, operation: str, number: int) -> DiskError:
        return self._disk.error(self._root, path, operation, number)

    def _parent(self, name: str, operation: str) -> tuple[Folder, str]:
        """Return the directory that contains `name`, and the last part of `name`. Raises `FileMissing`."""
        *above, last = path_parts(name)
        try:
            return self._disk.folder_at("/".join([self.path, *above])), last
        except KeyError:
            raise self._error(f"{self.path}/{name}", operation, errno.ENOENT) from None

    def _folder(self, operation: str) -> Folder:
        try:
            return self._disk.folder_at(self.path)
        except KeyError:
            raise self._error(self.path, operation, errno.ENOENT) from None

    def _find(self, name: str) -> Inode | Folder | None:
        *above, last = path_parts(name)
        try:
            return self._disk.folder_at("/".join([self.path, *above])).entries.get(last)
        except KeyError:
            return None

    def _file(self, name: str, operation: str) -> Inode:
        path = f"{self.path}/{name}"
        self._look(operation, path)
        node = self._find(name)
        if node is None:
            raise self._error(path, operation, errno.ENOENT)
        if isinstance(node, Folder):
            raise self._error(path, operation, errno.EISDIR)
        return node

    def _look(self, operation: str, path: str) -> None:
        """Count a read of the directory. On the event loop it is bounded in time."""
        if self._bounds_looks:
            self._disk.check_answers(self._root, path, operation)
        self._operate(operation, path)

    def _change(self, operation: str, path: str) -> None:
        """Count a change of the directory. On the event loop only bounded calls (`in_time`) may make changes."""
        self._disk.check_bounded(self._root, path, operation)
        self._operate(operation, path)

    # --- the port

    def open(self, name: str, *, create: bool = False) -> SimFile:
        if not create or self._find(name) is not None:
            return self._opened(self._file(name, "open"), name, rests=True)
        self._disk.check_answers(self._root, f"{self.path}/{name}", "open")
        return self._create(name)

    def _create(self, name: str) -> SimFile:
        self._operate("create", f"{self.path}/{name}")
        folder, last = self._parent(name, "open")
        inode = Inode(modified_ms=self._disk.now_ms())
        folder.change(last, inode)
        return self._opened(inode, name, rests=False)

    def _opened(self, inode: Inode, name: str, *, rests: bool) -> SimFile:
        path = f"{self.path}/{name}"
        bounds_looks = self._bounds_looks
        return SimFile(self._disk, inode, self._root, path, rests=rests, bounds_looks=bounds_looks)

    def subdir(self, name: str, *, create: bool = False) -> SimDir:
        path = f"{self.path}/{name}"
        account = self._change if create else self._look
        account("open", path)
        folder = self._folder("open")
        for part in path_parts(name):
            node = folder.entries.get(part)
            if node is None and create:
                node = Folder(modified_ms=self._disk.now_ms())
                folder.change(part, node)
            if node is None:
                raise self._error(path, "open", errno.ENOENT)
            if isinstance(node, Inode):
                raise self._error(path, "open", errno.ENOTDIR)
            folder = node
        return SimDir(self._disk, path, self._root, bounds_looks=self._bounds_looks)

    def list_directories(self) -> list[str]:
        self._look("list", self.path)
        entries = self._folder("list").entries
        return sorted(name for name, node in entries.items() if isinstance(node, Folder))

    def list(self) -> list[str]:
        self._look("list", self.path)
        return sorted(self._folder("list").entries)

    def exists(self, name: str) -> bool:
        self._look("stat", f"{self.path}/{name}")
        return self._find(name) is not None

    def is_dir(self, name: str) -> bool:
        self._look("stat", f"{self.path}/{name}")
        return isinstance(self._find(name), Folder)

    def file_size(self, name: str) -> int:
        return len(self._file(name, "stat").data)

    def modified_ms(self, name: str) -> int:
        self._look("stat", f"{self.path}/{name}")
        node = self._find(name)
        if node is None:
            raise self._error(f"{self.path}/{name}", "stat", errno.ENOENT)
        return node.modified_ms

    def read_bytes(self, name: str, size_max: int = 64 << 20) -> bytes:
        data = self._file(name, "read").data
        if len(data) > size_max:
            raise self._error(f"{self.path}/{name}", "read", errno.EFBIG)
        return bytes(data)

    def write_atomic(self, name: str, data: bytes) -> None:
        self._disk.check_bounded(self._root, f"{self.path}/{name}", "write")
        temporary = f"{name}.tmp"
        if self._find(temporary) is not None:
            self.remove(temporary)
        file = self.open(temporary, create=True)
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, name)
        folder, _ = self._parent(name, "sync")
        self._operate("sync", _directory(f"{self.path}/{name}"))
        folder.sync()

    def rename(self, old: str, new: str) -> None:
        if _directory(old) != _directory(new):
            raise ValueError(f"cannot rename {old} to {new}, in another directory")
        path = f"{self.path}/{old}"
        self._change("rename", path)
        folder, old_name = self._parent(old, "rename")
        new_name = path_parts(new)[-1]
        node, target = folder.entries.get(old_name), folder.entries.get(new_name)
        if node is None:
            raise self._error(path, "rename", errno.ENOENT)
        if node is target:
            return
        if target is not None:
            if isinstance(node, Folder) and isinstance(target, Inode):
                raise self._error(path, "rename", errno.ENOTDIR)
            if isinstance(node, Inode) and isinstance(target, Folder):
                raise self._error(path, "rename", errno.EISDIR)
            if isinstance(target, Folder) and target.entries:
                raise self._error(path, "rename", errno.ENOTEMPTY)
            self._disk.unlink(target)
        folder.change(new_name, node, old_name)

    def remove(self, name: str) -> None:
        self._disk.check_bounded(self._root, f"{self.path}/{name}", "remove")
        inode = self._file(name, "remove")
        folder, last = self._parent(name, "remove")
        folder.change(last, None)
        self._disk.unlink(inode)

    def remove_tree(self, name: str) -> None:
        path = f"{self.path}/{name}"
        self._change("remove", path)
        node = self._find(name)
        if node is None:
            raise self._error(path, "remove", errno.ENOENT)
        if isinstance(node, Inode):
            raise self._error(path, "remove", errno.ENOTDIR)
        folder, last = self._parent(name, "remove")
        self._disk.empty(node)
        folder.change(last, None)

    def sync(self) -> None:
        self._change("sync", self.path)
        self._folder("sync").sync()

    def free_bytes(self) -> int:
        self._operate("stat", self.path)
        return self._disk.free_bytes

    def total_bytes(self) -> int:
        self._operate("stat", self.path)
        return self._disk.total_bytes

    def bound_calls(self, wait_seconds: float, *, looks: bool = True) -> None:
        """Bound the time of each call. A call to a silent disk fails at once, because virtual time stands still while
        the loop waits.
        """
        self._bounds_looks = looks
        if looks:
            self._disk.unsettled.pop(self._root, None)
        self._disk.bounded_roots[self._root] = None

    def in_time(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run a change. On a silent device the call fails with `DiskHung`. In that case the change happens either at
        once or when `settle` is called; a random draw decides.
        """
        disk = self._disk
        if not disk.keeps_waiting(self._root):
            return work()
        failure = DiskHung(self._root, self.path, "change", 0, "the device does not answer")
        if self._root not in disk.unsettled:
            failure.goes_on = undo is None
            is_done = disk.random.random() < 0.5
            early = disk.off_loop(lambda: _outcome(work)) if is_done else None

            def end() -> None:
                result, error = early or _outcome(work)
                if error is None and undo is not None:
                    undo(result)  # type: ignore[arg-type]  # Without an error there is a result.
                if error is not None and not isinstance(error, DiskRefused | FileMissing):
                    raise error

            disk.unsettled[self._root] = end
        raise failure

    def settle(self) -> None:
        """Finish the change for which the loop did not wait. A worker calls this when the device answers again."""
        end = self._disk.unsettled.get(self._root)
        if end is None:
            return
        try:
            self._disk.off_loop(end)
        finally:
            self._disk.unsettled.pop(self._root, None)

    def lock(self) -> None:
        path = f"{self.path}/{LOCK_NAME}"
        folder = self._folder("lock")
        if LOCK_NAME not in folder.entries:
            self._create(LOCK_NAME).close()
        self._operate("lock", path)
        if folder.locked_by not in (None, self):
            raise self._error(path, "lock", errno.EWOULDBLOCK)
        folder.locked_by = self

    def unlock(self) -> None:
        folder = self._folder("lock")
        if folder.locked_by is self:
            folder.locked_by = None

    def is_open(self) -> bool:
        folder = self._disk.folder_at(self.path)
        return folder.locked_by is not None


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Run `work`, and return (its result, None) or (None, its exception)."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - raised later to the caller of `settle`
        return None, error


if TYPE_CHECKING:

    def _conforms(file: SimFile, directory: SimDir) -> tuple[File, Dir]:
        return file, directory
