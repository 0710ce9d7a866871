"""A simulated member with the classic protocol, whose group may be a consumer group (KIP-848). PURE.

The member uses Kafka's embedded consumer protocol with the assignor `range` and eager rebalances: it gives up all
partitions before it joins again. If the member is the group's leader, it assigns the partitions of each topic
round-robin.
"""

from __future__ import annotations

from odradek.wire.codec import decode_bounded, encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from odradek.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.consumer_clients import GROUP, NOT_HERE, REBALANCE_MS, ConsumerClients, GroupClient
from sim.alone.groups.group_host import GroupHost

__all__ = ["ClassicMember"]

SESSION_MS = 2000
JOIN_VERSION, SYNC_VERSION, BEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5
DEALT_PARTITIONS = 6
VERSION = b"\x00\x00"


class ClassicMember(GroupClient):
    """Simulated group member with the classic protocol (JoinGroup, SyncGroup, Heartbeat)."""

    def __init__(self, clients: ConsumerClients, name: str, instance_id: str | None) -> None:
        super().__init__(clients, name, instance_id)
        self._topics = clients.random.choice((("t",), ("t",), ("t", "u")))
        self._member_id = ""
        self._generation = -1
        self._is_joined = self._is_in = False
        self._shares: list[SyncGroupRequestAssignment] = []

    @property
    def epoch(self) -> int:
        return self._generation if self._is_in else -1

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    @property
    def is_settled(self) -> bool:
        return self._is_in

    def identity(self) -> tuple[str | None, int]:
        # Classic members send no member id when they fetch offsets.
        return None, -1

    def act(self) -> None:
        random = self.clients.random
        if self.is_away():
            return
        chance = random.random()
        if not self._is_joined:
            self._join()
        elif not self._is_in:
            self._sync()
        elif chance < 0.5:
            self._beat()
        elif chance < 0.88 or self.is_steady:
            self.work()
        elif chance < 0.93 and self.former is not None:
            self.commit_late()
        elif chance < 0.96:
            self.stalls = random.choice((10, 30))
        elif chance < 0.98:
            self._leave()

    def gave_up(self) -> None:
        """Do nothing: the next `act` sends the request again."""

    def refused(self, code: ErrorCode) -> None:
        """Handle an error: drop all partitions, so that the next `act` joins again. After UNKNOWN_MEMBER_ID the client
        joins as a new member.
        """
        if code in NOT_HERE:
            return
        if self._is_in:
            self.former = (self._member_id, self._generation)
        self._is_in = self._is_joined = False
        self.holder.held.clear()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.is_replaced = True

    def _join(self) -> None:
        self.holder.held.clear()
        metadata = VERSION + encode(ConsumerProtocolSubscription(list(self._topics)), 0)
        protocols = [JoinGroupRequestProtocol("range", metadata)]
        request = JoinGroupRequest(
            GROUP, SESSION_MS, REBALANCE_MS, self._member_id, self.instance_id, "consumer", protocols
        )
        self.clients.send(self, request, JOIN_VERSION, lambda host, answer: None, self._joined)

    def _joined(self, answer: JoinGroupResponse) -> None:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        elif code:
            self.refused(code)
        else:
            self._member_id, self._generation = answer.member_id, answer.generation_id
            self._is_joined, self._is_in = True, False
            self._shares = _dealt({each.member_id: each.metadata for each in answer.members})

    def _sync(self) -> None:
        generation, member_id, stay = self._generation, self._member_id, [0]
        request = SyncGroupRequest(
            GROUP, generation, member_id, self.instance_id, "consumer", "range", self._shares
        )

        def checked(host: GroupHost, answer: SyncGroupResponse) -> None:
            if not answer.error_code:
                stay[0] = self.note_stay(host, member_id)

        def answered(answer: SyncGroupResponse) -> None:
            if answer.error_code:
                self.refused(ErrorCode(answer.error_code))
                return
            self._is_in = True
            self.holder.member_id, self.holder.stay = member_id, stay[0]
            self.replace_held(dict.fromkeys(_partitions_in(answer.assignment)))

        self.clients.send(self, request, SYNC_VERSION, checked, answered)

    def _beat(self) -> None:
        request = HeartbeatRequest(GROUP, self._generation, self._member_id, self.instance_id)

        def answered(answer: HeartbeatResponse) -> None:
            if answer.error_code:
                self.refused(ErrorCode(answer.error_code))

        self.clients.send(self, request, BEAT_VERSION, lambda host, answer: None, answered)

    def _leave(self) -> None:
        request = LeaveGroupRequest(GROUP, "", [MemberIdentity(self._member_id, self.instance_id)])
        self.former = (self._member_id, self._generation)
        self._is_in = self._is_joined = False
        self.holder.held.clear()
        self._member_id = ""
        self.stalls = self.clients.random.choice((0, 10))
        self.clients.send(self, request, LEAVE_VERSION, lambda host, answer: None, lambda answer: None)


def _dealt(metadata: dict[str, bytes]) -> list[SyncGroupRequestAssignment]:
    """Assign the partitions of each topic round-robin to the members that subscribe to the topic. `metadata` maps each
    member id to the member's encoded subscription.
    """
    readers: dict[str, list[str]] = {}
    for member_id in sorted(metadata):
        subscription = decode_bounded(ConsumerProtocolSubscription, 0, metadata[member_id], 2)
        for topic in subscription.topics:
            readers.setdefault(topic, []).append(member_id)
    shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in metadata}
    for topic, names in readers.items():
        for partition in range(DEALT_PARTITIONS):
            shares[names[partition % len(names)]].setdefault(topic, []).append(partition)
    return [
        SyncGroupRequestAssignment(
            member_id,
            VERSION
            + encode(
                ConsumerProtocolAssignment(
                    [ConsumerProtocolAssignmentTopicPartition(*each) for each in share.items()]
                ),
                0,
            ),
        )
        for member_id, share in shares.items()
    ]


def _partitions_in(assignment: bytes) -> list[TopicPartition]:
    if not assignment:
        return []
    given = decode_bounded(ConsumerProtocolAssignment, 0, assignment, 2)
    return [
        TopicPartition(each.topic, partition)
        for each in given.assigned_partitions
        for partition in each.partitions
    ]
