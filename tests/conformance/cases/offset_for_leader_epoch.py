"""OffsetForLeaderEpoch: where an epoch ends."""

from __future__ import annotations

from functools import partial

from tests.conformance.batches import filled
from tests.conformance.talk import Talk, case
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


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
