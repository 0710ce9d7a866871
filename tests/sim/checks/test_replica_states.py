"""Values that replicas compute are checked: each stale value raises, and sound replicas pass. So do replicas that agree."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import attrs
import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.derived.agreement import check_agreement
from sim.checks.derived.known_followers import KnownFollowers
from sim.checks.derived.replica_states import ReplicaStates
from sim.checks.watched import Hosted
from sim.history import SafetyViolation
from testkit.by_hand import NOW_MS
from tests.log.support import batch, new_log

ME = 1
ENTRY = {"last_offset": 0, "current_txn_first_offset": -1}
USED = (
    *("topic", "partition", "offline", "config", "first_dirty_offset", "epochs"),
    *("log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset"),
)
"""The attributes of a log that are compared at the end, except the producers."""


def replica(leader: int = ME, replicas: tuple[int, ...] = (1, 2), min_isr: int = 2) -> Partition:
    """Make this broker's replica of a partition, with one record if it leads."""
    partition = Partition(new_log(LogConfig(min_insync_replicas=min_isr)))
    partition.apply(PartitionImage(leader, 3, 0, replicas, replicas), ME)
    if partition.is_leader:
        partition.append_as_leader(memoryview(batch()), NOW_MS)
    return partition


def hosted(partition: Partition, node_id: int = ME) -> Hosted:
    """Put a replica on a broker."""
    member = SimpleNamespace(name=f"node-{node_id}", config=SimpleNamespace(node_id=node_id))
    node = SimpleNamespace(broker=SimpleNamespace(replication=SimpleNamespace(broker_epoch=5)))
    key = TopicIdPartition(bytes(16), 0)
    each = SimpleNamespace(member=member, node=node, key=key, partition=partition)
    return cast(Hosted, each)


def look(partition: Partition) -> None:
    """Check one replica on broker 1."""
    ReplicaStates().look([hosted(partition)])


@pytest.mark.parametrize(("leader", "replicas"), [(1, (1, 2)), (2, (1, 2)), (1, (1,)), (-1, (1, 2, 3))])
def test_sound_replicas_pass(leader: int, replicas: tuple[int, ...]) -> None:
    """A leader and a follower pass, with any number of replicas, and after each change of the configuration."""
    partition = replica(leader, replicas)
    look(partition)
    for least, flushed in ((1, 1 << 60), (3, 1 << 60), (1, (1 << 63) - 1), (2, (1 << 63) - 1)):
        partition.set_config(LogConfig(min_insync_replicas=least, flush_messages=flushed))
        look(partition)
    partition.resign()
    look(partition)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("leader_epoch", 2, "is in epoch 2, leads: True"),
        ("followers", (), r"has the followers \[\], and its image says \[2\]"),
        ("has_min_isr", False, "has enough in sync: False"),
        ("advances_alone", True, "commits alone: True"),
    ],
)
def test_each_stale_value_raises(name: str, value: object, complaint: str) -> None:
    """A computed value that does not follow from image, configuration and log is named."""
    partition = replica()
    setattr(partition, name, value)
    with pytest.raises(SafetyViolation, match=complaint):
        look(partition)


def test_a_configuration_without_effect_raises() -> None:
    """A new `min.insync.replicas` must count at once."""
    partition = replica()
    partition.log.set_config(LogConfig(min_insync_replicas=1))
    look(partition)
    partition = replica(min_isr=1)
    assert partition.image is not None
    partition.apply(attrs.evolve(partition.image, isr=(1,), partition_epoch=1), ME)
    partition.log.set_config(LogConfig(min_insync_replicas=2))
    with pytest.raises(SafetyViolation, match="has enough in sync: True"):
        look(partition)


def test_what_all_have_confirmed_is_committed() -> None:
    """A leader that leaves a confirmed record uncommitted is named."""
    partition = replica(replicas=(1,))
    look(partition)
    partition.log.high_watermark -= 1
    with pytest.raises(SafetyViolation, match="has committed 0, and all replicas have confirmed 1"):
        look(partition)


def test_an_epoch_that_begins_behind_the_end_raises() -> None:
    """The last leader epoch begins at the log's end at most, as an epoch without records does."""
    partition = replica(2)
    end = partition.log.log_end_offset
    partition.log.epochs.entries = ((3, end),)
    look(partition)
    partition.log.epochs.entries = ((3, end + 1),)
    with pytest.raises(
        SafetyViolation, match=f"ends at {end}, and its last leader epoch begins at {end + 1}"
    ):
        look(partition)


def pair() -> tuple[Partition, Partition]:
    """Make a leader, and a follower in sync that has its record."""
    leader, follower = replica(), replica()
    follower.resign()
    for each in (leader, follower):
        each.log.advance_high_watermark(1)
        each.log.load_producers()
    return leader, follower


def test_replicas_that_agree_pass() -> None:
    """Equal replicas pass, and so does an epoch of the leader that has no records yet."""
    leader, follower = pair()
    assert check_agreement([hosted(leader), hosted(follower, 2)]) == 1
    leader.log.epochs.entries = (*leader.log.epochs.entries, (9, 1))
    assert check_agreement([hosted(follower, 2), hosted(leader)]) == 1
    assert check_agreement([hosted(leader), hosted(follower, 3)]) == 0


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("log_end_offset", 0, "has log_end_offset 0 on node-2, and 1 on its leader node-1"),
        ("high_watermark", 0, "has high_watermark 0 on node-2, and 1"),
        ("epochs", SimpleNamespace(entries=((2, 0),)), "has at 0 the epoch 2 on node-2, and 3"),
        (
            "producers",
            SimpleNamespace(state=SimpleNamespace(entries={7: SimpleNamespace(**ENTRY, epoch=1)})),
            r"of producer 7 .* \(1, 0, -1\) on node-2, and \(0, 0, -1\)",
        ),
    ],
)
def test_replicas_that_differ_for_good_raise(name: str, value: object, complaint: str) -> None:
    """A follower in sync that has derived another state than its leader is named."""
    leader, follower = pair()
    known = SimpleNamespace(
        **{each: getattr(follower.log, each) for each in USED},
        producers=SimpleNamespace(state=SimpleNamespace(entries={7: SimpleNamespace(**ENTRY, epoch=0)})),
    )
    right = SimpleNamespace(**vars(known))
    setattr(known, name, value)
    leader.log, follower.log = cast(PartitionLog, right), cast(PartitionLog, known)
    with pytest.raises(SafetyViolation, match=complaint):
        check_agreement([hosted(leader), hosted(follower, 2)])


@pytest.mark.parametrize(
    ("broker_epoch", "epoch", "end", "is_wrong"),
    [(5, 3, 2, True), (5, 3, 1, False), (4, 3, 2, False), (5, 4, 2, False)],
    ids=["believed too much", "right", "another process", "another leader epoch"],
)
def test_no_follower_has_less_than_its_leader_believes(
    broker_epoch: int, epoch: int, end: int, is_wrong: bool
) -> None:
    """A leader's knowledge of the follower's present process in its leader epoch must be true."""
    leader, follower = pair()
    follower.leader_epoch = epoch
    known = leader.followers.find(2)
    assert known is not None
    known.broker_epoch, known.log_end_offset = broker_epoch, end
    with (
        pytest.raises(SafetyViolation, match="to end at 2, and its log ends at 1")
        if is_wrong
        else nullcontext()
    ):
        KnownFollowers().look([hosted(leader), hosted(follower, 2)])


def test_nothing_is_expected_of_a_log_that_begins_anew() -> None:
    """A replica on another directory begins with a new log, while its leader remembers the old one."""
    leader, follower = pair()
    known = leader.followers.find(2)
    assert known is not None
    known.broker_epoch, known.log_end_offset = 5, 1
    check = KnownFollowers()
    check.look([hosted(leader), hosted(follower, 2)])
    follower.log = new_log()
    check.look([hosted(leader), hosted(follower, 2)])
