"""Rehearsed elections: the product's rule is accepted, and a rule with another order is noticed."""

from __future__ import annotations

from random import Random

import pytest

from odradek.metadata_quorum.features import REPLICA_LOG_INFO
from odradek.metadata_quorum.image.image_builder import ImageBuilder
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.wire.messages import metadata_records as wire
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.derived.rehearsed_elections import rehearse_election
from sim.history import SafetyViolation
from tests.mutants.patching import patched

TOPIC = bytes([1]) * 16
KEY = TopicIdPartition(TOPIC, 0)
DIRS = {number: bytes([10 + number]) * 16 for number in (1, 2, 3)}
ELECT = "odradek.metadata_quorum.controller.unclean_recovery:Recovery.elect"
TIMES = 50


def waiting(*, high: int = 1, leader: int = -1) -> MetadataImage:
    """Make an image with a partition without candidates on three brokers."""
    builder = ImageBuilder(MetadataImage.empty("c"))
    for number, directory in DIRS.items():
        record = wire.RegisterBrokerRecord(
            broker_id=number, broker_epoch=number, incarnation_id=directory, log_dirs=[directory]
        )
        record.features = [wire.BrokerFeature(REPLICA_LOG_INFO, 0, high)]
        builder.replay(number, record, 1)
    feature = wire.ControllerFeature(REPLICA_LOG_INFO, 0, high)
    builder.replay(
        4, wire.RegisterControllerRecord(controller_id=9, incarnation_id=TOPIC, features=[feature]), 1
    )
    builder.replay(5, wire.TopicRecord("one", TOPIC), 1)
    isr = [] if leader < 0 else [leader]
    builder.replay(
        6,
        wire.PartitionRecord(
            0, TOPIC, [1, 2, 3], isr, [], [], leader, 0, 7, 0, list(DIRS.values()), [], [2, 1]
        ),
        1,
    )
    return builder.build()[0]


def test_the_product_elects_the_best_report() -> None:
    """The product's rule passes each rehearsal."""
    random = Random(1)
    assert sum(rehearse_election(waiting(), KEY, random) for _ in range(TIMES)) > TIMES / 2


def test_only_partitions_that_wait_are_rehearsed() -> None:
    """Only a partition without candidates is rehearsed, and only if all nodes know these reports."""
    random = Random(1)
    assert not rehearse_election(waiting(leader=1), KEY, random)
    assert not rehearse_election(waiting(high=0), KEY, random)
    assert not rehearse_election(waiting(), TopicIdPartition(TOPIC, 1), random)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("info.last_written_leader_epoch, info.log_end_offset,", "info.log_end_offset, 0,"),
        ("and self.brokers[broker_id].epoch == info.broker_epoch", ""),
    ],
)
def test_another_rule_is_noticed(old: str, new: str) -> None:
    """A rule that prefers long logs, or believes an earlier registration, elects another replica."""
    random = Random(1)
    with patched(ELECT, old, new), pytest.raises(SafetyViolation, match="rehearsed election"):
        assert sum(rehearse_election(waiting(), KEY, random) for _ in range(TIMES))
