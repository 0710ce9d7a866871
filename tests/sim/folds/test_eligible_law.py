"""The law of eligible replicas: logs that obey it, and records that forget a replica without a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.folds.eligible_law import EligibleLaw
from sim.checks.folds.metadata_fold import MetadataFold
from sim.history import SafetyViolation

TOPIC = bytes([1]) * 16
DIRS = {number: bytes([10 + number]) * 16 for number in (1, 2, 3, 4)}
FEATURE = wire.FeatureLevelRecord("eligible.leader.replicas.version", 1)
MIN_ISR = wire.ConfigRecord(4, "", "min.insync.replicas", "2")
END = wire.NoOpRecord()


def partition(isr: Sequence[int] = (1, 2, 3), elr: Sequence[int] = ()) -> Message:
    """Make a partition with three replicas."""
    leader = isr[0] if isr else -1
    return wire.PartitionRecord(
        0, TOPIC, [1, 2, 3], list(isr), [], [], leader, 0, 0, 0, [DIRS[n] for n in (1, 2, 3)], list(elr), []
    )


def change(**fields: Any) -> Message:
    return wire.PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)


def register(broker_id: int) -> Message:
    return wire.RegisterBrokerRecord(broker_id=broker_id, broker_epoch=90, incarnation_id=DIRS[broker_id])


def judged(*records: Message, before: Sequence[Message] = (FEATURE, MIN_ISR)) -> EligibleLaw:
    """Take records into a fold with this law, and end the last decision."""
    law = EligibleLaw()
    fold = MetadataFold(law.judge)
    for offset, record in enumerate([*before, wire.TopicRecord("one", TOPIC), *records, END]):
        fold.take(offset, 1, [record])
    return law


SOUND: dict[str, Sequence[Message]] = {
    "too few in sync": [partition(), change(isr=[1], eligible_leader_replicas=[2, 3])],
    "enough in sync": [partition(), change(isr=[1, 2])],
    "an eligible replica joins": [
        partition((1,), (2, 3)),
        change(isr=[1, 2], eligible_leader_replicas=[]),
    ],
    "an eligible replica leads": [
        partition((), (1, 2)),
        change(isr=[1], leader=1, eligible_leader_replicas=[2]),
    ],
    "an unclean stop": [partition((1,), (2,)), change(eligible_leader_replicas=[]), register(2)],
    "an unclean election": [
        partition((), (1, 2)),
        change(isr=[3], leader=3, eligible_leader_replicas=[], leader_recovery_state=1),
    ],
    "no replica any more": [
        partition((1,), (2,)),
        change(
            replicas=[1, 3], directories=[DIRS[1], DIRS[3]], isr=[1], eligible_leader_replicas=[], leader=1
        ),
    ],
    "another directory": [
        partition((1,), (2,)),
        change(directories=[DIRS[1], DIRS[4], DIRS[3]], eligible_leader_replicas=[]),
    ],
    "a lower least": [
        partition((1,), (2,)),
        change(eligible_leader_replicas=[]),
        wire.ConfigRecord(2, "one", "retention.ms", "5"),
        wire.ConfigRecord(2, "one", "min.insync.replicas", "1"),
    ],
}

BROKEN: dict[str, Sequence[Message]] = {
    "replica 2 of one-0 is forgotten": [partition(), change(isr=[1], eligible_leader_replicas=[3])],
    "replica 3 of one-0 is forgotten": [
        partition((1,), (2, 3)),
        change(eligible_leader_replicas=[2]),
        register(2),
    ],
    "2 as the least": [
        partition((1,), (2,)),
        change(eligible_leader_replicas=[]),
        wire.ConfigRecord(2, "one", "retention.ms", "5"),
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_a_log_that_obeys(name: str) -> None:
    """Nothing is said against a replica that stays eligible, or has a reason to be forgotten."""
    judged(*SOUND[name])


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_log_that_forgets_a_replica(complaint: str) -> None:
    """A replica that is forgotten below the least number in sync is named."""
    with pytest.raises(SafetyViolation, match=complaint):
        judged(*BROKEN[complaint])


def test_the_law_needs_the_feature_and_a_known_least() -> None:
    """Changes are judged only with the feature, and with a value in the log."""
    records = BROKEN["replica 2 of one-0 is forgotten"]
    assert judged(*records, before=[MIN_ISR]).seen == 0
    assert judged(*records, before=[FEATURE]).seen == 0
