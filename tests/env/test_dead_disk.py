"""Calls to a disk that has died raise only `DiskError`, and open files can be closed.

Real file systems are killed by their shutdown call. Other tests let single system calls fail, one after the other. The
simulated disk is killed with each error, and with each set of calls that may still succeed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from odradek.env.ports import Dir, DiskError, File, FileMissing
from odradek.env.real import RealEnv
from sim.machine.disk import SimDisk
from sim.storm.disk_damage import DEATHS
from tests.cluster.disks.real_disks import real_disk
from tests.env.descriptors import descriptors_below

CONTENT = b"0123456789" * 1000
SYSTEM_CALLS = (
    "open",
    "close",
    "fstat",
    "stat",
    "lstat",
    "read",
    "pread",
    "preadv",
    "write",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "unlink",
    "listdir",
    "scandir",
    "statvfs",
    "mkdir",
    "makedirs",
)


@attrs.define
class Opened:
    """A directory with files of a log: some are open, some are closed for now, and some are open though removed."""

    root: Dir
    folder: Dir
    file: File
    resting: File
    removed: File

    @classmethod
    def on(cls, root: Dir) -> Opened:
        folder = root.subdir("t-0", create=True)
        files = [folder.open(name, create=True) for name in ("a.log", "b.log", "c.log")]
        for file in files:
            file.append(CONTENT)
            file.sync()
        folder.sync()
        root.lock()
        file, resting, removed = files
        assert resting.rest()
        folder.remove("c.log")
        file.pin()
        return cls(root, folder, file, resting, removed)

    @property
    def calls(self) -> dict[str, Callable[[], object]]:
        """Return every call of the ports that needs the device, by a name."""
        found: dict[str, Callable[[], object]] = {}
        for name in ("file", "resting", "removed"):
            file: File = getattr(self, name)
            found |= {
                f"{name}.pread": lambda file=file: file.pread(100, 50),
                f"{name}.pread_into": lambda file=file: file.pread_into(bytearray(100), 50),
                f"{name}.is_warm": lambda file=file: file.is_warm(0, 9000),
                f"{name}.read_warm": lambda file=file: file.read_warm(100, 50),
                f"{name}.append": lambda file=file: file.append(b"x"),
                f"{name}.truncate": lambda file=file: file.truncate(10),
                f"{name}.sync": file.sync,
            }
        root, folder = self.root, self.folder
        return found | {
            "open_past_cache": self._read_past_cache,
            "open": lambda: self._use("a.log", lambda file: file.pread(1, 0)),
            "create": lambda: self._use("d.log", lambda file: file.append(b"x"), create=True),
            "subdir": lambda: root.subdir("t-0"),
            "make subdir": lambda: root.subdir("t-1", create=True),
            "list": folder.list,
            "list_directories": root.list_directories,
            "file_size": lambda: folder.file_size("a.log"),
            "modified_ms": lambda: folder.modified_ms("a.log"),
            "read_bytes": lambda: folder.read_bytes("a.log"),
            "write_atomic": lambda: root.write_atomic("small", b"x"),
            "rename": lambda: (root.rename("t-0", "t-0-delete"), root.rename("t-0-delete", "t-0")),
            "sync directory": root.sync,
            "free_bytes": root.free_bytes,
            "total_bytes": root.total_bytes,
            "lock": root.lock,
            "settle": root.settle,
            "in_time": lambda: root.in_time(lambda: folder.read_bytes("a.log")),
            "remove": lambda: folder.remove("b.log"),
            "remove_tree": lambda: root.remove_tree("t-0"),
        }

    def _use(self, name: str, work: Callable[[File], object], *, create: bool = False) -> None:
        file = self.folder.open(name, create=create)
        try:
            work(file)
        finally:
            file.close()

    def _read_past_cache(self) -> None:
        opened = self.file.open_past_cache()
        try:
            opened.pread_into(bytearray(100), 0)
        finally:
            opened.close()

    def let_go(self) -> None:
        """Close everything. No answer of the device may prevent this."""
        for file in (self.file, self.resting, self.removed):
            if file is not self.file:
                file.rest()
            file.close()
        self.file.unpin()
        self.root.unlock()
        for thread in threading.enumerate():
            if thread.name == "closes a removed file":
                thread.join()


def outcome(call: Callable[[], object]) -> str:
    """Make a call. Return `done`, or the errno of its `DiskError`. Any other error is raised."""
    try:
        call()
    except FileMissing as error:
        raise AssertionError("FileMissing from a dead disk, which may well have the file") from error
    except DiskError as error:
        return errno.errorcode.get(error.errno, error.reason)
    return "done"


@pytest.fixture(params=["ext4", "xfs"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Mount a file system that the test can kill."""
    with real_disk(tmp_path / "disk", request.param) as disk:
        yield disk


@pytest.mark.parametrize("is_bounded", [False, True], ids=["waits", "bounded"])
def test_a_file_system_that_is_shut_down(mounted: Any, is_bounded: bool) -> None:
    """On a dead XFS or ext4 each call succeeds or raises `DiskError`, and no descriptor stays open."""
    env = RealEnv()
    path = str(mounted.path / "data")
    root = env.open_dir(path, create=True)
    if is_bounded:
        root.bound_calls(10.0)
    opened = Opened.on(root)
    mounted.kill()
    outcomes = {name: outcome(call) for name, call in opened.calls.items()}
    assert set(outcomes.values()) <= {"done", "EIO", "an earlier sync failed: Input/output error"}, outcomes
    for name in ("file.append", "file.sync", "write_atomic", "create", "rename"):
        assert outcomes[name] == "EIO" or name == "file.append", outcomes
    assert outcome(lambda: env.open_dir(path)) in ("done", "EIO")
    assert env.is_blank_disk(path) is False or outcome(lambda: env.is_blank_disk(path)) == "EIO"
    opened.let_go()
    assert descriptors_below(Path(path)) == 0


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_a_system_call_that_fails(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If any single system call fails with EIO, only `DiskError` is raised, and all files can be closed."""
    opened = Opened.on(RealEnv().open_dir(str(tmp_path / "data"), create=True))
    real: Callable[..., Any] = getattr(os, name)

    def fails(*args: Any, **more: Any) -> Any:
        if name == "close":
            real(*args, **more)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for call in opened.calls.values():
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fails)
            try:
                call()
            except DiskError:
                continue
    with monkeypatch.context() as patched:
        patched.setattr(os, name, fails)
        opened.let_go()
    assert descriptors_below(tmp_path) == 0


@pytest.mark.parametrize("name", ["stat", "lstat"])
def test_a_dead_disk_does_not_lack_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`exists` and `is_dir` raise if the device fails. If they returned False, a voter would forget its votes."""
    root = RealEnv().open_dir(str(tmp_path))
    assert not root.exists("absent")
    assert not root.is_dir("absent/below")

    def fails(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    ask = root.exists if name == "lstat" else root.is_dir
    with monkeypatch.context() as patched:
        patched.setattr(os, name, fails)
        with pytest.raises(DiskError):
            ask("absent")


@pytest.mark.parametrize(
    ("number", "spared"),
    DEATHS,
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, frozenset) else str(value),
)
def test_the_simulated_disk_dies_in_all_ways(number: int, spared: frozenset[str]) -> None:
    """A simulated disk dies, and some kinds of calls may still succeed. All other calls fail, and all files can be
    closed."""
    disk = SimDisk()
    opened = Opened.on(disk.open_dir("/data", create=True))
    disk.dead_paths, disk.spared = {"/data": number}, spared
    opened.calls.pop("settle")
    outcomes = {name: outcome(call) for name, call in opened.calls.items() if name not in ("settle", "lock")}
    failed = {name for name, came in outcomes.items() if came != "done"}
    assert {"file.append", "file.sync", "file.truncate", "write_atomic", "rename", "remove_tree"} <= failed
    reads = {"file.pread", "file.read_warm", "file.is_warm", "read_bytes", "in_time"}
    assert reads <= failed or "read" in spared
    assert {"list", "list_directories"} <= failed or "list" in spared
    assert {"file_size", "modified_ms", "free_bytes"} <= failed or "stat" in spared
    for question in (lambda: opened.root.exists("t-0"), lambda: opened.root.is_dir("t-0")):
        assert outcome(question) == ("done" if "stat" in spared else errno.errorcode[number])
    opened.let_go()
