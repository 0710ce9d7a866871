"""Check of group coordinators: their state must equal a model built from `__consumer_offsets`. PURE.

A coordinator's state follows from its log. It has the metadata of classic groups, the consumer groups, the committed
offsets, and the pending offsets. Pending offsets wait for the end of a transaction. A pending offset that a later
commit has replaced remains in the state without an effect.

The records must also obey the laws of `sim.checks.folds.group_laws`. The session of each member must end.

Each call of `look` compares a random coordinator, with probability `REPLAY`. The model is kept between calls, so that
only new records are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import attrs

from odradek.data_plane.groups.coordinator import Shard
from odradek.data_plane.groups.records import OffsetCommitValue
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.node.node import Node
from sim.checks.derived.consumer_states import consumers_difference
from sim.checks.derived.log_reader import LogReader
from sim.checks.derived.member_sessions import endless_session
from sim.checks.folds.coordinator_folds import GroupsFold, OffsetKey
from sim.checks.groups.removed_offsets import RemovedOffsets
from sim.checks.watched import Hosted, Processes, partition_name
from sim.history import SafetyViolation
from sim.machine.members import Member

__all__ = ["GroupStates", "groups_difference"]

NO_TOPIC_ID = bytes(16)
REPLAY = 0.1
"""The probability that a call of `look` compares a random coordinator."""


@attrs.define
class _Followed:
    """A coordinator's log, and the model of all records read so far."""

    reader: LogReader
    fold: GroupsFold


class GroupStates:
    """The check of the group coordinators on all living brokers."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._random = Random(f"{processes.world.seed}/group states")
        self._folds: dict[PartitionLog, _Followed] = {}
        self.removed = RemovedOffsets()
        self.replays = 0

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Compare a random coordinator with its log, with probability `REPLAY`. Raises `SafetyViolation`."""
        if self._random.random() < REPLAY:
            shards = list(self._shards())
            if shards:
                self._look_at(*self._random.choice(shards))

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Compare all coordinators with their logs. Raises `SafetyViolation`."""
        for each in self._shards():
            self._look_at(*each)

    def _shards(self) -> Iterator[tuple[Member, Node, Shard]]:
        for member, node in self._processes.living():
            if node.broker is not None:
                for _, shard in sorted(node.broker.groups.shards.items()):
                    if not shard.is_loading:
                        yield member, node, shard

    def _new_fold(self, node: Node) -> GroupsFold:
        """Make the model of a log on this node. It judges each record."""

        def may_remove(place: OffsetKey, value: OffsetCommitValue) -> bool:
            assert node.broker is not None
            topic = node.broker.newest.image.topics.get(place[1])
            is_gone = topic is None or value.topic_id not in (topic.topic_id, NO_TOPIC_ID)
            return is_gone or self.removed.may_go(place)

        assert node.broker is not None
        return GroupsFold(may_remove, node.broker.groups.settings.offsets_retention_ms)

    def _look_at(self, member: Member, node: Node, shard: Shard) -> None:
        log, runtime = shard.partition.log, shard._runtime
        if runtime is None or log.offline or log.is_closed or not shard.partition.is_leader:
            return
        followed = self._folds.get(log)
        if followed is None or not followed.reader.is_valid:
            self._folds = {each: found for each, found in self._folds.items() if not each.is_closed}
            followed = self._folds[log] = _Followed(LogReader(log), self._new_fold(node))
        for header, batch in followed.reader.go_on():
            followed.fold.take(header, batch)
        if not followed.reader.is_at_end:
            return
        self.replays += 1
        for group_id, group in sorted(followed.fold.consumers.groups.items()):
            for slot, owners in sorted(group.owners().items()):
                if len(owners) > 1:
                    raise SafetyViolation(
                        f"groups: {slot} of {group_id} belongs to {owners} at {member.name}"
                    )
        endless = endless_session(shard.machine, runtime.state)
        if endless is not None:
            raise SafetyViolation(f"sessions: on {member.name} {endless}")
        difference = groups_difference(followed.fold, runtime.state)
        if difference is not None:
            raise SafetyViolation(
                f"groups: {member.name} has in {partition_name(shard.partition)} {difference}"
            )


def groups_difference(fold: GroupsFold, state: GroupsState) -> str | None:
    """Describe the first difference between a coordinator's state and the model of its log; None if they are equal."""
    metadata = dict(state.metadata.items())
    if metadata != fold.metadata:
        return f"the metadata {metadata}, and its log says {fold.metadata}"
    difference = consumers_difference(fold.consumers, state)
    if difference is not None:
        return difference
    committed = {
        (group, topic, partition): value
        for group, offsets in state.offsets.items()
        for (topic, partition), value in offsets.items()
    }
    there = {place: value for place, (_, value) in fold.offsets.items()}
    for place in sorted({*committed, *there}):
        if committed.get(place) != there.get(place):
            return f"{committed.get(place)} for {place}, and its log says {there.get(place)}"
    pending = {
        (producer_id, group, topic, partition): (each.offset, each.value)
        for producer_id, groups in state.pending.items()
        for group, offsets in groups.items()
        for (topic, partition), each in offsets.items()
    }
    waiting = {}
    for producer_id, of_producer in fold.pending.items():
        for place, (offset, value) in of_producer.items():
            newest = fold.offsets.get(place)
            is_overtaken = newest is not None and newest[0] > offset
            waiting[producer_id, *place] = (offset, None if is_overtaken else value)
    return None if pending == waiting else f"{pending} pending, and its log says {waiting}"
