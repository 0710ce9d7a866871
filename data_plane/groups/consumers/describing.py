"""The response of ConsumerGroupDescribe: a consumer group and its members. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, Epochs, Member, Target
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.serving.steps import Work
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages import consumer_group_describe as wire

__all__ = ["describe_group", "group_not_found"]

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def group_not_found(group_id: str, is_there: bool) -> wire.DescribedGroup:
    """Build the description of a missing group: the error GROUP_ID_NOT_FOUND.

    `is_there` is true if a group of another kind has this id.
    """
    fault = "is not a consumer group" if is_there else "not found"
    error = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {fault}.")
    return wire.DescribedGroup(error.code, error.message, group_id)


def describe_group(
    group: ConsumerGroup, offered: Sequence[str], image: MetadataImage
) -> Work[wire.DescribedGroup]:
    """Describe a group with its members, sorted by their ids.

    The work is done in slices, because a group may have many members.
    """
    members = []
    for member_id in sorted(group.members):
        member, target = group.members[member_id], group.target_of(member_id)
        members.append(_member(member, target, image))
        yield 1 + sum(map(len, member.assigned.values())) + sum(map(len, target.values()))
    return wire.DescribedGroup(
        ErrorCode.NONE,
        None,
        group.group_id,
        group.state.value,
        group.epoch,
        group.target_epoch,
        group.preferred_assignor(offered),
        members,
    )


def _member(member: Member, target: Target, image: MetadataImage) -> wire.Member:
    profile = member.profile
    return wire.Member(
        member.member_id,
        profile.instance_id,
        profile.rack_id,
        member.epoch,
        profile.client_id,
        profile.client_host,
        list(profile.topics),
        profile.pattern,
        _topics(_had(member), image),
        _topics(target, image),
        CONSUMER_MEMBER if profile.classic is None else CLASSIC_MEMBER,
    )


def _had(member: Member) -> Epochs:
    """Return all partitions of a member, including those that the member has not revoked yet."""
    if not member.revoking:
        return member.assigned
    had: dict[bytes, Mapping[int, int]] = dict(member.assigned)
    for topic_id, partitions in member.revoking.items():
        had[topic_id] = {**had.get(topic_id, {}), **partitions}
    return had


def _topics(partitions: Mapping[bytes, Collection[int]], image: MetadataImage) -> wire.Assignment:
    """List partitions by topic, with the topic's name. Deleted topics are left out."""
    return wire.Assignment(
        [
            wire.TopicPartitions(topic_id, topic.name, sorted(partitions[topic_id]))
            for topic_id in sorted(partitions)
            if (topic := image.topics_by_id.get(topic_id)) is not None
        ]
    )
