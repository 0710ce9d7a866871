"""The state of a simulated disk: injected errors, full and dead devices, and its contents after a crash. The calls
on files are in `disk_files.py`.

Theory of operation
-------------------
The disk keeps every file and directory twice: as processes see it (page cache), and as a power loss would leave it
(durable state).

* `File.sync` makes all bytes of a file durable. The durable content is `data[:durable_size]` plus `durable_rest`:
  bytes that a truncation has removed from the cache, but not yet durably.
* A directory's entries (creations, renames, removals) become durable by `Dir.sync` of that directory, or by
  `write_atomic`. A sync of a file does not make its name durable. Changes that are not durable yet are kept in
  order in `pending`.
* After a failed sync the kernel treats the dirty pages as clean. They stay readable, no later sync writes them, and
  a power loss turns them into zeros. So by the port's contract a failed sync is final.

`crash(keep)` invalidates every handle, and decides which contents remain:

* `"all"`: only the process has died. All bytes are left, and nothing more has become durable.
* `"synced"`: a power loss; exactly the durable state is left.
* `"random"`: a power loss; the durable state is left, and a random part of the other changes. A directory may have a
  prefix of its pending changes. A file may be longer than its durable state. In the part beyond, each unsynced sector
  of 512 bytes is either written or reads as zeros.

Faults are injected by operation number. So a test can run once and read `operation_count`. Then it can repeat the run
for each operation, with that operation failing. `fail_at(n, errno)` raises `DiskError`. `crash_at(n)` cuts the power
in the middle of the operation (`PowerCut`, which no handler of disk errors catches). `corrupt` flips bits. Synced
writes stay where they were written. A disk that loses synced batches, or synced data of a voter, is outside the fault
model. `sim.storm.disk_damage` lists the damage to small files that is within the fault model.

This module uses neither trio, async functions nor clocks, so that property tests of the log can use it alone.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Mapping
from random import Random
from typing import Literal, TypeAlias, TypeVar

import attrs

from odradek.env.ports import Buffer, DiskError, DiskHung, disk_error
from sim.machine.disk_files import PowerCut, SimDir
from sim.machine.platter import Folder, Inode, path_parts

T = TypeVar("T")

UNLIMITED_BYTES = 1 << 50

Keep: TypeAlias = Literal["all", "synced", "random"]

OPERATIONS = (
    "open",
    "create",
    "append",
    "read",
    "truncate",
    "sync",
    "list",
    "stat",
    "rename",
    "remove",
    "lock",
)
"""The names of operations for `on_operation`, `fail_next` and `DiskError.operation`."""

_REASONS = {
    errno.EIO: "Input/output error",
    errno.ENODEV: "No such device",
    errno.EROFS: "Read-only file system",
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.ENOENT: "No such file or directory",
    errno.EISDIR: "Is a directory",
    errno.ENOTDIR: "Not a directory",
    errno.ENOTEMPTY: "Directory not empty",
    errno.EFBIG: "File too large",
    errno.EMFILE: "Too many open files",
    errno.ENOMEM: "Cannot allocate memory",
    errno.EWOULDBLOCK: "another process has locked the directory",
}


_NEED_DESCRIPTORS = frozenset({"create", "list"})
"""Operations that open a file or a directory. An existing file is opened when it is first used (`SimFile`)."""


@attrs.define
class _Fault:
    """An error for the next `times` operations that match."""

    errno: int
    operation: str | None
    path_part: str
    times: int


class SimDisk:
    """One simulated device.

    `random` decides torn writes. `capacity_bytes` (settable) limits the bytes of all files; None: no limit.
    `wall_ms` is the clock for modification times. `on_operation(operation, path, position, count)` is called for
    every operation.
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
        """The probability that `File.is_warm` returns False."""
        self.broken_errno: int | None = None
        """If set, the whole disk is dead: every operation fails with this error."""
        self.dead_paths: dict[str, int] = {}
        """The errors of single dead devices, by path. Every operation below the path fails with this error, except
        those in `spared`.
        """
        self.spared: frozenset[str] = frozenset()
        """Operations that a dead device still answers, since a file system may have sizes and names in memory."""
        self.silent_roots: dict[str, float] = {}
        """For each log directory with a silent device, the virtual time at which the device answers again. Until then,
        bounded calls of the event loop raise `DiskHung`.
        """
        self.unsettled: dict[str, Callable[[], None]] = {}
        """For each log directory, a function that finishes the call of the event loop which was not answered in time
        (`SimDir.in_time`).
        """
        self.bounded_roots: dict[str, None] = {}
        """Log directories for which the process has called `bound_calls`."""
        self.is_off_loop = False
        """True while a worker thread's function runs. Its calls are not bounded."""
        self.has_descriptors = True
        """False while the process that uses the disk has no file descriptors left."""
        self.used_bytes = 0
        self.generation = 0
        self.wall_ms = wall_ms
        self.on_operation = on_operation
        self._root = Folder()
        self._fail_at: dict[int, int] = {}
        self._faults: list[_Fault] = []
        self._crash_at = 0
        self.power_is_off = False
        self.on_power_cut: Callable[[], None] | None = None
        self.before_loss: Callable[[], Callable[[], None]] | None = None
        """Called before a page cache or a device is lost. The function that it returns is called afterwards."""

    # -- methods for nodes -------------------------------------------------------------------------

    def copy_files(self, other: SimDisk) -> None:
        """Copy the durable files of another disk, as an operator may copy a node's directory."""
        self._root = copy.deepcopy(other._root)
        self.used_bytes = other.used_bytes

    def open_dir(self, path: str, create: bool = False) -> SimDir:
        """Open a root directory. With `create`, first create it durably, in place of an operator who would do so
        before the first start.
        """
        self.check_device(path, path, "open")
        folder = self._root
        for name in path_parts(path):
            node = folder.entries.get(name)
            if node is None and create:
                node = Folder()
                folder.entries[name] = folder.durable[name] = node
            if node is None:
                raise self.error(path, path, "open", errno.ENOENT)
            if isinstance(node, Inode):
                raise self.error(path, path, "open", errno.ENOTDIR)
            folder = node
        return SimDir(self, path, path)

    # -- methods for tests and faults

    def fail_at(self, number: int, errno: int) -> None:
        """Fail the operation with this number (the first is 1), but no other."""
        self._fail_at[number] = errno

    def fail_next(
        self, errno: int, *, operation: str | None = None, path_part: str = "", times: int = 1
    ) -> None:
        """Fail the next `times` operations of this kind on a path that contains `path_part`; without `operation`, of
        any kind.
        """
        self._faults.append(_Fault(errno, operation, path_part, times))

    def forget_faults(self) -> None:
        """Cancel all injected faults that have not occurred yet."""
        self._fail_at.clear()
        self._faults.clear()

    def crash_at(self, number: int) -> None:
        """Cut the power in the middle of the operation with this number. If that is an append, a random prefix of its
        bytes is left.
        """
        self._crash_at = number

    def crash(self, keep: Keep) -> None:
        """Invalidate all handles and locks. `keep` decides which bytes are left, as the theory of operation
        describes.
        """
        self.generation += 1
        self.power_is_off = False
        self._crash_at = 0
        self.bounded_roots = {}
        self.unsettled = {}
        random = self.random if keep == "random" else None
        lost = self.before_loss() if self.before_loss is not None and keep != "all" else None
        self.used_bytes = 0
        self._settle(self._root, random, lose_power=keep != "all")
        if lost is not None:
            lost()

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
        """Flip the bits of `mask` in one byte, in the cache and durably."""
        parts = path_parts(path)
        node = self.folder_of(self._root, "/".join(parts[:-1])).entries[parts[-1]]
        assert isinstance(node, Inode)
        node.data[offset] ^= mask

    def rewrite(self, path: str, data: bytes) -> None:
        """Overwrite a file durably with these bytes. Tests and storms use it for a disk that loses or misplaces
        writes.
        """
        *parents, name = path_parts(path)
        node = self.folder_of(self._root, "/".join(parents)).entries[name]
        assert isinstance(node, Inode)
        self.used_bytes += len(data) - len(node.data)
        node.data[:] = data
        node.sync()

    def is_blank(self, path: str) -> bool:
        """True if a device without any entries is mounted at `path`."""
        try:
            return not self.folder_at(path).entries
        except KeyError:
            return False

    def replace(self, path: str) -> None:
        """Replace the disk at `path` by an empty, unformatted one. No process may have it open."""
        lost = None if self.before_loss is None else self.before_loss()
        self.exchange(path, Folder())
        if lost is not None:
            lost()

    def exchange(self, path: str, device: Folder) -> Folder:
        """Replace the disk at `path` by another, and return the former. No process may have it open."""
        *parents, name = path_parts(path)
        above = self.folder_of(self._root, "/".join(parents))
        former = above.entries.get(name, Folder())
        assert isinstance(former, Folder)
        above.entries[name] = above.durable[name] = device
        self.crash("all")  # `crash` also updates the number of bytes in use.
        return former

    def peek(self, path: str) -> dict[str, bytes]:
        """Copy the files of a directory, as processes see them; empty if there is no such directory. The call does
        not count as a disk operation.
        """
        try:
            folder = self.folder_of(self._root, path)
        except KeyError:
            return {}
        return {
            name: bytes(node.data) for name, node in sorted(folder.entries.items()) if isinstance(node, Inode)
        }

    def contents(self, path: str) -> dict[str, bytearray]:
        """Return the files of a directory without a copy. The caller may read the bytes, but must not keep them."""
        try:
            folder = self.folder_of(self._root, path)
        except KeyError:
            return {}
        return {name: node.data for name, node in folder.entries.items() if isinstance(node, Inode)}

    def on_platter(self, path: str) -> Mapping[str, Inode | Folder]:
        """Return the entries of a directory that would survive the worst power loss; empty if the directory itself
        would not survive. Callers must not change them.
        """
        folder = self._root
        for name in path_parts(path):
            node = folder.durable.get(name)
            if not isinstance(node, Folder):
                return {}
            folder = node
        return folder.durable

    def in_cache(self, path: str) -> Mapping[str, Inode | Folder]:
        """Return the entries of a directory as processes see them; empty if there is no such directory. Callers must
        not change them.
        """
        try:
            return self.folder_of(self._root, path).entries
        except KeyError:
            return {}

    # --- methods for files and directories

    def error(self, directory: str, path: str, operation: str, number: int) -> DiskError:
        return disk_error(directory, path, operation, number, _REASONS.get(number, f"error {number}"))

    def check_alive(self, generation: int, directory: str, path: str, operation: str) -> None:
        """Raise `DiskError` for a handle from before a crash, and `PowerCut` while the power is off."""
        if generation != self.generation:
            raise DiskError(directory, path, operation, errno.EIO, "the node has crashed")
        if self.power_is_off:
            raise PowerCut

    def keeps_waiting(self, directory: str) -> bool:
        """True if a call of the event loop would wait now: the device is silent, or an earlier call is unfinished."""
        return (
            (directory in self.silent_roots or directory in self.unsettled)
            and directory in self.bounded_roots
            and not self.is_off_loop
        )

    def check_answers(self, directory: str, path: str, operation: str) -> None:
        """Raise `DiskHung` for a bounded call of the event loop to a silent device."""
        if self.keeps_waiting(directory):
            raise DiskHung(directory, path, operation, 0, "the device does not answer")

    def check_bounded(self, directory: str, path: str, operation: str) -> None:
        """Raise `AssertionError` for an unbounded call of the event loop to a silent device, on which a real node
        would hang.
        """
        if self.keeps_waiting(directory):
            raise AssertionError(f"the loop waits for a device that hangs: {operation} {path}")

    def off_loop(self, work: Callable[[], T]) -> T:
        """Run `work` as if in a worker thread, and return its result."""
        before, self.is_off_loop = self.is_off_loop, True
        try:
            return work()
        finally:
            self.is_off_loop = before

    def operate(
        self, generation: int, directory: str, path: str, operation: str, position: int = 0, count: int = 0
    ) -> None:
        """Count one operation before it takes effect. Raises injected faults."""
        self.check_alive(generation, directory, path, operation)
        self.operation_count += 1
        if self.on_operation is not None:
            self.on_operation(operation, path, position, count)
        if self.operation_count == self._crash_at:
            self.power_is_off = True
            if self.on_power_cut is not None:
                self.on_power_cut()
            raise PowerCut
        number = (
            self._dead(path, operation)
            or (not self.has_descriptors and operation in _NEED_DESCRIPTORS and errno.EMFILE)
            or self._fail_at.pop(self.operation_count, 0)
            or self._fault(operation, path)
        )
        if number:
            raise self.error(directory, path, operation, number)

    def check_device(self, directory: str, path: str, operation: str) -> None:
        """Raise `DiskError` if the device at this path is dead, and does not answer this operation from memory."""
        number = self._dead(path, operation)
        if number:
            raise self.error(directory, path, operation, number)

    def _dead(self, path: str, operation: str) -> int:
        """Return the error number of a dead device; 0 if the device answers."""
        if self.broken_errno:
            return self.broken_errno
        if self.dead_paths and operation not in self.spared:
            for root, number in self.dead_paths.items():
                if path == root or path.startswith(f"{root}/"):
                    return number
        return 0

    def _fault(self, operation: str, path: str) -> int:
        for fault in self._faults:
            if fault.operation in (None, operation) and fault.path_part in path:
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return fault.errno
        return 0

    def folder_at(self, path: str) -> Folder:
        """Return the directory at a path of this disk. Raises `KeyError`."""
        return self.folder_of(self._root, path)

    def folder_of(self, folder: Folder, path: str) -> Folder:
        """Return the directory at `path` below `folder`. Raises `KeyError`."""
        for name in path_parts(path):
            node = folder.entries[name]
            if isinstance(node, Inode):
                raise KeyError(name)
            folder = node
        return folder

    def now_ms(self) -> int:
        return self.wall_ms() if self.wall_ms is not None else 0

    @property
    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def total_bytes(self) -> int:
        return UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes

    def write(self, inode: Inode, data: Buffer) -> int:
        """Append as many bytes as there is room for, and return their number."""
        count = min(len(data), self.free_bytes)
        inode.data += memoryview(data)[:count]
        inode.modified_ms = self.now_ms()
        self.used_bytes += count
        return count

    def unlink(self, node: Inode | Folder) -> None:
        """Release the space of a file that has lost its name, unless the file is still open."""
        if isinstance(node, Inode):
            node.linked = False
            self.release(node)

    def empty(self, folder: Folder) -> None:
        """Remove all entries one by one: after a power loss some of them may be left."""
        for name, child in sorted(folder.entries.items()):
            if isinstance(child, Folder):
                self.empty(child)
            folder.change(name, None)
            self.unlink(child)

    def release(self, inode: Inode) -> None:
        if not inode.linked and inode.handles == 0:
            self.used_bytes -= len(inode.data)
