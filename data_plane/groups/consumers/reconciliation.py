"""The next step of one member towards its target assignment (KIP-848). PURE.

A member in the state `STABLE` has reached a target. When a newer target takes partitions away, the member
becomes `UNREVOKED_PARTITIONS`. The member stays in its epoch until its heartbeats no longer name the lost
partitions. Then the member moves to the epoch of the newest target, and gets those partitions of this target
that are free. While other members still own partitions of this target, the member's state is
`UNRELEASED_PARTITIONS`.

Partitions of topics that the member no longer reads are taken away at once, whatever its target says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from odradek.data_plane.groups.consumers.consumer_group import (
    NO_EPOCHS,
    NO_PARTITIONS,
    Epochs,
    Member,
    MemberState,
    Target,
)
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.consumer_group_heartbeat import TopicPartitions

__all__ = ["is_subset", "reconcile"]

OwnedPartitions = Sequence[TopicPartitions] | None
"""The partitions that a member says it owns. None if the heartbeat leaves them out, because nothing has
changed.
"""
_NONE: frozenset[int] = frozenset()
_UNKNOWN_STATE = (
    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
)


def is_subset(owned: OwnedPartitions, assigned: Epochs) -> bool:
    """True if the heartbeat names the member's partitions, and all of them are assigned to the member."""
    if owned is None:
        return False
    return all(
        partition in assigned.get(topic.topic_id, NO_PARTITIONS)
        for topic in owned
        for partition in topic.partitions
    )


@attrs.frozen
class _Goal:
    """The inputs of a member's next step, except the member itself."""

    epoch: int
    target: Target
    topics: Collection[bytes]
    is_free: Callable[[bytes, int], bool]
    owned: OwnedPartitions


def reconcile(
    member: Member,
    epoch: int,
    target: Target,
    topics: Collection[bytes],
    *,
    has_new_topics: bool,
    is_free: Callable[[bytes, int], bool],
    owned: OwnedPartitions,
) -> Member:
    """Compute the member's next step towards its target. Returns the member as it is after this step.

    `target` is the member's newest target, and `epoch` is the epoch of this target. `topics` are the ids of
    the topics that the member reads. `has_new_topics` is true if these topics have just changed. `is_free`
    returns True for a partition without an owner.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH if the member's state is unknown (a later version wrote it) and
            the member may have partitions
    """
    goal = _Goal(epoch, target, topics, is_free, owned)
    if member.state is MemberState.STABLE and member.epoch == epoch:
        return _without_other_topics(member, goal) if has_new_topics else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _has_any(owned, member.revoking):
        return _without_other_topics(member, goal) if has_new_topics else member
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        reached("consumer_groups.unknown_state_fenced")
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, _UNKNOWN_STATE)
    return _towards(member, goal)


def _has_any(owned: OwnedPartitions, wanted: Epochs) -> bool:
    """True if the member may still own one of the wanted partitions.

    If a heartbeat leaves out the member's partitions, the result is True.
    """
    if owned is None:
        return True
    return any(
        partition in wanted.get(topic.topic_id, NO_PARTITIONS)
        for topic in owned
        for partition in topic.partitions
    )


def _without_other_topics(member: Member, goal: _Goal) -> Member:
    """Revoke the partitions of topics that the member no longer reads. Its epoch and its other partitions do
    not change.
    """
    assigned = {topic_id: each for topic_id, each in member.assigned.items() if topic_id in goal.topics}
    if len(assigned) == len(member.assigned):
        return member
    revoking: dict[bytes, Mapping[int, int]] = dict(member.revoking)
    for topic_id, partitions in member.assigned.items():
        if topic_id not in goal.topics:
            revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    moved = member.moved_to(member.epoch)
    if _has_any(goal.owned, revoking):
        return attrs.evolve(
            moved, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking
        )
    return attrs.evolve(moved, assigned=assigned)


def _towards(member: Member, goal: _Goal) -> Member:
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    missing: dict[bytes, list[int]] = {}
    waits = False
    for topic_id in sorted({*goal.target, *member.assigned}):
        wanted = goal.target.get(topic_id, _NONE) if topic_id in goal.topics else _NONE
        has = member.assigned.get(topic_id, NO_PARTITIONS)
        given_up = member.revoking.get(topic_id, NO_PARTITIONS)
        kept = {partition: since for partition, since in has.items() if partition in wanted}
        lost = {partition: since for partition, since in has.items() if partition not in wanted}
        # A partition that the member itself has just revoked is free for it, because nobody else owns the
        # partition.
        more = [
            each
            for each in sorted(wanted)
            if each not in kept and (each in given_up or goal.is_free(topic_id, each))
        ]
        waits = waits or len(kept) + len(more) < len(wanted)
        if kept:
            assigned[topic_id] = kept
        if lost:
            revoking[topic_id] = lost
        if more:
            missing[topic_id] = more
    if revoking and _has_any(goal.owned, revoking):
        return attrs.evolve(
            member.moved_to(member.epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=assigned,
            revoking=revoking,
        )
    for topic_id, partitions in missing.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, goal.epoch))
    return attrs.evolve(
        member.moved_to(goal.epoch),
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=assigned,
        revoking=NO_EPOCHS,
    )
