"""Simulated clients of a group coordinator: members of a group that join, commit, stall and leave, and consumers
without a group. PURE.

A client has at most one request in flight. Requests and answers arrive late, in any order, or never; after a loss the
client sends again. Most requests go to the right coordinator, some to another broker. The checks see each answer when
a coordinator gives it, even if the answer is lost later.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    PartitionCommit,
)
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.alone.groups.group_checks import GroupPromises, Sent, partitions_of
from sim.alone.groups.group_host import GroupHost
from sim.alone.groups.letters import Client, Post
from sim.history import SafetyViolation

__all__ = ["LONERS_GROUP", "MEMBERS_GROUP", "SESSION_MS", "TOPIC", "Clients"]

TOPIC = "t"
PARTITIONS = (0, 1, 2, 3)
SUBSCRIPTION = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\xff\xff\xff\xff"
"""`ConsumerProtocolSubscription`, version 0, to topic `t` only."""
SESSION_MS = 2000
REBALANCE_MS = 1500
MEMBERS_GROUP = "members"
LONERS_GROUP = "loners"
JOIN_VERSION, NEWEST = 9, 9


class Clients(Post):
    """All simulated clients, and the messages between them and the coordinators. `hosts` has only the living brokers."""

    def __init__(
        self, random: Random, promises: GroupPromises, hosts: Mapping[int, GroupHost], static: int
    ) -> None:
        super().__init__(random, hosts, promises.wrote)
        self.promises = promises
        self._commits = 0
        members = [_Member(self, f"m{each}", f"i{each}" if each < static else None) for each in range(3)]
        if static:
            members.append(_Member(self, "m0 again", "i0"))
        self.members = members
        self.all = [*members, _Loner(self, "l0"), _Loner(self, "l1")]

    def revive(self) -> None:
        """Stop all stalls and departures, so that each member joins and stays."""
        for member in self.members:
            member.is_steady = True

    @property
    def are_settled(self) -> bool:
        """True if all members that were not fenced are in one generation."""
        there = [each for each in self.members if not each.is_fenced]
        return all(each.is_in for each in there) and len({each.generation for each in there}) <= 1

    # -- shared by all clients ------------------------------------------------------------------------------------

    def commit(
        self, client: _Client, group_id: str, partitions: tuple[int, ...], member_id: str, generation: int
    ) -> None:
        """Send a commit of these partitions, with new offsets that are unique in the schedule."""
        commits = []
        for partition in partitions:
            self._commits += 1
            name = f"c{self._commits}"
            self.promises.sent[name] = Sent((group_id, TOPIC, partition), member_id, generation)
            commits.append(PartitionCommit(TOPIC, bytes(16), partition, self._commits, -1, name))

        def checked(host: GroupHost, codes: list[ErrorCode]) -> None:
            for each, code in zip(commits, codes, strict=True):
                self.promises.committed(host.broker, each.metadata, code)

        request = CommitOffsets(group_id, member_id, client.instance_id, generation, -1, tuple(commits))
        self.send(client, request, NEWEST, checked, client.committed)

    def fetch(self, client: _Client, group_id: str) -> None:
        """Send an OffsetFetch for all offsets of a group."""
        floor = self.promises.floor()

        def checked(host: GroupHost, answer: FetchedOffsets) -> None:
            self.promises.fetched(host.broker, group_id, floor, answer)

        self.send(client, FetchOffsets(group_id), NEWEST, checked, lambda answer: None)

    def read_at_last(self, host: GroupHost, group_id: str) -> None:
        """Fetch all offsets of a group from this coordinator, and check the answer. Raises `SafetyViolation` if the
        coordinator returns an error or does not answer at once.
        """
        answers: list[Any] = []
        floor = self.promises.floor()

        class Caught:
            def complete(self, response: Any) -> None:
                answers.append(response)

        host.coordinator.submit(group_id, Ask(FetchOffsets(group_id), NEWEST, Caught(), host.clock.wall_ms()))
        if not answers or answers[0].code:
            raise SafetyViolation(f"the offsets of {group_id} cannot be read in a healed cluster: {answers}")
        self.promises.fetched(host.broker, group_id, floor, answers[0])

    def delete_offset(self) -> None:
        """Let an operator delete a committed offset of the group without members."""
        operator = self.all[-1]
        if not operator.waits:
            self.promises.forgiven[LONERS_GROUP] = None
            request = DeleteOffsets(LONERS_GROUP, ((TOPIC, self.random.choice(PARTITIONS)),))
            self.send(operator, request, 0, lambda host, answer: None, lambda answer: None)

    def forgive_all(self) -> None:
        """Note that all offsets may be removed, since their topic is deleted."""
        self.promises.forgiven.update(dict.fromkeys((MEMBERS_GROUP, LONERS_GROUP)))


class _Client(Client):
    """A simulated client with at most one request in flight."""

    instance_id: str | None = None

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(name)
        self.clients = clients

    def committed(self, codes: list[ErrorCode]) -> None:
        """Called with the answer to a commit: an error code for each partition."""


class _Loner(_Client):
    """A consumer that assigns partitions to itself: it commits offsets without being a member of a group."""

    def act(self) -> None:
        clients = self.clients
        if clients.random.random() < 0.5:
            clients.commit(self, LONERS_GROUP, (clients.random.choice(PARTITIONS),), "", -1)
        else:
            clients.fetch(self, LONERS_GROUP)


class _Member(_Client):
    """A member of the group, with the classic protocol. It joins, syncs, and then sends heartbeats, commits and
    fetches. Sometimes it stalls or leaves.
    """

    def __init__(self, clients: Clients, name: str, instance_id: str | None) -> None:
        super().__init__(clients, name)
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        self.is_in = False
        """True if the member has received its assignment of the present generation."""
        self.is_fenced = False
        self.is_steady = False
        self._is_joined = False
        self._assignments: list[SyncGroupRequestAssignment] = []
        self._former: tuple[str, int] | None = None
        """An earlier (member id, generation), for commits that arrive late."""
        self._stalls = 0

    def act(self) -> None:
        random = self.clients.random
        if self.is_fenced:
            return
        if self._stalls:
            self._stalls = 0 if self.is_steady else self._stalls - 1
            return
        if not self._is_joined:
            self._join()
        elif not self.is_in:
            self._sync()
        else:
            chance = random.random()
            if chance < 0.35:
                self._beat()
            elif chance < 0.75:
                if self.owned:
                    self.clients.commit(self, MEMBERS_GROUP, self.owned, self.member_id, self.generation)
            elif chance < 0.85:
                self.clients.fetch(self, MEMBERS_GROUP)
            elif chance < 0.9 and self._former is not None:
                # This commit names an earlier generation, as if its request had been delayed since that generation.
                self.clients.commit(self, MEMBERS_GROUP, (0,), *self._former)
            elif not self.is_steady and chance > 0.96:
                self._leave()
            elif not self.is_steady and chance > 0.94:
                self._stalls = 20

    def _fall_out(self, code: ErrorCode) -> None:
        """Handle an error so that the next `act` joins again. After UNKNOWN_MEMBER_ID the client joins as a new
        member.
        """
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        if self.generation >= 0:
            self._former = (self.member_id, self.generation)
        self.is_in = self._is_joined = False
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced = True

    def _join(self) -> None:
        request = JoinGroupRequest(
            MEMBERS_GROUP,
            SESSION_MS,
            REBALANCE_MS,
            self.member_id,
            self.instance_id,
            "consumer",
            [JoinGroupRequestProtocol("range", SUBSCRIPTION)],
        )
        self.clients.send(self, request, JOIN_VERSION, lambda host, answer: None, self._joined)

    def _joined(self, answer: Any) -> None:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code:
            self._fall_out(code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._is_joined, self.is_in = True, False
            members = sorted(each.member_id for each in answer.members)
            shares: dict[str, list[int]] = {each: [] for each in members}
            for partition in PARTITIONS if members and not answer.skip_assignment else ():
                shares[members[partition % len(members)]].append(partition)
            self._assignments = [
                SyncGroupRequestAssignment(each, b",".join(b"%d" % number for number in share))
                for each, share in shares.items()
            ]

    def _sync(self) -> None:
        generation, name = self.generation, self.instance_id or self.member_id
        request = SyncGroupRequest(
            MEMBERS_GROUP,
            generation,
            self.member_id,
            self.instance_id,
            "consumer",
            "range",
            self._assignments,
        )

        def checked(host: GroupHost, answer: Any) -> None:
            if not answer.error_code:
                self.clients.promises.synced(host.broker, MEMBERS_GROUP, generation, name, answer.assignment)

        self.clients.send(self, request, 5, checked, self._synced)

    def _synced(self, answer: Any) -> None:
        if answer.error_code:
            self._fall_out(ErrorCode(answer.error_code))
        else:
            self.is_in = True
            self.owned = partitions_of(answer.assignment)

    def _beat(self) -> None:
        request = HeartbeatRequest(MEMBERS_GROUP, self.generation, self.member_id, self.instance_id)

        def answered(answer: Any) -> None:
            if answer.error_code:
                self._fall_out(ErrorCode(answer.error_code))

        self.clients.send(self, request, 4, lambda host, answer: None, answered)

    def committed(self, codes: list[ErrorCode]) -> None:
        """Handle the answer to a commit by this member or its previous process."""
        for code in codes[:1]:
            if code and code is not ErrorCode.OFFSET_METADATA_TOO_LARGE and self._former is None:
                self._fall_out(code)

    def _leave(self) -> None:
        request = LeaveGroupRequest(MEMBERS_GROUP, "", [MemberIdentity(self.member_id, self.instance_id)])
        self._former = (self.member_id, self.generation)
        self.is_in = self._is_joined = False
        self.member_id = ""
        self._stalls = self.clients.random.choice((0, 10))
        self.clients.send(self, request, 5, lambda host, answer: None, lambda answer: None)
