"""The contract of `File` and `Dir`, tested with real files and with the simulated disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.env.ports import Dir, DiskError, FileClosed, FileMissing
from odradek.env.real import RealEnv
from sim.machine.disk import SimDisk

OpenRoot = Callable[[], Dir]


@pytest.fixture(params=["real", "sim"])
def open_root(request: pytest.FixtureRequest, tmp_path: Path) -> OpenRoot:
    """Return a function that opens the same directory at each call."""
    if request.param == "real":
        path = str(tmp_path / "data")
        return lambda: RealEnv().open_dir(path, create=True)
    disk = SimDisk()
    return lambda: disk.open_dir("/data", create=True)


@pytest.fixture
def root(open_root: OpenRoot) -> Dir:
    """Make an empty directory."""
    return open_root()


def test_append_returns_the_position_and_counts_the_size(root: Dir) -> None:
    """`append` writes all data and returns the position of the data. `size` includes the data."""
    file = root.open("a.log", create=True)
    assert [file.append(b"one"), file.append(bytearray(b"four")), file.append(memoryview(b"x")[:0])] == [
        0,
        3,
        7,
    ]
    assert file.size == 7
    assert root.file_size("a.log") == 7
    assert file.pread(100, 0) == b"onefour"


def test_reads_are_short_only_at_the_end(root: Dir) -> None:
    """A read returns fewer bytes than asked for only at the end of the file."""
    file = root.open("a.log", create=True)
    file.append(b"0123456789")
    assert file.pread(4, 3) == b"3456"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 11) == b""
    buffer = bytearray(b"....")
    assert file.pread_into(buffer, 1) == 4
    assert buffer == b"1234"
    assert file.pread_into(memoryview(buffer)[1:3], 9) == 1
    assert buffer == b"1934"
    assert file.pread_into(buffer, 99) == 0


def test_a_file_is_reopened_with_its_size(root: Dir) -> None:
    """An existing file is opened with its contents, with or without `create`."""
    root.open("a.log", create=True).append(b"abc")
    assert root.open("a.log").size == 3
    again = root.open("a.log", create=True)
    assert again.append(b"d") == 3
    assert again.pread(9, 0) == b"abcd"


def test_what_is_missing_raises_file_missing(root: Dir) -> None:
    """A missing file raises `FileMissing` with its root, so that only that log directory is affected."""
    for attempt in (
        lambda: root.open("no"),
        lambda: root.open("no/such", create=True),
        lambda: root.subdir("no"),
        lambda: root.read_bytes("no"),
        lambda: root.file_size("no"),
        lambda: root.modified_ms("no"),
        lambda: root.remove("no"),
        lambda: root.remove_tree("no"),
        lambda: root.rename("no", "other"),
        lambda: root.write_atomic("no/such", b""),
    ):
        with pytest.raises(FileMissing) as caught:
            attempt()
        assert caught.value.directory == root.path


def test_a_root_that_is_missing_is_not_made_by_accident(tmp_path: Path) -> None:
    """Opening a root that does not exist raises `FileMissing`, unless `create` is given."""
    with pytest.raises(FileMissing):
        RealEnv().open_dir(str(tmp_path / "no"))
    with pytest.raises(FileMissing):
        SimDisk().open_dir("/no")


def test_files_and_directories_are_not_mistaken_for_each_other(root: Dir) -> None:
    """Opening a directory as a file fails, and so does opening a file as a directory."""
    root.subdir("t-0", create=True)
    root.open("a.log", create=True)
    with pytest.raises(DiskError):
        root.open("t-0")
    with pytest.raises(DiskError):
        root.subdir("a.log")
    with pytest.raises(DiskError):
        root.remove_tree("a.log")
    with pytest.raises(DiskError):
        root.remove("t-0")


def test_truncate_cuts_and_appends_go_on_there(root: Dir) -> None:
    """`truncate` cuts the file to a size, never lengthens it, and the next append goes there."""
    file = root.open("a.log", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert (file.size, file.append(b"x"), file.pread(9, 0)) == (4, 4, b"0123x")
    with pytest.raises(ValueError, match=r"cannot (be truncated|truncate)"):
        file.truncate(6)


def test_sync_returns_the_size_that_it_covers(root: Dir) -> None:
    """`sync` makes earlier writes durable and returns the size that is durable now."""
    file = root.open("a.log", create=True)
    file.append(b"abc")
    assert file.sync() == 3
    assert file.sync() == 3


def test_a_pinned_file_outlives_close_and_removal(root: Dir) -> None:
    """A pinned file can be read until `unpin`, even if it is closed or removed meanwhile."""
    file = root.open("a.log", create=True)
    file.append(b"abc")
    file.pin()
    root.remove("a.log")
    file.close()
    root.open("a.log", create=True).append(b"another")
    assert file.pread(9, 0) == b"abc"
    file.unpin()
    with pytest.raises(FileClosed):
        file.pread(1, 0)
    with pytest.raises(ValueError, match="more often"):
        file.unpin()


def test_a_closed_file_does_nothing_more(root: Dir) -> None:
    """Use after `close` raises `FileClosed`, since it is a bug and must not look like a bad disk."""
    file = root.open("a.log", create=True)
    file.close()
    for attempt in (
        lambda: file.append(b"x"),
        file.sync,
        file.pin,
        lambda: file.is_warm(0, 1),
        lambda: file.read_warm(1, 0),
    ):
        with pytest.raises(FileClosed):
            attempt()


def test_an_open_file_follows_its_renamed_directory(root: Dir) -> None:
    """If its directory is renamed, as before a partition's deletion, an open file can still be read and written."""
    file = root.subdir("t-0", create=True).open("a.log", create=True)
    file.append(b"abc")
    root.rename("t-0", "t-0.123-delete")
    assert file.append(b"d") == 3
    assert root.read_bytes("t-0.123-delete/a.log") == b"abcd"


def test_a_file_that_was_replaced_before_the_first_read_is_missing(open_root: OpenRoot) -> None:
    """If another file takes the name before the first read, the read fails, and returns no bytes of the other file."""
    open_root().open("a.log", create=True).append(b"old")
    late = open_root().open("a.log")
    open_root().rename("a.log", "b.log")
    open_root().open("a.log", create=True).append(b"new")
    try:
        content = late.pread(3, 0)
    except FileMissing:
        return
    assert content == b"old"


def test_list_is_sorted_and_sees_everything(root: Dir) -> None:
    """`list` returns the names of files and directories in order."""
    for name in ("b", "a.log", "C"):
        root.open(name, create=True)
    root.subdir("t-0", create=True).open("0.log", create=True)
    assert root.list() == ["C", "a.log", "b", "t-0"]
    assert root.subdir("t-0").list() == ["0.log"]
    assert (root.exists("t-0/0.log"), root.exists("t-0/1.log"), root.exists("no/1")) == (True, False, False)
    assert (root.is_dir("t-0"), root.is_dir("b"), root.is_dir("no")) == (True, False, False)


def test_read_bytes_is_bounded(root: Dir) -> None:
    """`read_bytes` raises `DiskError` if the file is larger than `size_max`."""
    root.open("a", create=True).append(b"12345")
    assert root.read_bytes("a", 5) == b"12345"
    with pytest.raises(DiskError):
        root.read_bytes("a", 4)


def test_write_atomic_replaces_the_whole_content(root: Dir) -> None:
    """`write_atomic` replaces a whole file by a temporary one and a rename, and leaves nothing else behind."""
    root.write_atomic("meta.properties", b"version=1\n")
    root.write_atomic("meta.properties", b"v")
    root.subdir("t-0", create=True)
    root.write_atomic("t-0/partition.metadata", b"")
    assert root.read_bytes("meta.properties") == b"v"
    assert root.read_bytes("t-0/partition.metadata") == b""
    assert root.list() == ["meta.properties", "t-0"]
    assert root.subdir("t-0").list() == ["partition.metadata"]


def test_rename_replaces_a_file_but_not_a_full_directory(root: Dir) -> None:
    """As in POSIX, a renamed file replaces another file, and a renamed directory replaces only an empty directory."""
    root.open("a", create=True).append(b"a")
    root.open("b", create=True).append(b"b")
    root.rename("a", "b")
    assert (root.list(), root.read_bytes("b")) == (["b"], b"a")
    root.subdir("d", create=True)
    root.subdir("e", create=True).open("f", create=True)
    with pytest.raises(DiskError):
        root.rename("d", "e")
    with pytest.raises(DiskError):
        root.rename("b", "e")
    with pytest.raises(DiskError):
        root.rename("e", "b")
    root.rename("e/f", "e/g")
    root.remove("e/g")
    root.rename("d", "e")
    assert root.list() == ["b", "e"]
    with pytest.raises(ValueError, match="another directory"):
        root.rename("b", "e/b")


def test_remove_tree_takes_everything_below(root: Dir) -> None:
    """`remove_tree` removes a directory with everything in it."""
    root.subdir("t-0/deep", create=True).open("f", create=True)
    root.open("t-0/g", create=True)
    root.remove_tree("t-0")
    assert root.list() == []


def test_free_bytes_and_warmth_are_answered(root: Dir) -> None:
    """A disk reports its free space. It also reports that freshly written bytes are in memory."""
    file = root.open("a", create=True)
    file.append(bytes(20_000))
    assert 0 < root.free_bytes() <= root.total_bytes()
    assert file.is_warm(0, 20_000)
    assert file.is_warm(19_999, 1)


def test_what_is_in_memory_is_read_at_once_and_whole(root: Dir) -> None:
    """A read from memory returns all its bytes, or None if it would wait for the device or the file is too short."""
    file = root.open("a", create=True)
    file.append(bytes(5000) + b"abc")
    assert file.read_warm(4, 4999) == b"\0abc"
    assert file.read_warm(4, 5000) is None
    assert file.read_warm(1, 9000) is None


def test_the_lock_is_held_once(open_root: OpenRoot) -> None:
    """One process locks a directory until it ends. A second lock raises `DiskError`."""
    first, second = open_root(), open_root()
    first.lock()
    first.lock()
    with pytest.raises(DiskError, match="another process has locked the directory"):
        second.lock()
    assert ".lock" in first.list()


def test_kafka_is_kept_out_of_a_directory_that_is_held(tmp_path: Path) -> None:
    """While a node locks a directory, Kafka's POSIX lock is refused, whatever other files this process closes."""
    env = RealEnv()
    first, second = env.open_dir(str(tmp_path)), env.open_dir(str(tmp_path))
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(tmp_path / ".lock")]
    first.lock()
    with pytest.raises(DiskError, match="another process has locked the directory"):
        second.lock()
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in refused.stderr
    env.close()
    subprocess.run(command, check=True)


def test_a_directory_is_a_path(root: Dir) -> None:
    """A `Dir` stands for a path. After a rename nothing is at this path, until a new directory is made there."""
    held = root.subdir("t-0", create=True)
    held.open("a", create=True).close()
    root.rename("t-0", "t-0-delete")
    for operation in (
        held.list,
        held.sync,
        lambda: held.read_bytes("a"),
        lambda: held.open("b", create=True),
    ):
        with pytest.raises(FileMissing):
            operation()
    root.subdir("t-0", create=True).open("c", create=True).close()
    assert held.list() == ["c"]
