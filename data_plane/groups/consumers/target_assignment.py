"""The target of a consumer group: when it may be computed, and which partitions each member should have by the
chosen assignor.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.consumers.assignors import ASSIGNORS, Subscriber
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup, Profile
from odradek.data_plane.groups.consumers.consumer_records import target_epoch_record, target_record
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.named_states import reached

__all__ = ["may_compute", "member_targets", "target_records", "topic_ids"]


def may_compute(group: ConsumerGroup, interval_ms: int, wall_ms: int) -> bool:
    """True if the next target may be computed at `wall_ms`. At least `interval_ms` must have passed since the
    last target was computed, unless that time is unknown.

    The time comes from the clock of the coordinator at that time. If it is in the future, the clocks differ, or
    this clock was set back. Then waiting could take for ever, so the target may be computed at once.
    """
    since_ms = group.target_timestamp_ms
    if since_ms > wall_ms:
        reached("consumer_groups.target_from_the_future_not_awaited")
        return True
    return since_ms == 0 or interval_ms == 0 or wall_ms >= since_ms + interval_ms


def topic_ids(group: ConsumerGroup, profile: Profile, image: MetadataImage) -> frozenset[bytes]:
    """Return the ids of the existing topics that a member reads."""
    topics = image.topics
    return frozenset(topics[name].topic_id for name in group.topics_of(profile) if name in topics)


def target_records(
    group: ConsumerGroup, offered: Sequence[str], image: MetadataImage, wall_ms: int
) -> list[CoordinatorRecord]:
    """Compute the target for the group's present epoch.

    Returns a record for each member whose target changes. The last record is that of the target's epoch.
    """
    records = member_targets(group, offered, image)
    return [*records, target_epoch_record(group.group_id, group.epoch, wall_ms)]


def member_targets(
    group: ConsumerGroup, offered: Sequence[str], image: MetadataImage
) -> list[CoordinatorRecord]:
    """Compute the target for the group's present epoch.

    Returns a record for each member whose target changes.
    """
    assign = ASSIGNORS[group.preferred_assignor(offered)]
    members: Mapping[str, Subscriber] = _subscribers(group, image)
    counts = {
        topic_id: len(image.topics_by_id[topic_id].partitions)
        for each in dict.fromkeys(member.topics for member in members.values())
        for topic_id in each
    }
    targets = assign(list(members.values()), counts)
    return [
        target_record(group.group_id, member_id, targets[member_id])
        for member_id in members
        if targets[member_id] != group.targets.get(member_id)
    ]


def _subscribers(group: ConsumerGroup, image: MetadataImage) -> dict[str, Subscriber]:
    """Make the assignor's input: the group's members, by member id.

    Members that read the same topics share one set of topic ids.
    """
    shared: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
    members: dict[str, Subscriber] = {}
    for member_id in sorted(group.members):
        profile = group.members[member_id].profile
        named = (profile.topics, profile.pattern)
        topics = shared.get(named)
        if topics is None:
            topics = shared[named] = topic_ids(group, profile, image)
        members[member_id] = Subscriber(member_id, profile.instance_id, topics, group.target_of(member_id))
    return members
