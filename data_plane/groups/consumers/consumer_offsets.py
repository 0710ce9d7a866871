"""The permission to commit or fetch the offsets of a consumer group (KIP-848, KIP-1251). PURE.

A member commits with its epoch. When the member moves to the next epoch, commits with the earlier one may
still arrive. Such a commit is accepted for each partition that the member has had since that epoch:
`assignment epoch <= epoch of the request <= epoch of the member`. A partition that went to another member and
came back has a later assignment epoch, so an old commit cannot overwrite a newer offset.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, Member, Owned
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.versions import OFFSET_COMMIT_GROUP_ID_NOT_FOUND as MEMBER_EPOCHS

__all__ = ["commit_refusal", "fetch_refusal", "transactional_commit_refusal"]


def commit_refusal(
    group: ConsumerGroup, member_id: str, epoch: int, partitions: Iterable[Owned], version: int
) -> ErrorCode:
    """Return the error for a commit of these partitions, or NONE if it is allowed.

    Any client may commit for an empty group.
    """
    if epoch < 0 and group.is_empty:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.profile.classic is None and version < MEMBER_EPOCHS:
        return ErrorCode.UNSUPPORTED_VERSION
    return _epoch_refusal(member, epoch, partitions)


def transactional_commit_refusal(
    group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int, partitions: Iterable[Owned]
) -> ErrorCode:
    """Return the error for a commit in a transaction, or NONE if it is allowed.

    Producers of old versions send no member id. Their commits are accepted.
    """
    if epoch < 0 and (group.is_empty or (epoch == -1 and not member_id and instance_id is None)):
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # As in Kafka, use the classic protocol's error code, since producers know no other code.
    return ErrorCode.ILLEGAL_GENERATION if _epoch_refusal(member, epoch, partitions) else ErrorCode.NONE


def fetch_refusal(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Return the error for a fetch of offsets, or NONE if it is allowed.

    A member must send its present epoch.
    """
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == member.epoch else _stale(member)


def _epoch_refusal(member: Member, epoch: int, partitions: Iterable[Owned]) -> ErrorCode:
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch > member.epoch:
        return _stale(member)
    for topic_id, partition in partitions:
        since = member.assignment_epoch(topic_id, partition)
        if since is None or epoch < since:
            reached("consumer_groups.commit_of_earlier_epoch_refused")
            return _stale(member)
    return ErrorCode.NONE


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.profile.classic is None else ErrorCode.ILLEGAL_GENERATION
