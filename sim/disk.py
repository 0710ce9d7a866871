"""A disk that forgets: directories and files in memory, with what a crash would leave of them.

Theory of operation
-------------------
The disk keeps every file and directory twice: as processes see it (the page cache) and as the platter has it.

* A file's bytes become durable by `File.sync`, all of them. Durable content is `data[:durable_size]` plus
  `durable_rest`, what a truncation has cut from the cache but not yet from the platter.
* A directory's entries (creations, renames, removals) become durable by `Dir.sync` of that directory, or by
  `write_atomic`. Syncing a file does not make its name durable. Until then they wait in order in `pending`.
* After a failed sync the kernel takes the dirty pages for clean: they stay readable, no later sync writes them,
  and a power loss turns them into zeros. That is why the port says that a failed sync is final.

`crash(keep)` ends every handle and decides what is left:

* `"all"`: the process died, the machine lives. Nothing is lost, nothing has become durable either.
* `"synced"`: power loss, exactly the durable state is left.
* `"random"`: power loss, and by chance more than the durable state: per directory a prefix of its pending
  changes, per file a longer size, in which each unsynced sector of 512 bytes has arrived or reads as zeros.

Faults are injected by operation number, so that a test can run once, read `operation_count`, and run again with
each operation failing in turn: `fail_at(n, errno)` raises `DiskError`, `crash_at(n)` cuts the power in the middle
of the operation (`PowerCut`, which no handler of disk errors catches). The fault model of the data logs is in
ARCHITECTURE.md; bit rot is made by `corrupt`.

No trio, no async and no clock here: property tests of the log use this module by itself.
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from odradek.env.ports import Buffer, Dir, DiskError, DiskFull, File, FileMissing

SECTOR_BYTES = 512
UNLIMITED_BYTES = 1 << 50
LOCK_NAME = ".lock"

Keep: TypeAlias = Literal["all", "synced", "random"]

_REASONS = {
    errno.EIO: "Input/output error",
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.ENOENT: "No such file or directory",
    errno.EISDIR: "Is a directory",
    errno.ENOTDIR: "Not a directory",
    errno.ENOTEMPTY: "Directory not empty",
    errno.EFBIG: "File too large",
    errno.EWOULDBLOCK: "another process holds it",
}


class PowerCut(BaseException):
    """The power fails now. Nothing on this disk works until `SimDisk.crash`."""


@attrs.define(eq=False)
class Inode:
    """A file's bytes, in the cache and on the platter."""

    data: bytearray = attrs.Factory(bytearray)
    durable_size: int = 0
    """`data[:durable_size]` is on the platter."""
    durable_rest: bytes = b""
    """What follows on the platter, cut off in the cache by an unsynced truncation."""
    lost: list[tuple[int, int]] = attrs.Factory(list)
    """Ranges that a failed sync has dropped: zeros after a power loss."""
    modified_ms: int = 0
    handles: int = 0
    linked: bool = True

    def truncate(self, size: int) -> None:
        if size < self.durable_size:
            self.durable_rest = bytes(self.data[size : self.durable_size]) + self.durable_rest
            self.durable_size = size
        del self.data[size:]

    def sync(self) -> None:
        self.durable_size = len(self.data)
        self.durable_rest = b""
        self.lost = [
            (start, min(end, self.durable_size)) for start, end in self.lost if start < self.durable_size
        ]

    def fail_sync(self) -> None:
        if self.durable_size < len(self.data):
            self.lost.append((self.durable_size, len(self.data)))

    def lose_power(self, random: Random | None) -> None:
        """Leave what is durable; with `random`, by chance more."""
        content = self.data[: self.durable_size] + self.durable_rest
        arrived = self.durable_size < len(self.data) or len(self.durable_rest) > 0
        if random is not None and arrived and random.random() < 0.75:
            content = _torn(self.data, self.durable_size, random)
        for start, end in self.lost:
            end = min(end, len(content))
            content[start:end] = bytes(max(end - start, 0))
        self.data, self.durable_size, self.durable_rest, self.lost = content, len(content), b"", []


def _torn(data: bytearray, durable_size: int, random: Random) -> bytearray:
    """`data` cut at a random size, in which unsynced sectors may read as zeros."""
    size = random.choice((len(data), random.randint(durable_size, len(data))))
    content = data[:size]
    chance = random.choice((0.0, 0.0, 0.1, 0.5))
    position = durable_size
    while position < size:
        end = min((position // SECTOR_BYTES + 1) * SECTOR_BYTES, size)
        if random.random() < chance:
            content[position:end] = bytes(end - position)
        position = end
    return content


@attrs.define(eq=False)
class Folder:
    """A directory's entries, in the cache and on the platter."""

    entries: dict[str, Inode | Folder] = attrs.Factory(dict)
    durable: dict[str, Inode | Folder] = attrs.Factory(dict)
    pending: list[tuple[str, Inode | Folder | None, str | None]] = attrs.Factory(list)
    """Changes in order: (name, node, None) links, (name, None, None) unlinks, (name, node, old name) renames."""
    modified_ms: int = 0
    locked_by: SimDir | None = None

    def change(self, name: str, node: Inode | Folder | None, old_name: str | None = None) -> None:
        _apply(self.entries, name, node, old_name)
        self.pending.append((name, node, old_name))

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending.clear()

    def lose_power(self, random: Random | None) -> None:
        if random is not None and self.pending:
            for change in self.pending[: random.randint(0, len(self.pending))]:
                _apply(self.durable, *change)
        self.pending.clear()
        self.entries = dict(self.durable)


def _apply(
    entries: dict[str, Inode | Folder], name: str, node: Inode | Folder | None, old_name: str | None
) -> None:
    if old_name is not None:
        entries.pop(old_name, None)
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


@attrs.define
class _Fault:
    """An error for the next `times` operations that match."""

    errno: int
    operation: str | None
    path_part: str
    times: int


class SimDisk:
    """One device. See the module docstring.

    `random` decides torn writes; `capacity_bytes` (settable) bounds the bytes of all files; `wall_ms` is the
    clock for modification times; `on_operation(operation, path, position, count)` sees every operation.
    """

    def __init__(
        self,
        random: Random | None = None,
        capacity_bytes: int | None = None,
        wall_ms: Callable[[], int] | None = None,
        on_operation: Callable[[str, str, int, int], None] | None = None,
    ) -> None:
        self.random = Random(0) if random is None else random
        self.capacity_bytes = capacity_bytes
        self.operation_count = 0
        self.cold_probability = 0.0
        """How often `File.is_warm` says no."""
        self.broken_errno: int | None = None
        """Set: every operation fails with it (a dead disk)."""
        self.used_bytes = 0
        self.generation = 0
        self._wall_ms = wall_ms
        self._on_operation = on_operation
        self._root = Folder()
        self._fail_at: dict[int, int] = {}
        self._faults: list[_Fault] = []
        self._crash_at = 0
        self._power_is_off = False

    # --- what a node asks

    def open_dir(self, path: str, create: bool = False) -> SimDir:
        """A root directory. `create` makes it durably, as an operator would have done beforehand."""
        folder = self._root
        for name in _parts(path):
            node = folder.entries.get(name)
            if node is None and create:
                node = Folder()
                folder.entries[name] = folder.durable[name] = node
            if node is None:
                raise self.error(path, path, "open", errno.ENOENT)
            if isinstance(node, Inode):
                raise self.error(path, path, "open", errno.ENOTDIR)
            folder = node
        return SimDir(self, folder, path, path)

    # --- what a test asks

    def fail_at(self, number: int, errno: int) -> None:
        """Fail the operation with this number (the first is 1); one operation, not the later ones."""
        self._fail_at[number] = errno

    def fail_next(
        self, errno: int, *, operation: str | None = None, path_part: str = "", times: int = 1
    ) -> None:
        """Fail the next `times` operations of this kind on a path that contains `path_part`."""
        self._faults.append(_Fault(errno, operation, path_part, times))

    def crash_at(self, number: int) -> None:
        """Cut the power in the middle of the operation with this number; an append leaves a random prefix."""
        self._crash_at = number

    def crash(self, keep: Keep) -> None:
        """End all handles and locks, and leave on the disk what `keep` says. See the module docstring."""
        self.generation += 1
        self._power_is_off = False
        self._crash_at = 0
        random = self.random if keep == "random" else None
        self.used_bytes = 0
        self._settle(self._root, random, lose_power=keep != "all")

    def _settle(self, folder: Folder, random: Random | None, *, lose_power: bool) -> None:
        folder.locked_by = None
        if lose_power:
            folder.lose_power(random)
        for _, node in sorted(folder.entries.items()):
            if isinstance(node, Folder):
                self._settle(node, random, lose_power=lose_power)
                continue
            if lose_power:
                node.lose_power(random)
            node.handles, node.linked = 0, True
            self.used_bytes += len(node.data)

    def corrupt(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte, in the cache and on the platter."""
        parts = _parts(path)
        node = self.folder_of(self._root, "/".join(parts[:-1])).entries[parts[-1]]
        assert isinstance(node, Inode)
        node.data[offset] ^= mask

    # --- shared by files and directories

    def error(self, directory: str, path: str, operation: str, number: int) -> DiskError:
        reason = _REASONS.get(number, f"error {number}")
        if number in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(directory, path, operation, number, reason)
        if number == errno.ENOENT:
            return FileMissing(directory, path, operation, number, reason)
        return DiskError(directory, path, operation, number, reason)

    def operate(
        self, generation: int, directory: str, path: str, operation: str, position: int = 0, count: int = 0
    ) -> bool:
        """Account for one operation. Raises what has been injected; true: cut the power in the middle of it."""
        if generation != self.generation:
            raise DiskError(directory, path, operation, errno.EIO, "the node has crashed")
        if self._power_is_off:
            raise PowerCut
        self.operation_count += 1
        if self._on_operation is not None:
            self._on_operation(operation, path, position, count)
        if self.operation_count == self._crash_at:
            self._power_is_off = True
            if operation == "append":
                return True
            raise PowerCut
        number = (
            self.broken_errno or self._fail_at.pop(self.operation_count, 0) or self._fault(operation, path)
        )
        if number:
            raise self.error(directory, path, operation, number)
        return False

    def _fault(self, operation: str, path: str) -> int:
        for fault in self._faults:
            if fault.operation in (None, operation) and fault.path_part in path:
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return fault.errno
        return 0

    def folder_of(self, folder: Folder, path: str) -> Folder:
        """The directory at `path` below `folder`. Raises `KeyError`."""
        for name in _parts(path):
            node = folder.entries[name]
            if isinstance(node, Inode):
                raise KeyError(name)
            folder = node
        return folder

    def now_ms(self) -> int:
        return self._wall_ms() if self._wall_ms is not None else 0

    @property
    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(0, self.capacity_bytes - self.used_bytes)

    def write(self, inode: Inode, data: Buffer) -> int:
        """Append as much as there is room for; return the count."""
        count = min(len(data), self.free_bytes)
        inode.data += memoryview(data)[:count]
        inode.modified_ms = self.now_ms()
        self.used_bytes += count
        return count

    def unlink(self, node: Inode | Folder) -> None:
        """Give back the room of a file that has lost its name, unless it is open."""
        if isinstance(node, Inode):
            node.linked = False
            self.release(node)

    def empty(self, folder: Folder) -> None:
        """Remove all entries, each by itself: after a power loss some of the tree may be left."""
        for name, child in sorted(folder.entries.items()):
            if isinstance(child, Folder):
                self.empty(child)
            folder.change(name, None)
            self.unlink(child)

    def release(self, inode: Inode) -> None:
        if not inode.linked and inode.handles == 0:
            self.used_bytes -= len(inode.data)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


class SimFile:
    """`odradek.env.ports.File` on a `SimDisk`."""

    __slots__ = ("_disk", "_generation", "_inode", "_references", "_sync_failed", "directory", "path")

    def __init__(self, disk: SimDisk, inode: Inode, directory: str, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._generation = disk.generation
        self._references = 1
        self._sync_failed = False
        self.directory = directory
        self.path = path
        inode.handles += 1

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def _operate(self, operation: str, position: int = 0, count: int = 0) -> bool:
        if self._references <= 0:
            raise ValueError(f"{self.path} is closed")
        return self._disk.operate(self._generation, self.directory, self.path, operation, position, count)

    def append(self, data: Buffer) -> int:
        position = len(self._inode.data)
        generation = self._disk.generation
        try:
            if self._operate("append", position, len(data)):
                raise PowerCut
        except (DiskError, PowerCut):
            if generation == self._generation:
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
        if self._references <= 0:
            raise ValueError(f"{self.path} is closed")
        return not self._disk.cold_probability or self._disk.random.random() >= self._disk.cold_probability

    def truncate(self, size: int) -> None:
        if not 0 <= size <= len(self._inode.data):
            raise ValueError(f"cannot truncate {self.path} of {len(self._inode.data)} bytes to {size}")
        self._operate("truncate", size)
        self._disk.used_bytes -= len(self._inode.data) - size
        self._inode.truncate(size)
        self._inode.modified_ms = self._disk.now_ms()

    def sync(self) -> int:
        size = len(self._inode.data)
        if self._sync_failed:
            raise DiskError(self.directory, self.path, "sync", errno.EIO, "an earlier sync failed")
        try:
            self._operate("sync", size)
        except DiskError:
            self._sync_failed = True
            self._inode.fail_sync()
            raise
        self._inode.sync()
        return size

    def pin(self) -> None:
        if self._references <= 0:
            raise ValueError(f"{self.path} is closed")
        self._references += 1

    def unpin(self) -> None:
        self._references -= 1
        if self._references < 0:
            raise ValueError(f"{self.path} has been released more often than pinned")
        if self._references == 0 and self._generation == self._disk.generation:
            self._inode.handles -= 1
            self._disk.release(self._inode)

    def close(self) -> None:
        self.unpin()


class SimDir:
    """`odradek.env.ports.Dir` on a `SimDisk`."""

    __slots__ = ("_disk", "_folder", "_generation", "_root", "path")

    def __init__(self, disk: SimDisk, folder: Folder, path: str, root: str) -> None:
        self._disk = disk
        self._folder = folder
        self._generation = disk.generation
        self._root = root
        self.path = path

    # --- lookups

    def _operate(self, operation: str, path: str, count: int = 0) -> bool:
        return self._disk.operate(self._generation, self._root, path, operation, 0, count)

    def _error(self, path: str, operation: str, number: int) -> DiskError:
        return self._disk.error(self._root, path, operation, number)

    def _parent(self, name: str, operation: str) -> tuple[Folder, str]:
        """The directory that holds the last part of `name`, and that part. Raises `FileMissing`."""
        *above, last = _parts(name)
        try:
            return self._disk.folder_of(self._folder, "/".join(above)), last
        except KeyError:
            raise self._error(f"{self.path}/{name}", operation, errno.ENOENT) from None

    def _find(self, name: str) -> Inode | Folder | None:
        *above, last = _parts(name)
        try:
            return self._disk.folder_of(self._folder, "/".join(above)).entries.get(last)
        except KeyError:
            return None

    def _file(self, name: str, operation: str) -> Inode:
        path = f"{self.path}/{name}"
        self._operate(operation, path)
        node = self._find(name)
        if node is None:
            raise self._error(path, operation, errno.ENOENT)
        if isinstance(node, Folder):
            raise self._error(path, operation, errno.EISDIR)
        return node

    # --- the port

    def open(self, name: str, *, create: bool = False) -> SimFile:
        if not create or self._find(name) is not None:
            return SimFile(self._disk, self._file(name, "open"), self._root, f"{self.path}/{name}")
        self._operate("create", f"{self.path}/{name}")
        folder, last = self._parent(name, "open")
        inode = Inode(modified_ms=self._disk.now_ms())
        folder.change(last, inode)
        return SimFile(self._disk, inode, self._root, f"{self.path}/{name}")

    def subdir(self, name: str, *, create: bool = False) -> SimDir:
        path = f"{self.path}/{name}"
        self._operate("open", path)
        folder, below = self._folder, _parts(name)
        for part in below:
            node = folder.entries.get(part)
            if node is None and create:
                node = Folder(modified_ms=self._disk.now_ms())
                folder.change(part, node)
            if node is None:
                raise self._error(path, "open", errno.ENOENT)
            if isinstance(node, Inode):
                raise self._error(path, "open", errno.ENOTDIR)
            folder = node
        return SimDir(self._disk, folder, path, self._root)

    def list(self) -> list[str]:
        self._operate("list", self.path)
        return sorted(self._folder.entries)

    def exists(self, name: str) -> bool:
        return self._find(name) is not None

    def is_dir(self, name: str) -> bool:
        return isinstance(self._find(name), Folder)

    def file_size(self, name: str) -> int:
        return len(self._file(name, "stat").data)

    def modified_ms(self, name: str) -> int:
        self._operate("stat", f"{self.path}/{name}")
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
        self._operate("sync", os.path.dirname(f"{self.path}/{name}"))
        folder.sync()

    def rename(self, old: str, new: str) -> None:
        if os.path.dirname(old) != os.path.dirname(new):
            raise ValueError(f"cannot rename {old} to {new}, in another directory")
        path = f"{self.path}/{old}"
        self._operate("rename", path)
        folder, old_name = self._parent(old, "rename")
        new_name = _parts(new)[-1]
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
        inode = self._file(name, "remove")
        folder, last = self._parent(name, "remove")
        folder.change(last, None)
        self._disk.unlink(inode)

    def remove_tree(self, name: str) -> None:
        path = f"{self.path}/{name}"
        self._operate("remove", path)
        node = self._find(name)
        if node is None:
            raise self._error(path, "remove", errno.ENOENT)
        if isinstance(node, Inode):
            raise self._error(path, "remove", errno.ENOTDIR)
        folder, last = self._parent(name, "remove")
        self._disk.empty(node)
        folder.change(last, None)

    def sync(self) -> None:
        self._operate("sync", self.path)
        self._folder.sync()

    def free_bytes(self) -> int:
        self._operate("stat", self.path)
        return self._disk.free_bytes

    def lock(self) -> None:
        path = f"{self.path}/{LOCK_NAME}"
        if LOCK_NAME not in self._folder.entries:
            self.open(LOCK_NAME, create=True).close()
        self._operate("lock", path)
        if self._folder.locked_by not in (None, self):
            raise self._error(path, "lock", errno.EWOULDBLOCK)
        self._folder.locked_by = self

    def unlock(self) -> None:
        if self._folder.locked_by is self:
            self._folder.locked_by = None


OPERATIONS: Collection[str] = (
    *("open", "create", "append", "read", "truncate", "sync", "list", "stat", "rename", "remove", "lock"),
)
"""The words that `on_operation`, `fail_next` and `DiskError.operation` use."""


if TYPE_CHECKING:

    def _conforms(file: SimFile, directory: SimDir) -> tuple[File, Dir]:
        return file, directory
