"""OffsetForLeaderEpoch: the end offset of a leader epoch."""

from __future__ import annotations

from functools import partial

from odradek.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.conformance.asking.batches import filled
from tests.conformance.asking.talk import Talk, case


def _epochs(talk: Talk, *, version: int) -> None:
    name, _ = filled(talk, f"leader-epochs{version}", 2)
    for current, epoch, partition in (
        (-1, 0, 0),
        (0, 0, 0),
        (1, 0, 0),
        (-1, 1, 0),
        (-1, -1, 0),
        (-1, -2, 0),
        (-1, 0, 1),
        (-1, 5, 1),
        (-1, 0, 7),
    ):
        asked = [OffsetForLeaderPartition(partition, current, epoch)]
        talk.ask(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, asked)]), version)
    unknown = [OffsetForLeaderTopic(talk.name("leader-epochs-unknown"), [OffsetForLeaderPartition(0, -1, 0)])]
    talk.ask(OffsetForLeaderEpochRequest(-1, unknown), version)


for _version in range(2, 5):
    case(f"offset_for_leader_epoch v{_version}")(partial(_epochs, version=_version))


def _one(talk: Talk, *, version: int, replica: int, name: str, current: int, epoch: int) -> None:
    topic, _ = filled(talk, f"le-{version}{name}{replica}{current}{epoch}".replace(" ", "-"))
    asked = [OffsetForLeaderPartition(0, current, epoch)]
    request = OffsetForLeaderEpochRequest(replica, [OffsetForLeaderTopic(name or topic, asked)])
    talk.ask(request, version)


for _version in (3, 4):
    for _replica in (-2, 0, 1, 7):
        case(f"offset_for_leader_epoch v{_version} as replica {_replica}")(
            partial(_one, version=_version, replica=_replica, name="", current=0, epoch=0)
        )
for _current, _epoch in ((-2, 0), (0, 2**31 - 1), (2**31 - 1, 0), (0, -(2**31))):
    case(f"offset_for_leader_epoch of epoch {_epoch} in epoch {_current}")(
        partial(_one, version=4, replica=-1, name="", current=_current, epoch=_epoch)
    )
case("offset_for_leader_epoch of a bad topic name")(
    partial(_one, version=4, replica=-1, name="bad name", current=0, epoch=0)
)


@case("offset_for_leader_epoch of nothing")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "le-nothing")
    talk.ask(OffsetForLeaderEpochRequest(-1, []), 4)
    talk.ask(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, [])]), 4)


@case("offset_for_leader_epoch names a partition twice")
def _(talk: Talk) -> None:
    name, _ = filled(talk, "le-twice", 2)
    asked = [OffsetForLeaderPartition(0, 0, 0), OffsetForLeaderPartition(0, 0, 0)]
    for version in (2, 4):
        talk.ask(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, asked)]), version)
        twice = [OffsetForLeaderTopic(name, asked[:1]), OffsetForLeaderTopic(name, asked[1:])]
        talk.ask(OffsetForLeaderEpochRequest(-1, twice), version)
