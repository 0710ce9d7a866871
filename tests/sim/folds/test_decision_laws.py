"""The laws of the controller's decisions: each has a log that obeys it, and a record that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.wire.messages import metadata_records as wire
from odradek.wire.structure import Message
from sim.checks.folds.decision_laws import judge_decision
from sim.checks.folds.metadata_fold import MetadataFold
from sim.history import SafetyViolation

TOPIC = bytes([1]) * 16
RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
DIRS = {broker: [bytes([10 * broker + place]) * 16 for place in (1, 2)] for broker in RACKS}


def brokers() -> list[Message]:
    """Register four brokers in two racks. The fourth stays fenced."""
    made: list[Message] = [
        wire.RegisterBrokerRecord(
            broker_id=number,
            broker_epoch=number,
            incarnation_id=bytes([number]) * 16,
            rack=rack,
            log_dirs=DIRS[number],
            fenced=True,
        )
        for number, rack in RACKS.items()
    ]
    return [*made, *(wire.UnfenceBrokerRecord(number, number) for number in (1, 2, 3))]


def partition(
    replicas: Sequence[int] = (1, 3), isr: Sequence[int] = (1, 3), elr: Sequence[int] = ()
) -> Message:
    """Make a partition that is led by the first in-sync replica."""
    directories = [DIRS[each][0] for each in replicas]
    return wire.PartitionRecord(
        0,
        TOPIC,
        list(replicas),
        list(isr),
        [],
        [],
        isr[0] if isr else -1,
        0,
        0,
        0,
        directories,
        list(elr),
        [],
    )


def change(**fields: Any) -> Message:
    return wire.PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)


def judged(*records: Message) -> MetadataFold:
    """Take records into a judged fold, behind the brokers and a topic."""
    fold = MetadataFold(judge_decision)
    for offset, record in enumerate([*brokers(), wire.TopicRecord("one", TOPIC), *records]):
        fold.take(offset, 1, [record])
    return fold


ADDED = change(
    replicas=[1, 3, 2],
    adding_replicas=[2],
    removing_replicas=[3],
    directories=[DIRS[n][0] for n in (1, 3, 2)],
)
MOVED = {
    "replicas": [1, 2],
    "adding_replicas": [],
    "removing_replicas": [],
    "directories": [DIRS[n][0] for n in (1, 2)],
}

SOUND: dict[str, Sequence[Message]] = {
    "a member leaves and comes back": [partition(), change(isr=[1]), change(isr=[1, 3])],
    "a reassignment ends": [partition(), ADDED, change(isr=[1, 3, 2]), change(**MOVED, isr=[1, 2], leader=1)],
    "a reassignment is given up": [
        partition(),
        ADDED,
        change(
            replicas=[1, 3], adding_replicas=[], removing_replicas=[], directories=[DIRS[1][0], DIRS[3][0]]
        ),
    ],
    "an eligible replica is elected": [
        partition(isr=(), elr=(1,)),
        change(isr=[1], leader=1, eligible_leader_replicas=[]),
    ],
    "a broker is fenced": [partition(), change(isr=[3], leader=3), wire.FenceBrokerRecord(1, 1)],
    "a broker leaves": [partition(), change(isr=[3], leader=3), wire.UnregisterBrokerRecord(1, 1)],
    "a directory goes": [partition(), wire.BrokerRegistrationChangeRecord(3, 3, 0, 0, DIRS[3][:1], None)],
    "a token is renewed": [
        wire.DelegationTokenRecord("u", "u", [], 1, 90, 50, "t"),
        wire.DelegationTokenRecord("u", "u", [], 1, 90, 90, "t"),
    ],
    "ids go on": [wire.ProducerIdsRecord(1, 1, 1000), wire.ProducerIdsRecord(1, 1, 2000)],
}

BROKEN: dict[str, Sequence[Message]] = {
    "is led by 3, and": [partition(), change(isr=[1], leader=3)],
    "in sync, and (1, 3) eligible": [partition(), change(eligible_leader_replicas=[1, 3])],
    "has the replicas (1, 3)": [partition(), change(isr=[1, 2])],
    "4 is not active": [partition((1, 4), (1,)), change(isr=[1, 4])],
    "only (1,) are in sync": [partition(), ADDED, change(**MOVED, isr=[1], leader=1)],
    "its leader epoch stays": [partition(), ADDED, change(isr=[1, 3, 2]), change(**MOVED, isr=[1, 2])],
    "is fenced, and leads one-0": [partition(), wire.FenceBrokerRecord(1, 1)],
    "registers in a new life": [
        partition(),
        wire.RegisterBrokerRecord(broker_id=1, broker_epoch=9, log_dirs=DIRS[1], fenced=True),
    ],
    "is removed, and is in sync": [partition(), wire.UnregisterBrokerRecord(3, 3)],
    "has lost a directory": [partition(), wire.BrokerRegistrationChangeRecord(3, 3, 0, 0, DIRS[3][1:], None)],
    "in 1 racks of 2": [partition((1, 2), (1, 2))],
    "behind its latest time": [wire.DelegationTokenRecord("u", "u", [], 1, 90, 91, "t")],
    "was 90, and is 99": [
        wire.DelegationTokenRecord("u", "u", [], 1, 90, 50, "t"),
        wire.DelegationTokenRecord("u", "u", [], 1, 99, 99, "t"),
    ],
    "ids of producers go on": [wire.ProducerIdsRecord(1, 1, 1000), wire.ProducerIdsRecord(1, 1, 1000)],
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_decision(name: str) -> None:
    """The state takes decisions that obey the laws."""
    assert judged(*SOUND[name]).offset > 0


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_broken_law(complaint: str) -> None:
    """The last record breaks a law, and the complaint names it. The records before are sound."""
    *before, last = BROKEN[complaint]
    judged(*before)
    with pytest.raises(SafetyViolation) as broken:
        judged(*before, last)
    assert complaint in str(broken.value)
