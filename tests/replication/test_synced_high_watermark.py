"""`flush.messages` and the high watermark: only synced records are committed, of clients and of coordinators."""

from __future__ import annotations

import attrs
import pytest

from odradek.data_plane.log.log_config import LONG_MAX
from odradek.data_plane.log.log_types import Origin
from odradek.wire.batches.transaction_markers import build_marker
from odradek.wire.errors import ErrorCode
from testkit.by_hand import NOW_MS
from tests.log.support import batch
from tests.replication.test_isr import ME, Leader

ALONE = {"isr": (ME,), "replicas": (ME,)}


class Waiter:
    """A waiting acknowledgement (`AckWaiter`)."""

    def __init__(self, last_offset: int) -> None:
        self.last_offset = last_offset
        self.codes: list[ErrorCode] = []

    def acknowledged(self, code: ErrorCode) -> None:
        self.codes.append(code)

    def leadership_lost(self) -> None:
        raise AssertionError("nobody else leads")


class Synced(Leader):
    """A leader whose syncs begin and end when the test says so."""

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark

    def sync(self) -> None:
        """Run the pending sync, which ends at once."""
        self.partition.log.flush()
        self.end_sync()

    def end_sync(self) -> None:
        (ended,) = self.cluster.syncs
        self.cluster.syncs.clear()
        ended()


def _append_as_coordinator(leader: Synced) -> None:
    """Append records as a coordinator does."""
    leader.partition.log.append(memoryview(batch()), Origin.COORDINATOR, 3, NOW_MS)
    leader.partition.advance_high_watermark()


def _append_marker(leader: Synced) -> None:
    marker = build_marker(7, 0, 0, is_commit=True, timestamp_ms=NOW_MS)
    leader.partition.append_marker(memoryview(marker), NOW_MS, 2)


@pytest.mark.parametrize("append", [Synced.append, _append_as_coordinator, _append_marker])
def test_what_is_not_synced_is_not_committed(append: object) -> None:
    """With flush.messages=1 on a sole replica, batches of clients and coordinators, and markers, wait for the sync."""
    assert callable(append)
    leader = Synced(**ALONE, flush_messages=1)
    append(leader)
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (0, 1)
    leader.sync()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (1, 0)

    leader = Synced(**ALONE)
    append(leader)
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (1, 0)


@pytest.mark.parametrize("is_disk_first", [True, False])
def test_followers_and_the_leaders_disk_in_any_order(is_disk_first: bool) -> None:
    """The high watermark waits for the followers and the leader's sync, and moves when both are done."""
    leader = Synced(flush_messages=1)
    leader.append()
    steps = [leader.sync, lambda: [leader.fetch(2, 1), leader.fetch(3, 1)]]
    for step in steps if is_disk_first else reversed(steps):
        assert leader.high_watermark == 0
        step()
    assert leader.high_watermark == 1

    leader = Synced()
    leader.append()
    assert (leader.fetch(2, 1), leader.fetch(3, 1)) == (0, 1), "nobody asks for the disk"
    assert leader.cluster.syncs == []


def test_one_sync_at_a_time_and_the_next_covers_what_came_meanwhile() -> None:
    """Group commit: three appends during a sync share the next sync."""
    leader = Synced(**ALONE, flush_messages=1)
    leader.append()
    leader.partition.log.flush()
    for _ in range(3):
        leader.append()
        assert len(leader.cluster.syncs) == 1
    leader.end_sync()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (1, 1)
    leader.sync()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (4, 0)


def test_the_end_of_a_sync_acknowledges() -> None:
    """The end of a sync moves the high watermark, and wakes acknowledgements and watchers."""
    leader = Synced(**ALONE, flush_messages=1)
    leader.append()
    waiter = Waiter(0)
    woken: list[int] = []
    leader.partition.waiting.wait_for_acks(waiter)
    leader.partition.waiting.watch(lambda: woken.append(leader.high_watermark))
    assert (waiter.codes, woken) == ([], [])
    leader.sync()
    assert (waiter.codes, woken) == ([ErrorCode.NONE], [1])


def test_as_many_unsynced_as_the_topic_permits() -> None:
    """With flush.messages=3, two records are committed without a sync, and the third waits for a sync."""
    leader = Synced(**ALONE, flush_messages=3)
    leader.append()
    leader.append()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (2, 0)
    leader.append()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (2, 1)
    leader.sync()
    assert leader.high_watermark == 3


def test_a_sync_that_made_nothing_durable_is_tried_again() -> None:
    """If a sync fails because the disk is full, the high watermark stays, and a later sync may move it."""
    leader = Synced(**ALONE, flush_messages=1)
    leader.append()
    leader.end_sync()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (0, 1)
    leader.sync()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (1, 0)


def test_a_new_leader_syncs_what_it_had_as_a_follower() -> None:
    """A new leader syncs the unsynced records that it had as a follower before it commits them."""
    leader = Synced(isr=(ME,), records=2, flush_messages=1)
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (0, 1)
    leader.sync()
    assert leader.high_watermark == 2

    assert Synced(isr=(ME,), records=2).high_watermark == 2, "without flush.messages it counts at once"


def test_too_few_in_sync() -> None:
    """Below min.insync.replicas, a record with acks=1 is synced at once, and committed when enough replicas are in
    sync."""
    leader = Synced(isr=(ME,), min_isr=2, flush_messages=1)
    leader.append()
    leader.sync()
    assert leader.high_watermark == 0
    leader.fetch(2, 1)
    leader.told(8, (ME, 2))
    assert (leader.high_watermark, leader.cluster.syncs) == (1, [])


def test_the_topics_configuration_changes() -> None:
    """If `flush.messages` is set, it applies from the next record on. If it is removed, nothing waits for the disk."""
    leader = Synced(**ALONE)
    leader.append()
    leader.partition.set_config(attrs.evolve(leader.config, flush_messages=1))
    assert (leader.high_watermark, leader.cluster.syncs) == (1, [])
    leader.append()
    assert (leader.high_watermark, len(leader.cluster.syncs)) == (1, 1)
    leader.partition.set_config(attrs.evolve(leader.config, flush_messages=LONG_MAX))
    assert leader.high_watermark == 2
    leader.end_sync()
    assert leader.cluster.syncs == []


def test_a_leader_that_has_lost_its_lead_commits_nothing() -> None:
    """A sync that ends after the leadership was lost commits nothing, since the next leader decides."""
    leader = Synced(flush_messages=1)
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.partition.apply(attrs.evolve(leader.image, leader=2, leader_epoch=4, partition_epoch=8), ME)
    leader.sync()
    assert (leader.high_watermark, leader.cluster.syncs) == (0, [])
