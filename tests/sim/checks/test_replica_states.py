"""Values that replicas compute are checked: each stale value raises, and sound replicas pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import attrs
import pytest

from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.derived.replica_states import ReplicaStates
from sim.checks.watched import Hosted
from sim.history import SafetyViolation
from testkit.by_hand import NOW_MS
from tests.log.support import batch, new_log

ME = 1


def replica(leader: int = ME, replicas: tuple[int, ...] = (1, 2), min_isr: int = 2) -> Partition:
    """Make this broker's replica of a partition, with one record if it leads."""
    partition = Partition(new_log(LogConfig(min_insync_replicas=min_isr)))
    partition.apply(PartitionImage(leader, 3, 0, replicas, replicas), ME)
    if partition.is_leader:
        partition.append_as_leader(memoryview(batch()), NOW_MS)
    return partition


def look(partition: Partition) -> None:
    """Check one replica on broker 1."""
    member = SimpleNamespace(name="node-1", config=SimpleNamespace(node_id=ME))
    each = SimpleNamespace(member=member, key=TopicIdPartition(bytes(16), 0), partition=partition)
    ReplicaStates().look([cast(Hosted, each)])


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
