"""The way of a group from the classic protocol to that of consumers, and back, while its members go on. PURE.

A classic group becomes a consumer group when a member of the consumer protocol joins it. The other members go on
speaking the classic protocol. Their epoch is the generation, and they keep the partitions that the leader has given them. The group becomes classic again when its last member of the consumer protocol leaves. Then the targets become
assignments, and a rebalance begins.

`group.consumer.migration.policy` says which way is open. Offsets are not touched: they belong to the name of the group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from odradek.data_plane.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupPhase
from odradek.data_plane.groups.classic_group import Member as ClassicMember
from odradek.data_plane.groups.consumers.consumer_group import (
    ClassicSide,
    ConsumerGroup,
    Epochs,
    Member,
    Owned,
    Profile,
)
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached
from odradek.wire.codec import decode_bounded, encode
from odradek.wire.errors import ErrorCode, KafkaError, ProtocolError
from odradek.wire.messages.consumer_group_heartbeat import TopicPartitions
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)

__all__ = ["downgraded", "encoded_assignment", "may_downgrade", "owned_by_id", "subscription_in", "upgraded"]

_UPGRADE, _DOWNGRADE, _BOTH = "upgrade", "downgrade", "bidirectional"


def subscription_in(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode what a member of the classic protocol reads. Raises `ProtocolError`."""
    return decode_bounded(ConsumerProtocolSubscription, _version_of(metadata), metadata, 2)


def _version_of(data: bytes) -> int:
    """Choose the version for reading a member's metadata. Newer versions only append fields."""
    version = int.from_bytes(data[:2], "big", signed=True)
    return max(0, min(version, ConsumerProtocolSubscription.VALID_VERSIONS[1]))


def encoded_assignment(
    partitions: Mapping[bytes, Collection[int]], metadata: bytes, image: MetadataImage
) -> bytes:
    """Encode partitions for a member of the classic protocol, in the version of its metadata."""
    version = _version_of(metadata)
    topics = [
        ConsumerProtocolAssignmentTopicPartition(topic.name, sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if (topic := image.topics_by_id.get(topic_id)) is not None
    ]
    return version.to_bytes(2, "big") + encode(ConsumerProtocolAssignment(topics), version)


def owned_by_id(subscription: ConsumerProtocolSubscription, image: MetadataImage) -> list[TopicPartitions]:
    """List the partitions that a member of the classic protocol says it has, by topic id."""
    return [
        TopicPartitions(topic.topic_id, list(each.partitions))
        for each in subscription.owned_partitions
        if (topic := image.topics.get(each.topic)) is not None
    ]


# -- to the consumer protocol -------------------------------------------------------------------------------------


def upgraded(
    classic: ClassicGroup, settings: GroupSettings, image: MetadataImage
) -> tuple[ConsumerGroup, Sequence[Member]]:
    """Make the consumer group in place of a classic group with members; returns it without members, and the members.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND where the way is closed, or the members could not go on
    """
    group_id = classic.group_id
    if settings.migration_policy.lower() not in (_UPGRADE, _BOTH):
        raise _not_upgraded(group_id, "because online upgrade is disabled")
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise _not_upgraded(group_id, "because the group does not use the consumer embedded protocol")
    if len(classic.members) > settings.consumer_group_size_max:
        raise _not_upgraded(group_id, "because the group size exceeds the consumer group maximum size")
    protocol = classic.protocol or classic.select_protocol()
    taken: set[Owned] = set()
    members = [_upgraded_member(each, protocol, classic, taken, image) for each in classic.members.values()]
    generation = classic.generation
    return ConsumerGroup(group_id, generation, 0, generation, 0), members


def _not_upgraded(group_id: str, reason: str) -> KafkaError:
    reached("consumer_groups.upgrade_refused")
    text = f"Cannot upgrade classic group {group_id} to consumer group {reason}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _upgraded_member(
    member: ClassicMember,
    protocol: str,
    classic: ClassicGroup,
    taken: set[Owned],
    image: MetadataImage,
) -> Member:
    try:
        subscription = subscription_in(member.metadata_for(protocol))
        assigned = _assigned_in(member.assignment, classic, image)
    except ProtocolError as error:
        raise _not_upgraded(
            classic.group_id, "because the embedded consumer protocol is malformed"
        ) from error
    owned = [(topic_id, each) for topic_id, partitions in assigned.items() for each in partitions]
    if not taken.isdisjoint(owned):
        # The leader has given one partition to two members. Only one could keep it.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    taken.update(owned)
    return Member(
        member.member_id,
        Profile(
            member.group_instance_id,
            subscription.rack_id or None,
            member.client_id,
            member.client_host,
            tuple(sorted(dict.fromkeys(subscription.topics))),
            "",
            member.rebalance_timeout_ms,
            None,
            ClassicSide(member.session_timeout_ms, member.protocols),
        ),
        classic.generation,
        classic.generation,
        assigned=assigned,
    )


def _assigned_in(assignment: bytes, classic: ClassicGroup, image: MetadataImage) -> Epochs:
    """Decode the partitions that a leader has assigned. None for a member that has just joined."""
    if not assignment:
        return {}
    given = decode_bounded(ConsumerProtocolAssignment, _version_of(assignment), assignment, 2)
    if given.user_data:
        raise _not_upgraded(
            classic.group_id,
            "because an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
            "default assignor before re-attempting the upgrade",
        )
    assigned: dict[bytes, dict[int, int]] = {}
    for each in given.assigned_partitions:
        topic = image.topics.get(each.topic)
        if topic is not None:
            since = dict.fromkeys(each.partitions, classic.generation)
            assigned.setdefault(topic.topic_id, {}).update(since)
    return assigned


# -- to the classic protocol --------------------------------------------------------------------------------------


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[str], settings: GroupSettings, joining: int = 0
) -> bool:
    """True if the group becomes classic when these members are gone: all others speak the classic protocol, and the
    way is open. `joining` is the number of classic members that take their places.
    """
    left = len(group.members) - len(leaving)
    leaving_classic = sum(group.members[each].profile.classic is not None for each in leaving)
    return (
        0 < left + joining <= settings.group_size_max
        and group.classic_count - leaving_classic == left
        and settings.migration_policy.lower() in (_DOWNGRADE, _BOTH)
    )


def downgraded(group: ConsumerGroup, image: MetadataImage, wall_ms: int) -> ClassicGroup:
    """Make the classic group in place of a consumer group whose members all speak the classic protocol.

    It is stable in the generation that was the group's epoch, and each member has its target.
    """
    classic = ClassicGroup(group.group_id)
    classic.generation = group.epoch
    for member_id in sorted(group.members):
        profile = group.members[member_id].profile
        assert profile.classic is not None, "a group became classic with a member of the consumer protocol"
        member = ClassicMember(
            member_id,
            profile.instance_id,
            profile.client_id,
            profile.client_host,
            profile.classic.session_timeout_ms,
            profile.rebalance_timeout_ms,
            profile.classic.protocols,
        )
        classic.add(member, CONSUMER_PROTOCOL, None)
    classic.protocol = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for member in classic.members.values():
        metadata = member.metadata_for(classic.protocol)
        member.assignment = encoded_assignment(group.target_of(member.member_id), metadata, image)
    classic.phase = GroupPhase.STABLE
    classic.state_timestamp_ms = wall_ms
    return classic
