"""ListPartitionReassignments: nothing moves on a cluster of one broker."""

from __future__ import annotations

from odradek.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.conformance.asking.talk import Talk, case

Wanted = list[tuple[str, list[int]]] | None


def _list(talk: Talk, wanted: Wanted) -> None:
    topics = (
        None
        if wanted is None
        else [ListPartitionReassignmentsTopics(name, list(indexes)) for name, indexes in wanted]
    )
    talk.ask(ListPartitionReassignmentsRequest(10_000, topics), 0)


@case("list_partition_reassignments v0")
def _(talk: Talk) -> None:
    name, _ = talk.topic("moving", 2)
    _list(talk, None)
    _list(talk, [])
    _list(talk, [(name, [0, 1])])


@case("list_partition_reassignments of partitions that cannot be")
def _(talk: Talk) -> None:
    name, _ = talk.topic("moving-bad")
    _list(talk, [(name, [7, -1])])
    _list(talk, [(name, []), (talk.name("moving-unknown"), [0]), ("", [0])])
    _list(talk, [(name, [0, 0]), (name, [0])])
