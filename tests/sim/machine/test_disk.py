"""The simulated disk: the state that a crash leaves, and the faults that can be injected."""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.env.ports import DiskError, DiskFull, FileMissing
from sim.machine.disk import SimDisk
from sim.machine.disk_files import PowerCut, SimDir
from sim.machine.platter import SECTOR_BYTES


def _root(disk: SimDisk) -> SimDir:
    return disk.open_dir("/data", create=True)


def test_a_process_crash_keeps_the_page_cache_but_makes_nothing_durable() -> None:
    """A process crash (`"all"`) keeps the page cache. A later power loss still drops unsynced data."""
    disk = SimDisk()
    _root(disk).open("a", create=True).append(b"abc")
    disk.crash("all")
    assert _root(disk).read_bytes("a") == b"abc"
    disk.crash("synced")
    assert _root(disk).list() == []


def test_a_synced_file_without_a_synced_name_is_gone() -> None:
    """After a power loss, a synced file is gone if its directory was not synced (see fsync(2))."""
    disk = SimDisk()
    file = _root(disk).open("a", create=True)
    file.append(b"abc")
    file.sync()
    disk.crash("synced")
    assert not _root(disk).exists("a")


def test_only_synced_bytes_survive_a_power_loss() -> None:
    """A power loss with `"synced"` keeps exactly the synced bytes."""
    disk = SimDisk()
    file = _root(disk).open("a", create=True)
    _root(disk).sync()
    file.append(b"abc")
    file.sync()
    file.append(b"def")
    disk.crash("synced")
    assert _root(disk).read_bytes("a") == b"abc"


def test_an_unsynced_truncation_is_undone() -> None:
    """After a power loss, a truncation without a sync may be undone, even if new data was appended."""
    disk = SimDisk()
    file = _root(disk).open("a", create=True)
    _root(disk).sync()
    file.append(b"0123456789")
    file.sync()
    file.truncate(4)
    file.append(b"new")
    file.truncate(2)
    file.append(b"newer")
    disk.crash("synced")
    assert _root(disk).read_bytes("a") == b"0123456789"


def test_names_come_and_go_with_the_sync_of_their_directory() -> None:
    """Creating, renaming and removing a file becomes durable when its own directory is synced."""
    disk = SimDisk()
    root = _root(disk)
    inner = root.subdir("t-0", create=True)
    inner.open("x", create=True)
    inner.sync()
    disk.crash("synced")
    assert _root(disk).list() == []

    root = _root(disk)
    inner = root.subdir("t-0", create=True)
    root.open("a", create=True)
    root.sync()
    inner.open("x", create=True)
    root.rename("a", "b")
    root.remove_tree("t-0")
    disk.crash("synced")
    assert _root(disk).list() == ["a", "t-0"]
    assert _root(disk).subdir("t-0").list() == []


def test_write_atomic_is_durable_when_it_returns() -> None:
    """When `write_atomic` has returned, the new content is durable."""
    disk = SimDisk()
    _root(disk).write_atomic("a", b"1")
    disk.crash("synced")
    _root(disk).write_atomic("a", b"2")
    disk.crash("synced")
    assert _root(disk).read_bytes("a") == b"2"


@pytest.mark.parametrize("keep", ["synced", "random"])
def test_write_atomic_is_old_or_new_wherever_the_power_fails(keep: str) -> None:
    """If power fails in any operation of `write_atomic`, the file has its old or new content, never a missing or torn
    one."""
    cuts = 0
    for number in range(1, 50):
        disk = SimDisk(Random(number))
        _root(disk).write_atomic("a", b"old")
        disk.crash_at(disk.operation_count + number)
        try:
            _root(disk).write_atomic("a", b"new")
        except PowerCut:
            cuts += 1
            with pytest.raises(PowerCut):
                _root(disk).list()
        else:
            break
        disk.crash("synced" if keep == "synced" else "random")
        assert _root(disk).read_bytes("a") in (b"old", b"new")
    assert cuts >= 5


def test_a_random_power_loss_tears_by_sectors() -> None:
    """With `"random"`, a file may have grown, and each unsynced sector of 512 bytes has arrived or reads as zeros."""
    seen_sizes, seen_holes = set(), 0
    for seed in range(200):
        disk = SimDisk(Random(seed))
        file = _root(disk).open("a", create=True)
        _root(disk).sync()
        file.append(b"s" * 700)
        file.sync()
        file.append(b"u" * 3000)
        disk.crash("random")
        content = _root(disk).read_bytes("a")
        seen_sizes.add(len(content))
        assert content[:700] == b"s" * 700
        for start in range(1024, len(content), SECTOR_BYTES):
            sector = content[start : start + SECTOR_BYTES]
            assert sector in (b"u" * len(sector), bytes(len(sector)))
            seen_holes += sector == bytes(len(sector))
    assert {700, 3700} < seen_sizes
    assert len(seen_sizes) > 20
    assert seen_holes > 20


def test_dying_handles_have_no_effect() -> None:
    """A file handle from before the crash can neither read nor write."""
    disk = SimDisk()
    root = _root(disk)
    file = root.open("a", create=True)
    disk.crash("all")
    for attempt in (lambda: file.append(b"x"), lambda: file.pread(1, 0), file.sync, lambda: root.remove("a")):
        with pytest.raises(DiskError, match="crashed"):
            attempt()
    file.close()
    assert _root(disk).read_bytes("a") == b""
    root = _root(disk)
    root.lock()
    disk.crash("all")
    _root(disk).lock()


def test_the_disk_fills_up() -> None:
    """On a full disk, an append writes what fits and raises ENOSPC. Removing a file frees its room when no handle is
    open."""
    disk = SimDisk(capacity_bytes=10)
    root = _root(disk)
    file = root.open("a", create=True)
    file.append(b"1234567")
    with pytest.raises(DiskFull):
        file.append(b"89012")
    assert (file.size, root.free_bytes(), file.pread(99, 0)) == (10, 0, b"1234567890")
    file.truncate(7)
    assert root.free_bytes() == 3
    root.remove("a")
    assert root.free_bytes() == 3
    file.close()
    assert root.free_bytes() == 10
    disk.capacity_bytes = None
    root.open("b", create=True).append(bytes(100))


def test_the_nth_operation_fails_once() -> None:
    """`fail_at(n, errno)` makes only operation n fail. A failed append counts what it has written."""
    disk = SimDisk()
    file = _root(disk).open("a", create=True)
    assert disk.operation_count == 1
    disk.fail_at(2, errno.EIO)
    with pytest.raises(DiskError) as caught:
        file.append(b"abcdef")
    assert (caught.value.errno, caught.value.operation, caught.value.directory) == (
        errno.EIO,
        "append",
        "/data",
    )
    assert file.size < 7
    file.truncate(0)
    file.append(b"x")
    assert file.pread(9, 0) == b"x"


def test_faults_by_kind_and_path() -> None:
    """`fail_next` fails operations by kind and path."""
    disk = SimDisk()
    root = _root(disk)
    first, second = root.open("a", create=True), root.open("b", create=True)
    disk.fail_next(errno.EIO, operation="sync", path_part="/b", times=2)
    assert first.sync() == 0
    with pytest.raises(DiskError):
        second.sync()
    with pytest.raises(DiskError):
        root.open("b").sync()
    assert root.open("b").sync() == 0
    disk.broken_errno = errno.EIO
    for question in (lambda: first.pread(1, 0), lambda: root.exists("a"), lambda: root.is_dir("a")):
        with pytest.raises(DiskError):
            question()


def test_after_a_failed_sync_the_data_is_lost_whatever_later_syncs_say() -> None:
    """After a failed sync the data is lost, although a later sync by a new handle succeeds, as on Linux."""
    disk = SimDisk()
    root = _root(disk)
    file = root.open("a", create=True)
    root.sync()
    file.append(b"ok")
    file.sync()
    file.append(b"lost")
    disk.fail_next(errno.EIO, operation="sync")
    with pytest.raises(DiskError):
        file.sync()
    with pytest.raises(DiskError, match="an earlier sync failed"):
        file.sync()
    again = root.open("a")
    assert again.pread(9, 0) == b"oklost"
    again.append(b"later")
    assert again.sync() == 11
    disk.crash("synced")
    assert _root(disk).read_bytes("a") == b"ok" + bytes(4) + b"later"


def test_cold_reads_and_rot_are_made_to_order() -> None:
    """Cold reads happen with a given probability, and `corrupt` flips bits of one byte."""
    disk = SimDisk(Random(3))
    file = _root(disk).open("a", create=True)
    file.append(bytes(3))
    disk.cold_probability = 0.5
    assert {file.is_warm(0, 1) for _ in range(50)} == {True, False}
    assert {file.read_warm(1, 0) for _ in range(50)} == {b"\0", None}
    disk.corrupt("/data/a", 1, 0x80)
    assert file.pread(3, 0) == b"\0\x80\0"


def test_a_missing_root_is_missing() -> None:
    """Opening a directory that was never created fails. A created root directory survives every crash."""
    disk = SimDisk()
    with pytest.raises(FileMissing):
        disk.open_dir("/data")
    disk.open_dir("/data/1", create=True)
    disk.crash("synced")
    assert disk.open_dir("/data").list() == ["1"]


_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("ab"), st.binary(min_size=1, max_size=1500)),
        st.tuples(st.just("truncate"), st.sampled_from("ab"), st.floats(0, 1)),
        st.tuples(st.just("sync"), st.sampled_from("ab"), st.none()),
        st.tuples(st.just("rename"), st.sampled_from(["ab", "ba", "ac", "cb"]), st.none()),
        st.tuples(st.just("sync_dir"), st.just(""), st.none()),
    ),
    max_size=25,
)


@given(_OPERATIONS, st.sampled_from(["all", "synced"]))
def test_the_disk_agrees_with_a_model(operations: list[tuple[str, str, object]], keep: str) -> None:
    """After random operations and a crash, the disk's content equals that of a simple model."""
    disk = SimDisk()
    root = disk.open_dir("/", create=True)
    cached: dict[str, int] = {}
    durable: dict[str, int] = {}
    content: list[bytearray] = []
    synced: list[bytes] = []
    for kind, name, value in operations:
        if kind in ("append", "truncate", "sync"):
            number = cached.get(name)
            if number is None:
                number = cached[name] = len(content)
                content.append(bytearray())
                synced.append(b"")
            file = root.open(name, create=True)
            if kind == "append":
                assert isinstance(value, bytes)
                assert file.append(value) == len(content[number])
                content[number] += value
            elif kind == "truncate":
                assert isinstance(value, float)
                size = int(value * file.size)
                file.truncate(size)
                del content[number][size:]
            else:
                assert file.sync() == len(content[number])
                synced[number] = bytes(content[number])
            file.close()
        elif kind == "rename" and name[0] in cached:
            root.rename(name[0], name[1])
            cached[name[1]] = cached.pop(name[0])
        elif kind == "sync_dir":
            root.sync()
            durable = dict(cached)
    assert root.list() == sorted(cached)
    assert disk.used_bytes == sum(len(content[number]) for number in cached.values())

    disk.crash("all" if keep == "all" else "synced")
    root = disk.open_dir("/")
    found = {name: root.read_bytes(name) for name in root.list()}
    assert disk.used_bytes == sum(map(len, found.values()))
    if keep == "all":
        assert found == {name: content[number] for name, number in cached.items()}
    else:
        assert found == {name: synced[number] for name, number in durable.items()}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.binary(min_size=1, max_size=1500)),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
            st.tuples(st.just("sync"), st.none()),
        ),
        max_size=20,
    ),
    st.integers(0, 2**32),
)
def test_a_random_power_loss_stays_within_the_fault_model(
    operations: list[tuple[str, object]], seed: int
) -> None:
    """After a random power loss, a file is as last synced, or a prefix of what was written, with zeros for unsynced
    sectors."""
    disk = SimDisk(Random(seed))
    root = disk.open_dir("/", create=True)
    file = root.open("a", create=True)
    root.sync()
    written, synced, durable_size = b"", b"", 0
    for kind, value in operations:
        if isinstance(value, bytes):
            file.append(value)
            written += value
        elif isinstance(value, float):
            written = written[: int(value * len(written))]
            file.truncate(len(written))
            durable_size = min(durable_size, len(written))
        else:
            assert (kind, file.sync()) == ("sync", len(written))
            synced, durable_size = written, len(written)
    disk.crash("random")
    found = disk.open_dir("/").read_bytes("a")
    if found == synced:
        return
    assert durable_size <= len(found) <= len(written)
    assert found[:durable_size] == written[:durable_size]
    for start in range(durable_size - durable_size % SECTOR_BYTES, len(found), SECTOR_BYTES):
        first, last = max(start, durable_size), min(start + SECTOR_BYTES, len(found))
        assert found[first:last] in (written[first:last], bytes(last - first))


def test_peeking_is_no_operation() -> None:
    """`peek` shows a checker what processes see. It always succeeds and does not count as an operation."""
    disk = SimDisk()
    root = disk.open_dir("/data", create=True)
    root.subdir("t-0", create=True).open("0.log", create=True).append(b"abc")
    count = disk.operation_count
    disk.crash_at(count + 1)
    assert disk.peek("/data/t-0") == {"0.log": b"abc"}
    assert disk.peek("/data") == {}
    assert disk.peek("/nowhere") == {}
    assert disk.operation_count == count
