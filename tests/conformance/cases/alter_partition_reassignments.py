"""AlterPartitionReassignments: a cluster of one broker has nothing to move."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.conformance.asking.talk import Talk, case

Wanted = list[tuple[str, list[tuple[int, list[int] | None]]]]


def _move(talk: Talk, wanted: Wanted, version: int = 1, *, change_factor: bool = True) -> None:
    topics = [
        ReassignableTopic(name, [ReassignablePartition(index, replicas) for index, replicas in partitions])
        for name, partitions in wanted
    ]
    talk.ask(AlterPartitionReassignmentsRequest(10_000, change_factor, topics), version)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"move{version}", 3)
    _move(talk, [(name, [(0, [1]), (1, None), (7, [1])])], version)
    _move(talk, [(talk.name("move-unknown"), [(0, [1]), (1, None)])], version)
    _move(talk, [], version)


for _version in range(2):
    case(f"alter_partition_reassignments v{_version}")(partial(_versions, version=_version))

BAD: dict[str, list[int]] = {
    "nobody": [],
    "a stranger": [7],
    "a stranger beside": [1, 7],
    "one broker twice": [1, 1],
    "a negative broker": [-1],
    "broker 0": [0],
}


def _refused(talk: Talk, *, stem: str, replicas: list[int], change_factor: bool) -> None:
    name, _ = talk.topic(f"move-{stem}{change_factor}".replace(" ", "-"))
    _move(talk, [(name, [(0, replicas)])], change_factor=change_factor)


for _label, _replicas in BAD.items():
    for _change in (True, False):
        _rule = "" if _change else ", the factor fixed"
        case(f"alter_partition_reassignments to {_label}{_rule}")(
            partial(_refused, stem=_label, replicas=_replicas, change_factor=_change)
        )


@case("alter_partition_reassignments names a partition twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("move-twice", 2)
    _move(talk, [(name, [(0, [1]), (0, [1])])])
    _move(talk, [(name, [(0, [1])]), (name, [(1, [1])])])


@case("alter_partition_reassignments of partitions that cannot be")
def _(talk: Talk) -> None:
    name, _ = talk.topic("move-bad")
    _move(talk, [(name, [(-1, [1])])])
    _move(talk, [(name, [])])
    _move(talk, [("", [(0, [1])]), ("bad name", [(0, [1])]), ("__cluster_metadata", [(0, [1])])])


@case("alter_partition_reassignments of several, one bad")
def _(talk: Talk) -> None:
    good, _ = talk.topic("move-good")
    bad, _ = talk.topic("move-worse")
    _move(talk, [(bad, [(0, [9])]), (good, [(0, [1])])])
