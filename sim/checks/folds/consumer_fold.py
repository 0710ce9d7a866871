"""A model of consumer groups, built from their records (KIP-848): for each key the newest value counts. PURE.

* A group begins with its first record that has a value, and ends with the tombstone of its metadata.
* A member has a profile, a target assignment, and a current assignment. The current assignment has partitions that
  the member may use, and partitions that it must give up. Each partition has the epoch at which the member received
  it.
* A member owns all partitions of its current assignment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import attrs

from odradek.wire.messages.coordinator_records import (
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
    TopicPartitions,
)
from odradek.wire.structure import Message

__all__ = ["ConsumerFold", "ConsumersFold", "Slot"]

Slot: TypeAlias = tuple[bytes, int]
"""(topic id, partition number)."""
V = TypeVar("V")


@attrs.define
class ConsumerFold:
    """One consumer group. Each dict of member records has the member id as its key."""

    epoch: int = 1
    topics_hash: int = 0
    target_epoch: int = 1
    target_ms: int = 0
    profiles: dict[str, ConsumerGroupMemberMetadataValue] = attrs.Factory(dict)
    currents: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = attrs.Factory(dict)
    targets: dict[str, dict[bytes, frozenset[int]]] = attrs.Factory(dict)
    patterns: dict[str, ConsumerGroupRegularExpressionValue] = attrs.Factory(dict)
    names_topics: bool = False

    @property
    def has_nothing(self) -> bool:
        """True if no record with a value is left of the group. A decision is written in several batches, so a replica
        may lack the last one, which deletes such a group.
        """
        known = (self.profiles, self.currents, self.targets, self.patterns, self.names_topics)
        return (
            not any(known) and self == ConsumerFold(target_epoch=self.target_epoch) and self.target_epoch <= 1
        )

    def assigned(self, member_id: str) -> dict[Slot, int]:
        """Return the partitions that a member may use, each with the epoch at which the member received the
        partition.
        """
        return _slots(self.currents.get(member_id), "assigned_partitions")

    def revoking(self, member_id: str) -> dict[Slot, int]:
        """Return the partitions that a member must give up, each with the epoch at which the member received the
        partition.
        """
        return _slots(self.currents.get(member_id), "partitions_pending_revocation")

    def member_epoch(self, member_id: str) -> int:
        """Return the member epoch; 0 if the member has no current assignment."""
        current = self.currents.get(member_id)
        return 0 if current is None else current.member_epoch

    def owners(self) -> dict[Slot, list[str]]:
        """List for each partition its owners: the members that may use the partition, or must still give it up."""
        found: dict[Slot, list[str]] = {}
        for member_id in self.currents:
            for slot in {**self.assigned(member_id), **self.revoking(member_id)}:
                found.setdefault(slot, []).append(member_id)
        return found

    def names(self, member_id: str) -> set[str]:
        """Return the names of the topics that a member subscribes to, by name or by pattern."""
        profile = self.profiles[member_id]
        pattern = self.patterns.get(profile.subscribed_topic_regex or "")
        return {*profile.subscribed_topic_names, *(() if pattern is None else pattern.topics)}


def _slots(current: ConsumerGroupCurrentMemberAssignmentValue | None, field: str) -> dict[Slot, int]:
    if current is None:
        return {}
    topics: list[TopicPartitions] = getattr(current, field)
    return {slot: epoch for topic in topics for slot, epoch in _of_topic(topic, current.member_epoch)}


def _of_topic(topic: TopicPartitions, member_epoch: int) -> Iterator[tuple[Slot, int]]:
    epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
    for partition, epoch in zip(topic.partitions, epochs, strict=True):
        yield (topic.topic_id, partition), epoch


class ConsumersFold:
    """All consumer groups of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerFold] = {}

    def take(self, key: Message, value: Message | None) -> None:
        """Apply a record. Records that are not about consumer groups are ignored."""
        group_id = getattr(key, "group_id", None)
        if group_id is None:
            return
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            self.groups.pop(group_id, None)
            return
        if value is None and group_id not in self.groups:
            return
        fold = self.groups.setdefault(group_id, ConsumerFold())
        if isinstance(key, ConsumerGroupMetadataKey):
            assert isinstance(value, ConsumerGroupMetadataValue)
            fold.epoch, fold.topics_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            fold.names_topics = value is not None
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
            fold.target_epoch = -1 if value is None else value.assignment_epoch
            fold.target_ms = 0 if value is None else value.assignment_timestamp
        else:
            _take_of_member(fold, key, value)


def _take_of_member(fold: ConsumerFold, key: Message, value: Message | None) -> None:
    if isinstance(key, ConsumerGroupMemberMetadataKey):
        assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
        _put(fold.profiles, key.member_id, value)
    elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
        assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
        _put(fold.currents, key.member_id, value)
    elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
        topics = None if value is None else value.topic_partitions
        target = None if topics is None else {each.topic_id: frozenset(each.partitions) for each in topics}
        _put(fold.targets, key.member_id, target)
    elif isinstance(key, ConsumerGroupRegularExpressionKey):
        assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
        _put(fold.patterns, key.regular_expression, value)


def _put(entries: dict[str, V], name: str, value: V | None) -> None:
    if value is None:
        entries.pop(name, None)
    else:
        entries[name] = value
