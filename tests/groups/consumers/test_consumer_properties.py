"""Groups of the consumer protocol under any order of events: each partition has one owner, and replay gives the same
state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.data_plane.groups.consumers import target_runs
from odradek.data_plane.groups.consumers.assignors import ASSIGNORS, Subscriber
from odradek.data_plane.groups.consumers.consumer_group import (
    WEIGHT_OF_PATTERN,
    ConsumerGroup,
    Owned,
    replayed,
    weight_of_member,
    weight_of_topics,
)
from odradek.data_plane.groups.consumers.consumer_records import (
    current_record,
    epoch_record,
    member_record,
    pattern_record,
    target_epoch_record,
    target_record,
)
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DeleteGroup
from odradek.data_plane.groups.machine import GroupMachine
from odradek.data_plane.groups.state import GroupsState
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from testkit.coordinating import HeldLog, KeptReply, ScriptedCoordinator
from tests.groups.consumers.consumer_script import image_of, topic_id
from tests.groups.group_script import read_groups

NAMES = "ABCD"
TOPICS = ("t", "u", "v")
GROUP = "g"
FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


@attrs.define
class Client:
    """An honest client: it stops reading a partition before it reports that, and joins again when it is fenced."""

    name: str
    instance_id: str | None = None
    epoch: int = 0
    topics: list[str] = attrs.field(factory=list)
    pattern: str = ""
    has: frozenset[Owned] = frozenset()
    says: bool = False
    """True if the client's next heartbeat lists its partitions."""
    life: int = 0

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.life}"


class World(ScriptedCoordinator[GroupsState, None]):
    """A coordinator and some clients."""

    def __init__(self) -> None:
        super().__init__(HeldLog(read_groups))
        self._works: list[tuple[Any, list[Any]]] = []
        """The unfinished work of workers. Each has its result: the requests that a decision still has to handle."""
        self.counts: dict[str, int] = {"t": 4}
        self.offset = 0
        self.image = image_of(self.counts, 0)
        self.clients = {name: Client(name) for name in NAMES}
        self.clients["D"].instance_id = "i"
        self.machine = self._lead(GroupsState())

    def tell_record(self, record: object) -> str:
        return ""

    def _lead(self, state: GroupsState) -> GroupMachine:
        self.machine = GroupMachine(GroupSettings(), lambda: self.image)
        self.machine.restore(state, self.now_ms, lambda: bytes(16))
        self.lead(self.machine, self.machine.deadlines, state, lambda: bytes(16))
        return self.machine

    @property
    def group(self) -> ConsumerGroup:
        found = self.runtime.state.consumers.get(GROUP)
        return ConsumerGroup(GROUP) if found is None else found

    def ask(self, request: Any) -> Any:
        reply = KeptReply()
        self.submit(request, 1, reply, "client", "/host")
        (answer,) = reply.answers
        return answer

    # -- events -------------------------------------------------------------------------------------------------

    def change_topics(self, counts: dict[str, int]) -> None:
        before, self.counts = self.counts, counts
        self.offset += 1
        self.image = image_of(counts, self.offset)
        changed = sorted(name for name in {**before, **counts} if before.get(name) != counts.get(name))
        if set(counts) - set(before):
            self.machine.topics_created(self.offset)
        self.machine.topics_changed(changed, self.runtime.state)

    def beat(self, name: str, *, stale_by: int = 0) -> None:
        client = self.clients[name]
        joins = client.epoch == 0
        owned = _as_topics(client.has) if client.says and not joins else None
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            client.member_id,
            max(client.epoch - stale_by, 1) if stale_by else client.epoch,
            client.instance_id,
            None,
            12_000 if joins else -1,
            client.topics if joins else None,
            client.pattern if joins else None,
            None,
            [] if joins else owned,
        )
        self.take(client, self.ask(request))

    def take(self, client: Client, response: ConsumerGroupHeartbeatResponse) -> None:
        """Change a client's state by an answer, as a real client does."""
        code = response.error_code
        if code in FENCED:
            client.epoch, client.has = 0, frozenset()
            return
        if code == ErrorCode.UNRELEASED_INSTANCE_ID:
            return
        assert code == ErrorCode.NONE, ErrorCode(code)
        client.epoch = max(response.member_epoch, 0)
        if response.assignment is not None:
            client.has = frozenset(
                (topic.topic_id, each)
                for topic in response.assignment.topic_partitions
                for each in topic.partitions
            )
            client.says = True

    def subscribe(self, name: str, topics: list[str], pattern: str) -> None:
        """Subscribe to other topics. The client stops reading old ones when an answer takes them away."""
        client = self.clients[name]
        client.topics, client.pattern = topics, pattern
        if client.epoch:
            request = ConsumerGroupHeartbeatRequest(
                GROUP,
                client.member_id,
                client.epoch,
                client.instance_id,
                subscribed_topic_names=topics,
                subscribed_topic_regex=pattern,
            )
            self.take(client, self.ask(request))

    def leave(self, name: str, epoch: int) -> None:
        client = self.clients[name]
        if client.epoch and (epoch == -1 or client.instance_id is not None):
            self.ask(ConsumerGroupHeartbeatRequest(GROUP, client.member_id, epoch, client.instance_id))
        client.epoch, client.has, client.life = 0, frozenset(), client.life + 1

    def crash(self, name: str) -> None:
        """Let a client die without leaving the group. It returns with another id."""
        client = self.clients[name]
        client.epoch, client.has, client.life = 0, frozenset(), client.life + 1

    def delete(self) -> None:
        assert self.ask(DeleteGroup(GROUP)) == ErrorCode.NONE

    def resolve(self) -> None:
        """Let the machine decide the next request that the result of a worker leads to."""
        self._works += [(each, list(each.requests())) for each in self.machine.consumers.take_wanted()]
        if self._works:
            work, requests = self._works[0]
            if requests:
                self.submit(requests.pop(0), 0, None)
            if not requests:
                self.machine.consumers.work_ended(work)
                del self._works[0]

    def resolve_all(self) -> None:
        self.resolve()
        while self._works:
            self.resolve()
            self.check()

    def take_over(self) -> None:
        self._works = []
        self.runtime.resign()
        self._lead(self.log.take_over())

    # -- what holds ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        group = self.group
        owners: dict[Owned, str] = {}
        for member_id, member in group.members.items():
            for owned in _all_of(member.assigned, member.revoking):
                assert owned not in owners, "two members have one partition"
                owners[owned] = member_id
        assert dict(group.owners) == owners
        self._check_clients(group)
        self._check_counts(group)
        if self.log.high_watermark == self.log.log_end_offset:
            state: GroupsState = self.log.state()
            assert state.consumers == self.runtime.state.consumers
            assert state.consumer_weight == self.runtime.state.consumer_weight

    def _check_clients(self, group: ConsumerGroup) -> None:
        """Check that no two clients that the coordinator knows have the same partition."""
        held: dict[Owned, str] = {}
        for client in self.clients.values():
            if client.epoch and client.member_id in group.members:
                for owned in client.has:
                    assert held.setdefault(owned, client.name) == client.name
                    assert group.owners.get(owned, client.member_id) == client.member_id

    def _check_counts(self, group: ConsumerGroup) -> None:
        topics: dict[str, int] = {}
        patterns: dict[str, int] = {}
        for member in group.members.values():
            for topic in member.profile.topics:
                topics[topic] = topics.get(topic, 0) + 1
            if member.profile.pattern:
                patterns[member.profile.pattern] = patterns.get(member.profile.pattern, 0) + 1
        weight = sum(weight_of_member(each.member_id, each.profile) for each in group.members.values())
        weight += len(patterns) * WEIGHT_OF_PATTERN + sum(map(weight_of_topics, group.resolved.values()))
        assert group.weight == weight == self.runtime.state.consumer_weight
        assert dict(group.topic_counts) == topics
        assert dict(group.pattern_counts) == patterns
        assert set(group.resolved) <= set(patterns)

    def settle(self) -> None:
        """Let every living client send heartbeats while nothing else happens."""
        for _ in range(20):
            for client in self.clients.values():
                if client.topics or client.pattern:
                    self.beat(client.name)
                self.check()
            self.resolve_all()
            self.wait(3_000)
            self.check()

    def check_settled(self) -> None:
        """Check that each partition that a member reads has an owner, and that all members have their targets."""
        group = self.group
        assert group.state.value in ("Stable", "Empty")
        for member_id, member in group.members.items():
            target = {(topic, each) for topic, found in group.target_of(member_id).items() for each in found}
            assert set(_all_of(member.assigned)) == target
        for topic in group.subscribed_topics():
            for index in range(self.counts.get(topic, 0)):
                assert (topic_id(topic), index) in group.owners, f"nobody has {topic}-{index}"


def _all_of(*some: Any) -> Iterator[Owned]:
    for epochs in some:
        for topic, partitions in epochs.items():
            for each in partitions:
                yield topic, each


def _as_topics(owned: frozenset[Owned]) -> list[TopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic, each in sorted(owned):
        topics.setdefault(topic, []).append(each)
    return [TopicPartitions(topic, found) for topic, found in topics.items()]


NAME = st.sampled_from(NAMES)
SUBSCRIPTION = st.lists(st.sampled_from(TOPICS), max_size=3, unique=True)
PATTERN = st.sampled_from(["", "", "t", "[tu]", ".*"])
EVENT = st.one_of(
    st.tuples(st.just("beat"), NAME),
    st.tuples(st.just("beat"), NAME),
    st.tuples(st.just("beat"), NAME),
    st.tuples(st.just("old"), NAME),
    st.tuples(st.just("subscribe"), NAME, SUBSCRIPTION, PATTERN),
    st.tuples(st.just("leave"), NAME, st.sampled_from([-1, -2])),
    st.tuples(st.just("crash"), NAME),
    st.tuples(st.just("wait"), st.sampled_from([500, 1_000, 5_000, 46_000])),
    st.tuples(st.just("resolve")),
    st.tuples(st.just("take over")),
    st.tuples(st.just("topics"), st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 5))),
)


def _play(world: World, event: tuple[Any, ...]) -> None:
    match event:
        case ("beat", name):
            world.beat(name)
        case ("old", name):
            world.beat(name, stale_by=1)
        case ("subscribe", name, topics, pattern):
            world.subscribe(name, topics, pattern)
        case ("leave", name, epoch):
            world.leave(name, epoch)
        case ("crash", name):
            world.crash(name)
        case ("wait", milliseconds):
            world.wait(milliseconds)
        case ("resolve",):
            world.resolve()
        case ("take over",):
            world.take_over()
        case ("topics", counts):
            # A topic never loses partitions. A topic of the same name with fewer partitions is another topic.
            kept = {name: max(count, world.counts.get(name, 0)) for name, count in counts.items()}
            world.change_topics(kept)


@given(st.lists(EVENT, max_size=60), st.booleans())
def test_a_partition_has_one_owner_and_the_state_is_the_log(
    events: list[tuple[Any, ...]], by_workers: bool
) -> None:
    """KIP-848: a partition is assigned only after its owner has given it up, and in the end each partition has an
    owner. This also holds if workers compute the targets, and parts of a target are written between other events.
    """
    with pytest.MonkeyPatch.context() as patch:
        if by_workers:
            patch.setattr(target_runs, "INLINE_UNITS_MAX", 1)
            patch.setattr(target_runs, "PART_UNITS", 2)
        _check_course(events)


def _check_course(events: list[tuple[Any, ...]]) -> None:
    world = World()
    for name in NAMES[:2]:
        world.subscribe(name, ["t"], "")
    for event in events:
        _play(world, event)
        world.check()
    world.settle()
    world.check_settled()


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{index}" for index in range(8)]),
    st.frozensets(st.sampled_from([b"a", b"b", b"c"]), min_size=1),
    min_size=1,
)
COUNTS = st.fixed_dictionaries(dict.fromkeys([b"a", b"b", b"c"], st.integers(1, 9)))


@given(MEMBERS, MEMBERS, COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignor_gives_each_partition_once_and_evenly(
    before: dict[str, frozenset[bytes]],
    after: dict[str, frozenset[bytes]],
    counts: dict[bytes, int],
    name: str,
) -> None:
    """Each partition has one reader. With `uniform`, no move of a partition could make the members more even."""
    assign = ASSIGNORS[name]
    first = assign([Subscriber(each, None, before[each], {}) for each in sorted(before)], counts)
    targets = assign(
        [Subscriber(each, None, after[each], first.get(each, {})) for each in sorted(after)], counts
    )
    given_away = sorted(
        (topic, each) for some in targets.values() for topic, found in some.items() for each in found
    )
    read = {topic for topics in after.values() for topic in topics}
    assert given_away == sorted((topic, each) for topic in read for each in range(counts[topic]))
    for member_id, target in targets.items():
        assert set(target) <= after[member_id]
    if name == "uniform":
        loads = {member_id: sum(map(len, target.values())) for member_id, target in targets.items()}
        for giver, target in targets.items():
            for taker in targets:
                if any(topic in after[taker] for topic in target):
                    assert loads[giver] - loads[taker] <= 1


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 40))
def test_uniform_moves_as_little_as_it_can(before: int, after: int, partitions: int) -> None:
    """When members join, each earlier member keeps as many of its partitions as its new even share allows."""
    assign = ASSIGNORS["uniform"]
    topics = frozenset([b"a"])

    def members(count: int, targets: Any) -> list[Subscriber]:
        return [Subscriber(f"m{each}", None, topics, targets.get(f"m{each}", {})) for each in range(count)]

    first = assign(members(before, {}), {b"a": partitions})
    second = assign(members(after, first), {b"a": partitions})
    least, extras = divmod(partitions, after)
    kept = sum(
        len(first[name].get(b"a", frozenset()) & second[name].get(b"a", frozenset()))
        for name in first
        if name in second
    )
    had = sorted((len(first[f"m{each}"].get(b"a", ())) for each in range(min(before, after))), reverse=True)
    possible = sum(min(size, least + (index < extras)) for index, size in enumerate(had))
    assert kept == possible


def test_a_group_is_the_replay_of_its_records_in_any_order() -> None:
    """A group is restored from the latest record of each key, in any order, as a compacted log may have them."""
    world = World()
    world.subscribe("A", ["t"], "t.*")
    world.subscribe("B", ["t", "u"], "")
    world.settle()
    group = world.group
    records = [
        *(member_record(GROUP, each) for each in group.members.values()),
        epoch_record(GROUP, group.epoch, group.metadata_hash),
        *(target_record(GROUP, each, group.target_of(each)) for each in group.members),
        target_epoch_record(GROUP, group.target_epoch, group.target_timestamp_ms),
        *(current_record(GROUP, each) for each in group.members.values()),
        *(pattern_record(GROUP, pattern, found) for pattern, found in group.resolved.items()),
    ]
    pairs = [(each.key, each.value) for each in records]
    assert replayed(GROUP, None, pairs) == group
    assert replayed(GROUP, None, reversed(pairs)) == group
