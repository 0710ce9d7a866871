"""The assignors of a group (range, round robin, cooperative-sticky, own ones), and subscriptions and
assignments as bytes in JoinGroup and SyncGroup. PURE. They distribute the group's partitions among its members.

The group's leader runs an assignor on the subscriptions of all members, and sends each member its assignment. The
leader and the other members may be different clients (Java's, librdkafka's). So range and round robin assign exactly as
Kafka's own assignors do. Members with the sticky assignor send their claims, the partitions that they already own, in
Kafka's format. With the cooperative protocol (KIP-429) members keep their partitions during a rebalance, and send their
claims. A partition that moves to another member is left out in the first round. Its owner gives the partition up and
rejoins, and the second round assigns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Protocol

import attrs

from odradek.wire.codec import decode, encode
from odradek.wire.errors import MalformedMessage
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "assignor_for",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id. Every member has an entry."""

_VERSION = Struct(">h")
_GENERATION = Struct(">i")
_PROTOCOL_VERSION_MAX = 3


@attrs.frozen
class MemberSubscription:
    """The subscription that a member sends when it joins.

    `generation` is the group generation in which the member got the partitions that it claims (`owned`), or -1.
    """

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    group_instance_id: str | None = None
    rack: str | None = None
    user_data: bytes | None = None


class Assignor(Protocol):
    """A strategy that assigns partitions to the members of a group. A group uses an assignor only if all members
    support an assignor of this `name`. A `cooperative` assignor assigns only free partitions, so members keep their
    partitions during a rebalance (KIP-429).
    """

    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool: ...

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign partitions to members. `partition_counts` has the number of partitions of every subscribed topic
        that exists.
        """

    def user_data(self, generation: int) -> bytes | None:
        """Return the bytes that a member sends to the leader's assignor with its subscription, or None for no bytes."""


@attrs.frozen
class RangeAssignor:
    """Assigns each topic separately, in contiguous ranges. If a topic's partitions cannot be divided evenly, the
    first members get one more.
    """

    name: str = "range"
    cooperative: bool = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign as Kafka's RangeAssignor does when racks are unknown."""
        found: Assignment = {member.member_id: [] for member in members}
        for topic in sorted(partition_counts):
            readers = [member for member in _in_order(members) if topic in member.topics]
            if not readers:
                continue
            share, more = divmod(partition_counts[topic], len(readers))
            start = 0
            for number, member in enumerate(readers):
                end = start + share + (number < more)
                found[member.member_id] += [TopicPartition(topic, index) for index in range(start, end)]
                start = end
        return found

    def user_data(self, generation: int) -> bytes | None:
        """Return None: this assignor needs no user data."""
        return None


@attrs.frozen
class RoundRobinAssignor:
    """Assigns the partitions of all topics to the members in turn."""

    name: str = "roundrobin"
    cooperative: bool = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign as Kafka's RoundRobinAssignor does: members that do not subscribe to a topic are skipped for it."""
        found: Assignment = {member.member_id: [] for member in members}
        circle = _in_order(members)
        turn = 0
        for key in _all_partitions(partition_counts):
            if not any(key.topic in member.topics for member in circle):
                continue
            while key.topic not in circle[turn % len(circle)].topics:
                turn += 1
            found[circle[turn % len(circle)].member_id].append(key)
            turn += 1
        return found

    def user_data(self, generation: int) -> bytes | None:
        """Return None: this assignor needs no user data."""
        return None


@attrs.frozen
class CooperativeStickyAssignor:
    """Balances the number of partitions per member; members keep their partitions as far as balance allows (KIP-54,
    KIP-429).
    """

    name: str = "cooperative-sticky"
    cooperative: bool = True

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        """Assign partitions so that loads differ by at most one, if all members have the same subscription.

        With different subscriptions, loads may differ more, but no single move improves the balance. A partition that
        moves between members is left out, and is assigned in the next rebalance.
        """
        owners = _claims(partition_counts, members)
        found = _balanced(partition_counts, members, owners)
        return {
            member_id: [key for key in keys if owners.get(key, member_id) == member_id]
            for member_id, keys in found.items()
        }

    def user_data(self, generation: int) -> bytes | None:
        """Encode the generation in which the member got the partitions that it claims. Leaders that support
        only version 1 of the consumer protocol read the generation from these bytes.
        """
        return _GENERATION.pack(generation)


_BUILT_IN: dict[str, Assignor] = {
    "range": RangeAssignor(),
    "RangeAssignor": RangeAssignor(),
    "roundrobin": RoundRobinAssignor(),
    "RoundRobinAssignor": RoundRobinAssignor(),
    "cooperative-sticky": CooperativeStickyAssignor(),
    "CooperativeStickyAssignor": CooperativeStickyAssignor(),
}


def assignor_for(named: Any) -> Assignor:
    """Return the built-in assignor with this name (`range`, or the name of a Kafka class). If `named` is an
    assignor object, return it unchanged. Raises `ValueError` for an unknown name.
    """
    if isinstance(named, str):
        found = _BUILT_IN.get(named) or _BUILT_IN.get(named.rpartition(".")[2])
        if found is None:
            known = ", ".join(name for name in _BUILT_IN if name.islower())
            raise ValueError(
                f"partition.assignment.strategy names the unknown assignor {named!r}: expected one of {known}"
            )
        return found
    if not all(hasattr(named, part) for part in ("name", "cooperative", "assign", "user_data")):
        raise ValueError(f"partition.assignment.strategy contains {named!r}, which is not an assignor")
    assignor: Assignor = named
    return assignor


def _in_order(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Sort members as Kafka does: static members by instance id, then dynamic members by member id."""
    return sorted(
        members, key=lambda m: (m.group_instance_id is None, m.group_instance_id or "", m.member_id)
    )


def _all_partitions(partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, index)
        for topic in sorted(partition_counts)
        for index in range(partition_counts[topic])
    ]


# Sticky


def _claims(
    partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[TopicPartition, str]:
    """Find the owner of each partition from the claims of the members. The claim with the latest generation
    wins. If two members claim a partition with the same latest generation, both claims are ignored.
    """
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in _in_order(members):
        for key in member.owned:
            if key.topic not in member.topics or key.partition >= partition_counts.get(key.topic, 0):
                continue
            other = claims.get(key)
            if other is None or member.generation > other[0]:
                claims[key] = (member.generation, member.member_id)
            elif member.generation == other[0]:
                claims[key] = (member.generation, None)
    return {key: owner for key, (_, owner) in claims.items() if owner is not None}


def _balanced(
    partition_counts: Mapping[str, int],
    members: Sequence[MemberSubscription],
    owners: Mapping[TopicPartition, str],
) -> Assignment:
    order = _in_order(members)
    readers = {
        topic: [member.member_id for member in order if topic in member.topics] for topic in partition_counts
    }
    found: Assignment = {member.member_id: [] for member in order}
    homeless: list[TopicPartition] = []
    for key in _all_partitions(partition_counts):
        owner = owners.get(key)
        if owner is not None:
            found[owner].append(key)
        elif readers[key.topic]:
            homeless.append(key)
    # First assign the partitions that only few members can get, while these members still have few
    # partitions.
    homeless.sort(key=lambda key: (len(readers[key.topic]), key))
    for key in homeless:
        least = min(readers[key.topic], key=lambda member_id: len(found[member_id]))
        found[least].append(key)
    _even_out(found, readers)
    return found


def _even_out(found: Assignment, readers: Mapping[str, list[str]]) -> None:
    """Balance an assignment: move single partitions from the most loaded members to members that have at
    least two partitions fewer.

    The loop ends, because each move lowers the sum of the squared loads.
    """
    while any(
        _give_one(found, giver, readers)
        for giver in sorted(found, key=lambda member_id: -len(found[member_id]))
    ):
        continue


def _give_one(found: Assignment, giver: str, readers: Mapping[str, list[str]]) -> bool:
    keys = found[giver]
    for number in range(len(keys) - 1, -1, -1):
        taker = min(readers[keys[number].topic], key=lambda member_id: len(found[member_id]))
        if len(keys) - len(found[taker]) >= 2:
            found[taker].append(keys.pop(number))
            return True
    return False


# Kafka's formats


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """Encode a subscription: first the version in two bytes, then a ConsumerProtocolSubscription of version
    3.
    """
    owned: dict[str, list[int]] = {}
    for topic, partition in sorted(subscription.owned):
        owned.setdefault(topic, []).append(partition)
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic, indexes) for topic, indexes in owned.items()
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(_PROTOCOL_VERSION_MAX) + encode(message, _PROTOCOL_VERSION_MAX)


def decode_subscription(member_id: str, group_instance_id: str | None, metadata: bytes) -> MemberSubscription:
    """Decode the subscription in a member's metadata. Unknown fields of newer versions are ignored. Raises
    `MalformedMessage`.
    """
    message = decode(ConsumerProtocolSubscription, *_version(metadata), exact=False)
    generation = message.generation_id
    user_data = message.user_data
    if generation < 0 and user_data is not None and len(user_data) == _GENERATION.size:
        (generation,) = _GENERATION.unpack(user_data)
    return MemberSubscription(
        member_id,
        tuple(message.topics),
        tuple(TopicPartition(t.topic, index) for t in message.owned_partitions for index in t.partitions),
        generation,
        group_instance_id,
        message.rack_id,
        user_data,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment: first the version in two bytes, then a ConsumerProtocolAssignment of version 3."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic, sorted(topics[topic])) for topic in sorted(topics)
        ]
    )
    return _VERSION.pack(_PROTOCOL_VERSION_MAX) + encode(message, _PROTOCOL_VERSION_MAX)


def decode_assignment(assignment: bytes) -> list[TopicPartition]:
    """Decode the partitions that the leader has assigned to this member; return an empty list if `assignment`
    is empty. Raises `MalformedMessage`.
    """
    if not assignment:
        return []
    message = decode(ConsumerProtocolAssignment, *_version(assignment), exact=False)
    return [TopicPartition(t.topic, index) for t in message.assigned_partitions for index in t.partitions]


def _version(data: bytes) -> tuple[int, bytes, int]:
    """Read the version of the consumer protocol. Return the arguments for `decode`: version, data, offset of the
    message.
    """
    if len(data) < _VERSION.size:
        raise MalformedMessage("the data of a group member is cut off")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise MalformedMessage(f"the data of a group member has the unknown version {version}")
    return min(version, _PROTOCOL_VERSION_MAX), data, _VERSION.size
