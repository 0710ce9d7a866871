"""A partition's assertions on its ISR, its leader and its high watermark: each one fails when it is violated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from odradek.data_plane.replication.isr_changes import AlterPartitionSender
from odradek.data_plane.replication.isr_state import CommittedIsr, PendingExpandIsr
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from tests.broker.test_partition import ME, image, led, produce
from tests.log.support import new_log
from tests.replication.test_isr import BROKER_EPOCH, Leader


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (image(isr=(1, 4)), "4 is not among the replicas"),
        (image(isr=(1, 2, 1)), "names a broker twice"),
        (image(leader=5, isr=(1,)), "the leader 5 is not among the replicas"),
    ],
)
def test_who_is_in_sync_is_a_replica(told: PartitionImage, reason: str) -> None:
    """A partition image whose ISR names a broker without a replica raises `AssertionError`."""
    with pytest.raises(AssertionError, match=reason):
        Partition(new_log()).apply(told, ME)


def test_a_leader_epoch_has_one_leader() -> None:
    """A second leader in one leader epoch is refused. Otherwise both could write different records at the same
    offsets."""
    partition = led()
    partition.apply(attrs.evolve(image(), partition_epoch=1), ME)
    with pytest.raises(AssertionError, match="leader epoch 3 has two leaders, 1 and 2"):
        partition.apply(attrs.evolve(image(), leader=2, partition_epoch=2), ME)


def test_a_leader_follows_nobody() -> None:
    """A leader refuses a high watermark from another leader."""
    partition = led()
    with pytest.raises(AssertionError, match="cannot follow a leader"):
        partition.follow(1, 0)


def test_what_the_controller_answers_is_within_the_replicas() -> None:
    """An ISR of the controller that names a broker without a replica is refused. Otherwise the high watermark would
    never rise."""
    leader = Leader(isr=(1, 2), records=1)
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    proposal = leader.partition.isr_state
    assert isinstance(proposal, PendingExpandIsr)
    with pytest.raises(AssertionError, match="9 is not among the replicas"):
        leader.partition.isr_decided(proposal, 3, 8, (1, 2, 9))


def test_a_leader_never_proposes_to_leave() -> None:
    """A proposed ISR that leaves out the leader itself raises `AssertionError` before it is sent."""
    leader = Leader(isr=(1, 2), records=1)
    leader.partition.isr_state = PendingExpandIsr(CommittedIsr((2,)), 3)
    unused = cast("Any", SimpleNamespace(start_soon=lambda *args, **named: None))
    sender = AlterPartitionSender(
        ME, unused, unused, unused, lambda: 7, timeout_ms=1000, after_answer=lambda: None, log=unused
    )
    sender.submit(leader.partition)
    with pytest.raises(AssertionError, match="proposed to leave"):
        sender._topics(sender._pending)


def test_a_follower_promises_what_the_leader_has() -> None:
    """A follower that claims an offset beyond the leader's log is refused. Otherwise missing records could count as
    committed."""
    leader = Leader(records=2)
    replica = leader.partition.followers.sender(2, has_epoch=True)
    with pytest.raises(
        AssertionError, match="the replica on broker 2 claims to end at offset 3, outside this log's 0 to 2"
    ):
        leader.partition.note_fetch(replica, BROKER_EPOCH, 3, 0, 0)
    assert leader.partition.log.high_watermark == 0


def test_a_high_watermark_beyond_the_log_is_found() -> None:
    """A leader whose high watermark is beyond its log end offset stops at once."""
    partition = led()
    produce(partition)
    partition.log = cast("Any", SimpleNamespace(high_watermark=2, log_end_offset=1, topic="t", partition=0))
    with pytest.raises(AssertionError, match="the high watermark 2 is above the log end offset 1"):
        partition.look_again()


def test_a_follower_may_hear_of_more_than_it_has() -> None:
    """A follower takes over the leader's high watermark only as far as its own log reaches."""
    partition = Partition(new_log())
    partition.apply(image(leader=2, isr=(2,)), ME)
    partition.follow(10, 0)
    assert partition.log.high_watermark == 0
