"""Simulated members of one group, with the consumer protocol (the product's `MemberMachine`) or the classic protocol.
PURE.

A member sends heartbeats, adopts its assignment, commits offsets, stalls, leaves, returns, and changes its
subscription. A member with the classic protocol gives up all partitions before it joins again. Some commits arrive
late, with a member id and epoch that are no longer valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

from odradek.client.consumer.member_machine import Interest, MemberMachine, MemberState, Verdict, judged
from odradek.data_plane.groups.coordinator import Shard
from odradek.data_plane.groups.offsets import CommitOffsets, FetchedOffsets, FetchOffsets, PartitionCommit
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.wire.topic_partition import TopicPartition
from sim.alone.consumers.consumer_checks import ConsumerPromises, Holder, Sent, topic_id
from sim.alone.groups.group_host import GroupHost
from sim.alone.groups.letters import Client, GroupRequest, Post

__all__ = ["GROUP", "NAMES", "ConsumerClients", "GroupClient"]

A = TypeVar("A")
GROUP = "g"
TOPICS = ("t", "u")
NAMES = {topic_id(name): name for name in TOPICS}
NEWEST = 9
HEARTBEAT_VERSION = 1
REBALANCE_MS = 1500
CONFIRMED_SHARE = 0.2
"""The share of OffsetFetch requests that the coordinator answers only after it has confirmed its leadership."""
INTERESTS = (
    Interest(("t",)),
    Interest(("t",)),
    Interest(("t", "u")),
    Interest(("u",)),
    Interest((), "[tu]"),
    Interest((), "[tu]"),
    Interest(("t",), "u.*"),
)
NOT_HERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors after which a client sends the same request again."""


class ConsumerClients(Post):
    """All simulated members of the group, and the messages between them and the coordinators."""

    def __init__(
        self,
        random: Random,
        promises: ConsumerPromises,
        hosts: Mapping[int, GroupHost],
        now_ms: Callable[[], int],
        is_newest: Callable[[GroupHost], bool],
    ) -> None:
        """Create the clients. `is_newest(host)` is True if the controller's metadata name this host's broker as the
        leader.
        """
        super().__init__(random, hosts, promises.wrote)
        self.is_newest = is_newest
        self.promises = promises
        self._heard: dict[str, int] = {}
        """For each member id, the virtual time in ms of its last request: when the request arrived at a coordinator or,
        if it was answered, when it was answered.
        """
        self._unanswered: dict[str, list[Shard | None]] = {}
        """For each member id, the coordinator shards at which its unanswered requests arrived."""
        self.members: list[GroupClient] = []
        self._now_ms = now_ms
        self._commits = 0

    def add(self, member: GroupClient) -> None:
        """Add a member to the schedule."""
        self.members.append(member)
        self.all = self.members
        self.promises.holders.append(member.holder)

    def arrives(self, host: GroupHost, request: GroupRequest) -> None:
        """Record that a member's request has arrived at a coordinator now."""
        if member_id := getattr(request, "member_id", None):
            self._heard[member_id] = self._now_ms()
            self._unanswered.setdefault(member_id, []).append(host.shard)

    def send(
        self,
        client: Client,
        request: GroupRequest,
        version: int,
        checked: Callable[[GroupHost, A], None],
        answered: Callable[[A], None],
    ) -> None:
        """Send a request. Record when a coordinator answers it, even if the answer is lost."""
        member_id = getattr(request, "member_id", None)

        def noted(host: GroupHost, answer: A) -> None:
            if member_id and host.shard in self._unanswered.get(member_id, ()):
                self._unanswered[member_id].remove(host.shard)
                self._heard[member_id] = self._now_ms()
            checked(host, answer)

        super().send(client, request, version, noted, answered)

    def is_dropped_late(self, request: GroupRequest) -> bool:
        """Return True for a join: it never arrives after its client has got the answer to a later request.

        As in Kafka, a second join of one member id gives up the member's partitions. Only a late copy of a join could
        do this harm, and in reality its connection was closed before the client joined again.
        """
        return isinstance(request, ConsumerGroupHeartbeatRequest) and not request.member_epoch

    def heard_ms(self, member_id: str, shard: Shard) -> int:
        """Return the latest time in ms at which this coordinator shard may have started the member's session.

        A heartbeat may wait at the coordinator for a worker, and starts the session when it is decided. So while a
        request of the member waits there for its answer, the result is the present time.
        """
        if shard in self._unanswered.get(member_id, ()):
            return self._now_ms()
        return self._heard.get(member_id, 0)

    def next_commit(self, sent: Sent) -> tuple[int, str]:
        """Register a commit for the checks. Return its number, which serves as the offset, and its unique metadata
        string.
        """
        self._commits += 1
        name = f"c{self._commits}"
        self.promises.sent[name] = sent
        return self._commits, name

    def become_steady(self) -> None:
        """Stop all stalls, departures and subscription changes. If two members have the same instance id, the later
        member stops for good.
        """
        taken: set[str] = set()
        for member in self.members:
            member.is_steady = True
            if member.instance_id is not None and member.instance_id in taken:
                member.is_replaced = True
                member.holder.held.clear()
            elif member.instance_id is not None:
                member.is_replaced = False
                taken.add(member.instance_id)


class GroupClient(Client, ABC):
    """Simulated group member with either protocol. `holder` has its partitions."""

    def __init__(self, clients: ConsumerClients, name: str, instance_id: str | None) -> None:
        super().__init__(name)
        self.clients = clients
        self.instance_id = instance_id
        self.holder = Holder(name)
        self.is_steady = False
        self.is_replaced = False
        """True once another client has taken over this client's instance id."""
        self.stalls = 0
        self.former: tuple[str, int] | None = None
        """An earlier (member id, epoch) of this client, for commits that arrive late."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The member epoch or generation that the member's commits name; -1 while the member is not in the group."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """True if the member has an assignment, and has finished every step of the rebalance."""

    @property
    @abstractmethod
    def topics(self) -> frozenset[str]:
        """The topics to which the member subscribes."""

    @abstractmethod
    def refused(self, code: ErrorCode) -> None:
        """Called when a coordinator answers a request with an error."""

    def is_away(self) -> bool:
        """True if the member does nothing in this step, because it stalls or was replaced."""
        if self.stalls:
            self.stalls = min(self.stalls - 1, 2) if self.is_steady else self.stalls - 1
        return self.is_replaced or self.stalls > 0

    def note_stay(self, host: GroupHost, member_id: str) -> int:
        """Return the value of `Holder.stay` for a member that the coordinator at `host` has just admitted to the group."""
        return self.clients.promises.joined(host.broker, self.holder, member_id)

    def replace_held(self, target: Mapping[TopicPartition, object]) -> None:
        """Give up all partitions that are not in `target`, then adopt the new partitions of `target`."""
        held = self.holder.held
        for at in [at for at in held if at not in target]:
            del held[at]
        for at in target:
            if at not in held:
                self.clients.promises.adopts(self.holder, at)

    # -- offsets ----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Fetch the committed offsets of new partitions. If there are none, commit the position of a random
        partition, which may advance first.
        """
        held = self.holder.held
        if not held or self.epoch <= 0:
            return
        if any(position is None for position in held.values()):
            self._fetch()
        else:
            self._commit(self.clients.random.sample(sorted(held), 1))

    def _fetch(self) -> None:
        wanted = [at for at, position in self.holder.held.items() if position is None]
        who = (self.holder.member_id, self.epoch)
        is_newest: list[bool] = []

        def checked(host: GroupHost, answer: FetchedOffsets) -> None:
            is_newest.append(self.clients.is_newest(host))

        def answered(answer: FetchedOffsets) -> None:
            if answer.code:
                self.refused(answer.code)
                return
            if not is_newest[-1]:
                return
            for at in wanted:
                if (self.holder.member_id, self.epoch) == who and self.holder.held.get(at, 0) is None:
                    found = answer.offsets.get((at.topic, at.partition))
                    self.holder.held[at] = 0 if found is None else found.offset

        # A deposed coordinator that does not confirm its leadership may answer with old offsets. The client ignores
        # such answers.
        is_confirmed = self.clients.random.random() < CONFIRMED_SHARE
        request = FetchOffsets(GROUP, *self.identity(), is_confirmed=is_confirmed)
        self.clients.send(self, request, NEWEST, checked, answered)

    def identity(self) -> tuple[str | None, int]:
        """Return the member id and the epoch that an OffsetFetch request names."""
        return self.holder.member_id, self.epoch

    def _commit(self, slots: list[TopicPartition]) -> None:
        commits = []
        for at in slots:
            position = self.holder.held[at]
            assert position is not None
            position += self.clients.random.randint(0, 3)
            self.holder.held[at] = position
            commits.append((at, position))
        self._send_commit(commits, self.holder.member_id, self.epoch)

    def commit_late(self) -> None:
        """Send a commit with an earlier member id and epoch, as if the network had delayed an old request until now."""
        assert self.former is not None
        known = [*sorted(self.holder.held), TopicPartition("t", self.clients.random.randrange(4))]
        at = self.clients.random.choice(known)
        self._send_commit([(at, 0)], *self.former, is_late=True)

    def _send_commit(
        self, commits: list[tuple[TopicPartition, int]], member_id: str, epoch: int, *, is_late: bool = False
    ) -> None:
        parts = []
        for at, position in commits:
            _, name = self.clients.next_commit(Sent(at, member_id, epoch, is_late))
            parts.append(PartitionCommit(at.topic, topic_id(at.topic), at.partition, position, -1, name))

        def checked(host: GroupHost, codes: list[ErrorCode]) -> None:
            for each, code in zip(parts, codes, strict=True):
                self.clients.promises.committed(host.broker, each.metadata, code)

        def answered(codes: list[ErrorCode]) -> None:
            if codes[0] and (member_id, epoch) == (self.holder.member_id, self.epoch):
                self.refused(codes[0])

        request = CommitOffsets(GROUP, member_id, self.instance_id, epoch, -1, tuple(parts))
        self.clients.send(self, request, NEWEST, checked, answered)


class ConsumerMember(GroupClient):
    """Simulated group member with the consumer protocol (KIP-848)."""

    def __init__(self, clients: ConsumerClients, name: str, instance_id: str | None) -> None:
        super().__init__(clients, name, instance_id)
        self._lives = 0
        self.restart_chance = 0.0
        """The share of a static member's steps in which its process restarts: it leaves for a while and comes back."""
        self._interest = clients.random.choice(INTERESTS)
        self._new_machine()

    def _new_machine(self) -> None:
        """Start a new client process, with a new member id."""
        self._lives += 1
        life = self._lives
        self.machine = MemberMachine(
            GROUP,
            lambda: f"{self.name}.{life}",
            rebalance_timeout_ms=REBALANCE_MS,
            instance_id=self.instance_id,
            assignor=self.clients.random.choice((None, None, "uniform", "range")),
        )
        self.holder.held.clear()
        self.holder.member_id = ""

    @property
    def epoch(self) -> int:
        return self.machine.epoch

    @property
    def topics(self) -> frozenset[str]:
        matched = {"[tu]": {"t", "u"}, "u.*": {"u"}, None: set[str]()}
        return frozenset({*self._interest.topics, *matched[self._interest.pattern]})

    @property
    def is_settled(self) -> bool:
        machine = self.machine
        return machine.state is MemberState.STABLE and not machine.needs_application(NAMES)

    def act(self) -> None:
        machine, random = self.machine, self.clients.random
        if self.is_away():
            return
        if machine.state is MemberState.UNSUBSCRIBED:
            machine.join()
        elif machine.has_lost:
            self.holder.held.clear()
            machine.join()
        if machine.needs_application(NAMES) and random.random() < 0.6:
            target = machine.resolved(NAMES)
            self.replace_held(target)
            machine.adopted(target, machine.incarnation)
        if self.instance_id is not None and not self.is_steady and random.random() < self.restart_chance:
            self._leave(restarts=True)
            return
        chance = random.random()
        if machine.is_urgent(self._interest) or chance < 0.5:
            self._beat()
        elif chance < 0.84 or self.is_steady:
            self.work()
        elif chance < 0.92 and self.former is not None:
            self.commit_late()
        elif chance < 0.94:
            self._interest = random.choice(INTERESTS)
        elif chance < 0.96:
            self.stalls = random.choice((10, 30))
        elif chance < 0.98:
            self._leave()
        else:
            # The client's process dies without a LeaveGroup, and a new process replaces it.
            self.former = (self.holder.member_id, self.epoch)
            self._new_machine()

    def gave_up(self) -> None:
        self.machine.unanswered()

    def _beat(self) -> None:
        machine = self.machine
        request = machine.heartbeat(self._interest)
        incarnation, stay = machine.incarnation, [self.holder.stay]

        def checked(host: GroupHost, answer: ConsumerGroupHeartbeatResponse) -> None:
            if not answer.error_code and request.member_epoch == 0:
                stay[0] = self.note_stay(host, request.member_id)

        def answered(answer: ConsumerGroupHeartbeatResponse) -> None:
            if machine is not self.machine or incarnation != machine.incarnation:
                return
            if answer.error_code:
                self.refused(ErrorCode(answer.error_code))
                return
            if machine.epoch > 0 and answer.member_epoch != machine.epoch:
                self.former = (machine.member_id, machine.epoch)
            machine.answered(answer)
            self.holder.member_id, self.holder.stay = machine.member_id, stay[0]

        self.clients.send(self, request, HEARTBEAT_VERSION, checked, answered)

    def refused(self, code: ErrorCode) -> None:
        machine = self.machine
        verdict = judged(code)
        if not machine.beats or code in NOT_HERE or code is ErrorCode.STALE_MEMBER_EPOCH:
            machine.unanswered()
        elif verdict is Verdict.REPLACED:
            self.is_replaced = True
            self.holder.held.clear()
        elif verdict in (Verdict.FENCED, Verdict.FAILED):
            self.former = (machine.member_id, machine.epoch)
            machine.lose(MemberState.FENCED if verdict is Verdict.FENCED else MemberState.FAILED)
        else:
            machine.unanswered()

    def _leave(self, *, restarts: bool = False) -> None:
        self.former = (self.holder.member_id, self.epoch)
        request: ConsumerGroupHeartbeatRequest | None = self.machine.leave()
        self.machine.unsubscribe()
        self.holder.held.clear()
        self.stalls = self.clients.random.choice((0, 1, 3) if restarts else (0, 5, 20))
        if self.instance_id is not None and (restarts or self.clients.random.random() < 0.5):
            self._new_machine()
        if request is not None:
            self.clients.send(
                self, request, HEARTBEAT_VERSION, lambda host, answer: None, lambda answer: None
            )
