"""The memory of partitions that nobody uses: equal objects are shared, and rare ones are made at first use."""

from __future__ import annotations

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.parts.cleaning_state import NEVER_CLEANED
from odradek.data_plane.replication.partition import Partition
from tests.broker.test_partition import ME, image
from tests.log.support import Node


def idle_partitions() -> tuple[Partition, Partition]:
    """Make two empty partitions of one topic that this broker leads."""
    node = Node(LogConfig())
    first, second = (Partition(node.log(partition=number)) for number in range(2))
    for partition in (first, second):
        partition.apply(image(), ME)
    return first, second


def test_empty_logs_share_what_is_equal() -> None:
    """Empty logs of one topic share the topic id, the list of epochs and the place of the first record."""
    first, second = (partition.log for partition in idle_partitions())
    assert first.topic_id is second.topic_id
    assert first.epochs.entries is second.epochs.entries
    assert first.active.read_place is second.active.bound_place


def test_partitions_with_the_same_replicas_in_sync_share_the_set() -> None:
    """Two partitions with equal ISRs, both written by the controller, share one ISR object."""
    first, second = idle_partitions()
    assert first.isr_state is second.isr_state


def test_a_watcher_of_one_partition_hears_nothing_of_another() -> None:
    """Partitions without watchers share an empty queue. A watcher of one partition is never called for another."""
    first, second = idle_partitions()
    heard: list[int] = []
    first.waiting.watch(lambda: heard.append(1))
    second.waiting.watch(lambda: heard.append(2))
    first.wake_watchers()
    assert heard == [1]
    assert idle_partitions()[0].waiting.watchers is None


def test_a_log_that_was_never_cleaned_has_no_state_of_the_cleaner() -> None:
    """A log gets cleaner state only when it is cleaned, and not from reading its checkpoint or figures."""
    log = idle_partitions()[0].log
    assert (log.first_dirty_offset, log.is_uncleanable) == (NEVER_CLEANED, False)
    log.abandon()
    assert log._cleaning is None
    assert log.cleaning.first_dirty_offset == NEVER_CLEANED
    assert log.cleaning is log.cleaning
