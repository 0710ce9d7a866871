"""A disk that forgets: directories and files in memory, and the remains of them after a crash.

Theory of operation
-------------------
The disk keeps every file and directory twice: as processes see it (the page cache) and as the platter has it.

* A file's bytes become durable by `File.sync`, all of them. Durable content is `data[:durable_size]` plus
  `durable_rest`, what a truncation has cut from the cache but not yet from the platter.
* A directory's entries (creations, renames, removals) become durable by `Dir.sync` of that directory, or by
  `write_atomic`. Syncing a file does not make its name durable. Until then they wait in order in `pending`.
* After a failed sync the kernel takes the dirty pages for clean. They stay readable, no later sync writes them, and a
  power loss turns them into zeros. So the port says that a failed sync is final.

`crash(keep)` ends every handle and chooses the remains:

* `"all"`: the process died, the machine lives. It keeps everything, and made nothing durable.
* `"synced"`: power loss, exactly the durable state is left.
* `"random"`: power loss, and by chance more than the durable state. A directory may have a prefix of its pending
  changes. A file may be longer; there, each unsynced sector of 512 bytes has arrived or reads as zeros.

Faults are injected by operation number. So a test can run once, read `operation_count`, and run again with each
operation failing in turn. `fail_at(n, errno)` raises `DiskError`. `crash_at(n)` cuts the power in the middle of the
operation (`PowerCut`, which no handler of disk errors catches). `corrupt` makes bit rot. Writes that were synced
stay, at their place. A disk that lies about batches or about what a voter has synced is outside of the fault model. What
it may do to small files, `sim.storm.disk_damage` says.

The module does without trio, async functions and clocks: property tests of the log use it by itself.
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
"""The words that `on_operation`, `fail_next` and `DiskError.operation` use."""

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
"""Operations that open a file or a directory. An existing file is opened at its first use (`SimFile`)."""


@attrs.define
class _Fault:
    """An error for the next `times` operations that match."""

    errno: int
    operation: str | None
    path_part: str
    times: int


class SimDisk:
    """One device.

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
        """The probability that `File.is_warm` returns False."""
        self.broken_errno: int | None = None
        """If set, every operation fails with this error: the disk is dead."""
        self.dead_paths: dict[str, int] = {}
        """Devices that are dead by themselves: every operation below such a path fails with its error, except those of
        `spared`."""
        self.spared: frozenset[str] = frozenset()
        """Operations that dead devices still answer, from memory: a file system may know sizes and names by heart."""
        self.silent_roots: dict[str, float] = {}
        """Log directories whose devices do not answer, each with the time at which it answers again. As long as
        they are listed, bounded calls of the loop raise `DiskHung`."""
        self.unsettled: dict[str, Callable[[], None]] = {}
        """The ends of the loop's calls that were not answered in time, by log directory: see `SimDir.in_time`."""
        self.bounded_roots: dict[str, None] = {}
        """Log directories whose process has called `bound_calls`."""
        self.is_off_loop = False
        """True while another thread's function runs: its calls are not bounded."""
        self.has_descriptors = True
        """False: the process that uses the disk is out of file descriptors."""
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
        """Called before the page cache, or a device, is lost; the function that it returns is called afterwards."""

    # --- what a node asks

    def copy_files(self, other: SimDisk) -> None:
        """Hold the files that another disk has on its platter now, as an operator's copy of it would."""
        self._root = copy.deepcopy(other._root)
        self.used_bytes = other.used_bytes

    def open_dir(self, path: str, create: bool = False) -> SimDir:
        """Open a root directory. `create` makes it durably, as an operator would have done beforehand."""
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

    # --- what a test asks

    def fail_at(self, number: int, errno: int) -> None:
        """Fail the operation with this number (the first is 1), and no later operation."""
        self._fail_at[number] = errno

    def fail_next(
        self, errno: int, *, operation: str | None = None, path_part: str = "", times: int = 1
    ) -> None:
        """Fail the next `times` operations of this kind on a path that contains `path_part`."""
        self._faults.append(_Fault(errno, operation, path_part, times))

    def forget_faults(self) -> None:
        """Cancel all faults to come."""
        self._fail_at.clear()
        self._faults.clear()

    def crash_at(self, number: int) -> None:
        """Cut the power in the middle of the operation with this number; an append leaves a random prefix."""
        self._crash_at = number

    def crash(self, keep: Keep) -> None:
        """End all handles and locks, and leave the bytes that `keep` names on the disk."""
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
        """Flip bits of one byte, in the cache and on the platter."""
        parts = path_parts(path)
        node = self.folder_of(self._root, "/".join(parts[:-1])).entries[parts[-1]]
        assert isinstance(node, Inode)
        node.data[offset] ^= mask

    def rewrite(self, path: str, data: bytes) -> None:
        """Overwrite a file durably, as if these bytes had been written: a disk that lies."""
        *parents, name = path_parts(path)
        node = self.folder_of(self._root, "/".join(parents)).entries[name]
        assert isinstance(node, Inode)
        self.used_bytes += len(data) - len(node.data)
        node.data[:] = data
        node.sync()

    def is_blank(self, path: str) -> bool:
        """True if a device is mounted at `path` that holds nothing."""
        try:
            return not self.folder_at(path).entries
        except KeyError:
            return False

    def replace(self, path: str) -> None:
        """Put an empty, unformatted disk in the place of the one at `path`, which no process has open."""
        lost = None if self.before_loss is None else self.before_loss()
        self.exchange(path, Folder())
        if lost is not None:
            lost()

    def exchange(self, path: str, device: Folder) -> Folder:
        """Put another disk in the place of the one at `path`, which no process has open; return that one."""
        *parents, name = path_parts(path)
        above = self.folder_of(self._root, "/".join(parents))
        former = above.entries.get(name, Folder())
        assert isinstance(former, Folder)
        above.entries[name] = above.durable[name] = device
        self.crash("all")  # counts the remaining bytes
        return former

    def peek(self, path: str) -> dict[str, bytes]:
        """Copy the files of a directory, as processes see them; this is no operation of the disk.

        Empty where there is no such directory.
        """
        try:
            folder = self.folder_of(self._root, path)
        except KeyError:
            return {}
        return {
            name: bytes(node.data) for name, node in sorted(folder.entries.items()) if isinstance(node, Inode)
        }

    def contents(self, path: str) -> dict[str, bytearray]:
        """Return the bytes themselves that `peek` copies: read them, never keep them."""
        try:
            folder = self.folder_of(self._root, path)
        except KeyError:
            return {}
        return {name: node.data for name, node in folder.entries.items() if isinstance(node, Inode)}

    def on_platter(self, path: str) -> Mapping[str, Inode | Folder]:
        """Return the entries of a directory that the worst loss of power leaves: read them only. Empty where it
        leaves none.
        """
        folder = self._root
        for name in path_parts(path):
            node = folder.durable.get(name)
            if not isinstance(node, Folder):
                return {}
            folder = node
        return folder.durable

    def in_cache(self, path: str) -> Mapping[str, Inode | Folder]:
        """Return the entries of a directory as processes see them: read them only. Empty where there is no such
        directory.
        """
        try:
            return self.folder_of(self._root, path).entries
        except KeyError:
            return {}

    # --- shared by files and directories

    def error(self, directory: str, path: str, operation: str, number: int) -> DiskError:
        return disk_error(directory, path, operation, number, _REASONS.get(number, f"error {number}"))

    def check_alive(self, generation: int, directory: str, path: str, operation: str) -> None:
        """Raise `DiskError` for a handle from before a crash, `PowerCut` while the power is off."""
        if generation != self.generation:
            raise DiskError(directory, path, operation, errno.EIO, "the node has crashed")
        if self.power_is_off:
            raise PowerCut

    def keeps_waiting(self, directory: str) -> bool:
        """True if a call would wait that the loop makes now: the device is silent, or an earlier call is not undone."""
        return (
            (directory in self.silent_roots or directory in self.unsettled)
            and directory in self.bounded_roots
            and not self.is_off_loop
        )

    def check_answers(self, directory: str, path: str, operation: str) -> None:
        """Raise `DiskHung` for a bounded call of the loop to a silent device."""
        if self.keeps_waiting(directory):
            raise DiskHung(directory, path, operation, 0, "the device does not answer")

    def check_bounded(self, directory: str, path: str, operation: str) -> None:
        """Raise `AssertionError` where the loop of a real node would hang: for a call without a bound."""
        if self.keeps_waiting(directory):
            raise AssertionError(f"the loop waits for a device that hangs: {operation} {path}")

    def off_loop(self, work: Callable[[], T]) -> T:
        """Do work that is not the loop's; return its result."""
        before, self.is_off_loop = self.is_off_loop, True
        try:
            return work()
        finally:
            self.is_off_loop = before

    def operate(
        self, generation: int, directory: str, path: str, operation: str, position: int = 0, count: int = 0
    ) -> None:
        """Count one operation, before it has any effect. Raises injected faults."""
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
        """Raise `DiskError` if the device at this path is dead, and does not answer such a question any more."""
        number = self._dead(path, operation)
        if number:
            raise self.error(directory, path, operation, number)

    def _dead(self, path: str, operation: str) -> int:
        """Return the error of a dead device; 0 if it answers."""
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
        """Find the directory at a path of this disk. Raises `KeyError`."""
        return self.folder_of(self._root, path)

    def folder_of(self, folder: Folder, path: str) -> Folder:
        """Find the directory at `path` below `folder`. Raises `KeyError`."""
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
