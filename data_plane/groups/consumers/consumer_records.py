"""The records of a consumer group, as Kafka 4.3 writes them. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.consumers.consumer_group import (
    ConsumerGroup,
    Epochs,
    Member,
    Resolved,
    Target,
)
from odradek.wire.messages.coordinator_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

__all__ = [
    "current_record",
    "epoch_record",
    "group_tombstones",
    "member_record",
    "member_tombstones",
    "pattern_record",
    "pattern_tombstone",
    "target_epoch_record",
    "target_record",
    "topics_tombstone",
    "upgraded_records",
]


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Make the record of a member's profile."""
    profile = member.profile
    classic = profile.classic
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id, member.member_id),
        ConsumerGroupMemberMetadataValue(
            profile.instance_id,
            profile.rack_id,
            profile.client_id,
            profile.client_host,
            list(profile.topics),
            profile.pattern,
            profile.rebalance_timeout_ms,
            profile.assignor,
            None
            if classic is None
            else ClassicMemberMetadata(
                classic.session_timeout_ms, [ClassicProtocol(*each) for each in classic.protocols]
            ),
        ),
    )


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Make the record of a group's epoch and of the hash of its topics."""
    return CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash)
    )


def target_record(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    """Make the record of the partitions that a member should have."""
    topics = [TopicPartition(topic_id, sorted(target[topic_id])) for topic_id in sorted(target)]
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(topics),
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """Make the record of the epoch for which the target was computed."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def current_record(group_id: str, member: Member) -> CoordinatorRecord:
    """Make the record of a member's epoch and of the partitions that it has."""
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member.epoch,
            member.previous_epoch,
            member.state.value,
            _topics(member.assigned),
            _topics(member.revoking),
        ),
    )


def _topics(epochs: Epochs) -> list[TopicPartitions]:
    found = []
    for topic_id in sorted(epochs):
        partitions = sorted(epochs[topic_id])
        found.append(TopicPartitions(topic_id, partitions, [epochs[topic_id][each] for each in partitions]))
    return found


def pattern_record(group_id: str, pattern: str, resolved: Resolved) -> CoordinatorRecord:
    """Make the record of the topics that a pattern matches."""
    return CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id, pattern),
        ConsumerGroupRegularExpressionValue(sorted(resolved.topics), resolved.version, resolved.timestamp_ms),
    )


def pattern_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupRegularExpressionKey(group_id, pattern), None)


def topics_tombstone(group_id: str) -> CoordinatorRecord:
    """Make the tombstone of the record of topics that Kafka versions before 4.1 wrote."""
    return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id), None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Make the tombstones that remove one member."""
    return [
        CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """Make the tombstones of all records of a group, except those of its committed offsets."""
    group_id = group.group_id
    members = sorted(group.members)
    return [
        *(
            CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, each), None)
            for each in members
        ),
        *(
            CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, each), None)
            for each in members
        ),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id), None),
        *(CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id, each), None) for each in members),
        *(pattern_tombstone(group_id, each) for each in sorted(group.resolved)),
        topics_tombstone(group_id),
        CoordinatorRecord(ConsumerGroupMetadataKey(group_id), None),
    ]


def upgraded_records(
    group: ConsumerGroup, members: Sequence[Member], metadata_hash: int
) -> list[CoordinatorRecord]:
    """Make the records of a consumer group that replaces a classic group.

    Each member's target is its current assignment.
    """
    group_id = group.group_id
    return [
        *(member_record(group_id, each) for each in members),
        epoch_record(group_id, group.epoch, metadata_hash),
        *(target_record(group_id, each.member_id, _as_target(each.assigned)) for each in members),
        target_epoch_record(group_id, group.target_epoch, group.target_timestamp_ms),
        *(current_record(group_id, each) for each in members),
    ]


def _as_target(assigned: Epochs) -> Target:
    return {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items()}
