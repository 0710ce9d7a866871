"""Targets of large groups: a worker computes them, and the coordinator writes them in parts. PURE.

Theory of operation
-------------------
The target of a small group is computed inside a decision. The target of a large group would block the event
loop for too long. So the decision requests a `TargetRun`. A worker computes the target from the group as it was
at the request, and splits the records into parts. The coordinator submits each part to itself as a request, so
each part is a decision of its own. A part is small enough for one turn of the event loop and for one batch of
the log. The last part has the record of the target's epoch.

A part counts only while its run is the newest of its group. The group may have changed meanwhile:

* Parts skip members that have left. Their departure has raised the group's epoch, so another target follows.
* A static member that came back with another id gets the target that was computed for its old id. Its return
  raises no epoch.
* A run ends if its group is deleted, becomes a classic group or gets another target.

Until the last part is written, members take no step, since they would move to a mixture of two targets. Only
a joining member takes a step, because it needs an epoch. A coordinator that takes over in between finds such
a mixture in the log, with the earlier target's epoch. This coordinator then computes a new target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup
from odradek.data_plane.groups.consumers.consumer_records import target_epoch_record
from odradek.data_plane.groups.consumers.target_assignment import member_targets
from odradek.env.pausing import pause
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached
from odradek.wire.messages.coordinator_records import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)

__all__ = ["TargetPart", "TargetRun", "TargetRuns", "is_small"]

INLINE_UNITS_MAX = 300
"""The largest group for which a decision computes the target itself. The size is counted in members,
partitions, and readers of each topic. The target of such a group takes 2 to 3 ms.
"""
PART_UNITS = 600
"""The size of one part, in members plus partitions of its records. A part takes about 2 ms and 10 kB."""


def is_small(group: ConsumerGroup, image: MetadataImage) -> bool:
    """True if the group is small enough for a decision to compute its target itself."""
    left = INLINE_UNITS_MAX - len(group.members)
    counts = group.topic_counts
    for name in counts:
        topic = image.topics.get(name)
        left -= counts[name] + (0 if topic is None else len(topic.partitions))
        if left < 0:
            return False
    for pattern, resolved in group.resolved.items():
        readers = group.pattern_counts.get(pattern, 0)
        for name in resolved.topics:
            topic = image.topics.get(name)
            left -= readers + (0 if topic is None else len(topic.partitions))
            if left < 0:
                return False
    return left >= 0


@attrs.frozen(eq=False)
class TargetRun:
    """Work for a worker: compute the target of a group for its present epoch."""

    group: ConsumerGroup
    offered: Sequence[str]
    """The names of the assignors that the coordinator supports."""
    image: MetadataImage

    @property
    def group_id(self) -> str:
        return self.group.group_id

    def requests(self) -> Sequence[TargetPart]:
        """Compute the target, and return it as a sequence of requests to the coordinator, one for each part."""
        records = member_targets(self.group, self.offered, self.image)
        pause()
        parts = [TargetPart(self, some, False) for some in _in_parts(records)]
        last = parts.pop().records if parts else ()
        return [*parts, TargetPart(self, last, True)]


@attrs.frozen(eq=False)
class TargetPart:
    """One part of a target, which asks the coordinator to write these records. The request has no answer."""

    run: TargetRun
    records: Sequence[CoordinatorRecord]
    is_last: bool


def _in_parts(records: Sequence[CoordinatorRecord]) -> Iterator[Sequence[CoordinatorRecord]]:
    part: list[CoordinatorRecord] = []
    units = 0
    for record in records:
        value = record.value
        assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
        size = 1 + sum(len(each.partitions) for each in value.topic_partitions)
        if part and units + size > PART_UNITS:
            yield part
            part, units = [], 0
        part.append(record)
        units += size
    if part:
        yield part


class TargetRuns:
    """The target runs of all groups of one coordinator: at most one run for each group. They are soft state."""

    def __init__(self) -> None:
        self._running: dict[str, TargetRun] = {}
        self._writing: dict[str, None] = {}
        """Groups whose target is partly written. At least one part is in the log, but the last part is not."""
        self._wanted: list[TargetRun] = []

    def begin(self, group: ConsumerGroup, offered: Sequence[str], image: MetadataImage) -> None:
        """Request a run that computes the target of this group, unless one is already running."""
        if group.group_id not in self._running:
            run = self._running[group.group_id] = TargetRun(group, offered, image)
            self._wanted.append(run)

    def take_wanted(self) -> Sequence[TargetRun]:
        """Return the runs that were requested since the last call and not cancelled."""
        wanted = [run for run in self._wanted if self._running.get(run.group_id) is run]
        self._wanted = []
        return wanted

    def is_writing(self, group_id: str) -> bool:
        """True if the group's new target is partly written, so that parts of it are still missing in the log."""
        return group_id in self._writing

    def cancel(self, group_id: str) -> None:
        """Cancel the run of a group. Parts that its worker still sends are ignored."""
        self._running.pop(group_id, None)
        self._writing.pop(group_id, None)

    def ended(self, run: TargetRun) -> None:
        """Record that a worker has sent all parts of this run."""
        if self._running.get(run.group_id) is run:
            self.cancel(run.group_id)

    def take_part(
        self, group: ConsumerGroup | None, part: TargetPart, wall_ms: int
    ) -> Sequence[CoordinatorRecord]:
        """Return the records of a part, adapted to the group as it is now. Empty if the run has ended."""
        run = part.run
        if group is None or self._running.get(run.group_id) is not run:
            reached("consumer_groups.part_of_ended_run_dropped")
            return ()
        records = [record for each in part.records if (record := _for_present(group, run, each)) is not None]
        if not part.is_last:
            reached("consumer_groups.target_written_in_parts")
            self._writing[run.group_id] = None
            return records
        self.cancel(run.group_id)
        if group.epoch > run.group.epoch:
            reached("consumer_groups.target_of_earlier_epoch_written")
        return [*records, target_epoch_record(run.group_id, run.group.epoch, wall_ms)]


def _for_present(group: ConsumerGroup, run: TargetRun, record: CoordinatorRecord) -> CoordinatorRecord | None:
    """Return `record` if its member is still in the group. If a static member has returned under a new id,
    return the record with the new id. Return None if the member has left.
    """
    key = record.key
    assert isinstance(key, ConsumerGroupTargetAssignmentMemberKey)
    if key.member_id in group.members:
        return record
    successor = group.static_member(run.group.members[key.member_id].profile.instance_id)
    if successor is None or successor.member_id in run.group.members:
        reached("consumer_groups.target_of_departed_member_dropped")
        return None
    reached("consumer_groups.target_given_to_successor")
    return attrs.evolve(record, key=ConsumerGroupTargetAssignmentMemberKey(run.group_id, successor.member_id))
