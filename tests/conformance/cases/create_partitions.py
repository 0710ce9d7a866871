"""CreatePartitions: topics that grow, and counts and assignments that are refused."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.structure import ZERO_UUID
from tests.conformance.asking.talk import Talk, case

Assignments = list[list[int]] | None


def _grow(
    talk: Talk,
    *topics: tuple[str, int, Assignments],
    version: int = 3,
    validate_only: bool = False,
) -> None:
    asked = [
        CreatePartitionsTopic(
            name,
            count,
            None if told is None else [CreatePartitionsAssignment(replicas) for replicas in told],
        )
        for name, count, told in topics
    ]
    talk.ask(CreatePartitionsRequest(asked, 10_000, validate_only), version)


def _count(talk: Talk, name: str, count: int) -> None:
    """Wait until the topic has `count` partitions with leaders."""
    talk.wait_for_topic(name)
    request = MetadataRequest([MetadataRequestTopic(ZERO_UUID, name)], False)
    talk.ask_until(request, 9, lambda answer: len(answer.topics[0].partitions) == count)


def _versions(talk: Talk, *, version: int) -> None:
    name, _ = talk.topic(f"grow{version}")
    _grow(talk, (name, 3, None), version=version)
    _count(talk, name, 3)
    _grow(talk, (name, 3, None), (talk.name("grow-unknown"), 3, None), version=version)
    _grow(talk, (name, 4, [[1]]), version=version)
    _count(talk, name, 4)
    _grow(talk, (name, 6, None), version=version, validate_only=True)
    _count(talk, name, 4)


for _version in range(4):
    case(f"create_partitions v{_version}")(partial(_versions, version=_version))

BAD: dict[str, tuple[int, Assignments]] = {
    "the same count": (2, None),
    "a smaller count": (1, None),
    "a count of 0": (0, None),
    "a negative count": (-1, None),
    "no assignments": (3, []),
    "too few assignments": (4, [[1]]),
    "too many assignments": (3, [[1], [1]]),
    "an assignment to nobody": (3, [[]]),
    "an assignment to a stranger": (3, [[7]]),
    "an assignment twice to one": (3, [[1, 1]]),
    "an assignment to a negative broker": (3, [[-1]]),
    "assignments of unequal length": (4, [[1], [1, 1]]),
    "the same count with assignments": (2, [[1]]),
}


def _refused(talk: Talk, *, stem: str, count: int, told: Assignments, validate_only: bool) -> None:
    name, _ = talk.topic(f"grow-{stem}{validate_only}".replace(" ", "-"), 2)
    _grow(talk, (name, count, told), validate_only=validate_only)
    _count(talk, name, 2)


for _label, (_number, _told) in BAD.items():
    case(f"create_partitions with {_label}")(
        partial(_refused, stem=_label, count=_number, told=_told, validate_only=False)
    )
for _label in ("the same count", "a smaller count", "an assignment to a stranger", "too few assignments"):
    case(f"create_partitions validates {_label}")(
        partial(_refused, stem=_label, count=BAD[_label][0], told=BAD[_label][1], validate_only=True)
    )


@case("create_partitions of none")
def _(talk: Talk) -> None:
    for version in (0, 3):
        _grow(talk, version=version)


@case("create_partitions names a topic twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("grow-twice")
    other, _ = talk.topic("grow-once")
    _grow(talk, (name, 2, None), (other, 2, None), (name, 3, None))
    _count(talk, other, 2)
    _count(talk, name, 1)


@case("create_partitions of topics that cannot be")
def _(talk: Talk) -> None:
    _grow(talk, ("", 2, None), ("bad name", 2, None), ("x" * 250, 2, None), (".", 2, None))
    _grow(talk, (talk.name("grow-unknown"), -1, None))


@case("create_partitions of several topics, one bad")
def _(talk: Talk) -> None:
    good, _ = talk.topic("grow-good")
    bad, _ = talk.topic("grow-bad", 2)
    _grow(talk, (bad, 1, None), (good, 2, None))
    _count(talk, good, 2)


@case("create_partitions of the internal topic")
def _(talk: Talk) -> None:
    _grow(talk, ("__consumer_offsets", 1, None), ("__cluster_metadata", 2, None))
