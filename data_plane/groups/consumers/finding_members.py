"""The search for the member that sent a request, by member id or instance id, and the check of the member's
epoch (KIP-848). PURE.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.groups.consumers.consumer_group import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    Member,
)
from odradek.data_plane.groups.consumers.consumer_records import (
    current_record,
    member_record,
    member_tombstones,
    target_record,
)
from odradek.data_plane.groups.consumers.group_change import GroupChange
from odradek.data_plane.groups.consumers.reconciliation import is_subset
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["dynamic_member", "known_member", "known_static_member", "static_member", "successor_of"]


def dynamic_member(
    group: ConsumerGroup, member_id: str, joins: bool, request: ConsumerGroupHeartbeatRequest
) -> Member:
    """Return the member with this id, or create it if it joins.

    A dynamic member has no instance id. Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH.
    """
    if joins:
        member: Member = group.members.get(member_id, Member(member_id))
        return member
    member = known_member(group, member_id)
    _check_epoch(member, request)
    return member


def static_member(
    change: GroupChange, member_id: str, instance_id: str, joins: bool, request: ConsumerGroupHeartbeatRequest
) -> Member:
    """Return the static member with this instance id, or create it if it joins. A static member that returns
    under a new id replaces its old entry.

    Raises:
        KafkaError: UNRELEASED_INSTANCE_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH
    """
    group = change.group
    if not joins:
        member = known_static_member(group, member_id, instance_id)
        _check_epoch(member, request)
        return member
    existing = group.static_member(instance_id)
    if existing is None:
        found: Member = group.members.get(member_id, Member(member_id))
        return found
    if existing.profile.classic is None and existing.epoch != STATIC_LEAVING_EPOCH:
        reached("consumer_groups.instance_in_use_refused")
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {existing.member_id} member.",
        )
    return successor_of(change, existing, member_id)


def successor_of(change: GroupChange, existing: Member, member_id: str) -> Member:
    """Replace the static member `existing` by a member with a new id. The new member keeps the target and the
    partitions. Returns the new member.
    """
    group = change.group
    successor = attrs.evolve(existing, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    change.add(
        [
            *member_tombstones(group.group_id, existing.member_id),
            member_record(group.group_id, successor),
            target_record(group.group_id, member_id, group.target_of(existing.member_id)),
            current_record(group.group_id, successor),
        ]
    )
    return successor


def known_member(group: ConsumerGroup, member_id: str) -> Member:
    """Return the member with this id. Raises UNKNOWN_MEMBER_ID."""
    member: Member | None = group.members.get(member_id)
    if member is None:
        text = f"Member {member_id} is not a member of group {group.group_id}."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return member


def known_static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> Member:
    """Return the static member with this instance id. Raises UNKNOWN_MEMBER_ID if there is none, and
    FENCED_INSTANCE_ID if it has another member id.
    """
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        reached("consumer_groups.instance_fenced")
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def _check_epoch(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    """Refuse a heartbeat whose epoch is not the member's present epoch.

    The member may not have received the last answer. So its previous epoch is accepted if the heartbeat names
    only partitions that are assigned to it.
    """
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    if epoch < member.epoch:
        if epoch == member.previous_epoch and is_subset(request.topic_partitions, member.assigned):
            reached("consumer_groups.previous_epoch_accepted")
            return
        relation = "smaller"
    else:
        relation = "greater"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )
