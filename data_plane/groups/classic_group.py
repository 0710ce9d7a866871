"""One group of the classic protocol in its coordinator's memory: its phases, its members, the choice of
protocol and leader, its record. PURE.

Theory of operation
-------------------
A group is in one of four states:

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance --leader syncs--> Stable
      ^                 |        ^                                      |                                     |
      +---nobody left---+        +------join, leave, lost member--------+-------------------------------------+

While a rebalance goes on, members and their metadata are soft state. A generation is written to the log when
the group's leader sends the assignment, and when the group becomes empty. A new coordinator begins with the
generation in the log. Members keep their ids, and their sessions start again.

A JoinGroup or SyncGroup may have to wait for other members. Its `Reply` is then stored in its member, as
`join_reply` or `sync_reply`. Deadlines and records are deliberately absent here: `membership` and `machine`
handle them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from odradek.data_plane.coordination.asking import Reply
from odradek.named_states import reached
from odradek.wire.codec import decode_bounded
from odradek.wire.errors import ErrorCode, ProtocolError
from odradek.wire.messages.coordinator_records import GroupMetadataValue, MemberMetadata
from odradek.wire.messages.data_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from odradek.wire.messages.join_group import JoinGroupResponseMember

CONSUMER_PROTOCOL = "consumer"
NEVER = float("inf")


class GroupPhase(Enum):
    """The states of a group, with the names that Kafka's clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_FROM = {
    GroupPhase.EMPTY: (GroupPhase.PREPARING_REBALANCE,),
    GroupPhase.PREPARING_REBALANCE: (
        GroupPhase.EMPTY,
        GroupPhase.COMPLETING_REBALANCE,
        GroupPhase.STABLE,
    ),
    GroupPhase.COMPLETING_REBALANCE: (GroupPhase.PREPARING_REBALANCE,),
    GroupPhase.STABLE: (GroupPhase.COMPLETING_REBALANCE,),
    GroupPhase.DEAD: tuple(GroupPhase)[:-1],
}
"""The phases from which a group may change to each phase."""

Protocols = tuple[tuple[str, bytes], ...]
"""The assignment protocols of a member: (name, metadata), in the member's order of preference."""


class Member:
    """One member of a classic group. All its times are monotonic milliseconds."""

    __slots__ = (
        "_subscription",
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "group_instance_id",
        "is_gone",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_reply",
        "timer_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self._subscription: tuple[bytes, tuple[str, ...] | None] | None = None
        """The encoded metadata that was decoded last, and the topics in it. The topics are None if the metadata
        is malformed.
        """
        self.assignment = b""
        self.join_reply: Reply | None = None
        self.sync_reply: Reply | None = None
        self.is_new = False
        self.is_gone = False
        self.deadline_ms: float = NEVER
        """The time when the session ends, if the member sends no request before then."""
        self.timer_ms: float = NEVER
        """The time when the machine checks `deadline_ms` again; it is never later than `deadline_ms`."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def waits(self) -> bool:
        """True if a JoinGroup or SyncGroup of the member waits for its answer."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_for(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def subscribed_topics(self, protocol: str) -> tuple[str, ...] | None:
        """Return the topics in the member's metadata for this protocol; None if it is malformed.

        The decoded topics are cached.
        """
        metadata = self.metadata_for(protocol)
        if self._subscription is None or self._subscription[0] != metadata:
            self._subscription = (metadata, _topics_of(metadata))
        return self._subscription[1]

    def owes_rejoin(self, protocol: str) -> bool:
        """True if the member must soon join again, because its assignment lacks partitions that it owned when
        it joined. In the cooperative protocol (KIP-429) the member then revokes these partitions and joins
        again. Until then nobody else owns them.
        """
        claimed = _claimed_partitions(self.metadata_for(protocol))
        return bool(claimed) and not claimed <= _given_partitions(self.assignment)


def _claimed_partitions(metadata: bytes) -> set[tuple[str, int]]:
    """Decode the partitions that a member says it owns, from its metadata.

    The result is empty for version 0 and for malformed metadata.
    """
    try:
        subscription = decode_bounded(ConsumerProtocolSubscription, _version_of(metadata), metadata, 2)
    except ProtocolError:
        return set()
    return {(each.topic, index) for each in subscription.owned_partitions for index in each.partitions}


def _given_partitions(assignment: bytes) -> set[tuple[str, int]]:
    """Decode the partitions in an assignment. The result is empty for a malformed assignment."""
    try:
        given = decode_bounded(ConsumerProtocolAssignment, _version_of(assignment), assignment, 2)
    except ProtocolError:
        return set()
    return {(each.topic, index) for each in given.assigned_partitions for index in each.partitions}


def _version_of(data: bytes) -> int:
    """Return the version with which to decode a member's metadata or assignment.

    A version that is too new only appends fields, so such data is read as the newest known version.
    """
    newest = ConsumerProtocolSubscription.VALID_VERSIONS[1]
    return max(0, min(int.from_bytes(data[:2], "big", signed=True), newest))


def _topics_of(metadata: bytes) -> tuple[str, ...] | None:
    """Decode the topics in a member's metadata.

    Returns None if it is malformed. Every version begins with the fields of version 0, and the coordinator
    needs only these.
    """
    if int.from_bytes(metadata[:2], "big", signed=True) < 0:
        return None
    try:
        return tuple(decode_bounded(ConsumerProtocolSubscription, 0, metadata, 2).topics)
    except ProtocolError:
        return None


class ClassicGroup:
    """One classic group in memory. Its members are in the order in which they joined."""

    __slots__ = (
        "awaiting_join",
        "generation",
        "group_id",
        "is_gone",
        "join_timer",
        "leader",
        "members",
        "new_member_added",
        "pending_members",
        "pending_sync",
        "phase",
        "previous_phase",
        "protocol",
        "protocol_type",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "sync_timer",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.phase = GroupPhase.EMPTY
        self.previous_phase = GroupPhase.DEAD
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, float] = {}
        """Member ids that were assigned but have not joined yet (KIP-394), each with its deadline in
        monotonic milliseconds.
        """
        self.pending_sync: dict[str, None] = {}
        self.awaiting_join = 0
        self.new_member_added = False
        self.join_timer: object | None = None
        self.sync_timer: object | None = None
        self.state_timestamp_ms = -1
        """Wall-clock time of the last change of phase."""
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that the members read. None if the group does not consume topics, or if its metadata is
        malformed.
        """
        self.is_gone = False

    @classmethod
    def restore(cls, group_id: str, stored: GroupMetadataValue | None) -> ClassicGroup:
        """Build the group from its record in the log. `stored` is None for a group that has only offsets."""
        group = cls(group_id)
        if stored is None:
            return group
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol = stored.protocol
        group.leader = stored.leader
        group.state_timestamp_ms = stored.current_state_timestamp
        for each in stored.members:
            member = Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout,
                each.session_timeout if each.rebalance_timeout < 0 else each.rebalance_timeout,
                ((stored.protocol or "", each.subscription),),
            )
            member.assignment = each.assignment
            group.members[member.member_id] = member
            if member.group_instance_id is not None:
                group.static_members[member.group_instance_id] = member.member_id
        if group.members:
            group.phase = GroupPhase.STABLE
        group.subscribed_topics = group.compute_subscribed_topics()
        return group

    def stored(self) -> GroupMetadataValue:
        """Build the value of the group's record from its present state."""
        protocol = self.protocol
        members = [
            MemberMetadata(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata_for(protocol or ""),
                each.assignment,
            )
            for each in self.members.values()
        ]
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            protocol,
            self.leader,
            self.state_timestamp_ms,
            members,
        )

    def transition_to(self, phase: GroupPhase, wall_ms: int) -> None:
        """Change the group's phase. Raises `AssertionError` if `_FROM` does not allow the change."""
        if self.phase not in _FROM[phase]:
            raise AssertionError(
                f"group {self.group_id} cannot go from state {self.phase.value} to {phase.value}"
            )
        self.previous_phase = self.phase
        self.phase = phase
        self.state_timestamp_ms = wall_ms

    # -- queries ----------------------------------------------------------------------------------------------

    @property
    def can_rebalance(self) -> bool:
        return self.phase in _FROM[GroupPhase.PREPARING_REBALANCE]

    @property
    def has_all_members_joined(self) -> bool:
        return self.awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout among the members, in milliseconds."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check a member's id. Returns UNKNOWN_MEMBER_ID for an unknown id, and FENCED_INSTANCE_ID if the
        instance has joined under another member id (KIP-345). Otherwise returns NONE.
        """
        if instance_id is not None:
            existing = self.static_members.get(instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                reached("groups.static_member_fenced")
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports_protocols(self, protocol_type: str, names: Sequence[str]) -> bool:
        """True if a member with these protocols may join. `protocol_type` must be the group's type, and at
        least one of the protocols must be supported by all present members.
        """
        if self.phase is GroupPhase.EMPTY:
            return bool(protocol_type) and bool(names)
        if protocol_type != self.protocol_type:
            return False
        if not self.members:
            return bool(names)
        common = self._common_protocols()
        return any(name in common for name in names)

    def _common_protocols(self) -> dict[str, None]:
        common: dict[str, None] | None = None
        for member in self.members.values():
            names = dict.fromkeys(name for name, _ in member.protocols)
            common = names if common is None else {name: None for name in common if name in names}
        return common or {}

    def select_protocol(self) -> str:
        """Choose the protocol with the most votes. Each member votes for the first of its protocols that all
        members support.
        """
        candidates = self._common_protocols()
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in candidates:
                    votes[name] += 1
                    break
        if not votes:
            raise AssertionError(
                f"the members of group {self.group_id} have no assignment protocol in common"
            )
        return max(votes, key=lambda name: votes[name])

    def can_keep_generation(self, replaced: Member) -> bool:
        """True if the static member `replaced` may return under a new id without a rebalance: the generation
        and the assignment stay.
        """
        if self.select_protocol() != self.protocol:
            return False
        return self.protocol_type != CONSUMER_PROTOCOL or not replaced.owes_rejoin(self.protocol or "")

    def is_subscribed_to(self, topic: str) -> bool:
        """True if some member may read the topic. If the subscriptions of a consumer group are unreadable,
        its members may read any topic.
        """
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Compute the union of the topics in the members' subscriptions; None if the subscriptions are
        unknown.
        """
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        topics: list[str] = []
        for member in self.members.values():
            of_member = member.subscribed_topics(self.protocol or "")
            if of_member is None:
                return None
            topics += of_member
        return frozenset(topics)

    def described_members(self) -> list[JoinGroupResponseMember]:
        """List the members with their metadata. The group's leader computes the assignment from this list."""
        protocol = self.protocol or ""
        return [
            JoinGroupResponseMember(each.member_id, each.group_instance_id, each.metadata_for(protocol))
            for each in self.members.values()
        ]

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str, reply: Reply | None) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)
        self.set_join_reply(member, reply)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member. If this member was the leader, choose another leader.

        The caller answers the member's waiting requests.
        """
        self.pending_members.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        member.is_gone = True
        self.awaiting_join -= member.join_reply is not None
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def set_join_reply(self, member: Member, reply: Reply | None) -> Reply | None:
        """Store `reply` as the reply to the member's waiting JoinGroup. None means that no JoinGroup of the
        member waits any more.

        Returns the reply that was stored before.
        """
        before, member.join_reply = member.join_reply, reply
        self.awaiting_join += (reply is not None) - (before is not None)
        return before

    def elect_joined_leader(self) -> bool:
        """Choose a leader that has joined. This is the present leader if it has joined, otherwise the first
        member that has joined.

        Returns False if no member has joined.
        """
        if self.leader is None:
            return False
        leader = self.members.get(self.leader)
        if leader is not None and leader.join_reply is not None:
            return True
        for member in self.members.values():
            if member.join_reply is not None:
                if self.leader != member.member_id:
                    reached("groups.leader_replaced")
                self.leader = member.member_id
                return True
        return False

    def replace_static_member(self, instance_id: str, new_id: str) -> tuple[Member, Member]:
        """Replace a static member that returns under a new id (KIP-345).

        Returns (old member, new member); the new member has the assignment of the old one.
        """
        old = self.members[self.static_members[instance_id]]
        led = self.leader == old.member_id
        new = Member(
            new_id,
            instance_id,
            old.client_id,
            old.client_host,
            old.session_timeout_ms,
            old.rebalance_timeout_ms,
            old.protocols,
        )
        new.assignment = old.assignment
        self.remove(old.member_id)
        self.members[new_id] = new
        self.static_members[instance_id] = new_id
        if led:
            self.leader = new_id
        return old, new
