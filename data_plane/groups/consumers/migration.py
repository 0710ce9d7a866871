"""Conversion of a group between the classic and the consumer protocol while its members run; classic members'
subscriptions and assignments as bytes. PURE.

A classic group becomes a consumer group when a member of the consumer protocol joins it. The other members
still speak the classic protocol. Their epoch is the generation, and they keep the partitions that the group's
leader has assigned to them. The group becomes classic again when its last member of the consumer protocol
leaves. Then the targets become assignments, and a rebalance begins.

`group.consumer.migration.policy` says which of the two conversions are allowed. Offsets do not change, because
they belong to the group's name.
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
IMAGE_LAG_MS_MAX = 10_000
"""For this time after a generation of a classic group, a topic that the group's leader knows may be missing in the
coordinator's image. After it, the topic has been deleted.
"""


def subscription_in(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode the subscription of a classic-protocol member from its metadata. Raises `ProtocolError`."""
    return decode_bounded(ConsumerProtocolSubscription, _version_of(metadata), metadata, 2)


def _version_of(data: bytes) -> int:
    """Return the version with which to decode a member's metadata.

    A version that is too new only appends fields, so such data is read as the newest known version.
    """
    version = int.from_bytes(data[:2], "big", signed=True)
    return max(0, min(version, ConsumerProtocolSubscription.VALID_VERSIONS[1]))


def encoded_assignment(
    partitions: Mapping[bytes, Collection[int]], metadata: bytes, image: MetadataImage
) -> bytes:
    """Encode an assignment for a classic-protocol member, in the version of the member's metadata."""
    version = _version_of(metadata)
    topics = [
        ConsumerProtocolAssignmentTopicPartition(topic.name, sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if (topic := image.topics_by_id.get(topic_id)) is not None
    ]
    return version.to_bytes(2, "big") + encode(ConsumerProtocolAssignment(topics), version)


def owned_by_id(subscription: ConsumerProtocolSubscription, image: MetadataImage) -> list[TopicPartitions]:
    """List by topic id the partitions that a classic-protocol member says it owns."""
    return [
        TopicPartitions(topic.topic_id, list(each.partitions))
        for each in subscription.owned_partitions
        if (topic := image.topics.get(each.topic)) is not None
    ]


# -- to the consumer protocol -------------------------------------------------------------------------------------


def upgraded(
    classic: ClassicGroup, settings: GroupSettings, image: MetadataImage, wall_ms: int
) -> tuple[ConsumerGroup, Sequence[Member]]:
    """Convert a classic group with members. Returns the new consumer group, still without members, and the
    members to add to it.

    A consumer group names topics by their ids. So partitions of a topic that the image does not know are left
    out, as in Kafka. But the topic may be newer than the image, if the group's last generation is young. Then
    the group would give partitions that one member uses to another one, so the upgrade has to wait.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND if the policy forbids the conversion or a member cannot take part
            in it; UNKNOWN_SERVER_ERROR if two members have the same partition; COORDINATOR_LOAD_IN_PROGRESS,
            which clients retry, if a topic may be unknown only because it is new
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
    if 0 <= wall_ms - classic.state_timestamp_ms < IMAGE_LAG_MS_MAX:
        _must_know_all_topics(classic, image)
    generation = classic.generation
    return ConsumerGroup(group_id, generation, 0, generation, 0), members


def _must_know_all_topics(classic: ClassicGroup, image: MetadataImage) -> None:
    for member in classic.members.values():
        given = _given_in(member.assignment)
        for each in given.assigned_partitions:
            if each.topic not in image.topics:
                reached("consumer_groups.upgrade_waits_for_a_topic")
                text = f"The coordinator does not know all topics of group {classic.group_id} yet."
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


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
        # The leader has assigned one partition to two members. Refuse the conversion, because in a consumer
        # group a partition has only one owner.
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


def _given_in(assignment: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment of the group's leader. A member that has just joined has none. Raises `ProtocolError`."""
    if not assignment:
        return ConsumerProtocolAssignment()
    return decode_bounded(ConsumerProtocolAssignment, _version_of(assignment), assignment, 2)


def _assigned_in(assignment: bytes, classic: ClassicGroup, image: MetadataImage) -> Epochs:
    """Return the partitions in an assignment of the group's leader, by the id of the topic. Raises `ProtocolError`."""
    if not assignment:
        return {}
    given = _given_in(assignment)
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
    """True if the group becomes classic once the members `leaving` are gone. The policy must allow it, and
    all remaining members must speak the classic protocol. `joining` counts classic-protocol members that
    replace leaving members.
    """
    left = len(group.members) - len(leaving)
    leaving_classic = sum(group.members[each].profile.classic is not None for each in leaving)
    return (
        0 < left + joining <= settings.group_size_max
        and group.classic_count - leaving_classic == left
        and settings.migration_policy.lower() in (_DOWNGRADE, _BOTH)
    )


def downgraded(group: ConsumerGroup, image: MetadataImage, wall_ms: int) -> ClassicGroup:
    """Convert a consumer group whose members all speak the classic protocol into a classic group.

    The new group is stable. Its generation is the old group's epoch, and each member's assignment is its
    target.
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
