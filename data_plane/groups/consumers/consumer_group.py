"""One group of the consumer protocol (KIP-848): an immutable value, changed by the replay of its records. PURE.

Theory of operation
-------------------
Three things have epochs. The group's epoch grows with each change of its members, of their subscriptions or
of their topics. The target assignment says which partitions each member should have; the target's epoch is
the group's epoch for which the target was computed. A member has the epoch of the target that it has reached,
and the partitions that it has now.

A member moves to its target in steps (`reconciliation`). It first revokes partitions. It gets other
partitions as soon as their owners have revoked them. So a partition has one owner at most. The map `owners`
names the owner of each partition; the map is computed from the members.

The group's state is EMPTY without members, and ASSIGNING while the group's epoch is ahead of the target's
epoch. The state is RECONCILING while some member has not reached its target, and otherwise STABLE. The replay
keeps counters: how many members name each topic, pattern and assignor. So a decision need not scan all
members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

import attrs

from odradek.data_plane.groups.record_sizes import utf8_size
from odradek.serving.layered_map import LayeredMap
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

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""The epoch of a static member that has left for a while and may return. The group keeps its assignment for
it.
"""
FIRST_EPOCH = 1
"""The epoch of a new group and of its first, empty target. When the first member joins, the epoch becomes 2.
"""

ConsumerKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
"""The key of any record about a consumer group."""
Epochs: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id. Each partition has the epoch at which the member got it."""
Target: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partition numbers by topic id."""
Owned: TypeAlias = tuple[bytes, int]
"""One partition as a plain tuple of topic id and partition number."""
BYTES_PER_WEIGHT = 1_024
TOPIC_OVERHEAD_BYTES = 64
"""The bytes of memory that each name in a set of topics takes besides its text."""
WEIGHT_OF_PATTERN = 100
"""The weight of a pattern whose topics have not been searched yet. It is high, because a search for 1,000 such
patterns among 10,000 topic names takes seconds.
"""
NO_EPOCHS: Epochs = {}
NO_TARGET: Target = {}

K = TypeVar("K")
V = TypeVar("V")


class MemberState(Enum):
    """The state of a member, numbered as in the member's record in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """The state for a number that this version does not know, because a later version wrote the record."""


class GroupState(Enum):
    """The state of a group, with the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@attrs.frozen
class ClassicSide:
    """The facts that a member of the classic protocol has sent with its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """The member's assignment protocols: (name, metadata), in its order of preference."""


@attrs.frozen
class Profile:
    """The facts that a member has reported about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The topics to which the member subscribes by name, sorted and without duplicates."""
    pattern: str = ""
    """The regular expression to which the member subscribes; empty if there is none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None
    """The facts from the member's JoinGroup; None for a member of the consumer protocol."""


@attrs.frozen
class Member:
    """One member of a consumer group."""

    member_id: str
    profile: Profile = attrs.field(factory=Profile)
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Epochs = NO_EPOCHS
    revoking: Epochs = NO_EPOCHS
    """Partitions that the member must revoke before it gets other partitions."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch at which the member got this partition.

        Returns None if the member neither has the partition nor must revoke it.
        """
        for epochs in (self.assigned, self.revoking):
            found = epochs.get(topic_id, NO_PARTITIONS).get(partition)
            if found is not None:
                return found
        return None

    def moved_to(self, epoch: int) -> Member:
        """Return a copy of the member that is in the given epoch.

        Its present epoch becomes `previous_epoch`.
        """
        return attrs.evolve(self, epoch=epoch, previous_epoch=self.epoch)


NO_PARTITIONS: Mapping[int, int] = {}


@attrs.frozen
class Resolved:
    """The topics that a pattern matched in the last search."""

    topics: frozenset[str]
    version: int
    """The offset of the metadata image that was searched."""
    timestamp_ms: int


@attrs.frozen
class ConsumerGroup:
    """One consumer group: its members, its target assignment and its epochs."""

    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """The hash of the subscribed topics at the time when the group's epoch last rose."""
    target_epoch: int = FIRST_EPOCH
    target_timestamp_ms: int = 0
    """The wall-clock time when the target was computed, in milliseconds since 1970; 0 if it is unknown."""
    members: LayeredMap[str, Member] = attrs.field(factory=LayeredMap)
    targets: LayeredMap[str, Target] = attrs.field(factory=LayeredMap)
    """The target assignment by member id. A member without a target is absent."""
    owners: LayeredMap[Owned, str] = attrs.field(factory=LayeredMap)
    """For each partition the id of its owner. The owner has the partition, or still has to revoke it."""
    static_members: LayeredMap[str, str] = attrs.field(factory=LayeredMap)
    """Member ids by instance id."""
    topic_counts: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    """For each topic, how many members subscribe to it by name."""
    pattern_counts: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    assignor_counts: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    protocol_counts: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    """For each assignment protocol, how many members of the classic protocol support it."""
    classic_count: int = 0
    resolved: LayeredMap[str, Resolved] = attrs.field(factory=LayeredMap)
    """For each pattern, the topics that it matches."""
    has_topic_record: bool = False
    """True if the log has a record of the group's topics, as Kafka versions before 4.1 wrote it."""
    weight: int = 0
    """The memory that members and patterns take, in units of a member of ordinary size (`weight_of_member`)."""

    @property
    def state(self) -> GroupState:
        """The state of the group.

        Its computation scans all members, unless the group is empty or assigning.
        """
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def target_of(self, member_id: str) -> Target:
        target: Target = self.targets.get(member_id, NO_TARGET)
        return target

    def is_static(self, instance_id: str | None) -> bool:
        """True if a member has this instance id."""
        return instance_id is not None and instance_id in self.static_members

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def topics_of(self, profile: Profile) -> frozenset[str]:
        """Return the topics that a member with this profile reads.

        Before the first search for its topics, a pattern matches no topic.
        """
        resolved = self.resolved.get(profile.pattern) if profile.pattern else None
        named = frozenset(profile.topics)
        return named if resolved is None else named | resolved.topics

    def subscribed_topics(self) -> list[str]:
        """List the topics to which at least one member subscribes, by name or by pattern; sorted."""
        topics = dict.fromkeys(self.topic_counts)
        for resolved in self.resolved.values():
            topics.update(dict.fromkeys(resolved.topics))
        return sorted(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """True if at least one member subscribes to the topic, by name or by pattern."""
        return topic in self.topic_counts or any(topic in each.topics for each in self.resolved.values())

    def preferred_assignor(self, offered: Sequence[str]) -> str:
        """Return the assignor that most members name.

        If several assignors have equal counts, the first of them in `offered` is returned. So if no member
        names an assignor, the first assignor in `offered` is returned.
        """
        counts = self.assignor_counts
        return max(offered, key=lambda name: counts.get(name, 0))

    def supports_protocols(self, names: tuple[str, ...]) -> bool:
        """True if a member with the assignment protocols `names` may join. At least one of these protocols
        must be supported by all classic-protocol members.
        """
        return any(self.protocol_counts.get(name, 0) == self.classic_count for name in names)


GroupRecord: TypeAlias = tuple[Message, Message | None]
"""One record about a group: its key, and its value (None for a tombstone)."""


def replayed(
    group_id: str, before: ConsumerGroup | None, records: Iterable[GroupRecord]
) -> ConsumerGroup | None:
    """Apply records about one group to its state `before`.

    A record with a value creates the group if it is missing. Returns None if the group does not exist
    afterwards.
    """
    draft = _Draft(ConsumerGroup(group_id) if before is None else before, before is not None)
    for key, value in records:
        draft.replay(key, value)
    return draft.group()


def weight_of_member(member_id: str, profile: Profile) -> int:
    """Return a member's weight: 1, and 1 more for each `BYTES_PER_WEIGHT` bytes of its profile."""
    texts = [
        member_id,
        profile.instance_id,
        profile.rack_id,
        profile.client_id,
        profile.pattern,
        profile.assignor,
    ]
    size = sum(utf8_size(text) for text in (*texts, *profile.topics) if text)
    if profile.classic is not None:
        size += sum(utf8_size(name) + len(metadata) for name, metadata in profile.classic.protocols)
    return 1 + (size + len(profile.topics) * TOPIC_OVERHEAD_BYTES) // BYTES_PER_WEIGHT


def weight_of_topics(resolved: Resolved) -> int:
    """Return the weight of a pattern's topics. It is their memory, in units of a member of ordinary size."""
    size = sum(utf8_size(topic) + TOPIC_OVERHEAD_BYTES for topic in resolved.topics)
    return size // BYTES_PER_WEIGHT


class _Edit(Generic[K, V]):
    """Collects changes of one map, and applies them all at once."""

    __slots__ = ("_before", "_changes")

    def __init__(self, before: LayeredMap[K, V]) -> None:
        self._before = before
        self._changes: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        found: V | None = self._changes[key] if key in self._changes else self._before.get(key)
        return found

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def put(self, key: K, value: V | None) -> None:
        self._changes[key] = value

    def after(self) -> LayeredMap[K, V]:
        return self._before.changed(self._changes)


def _count(counts: _Edit[str, int], name: str, step: int) -> None:
    counts.put(name, ((counts.get(name) or 0) + step) or None)


class _Draft:
    """A group while records are being applied to it."""

    def __init__(self, group: ConsumerGroup, is_there: bool) -> None:
        self._begin(group, is_there)

    def _begin(self, group: ConsumerGroup, is_there: bool) -> None:
        self._is_there = is_there
        self._before = group
        self._epoch = group.epoch
        self._hash = group.metadata_hash
        self._target_epoch = group.target_epoch
        self._target_timestamp_ms = group.target_timestamp_ms
        self._classic_count = group.classic_count
        self._has_topic_record = group.has_topic_record
        self._weight = group.weight
        self._members = _Edit(group.members)
        self._targets = _Edit(group.targets)
        self._owners = _Edit(group.owners)
        self._static = _Edit(group.static_members)
        self._topics = _Edit(group.topic_counts)
        self._patterns = _Edit(group.pattern_counts)
        self._assignors = _Edit(group.assignor_counts)
        self._protocols = _Edit(group.protocol_counts)
        self._resolved = _Edit(group.resolved)

    def group(self) -> ConsumerGroup | None:
        """Build the group from the changes so far; None if it is deleted or was never created."""
        if not self._is_there:
            return None
        return ConsumerGroup(
            self._before.group_id,
            self._epoch,
            self._hash,
            self._target_epoch,
            self._target_timestamp_ms,
            self._members.after(),
            self._targets.after(),
            self._owners.after(),
            self._static.after(),
            self._topics.after(),
            self._patterns.after(),
            self._assignors.after(),
            self._protocols.after(),
            self._classic_count,
            self._resolved.after(),
            self._has_topic_record,
            self._weight,
        )

    def replay(self, key: Message, value: Message | None) -> None:
        if value is None:
            if not self._is_there:
                return
            if isinstance(key, ConsumerGroupMetadataKey):
                return self._begin(ConsumerGroup(key.group_id), False)
        self._is_there = True
        _REPLAYS[type(key)](self, key, value)

    def _replay_group(self, key: Message, value: Message | None) -> None:
        assert isinstance(value, ConsumerGroupMetadataValue)
        self._epoch, self._hash = value.epoch, value.metadata_hash

    def _replay_topics(self, key: Message, value: Message | None) -> None:
        self._has_topic_record = value is not None

    def _replay_member(self, key: Message, value: Message | None) -> None:
        assert isinstance(key, ConsumerGroupMemberMetadataKey)
        before = self._members.get(key.member_id)
        if value is None:
            if before is not None:
                self._put(before, None)
            return
        assert isinstance(value, ConsumerGroupMemberMetadataValue)
        member = Member(key.member_id) if before is None else before
        self._put(before, attrs.evolve(member, profile=_profile(value)))

    def _replay_current(self, key: Message, value: Message | None) -> None:
        assert isinstance(key, ConsumerGroupCurrentMemberAssignmentKey)
        before = self._members.get(key.member_id)
        if value is None:
            if before is not None:
                self._put(before, Member(key.member_id, before.profile, LEAVING_EPOCH, LEAVING_EPOCH))
            return
        assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
        profile = Profile() if before is None else before.profile
        self._put(
            before,
            Member(
                key.member_id,
                profile,
                value.member_epoch,
                value.previous_member_epoch,
                _MEMBER_STATES.get(value.state, MemberState.UNKNOWN),
                _epochs(value.assigned_partitions, value.member_epoch),
                _epochs(value.partitions_pending_revocation, value.member_epoch),
            ),
        )

    def _replay_target(self, key: Message, value: Message | None) -> None:
        assert isinstance(key, ConsumerGroupTargetAssignmentMemberKey)
        if value is None:
            return self._targets.put(key.member_id, None)
        assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
        target = {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}
        self._targets.put(key.member_id, target)

    def _replay_target_epoch(self, key: Message, value: Message | None) -> None:
        if value is None:
            self._target_epoch, self._target_timestamp_ms = -1, 0
            return
        assert isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
        self._target_epoch, self._target_timestamp_ms = value.assignment_epoch, value.assignment_timestamp

    def _replay_pattern(self, key: Message, value: Message | None) -> None:
        assert isinstance(key, ConsumerGroupRegularExpressionKey)
        before = self._resolved.get(key.regular_expression)
        if before is not None:
            self._weight -= weight_of_topics(before)
        if value is None:
            return self._resolved.put(key.regular_expression, None)
        assert isinstance(value, ConsumerGroupRegularExpressionValue)
        resolved = Resolved(frozenset(value.topics), value.version, value.timestamp)
        self._weight += weight_of_topics(resolved)
        self._resolved.put(key.regular_expression, resolved)

    def _put(self, before: Member | None, after: Member | None) -> None:
        """Replace the member `before` by `after`, which has the same id, and update owners and counters.

        If `before` is None, add the member `after`. If `after` is None, remove the member `before`.
        """
        # Most records change only epochs and partitions. They must not cost time for each topic that a member names.
        has_same_profile = before is not None and after is not None and before.profile is after.profile
        if before is not None:
            if not has_same_profile:
                self._count_member(before, -1)
            for owned in _owned(before):
                if self._owners.get(owned) == before.member_id:
                    self._owners.put(owned, None)
            instance_id = before.profile.instance_id
            if instance_id is not None and self._static.get(instance_id) == before.member_id:
                self._static.put(instance_id, None)
        if after is None:
            assert before is not None
            return self._members.put(before.member_id, None)
        self._members.put(after.member_id, after)
        if not has_same_profile:
            self._count_member(after, 1)
        for owned in _owned(after):
            self._owners.put(owned, after.member_id)
        if after.profile.instance_id is not None:
            self._static.put(after.profile.instance_id, after.member_id)

    def _count_member(self, member: Member, step: int) -> None:
        profile = member.profile
        self._weight += step * weight_of_member(member.member_id, profile)
        for topic in profile.topics:
            _count(self._topics, topic, step)
        if profile.pattern:
            known = profile.pattern in self._patterns
            _count(self._patterns, profile.pattern, step)
            self._weight += WEIGHT_OF_PATTERN * ((profile.pattern in self._patterns) - known)
        if profile.assignor is not None:
            _count(self._assignors, profile.assignor, step)
        if profile.classic is not None:
            self._classic_count += step
            for name in dict.fromkeys(name for name, _ in profile.classic.protocols):
                _count(self._protocols, name, step)


_REPLAYS: Mapping[type[Message], Callable[[_Draft, Message, Message | None], None]] = {
    ConsumerGroupMetadataKey: _Draft._replay_group,
    ConsumerGroupPartitionMetadataKey: _Draft._replay_topics,
    ConsumerGroupMemberMetadataKey: _Draft._replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: _Draft._replay_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: _Draft._replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: _Draft._replay_current,
    ConsumerGroupRegularExpressionKey: _Draft._replay_pattern,
}
"""For each type of key, the method that applies a record with this key."""
_MEMBER_STATES = {state.value: state for state in MemberState}


def _owned(member: Member) -> list[Owned]:
    return [
        (topic_id, partition)
        for epochs in (member.assigned, member.revoking)
        for topic_id, partitions in epochs.items()
        for partition in partitions
    ]


def _profile(value: ConsumerGroupMemberMetadataValue) -> Profile:
    classic = value.classic_member_metadata
    return Profile(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(sorted(dict.fromkeys(value.subscribed_topic_names))),
        value.subscribed_topic_regex or "",
        value.rebalance_timeout_ms,
        value.server_assignor,
        None
        if classic is None
        else ClassicSide(
            classic.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
        ),
    )


def _epochs(topics: list[TopicPartitions], member_epoch: int) -> Epochs:
    """Decode partitions with their assignment epochs.

    A record of an older version has no such epochs. Then all partitions get the member's epoch.
    """
    found: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        found.setdefault(topic.topic_id, {}).update(zip(topic.partitions, epochs, strict=True))
    return found
