"""The fault atlas: which damage the fault model allows, how it is undone, and disks that die."""

from __future__ import annotations

import errno

import pytest

from odradek.env.ports import DiskError
from odradek.wire.batches.batch_header import HEADER_SIZE, check_crc
from sim.machine.disk import SimDisk
from sim.storm.fault_atlas import FaultAtlas, places_to_rot
from tests.log.support import batch


def segment() -> bytearray:
    """Make a segment with two whole batches and a piece of a third."""
    return bytearray(batch(2) + batch(3) + batch(1)[:30])


def test_only_records_of_whole_batches_rot() -> None:
    """Only the records of whole batches are damaged, so the checksum finds the damage, and headers stay intact."""
    data = segment()
    places = places_to_rot(data)
    assert len(places) == 2
    for start, size in places:
        assert start >= HEADER_SIZE
        for position in (start, start + size - 1):
            damaged = bytearray(data)
            damaged[position] ^= 1
            begin = start - HEADER_SIZE
            assert check_crc(data, begin, HEADER_SIZE + size)
            assert not check_crc(damaged, begin, HEADER_SIZE + size)


def test_what_nobody_has_read_is_undone() -> None:
    """`undo` restores damaged bytes, except where the file was truncated or rewritten meanwhile."""
    atlas = FaultAtlas()
    data, cut, anew = bytearray(b"abc"), bytearray(b"abc"), bytearray(b"abc")
    for file in (data, cut, anew):
        atlas.flip("node-1", "/data/t-0/0.log", file, 2, 4)
    assert data == bytearray(b"abg")
    assert not atlas.is_clear
    del cut[2:]
    anew[2:] = b"z"
    assert atlas.undo() == 1
    assert (data, cut, anew) == (bytearray(b"abc"), bytearray(b"ab"), bytearray(b"abz"))
    assert atlas.is_clear
    assert (atlas.made, atlas.undone) == (3, 1)


def test_a_second_machine_may_not_rot() -> None:
    """While one machine has damage, damage on a second machine is refused. Otherwise no good copy might be left."""
    atlas = FaultAtlas()
    atlas.flip("node-1", "a", bytearray(1), 0, 1)
    with pytest.raises(AssertionError, match="another machine has rot already"):
        atlas.flip("node-2", "a", bytearray(1), 0, 1)
    atlas.undo()
    atlas.flip("node-2", "a", bytearray(1), 0, 1)


def test_one_device_of_two_dies_for_ever() -> None:
    """A dead disk answers EIO forever, until it is replaced. The machine's other disk works."""
    disk = SimDisk()
    good, bad = disk.open_dir("/data", create=True), disk.open_dir("/data2", create=True)
    file = bad.open("f", create=True)
    disk.dead_paths = {"/data2": errno.EIO}
    good.open("f", create=True).append(b"x")
    for _ in range(2):
        for action in (bad.list, lambda: file.append(b"x"), lambda: file.pread(1, 0), bad.sync):
            with pytest.raises(DiskError) as caught:
                action()
            assert caught.value.errno == errno.EIO
    disk.dead_paths = {}
    assert bad.list() == ["f"]
