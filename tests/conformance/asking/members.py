"""Members of groups for the cases: each on a connection of its own, and shown by its label in answers.

The classic protocol parks requests, so the order in which a coordinator sees them matters. `together` brings members
into one generation without a race. New members join first. From version 4 on, a new member asks for its id first, and
from then on the group waits for it. An old member joins again only when the answer to a heartbeat asks for it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

from odradek.wire.error_codes import ErrorCode
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.conformance.asking.talk import Talk

JOIN, SYNC, HEARTBEAT, LEAVE = 9, 5, 4, 5
"""The newest versions of these requests in Kafka 4.3."""
Protocols = Sequence[tuple[str, bytes]]
UUID_LENGTH = 36
STRANGER = "stranger"


def subscription(*topics: str, user_data: bytes | None = None) -> bytes:
    """Encode a consumer's metadata: version 0 of the consumer protocol.

    For the protocol type "consumer" it must be valid. Otherwise a rebalance of Kafka 4.3 does not end.
    """
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    tail = struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return struct.pack(">hi", 0, len(topics)) + named + tail


PROTOCOLS: Protocols = (("range", subscription()),)


class Member:
    """One member. Its answers are kept for the comparison, except those to silent requests."""

    def __init__(
        self,
        talk: Talk,
        group: str,
        label: str = "A",
        *,
        version: int = JOIN,
        instance: str | None = None,
        kind: str = "consumer",
        protocols: Protocols = PROTOCOLS,
        session: int = 30_000,
        rebalance: int = 30_000,
    ) -> None:
        self.talk, self.group, self.label, self.version, self.instance = talk, group, label, version, instance
        self.kind, self.protocols, self.session, self.rebalance = kind, protocols, session, rebalance
        self.line = talk.line()
        self.member_id = ""
        self.generation = -1
        self.leads = False

    # -- requests ------------------------------------------------------------------------------------------------------

    def join_request(self, **changes: Any) -> JoinGroupRequest:
        """Make this member's JoinGroup, with some fields changed."""
        protocols = [JoinGroupRequestProtocol(name, data) for name, data in self.protocols]
        fields = {
            "group_id": self.group,
            "session_timeout_ms": self.session,
            "rebalance_timeout_ms": self.rebalance,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocols": protocols,
            **changes,
        }
        return JoinGroupRequest(**fields)

    def sync_request(self, shares: dict[str, bytes] | None = None, **changes: Any) -> SyncGroupRequest:
        """Make this member's SyncGroup. `shares` has the assignment of each member if this one leads."""
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocol_name": self.protocols[0][0],
            "assignments": [SyncGroupRequestAssignment(*share) for share in (shares or {}).items()],
            **changes,
        }
        return SyncGroupRequest(**fields)

    def heartbeat_request(self, **changes: Any) -> HeartbeatRequest:
        """Make this member's Heartbeat."""
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            **changes,
        }
        return HeartbeatRequest(**fields)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def send_join(self, **changes: Any) -> None:
        """Send JoinGroup. Call `joined` for the answer."""
        self.line.send(self.join_request(**changes), self.version)

    def joined(self, silently: bool = False) -> Any:
        """Return the answer to JoinGroup, and remember the member id and generation in it."""
        response = self.line.silent_answer()
        if response is not None:
            self._learn(response)
        if not silently:
            self.talk.keep(response, self.version)
        return response

    def _learn(self, response: Any) -> None:
        if response.member_id:
            self.member_id = response.member_id
            self.talk.give_name(self.member_id[-UUID_LENGTH:], self.label)
        if not response.error_code:
            self.generation = response.generation_id
            self.leads = response.leader == response.member_id

    def join(self, silently: bool = False, **changes: Any) -> Any:
        """Join a group whose other members need not join first. If the answer demands a member id, join again with the
        given one."""
        self.send_join(**changes)
        response = self.joined(silently)
        if response is not None and response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join(**{**changes, "member_id": self.member_id})
            response = self.joined(silently)
        return response

    def sync(self, shares: dict[str, bytes] | None = None, version: int = SYNC, **changes: Any) -> Any:
        """Send SyncGroup and return its answer."""
        return self.line.ask(self.sync_request(shares, **changes), version)

    def heartbeat(self, version: int = HEARTBEAT, **changes: Any) -> Any:
        """Send a heartbeat and return its answer."""
        return self.line.ask(self.heartbeat_request(**changes), version)

    def leave(self, silently: bool = False) -> Any:
        """Leave the group, by the member id."""
        request = LeaveGroupRequest(self.group, members=[MemberIdentity(self.member_id, self.instance)])
        self.line.send(request, LEAVE)
        return self.line.silent_answer() if silently else self.line.answer()

    def wait_for_rebalance(self) -> None:
        """Send heartbeats until the coordinator says that a rebalance is in progress."""
        self._wait_for(ErrorCode.REBALANCE_IN_PROGRESS)

    def wait_until_forgotten(self) -> None:
        """Wait until the group has removed this member. The heartbeats name a wrong generation, so they do not extend
        its session."""
        request = self.heartbeat_request(generation_id=self.generation + 1_000)
        self._wait_for(ErrorCode.UNKNOWN_MEMBER_ID, request)

    def _wait_for(self, awaited: ErrorCode, request: HeartbeatRequest | None = None) -> None:
        for _ in range(2_000):
            self.line.send(request or self.heartbeat_request(), HEARTBEAT)
            if self.line.silent_answer().error_code == awaited:
                return
            time.sleep(0.005)
        raise TimeoutError(f"{self.label} never heard {awaited.name}")


def together(*members: Member, silently: bool = False) -> None:
    """Bring old and new members of a group into one generation. Several new members are possible only if they ask for
    ids first.
    Without new members the leader starts the rebalance. Answers are kept in the order of the arguments."""
    newcomers = [member for member in members if not member.member_id]
    residents = [member for member in members if member.member_id]
    for member in newcomers:
        if member.version >= 4 and member.instance is None:
            member.send_join()
            member.joined(silently)
        member.send_join()
    for member in sorted(residents, key=lambda member: not member.leads):
        if newcomers or not member.leads:
            member.wait_for_rebalance()
        member.send_join()
    answers = [member.joined(silently=True) for member in members]
    if not silently:
        for member, answer in zip(members, answers, strict=True):
            member.talk.keep(answer, member.version)


def synced(*members: Member, silently: bool = False) -> None:
    """Send SyncGroup from all members of a generation. The leader's request has an assignment for each."""
    shares = {member.member_id: f"share of {member.label}".encode() for member in members}
    for member in sorted(members, key=lambda member: member.leads):
        member.line.send(member.sync_request(shares if member.leads else None), SYNC)
    for member in members:
        if silently:
            member.line.silent_answer()
        else:
            member.line.answer()


def stable(talk: Talk, group: str, labels: str = "A", **fields: Any) -> list[Member]:
    """Make a stable group with a member for each label, without keeping any answer for the comparison."""
    members: list[Member] = []
    for label in labels:
        newcomer = Member(talk, group, label, **fields)
        members.append(newcomer)
        together(newcomer, *members[:-1], silently=True)
    synced(*members, silently=True)
    return members
