"""Replicas that were being moved between the directories of a node when it stopped."""

from __future__ import annotations

import pytest

from odradek.data_plane.log.directory.future_logs import CAUGHT_UP_FILE, future_name
from odradek.data_plane.log.loading import write_topic_id
from odradek.metadata_quorum.recovery.found import FoundNode
from odradek.operations.recovery.node_reading import NodeFacts, read_node
from sim.machine.disk import SimDisk
from tests.log.support import append, batch, open_log
from tests.quorum.recovery.test_applying import METADATA, RECORDS, formatted

TOPIC_ID = b"topic 0000000001"


def read(disk: SimDisk, *log_dirs: str) -> FoundNode:
    return read_node(NodeFacts(3, True, True, (), (), log_dirs or (RECORDS,), METADATA), disk)


def write_log(disk: SimDisk, name: str, batches: int) -> None:
    """Write a replica's directory with this number of records."""
    directory = disk.open_dir(RECORDS).subdir(name, create=True)
    write_topic_id(directory, TOPIC_ID)
    log = open_log(directory)
    for _ in range(batches):
        append(log, batch(), epoch=4)
    log.close()


def moving(*, is_complete: bool) -> SimDisk:
    disk = formatted(3)
    name = future_name("t", 0, 7)
    write_log(disk, name, 5)
    if is_complete:
        disk.open_dir(RECORDS).subdir(name).write_atomic(CAUGHT_UP_FILE, b"")
    return disk


def test_a_complete_copy_without_its_log_is_the_replica() -> None:
    """A completed copy without the old log counts as the replica, since a start of the node renames it to the log."""
    found = read(moving(is_complete=True))
    (replica,) = found.replicas
    assert (replica.topic_id, replica.leader_epoch, replica.end_offset) == (TOPIC_ID, 4, 5)
    assert not found.may_hold("t", 0)


@pytest.mark.parametrize("is_complete", [False, True])
def test_beside_its_log_a_copy_does_not_count(is_complete: bool) -> None:
    """If the log is still there, its copy does not count: until the swap the log is the replica."""
    disk = moving(is_complete=is_complete)
    write_log(disk, "t-0", 6)
    found = read(disk)
    (replica,) = found.replicas
    assert replica.end_offset == 6
    assert not found.may_hold("t", 0)


def test_an_unfinished_copy_shows_that_the_log_is_missing() -> None:
    """A directory has an unfinished copy and no log.

    The log may be on an unread disk, so the partition waits for this node.
    """
    found = read(moving(is_complete=False))
    assert found.replicas == ()
    assert found.may_hold("t", 0)
    assert not found.may_hold("t", 1)
    assert any("The log itself is missing" in each for each in found.unreadable)


def test_a_complete_copy_beside_an_unread_directory_may_be_out_of_date() -> None:
    """A node has a completed copy, and a directory that could not be read.

    That directory may have the log, which may be longer. So the partition waits for this node.
    """
    found = read(moving(is_complete=True), RECORDS, "/not-mounted")
    assert found.replicas == ()
    assert found.may_hold("t", 0)
