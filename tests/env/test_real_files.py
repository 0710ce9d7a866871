"""Behaviour that only real files have: descriptors, threads, other processes, a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.env.ports import DiskError, DiskFull, FileClosed, FileMissing
from odradek.env.real import RealEnv, raise_descriptor_limit
from odradek.env.real_dirs import RealDir, is_blank_disk
from odradek.env.real_files import RealFile
from tests.env.descriptors import descriptors_below


@pytest.fixture
def root(tmp_path: Path) -> RealDir:
    """Make an empty directory."""
    return RealEnv().open_dir(str(tmp_path))


def test_an_open_file_keeps_no_path(root: RealDir) -> None:
    """An open file stores no path. It joins the folder's path, which many segments share, with its own name."""
    file = root.subdir("t-0", create=True).open("a.log", create=True)
    assert (file.path, file.directory) == (f"{root.path}/t-0/a.log", root.path)


def test_opening_many_files_costs_no_descriptors(root: RealDir, tmp_path: Path) -> None:
    """Many open segments use no descriptors until they are read or written."""
    for index in range(50):
        root.open(f"{index}.log", create=True).close()
    before = descriptors_below(tmp_path)
    files = [root.open(f"{index}.log") for index in range(50)]
    assert descriptors_below(tmp_path) == before
    assert files[7].pread(1, 0) == b""
    assert descriptors_below(tmp_path) == before + 1
    files[7].close()
    assert descriptors_below(tmp_path) == before


def test_an_open_file_is_small(root: RealDir) -> None:
    """The object of an open file takes less than 512 bytes, including its path."""
    file = root.open("a.log", create=True)
    assert not hasattr(file, "__dict__")
    assert sys.getsizeof(file) + sys.getsizeof(file.path) < 512


def test_a_late_open_of_a_replaced_file_is_refused(root: RealDir) -> None:
    """A file is opened before its first read, but another file has taken its name since. The inode reveals this, and
    the read is refused, so no fetch gets foreign bytes."""
    root.open("a.log", create=True).append(b"old")
    late = root.open("a.log")
    root.rename("a.log", "b.log")
    root.open("a.log", create=True).append(b"new")
    with pytest.raises(FileMissing):
        late.pread(3, 0)


def test_short_writes_are_completed(root: RealDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """If write(2) transfers fewer bytes than asked, the rest is written by further calls."""
    file = root.open("a.log", create=True)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:3]))
    assert file.append(b"0123456789") == 0
    assert (file.size, file.pread(20, 0)) == (10, b"0123456789")


@pytest.fixture
def small_files() -> Iterator[int]:
    """Limit files of this process to 1000 bytes, as on a disk that fills up during a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_append_counts_the_prefix_that_it_has_left(root: RealDir, small_files: int) -> None:
    """If an append fails after some bytes, `size` counts them, and the owner can truncate the file."""
    file = root.open("a.log", create=True)
    file.append(bytes(900))
    with pytest.raises(DiskError) as caught:
        file.append(bytes(200))
    assert (caught.value.operation, caught.value.directory) == ("append", root.path)
    assert file.size == small_files == root.file_size("a.log")
    file.truncate(900)
    assert file.append(b"x") == 900


def test_no_space_is_told_from_other_failures(root: RealDir) -> None:
    """ENOSPC raises `DiskFull`, after which a log truncates and stays online. Other errors take the directory
    offline."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this machine has no /dev/full")
    full = RealFile(root, "/dev/full", 0, os.stat("/dev/full").st_ino)
    with pytest.raises(DiskFull) as caught:
        full.append(b"x")
    assert caught.value.directory == root.path


def test_a_failed_sync_is_final(root: RealDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync, each later sync of the file fails, since the kernel may have dropped the dirty pages."""
    file = root.open("a.log", create=True)
    file.append(b"abc")

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(DiskError, match="Input/output error"):
            file.sync()
    with pytest.raises(DiskError, match="an earlier sync failed"):
        file.sync()
    assert file.pread(3, 0) == b"abc"


def test_close_during_a_sync_leaves_the_descriptor_to_it(
    root: RealDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the loop closes a file during a worker's sync, the descriptor stays open until the sync has ended."""
    file = root.open("a.log", create=True)
    file.append(b"abc")
    seen: list[int] = []

    def close_meanwhile(fd: int) -> None:
        file.close()
        seen.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fdatasync", close_meanwhile)
    assert file.sync() == 3
    assert seen == [3]
    with pytest.raises(FileClosed):
        file.sync()


def test_cold_pages_are_seen(root: RealDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """preadv(2) with RWF_NOWAIT shows that pages are not in memory, instead of waiting for the device."""
    file = root.open("a.log", create=True)
    file.append(bytes(10_000))
    cold = {8192}

    def preadv(fd: int, buffers: tuple[bytearray], offset: int, flags: int) -> int:
        if offset // 4096 * 4096 in cold:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.is_warm(0, 8192)
    assert not file.is_warm(0, 8193)
    assert not file.is_warm(9000, 10)
    assert file.read_warm(100, 9000) is None


def test_a_file_system_that_cannot_say_what_is_in_memory_is_read(
    root: RealDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a file system does not know RWF_NOWAIT (EOPNOTSUPP), all bytes of its files count as being in memory."""
    file = root.open("a.log", create=True)
    file.append(b"abcdef")
    preadv = os.preadv

    def without_flags(fd: int, buffers: tuple[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(95, "Operation not supported")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", without_flags)
    assert file.read_warm(3, 2) == b"cde"
    assert file.read_warm(9, 2) is None


def test_a_part_in_memory_is_not_enough(root: RealDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only a part of the bytes is in memory, preadv(2) returns that part, and the read counts as not in memory."""
    file = root.open("a.log", create=True)
    file.append(bytes(10_000))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset, flags=0: 4096)
    assert file.read_warm(10_000, 0) is None


def test_the_lock_ends_with_its_process(root: RealDir) -> None:
    """A second process cannot lock a directory while the first one lives. Once the first one was killed, it can."""
    script = f"""
import sys
import threading
from odradek.env.real import RealEnv
env = RealEnv()
directory = env.open_dir({root.path!r})
directory.lock()
print("locked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DiskError, match="another process has locked the directory"):
            root.lock()
        holder.kill()
        holder.wait()
    root.lock()


def test_the_descriptor_limit_is_raised_to_what_is_allowed() -> None:
    """The limit of descriptors is raised as far as allowed, since 1024 are too few for many partitions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_room_of_a_removed_file_is_freed_by_a_thread(
    root: RealDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed file's last descriptor is closed by a thread, since that takes milliseconds. Other files are closed at
    once."""
    closed_by: list[int] = []
    is_closed = threading.Event()
    close = os.close

    def noted(fd: int) -> None:
        close(fd)
        closed_by.append(threading.get_ident())
        is_closed.set()

    here = threading.get_ident()
    for name, is_elsewhere in (("kept", False), ("removed", True)):
        file = root.open(name, create=True)
        file.append(bytes(2 << 20))
        if is_elsewhere:
            root.remove(name)
        monkeypatch.setattr(os, "close", noted)
        is_closed.clear()
        file.close()
        assert is_closed.wait(10)
        monkeypatch.undo()
        assert (closed_by.pop() != here) is is_elsewhere
    assert not closed_by


def test_an_empty_directory_on_the_file_system_of_others_is_no_blank_disk(tmp_path: Path) -> None:
    """A missing or empty directory on a file system with other files does not count as a blank disk. It may be the
    mount point of a disk that is not mounted."""
    (tmp_path / "other").write_text("x")
    assert not is_blank_disk(str(tmp_path / "data"))
    assert not is_blank_disk("/")


def test_what_is_open_below_a_root_is_known(root: RealDir) -> None:
    """`is_open` finds what would make `umount` fail: the lock, open files, and removed files that are still open."""
    assert not root.is_open()
    root.lock()
    assert root.is_open()
    root.unlock()
    with Path(f"{root.path}-twin").open("wb"):
        assert not root.is_open()
    file = root.subdir("t-0", create=True).open("log", create=True)
    file.append(b"x")
    assert root.is_open()
    root.subdir("t-0").remove("log")
    assert root.is_open()
    file.close()
    assert not root.is_open()
