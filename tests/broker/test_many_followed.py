"""A follower of more partitions of one leader than a request may name: it builds its fetch session in parts."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from odradek.data_plane.fetch_sessions import FetchSessions
from odradek.data_plane.replication.following import fetcher as fetcher_module
from odradek.data_plane.replication.following.departures import Departures
from odradek.data_plane.replication.following.fetcher import LeaderFetcher
from odradek.data_plane.replication.following.follower_fetch_session import PARTITIONS_MAX
from odradek.data_plane.replication.peer_silence import PeerSilence
from odradek.wire.codec import ELEMENTS_MAX, bounded_decoder, encode
from odradek.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from odradek.wire.topic_partition import TopicIdPartition
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import ManualClock

VERSION = 17
WAIT_MS = 500


class StubLog:
    """A log of which only the end offset changes."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.log_end_offset = self.log_start_offset = self.stored_start_offset = 0
        self.epochs = SimpleNamespace(latest=-1)
        self.is_start_stored = True
        self.offline = self.needs_flush = False

    def append(self, records: Any, *_: object) -> None:
        self.log_end_offset += 1


class StubPartition:
    """A partition of which this broker is a follower."""

    is_leader = False
    leader_epoch = 7
    image = None

    def __init__(self, topic: str, partition: int) -> None:
        self.log = StubLog(topic, partition)
        self.answers = 0

    def follow(self, high_watermark: int, log_start_offset: int) -> None:
        self.answers += 1

    def is_adding(self, node_id: int) -> bool:
        return False


@attrs.define
class Leader:
    """A connection to a leader without logs. It has our codec with its limits, and our fetch sessions."""

    slots: int = 1000
    is_open: bool = False
    sessions: FetchSessions = attrs.field(init=False)
    requests: list[FetchRequest] = attrs.field(factory=list)
    forgets_sessions: bool = False
    _answer: FetchResponse = attrs.field(factory=FetchResponse)

    def __attrs_post_init__(self) -> None:
        self.sessions = FetchSessions(self.slots, 120_000, Random(1))

    def close_if_old(self, now: float) -> None:
        """Do nothing: this connection lasts for the whole test."""

    def close(self) -> None:
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def send(self, request: FetchRequest, version: int, wait_ms: int, now: float) -> None:
        """Decode a request as a server does, and prepare the response."""
        assert wait_ms == request.max_wait_ms
        taken, _ = bounded_decoder(FetchRequest, version)(memoryview(encode(request, version)), 0)
        self.requests.append(taken)
        if self.forgets_sessions:
            self.sessions = FetchSessions(self.slots, 120_000, Random(len(self.requests)))
        plan = self.sessions.plan(taken, True, 0)
        topics: dict[Any, FetchableTopicResponse] = {}
        for fetched in plan.partitions:
            topic_id, index = fetched.key
            topic = topics.setdefault(topic_id, FetchableTopicResponse("", cast("bytes", topic_id), []))
            topic.partitions.append(PartitionData(index, 0, 0, 0, 0))
        for cursor in plan.partitions if plan.session is not None else ():
            cast("Any", cursor).settle()
        self._answer = FetchResponse(0, plan.error, plan.session_id, list(topics.values()))

    async def answer(self) -> FetchResponse:
        return self._answer

    @property
    def known(self) -> int:
        """Count the partitions in the leader's sessions."""
        return self.sessions.statistics()["partitions"]


def run(round_: Coroutine[Any, Any, None]) -> None:
    """Run a round of the fetcher, which finishes without waiting."""
    with pytest.raises(StopIteration):
        round_.send(None)


class Follower:
    """A fetcher that follows `topics` topics with `each` partitions each."""

    def __init__(self, leader: Leader, topics: int, each: int) -> None:
        clock = ManualClock()
        shared = SimpleNamespace(
            node_id=2,
            env=SimpleNamespace(
                clock=clock,
                event=lambda: SimpleNamespace(set=lambda: None),
                buggify=lambda point: False,
            ),
            settings=SimpleNamespace(
                fetch_wait_ms_max=WAIT_MS,
                fetch_bytes_max=1 << 20,
                fetch_bytes_min=1,
                response_bytes_max=10 << 20,
                backoff_ms_max=1000,
                socket_timeout_ms=30_000,
            ),
            broker_epoch=lambda: 5,
            after_round=lambda: None,
            throttle=SimpleNamespace(is_set=False),
            silence=PeerSilence(0, 500, lambda broker_id: False),
            departures=Departures(World(1, Weather()).node_env("a"), lambda leader: False, list),
            sync=None,
            timers=None,
            buffer=memoryview(b""),
            log=SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None),
        )
        self.fetcher = LeaderFetcher(1, lambda: ("leader", 9092), cast("Any", shared))
        cast("Any", self.fetcher)._connection = self.leader = leader
        self.partitions = {
            TopicIdPartition(topic.to_bytes(16, "big"), index): StubPartition(f"t{topic}", index)
            for topic in range(1, topics + 1)
            for index in range(each)
        }
        for replica, partition in self.partitions.items():
            self.fetcher.follow(replica, cast("Any", partition))

    def rounds(self, count: int) -> list[FetchRequest]:
        """Make `count` rounds. Return their requests as the leader has decoded them."""
        for _ in range(count):
            run(self.fetcher._round())
        return self.leader.requests[-count:]

    @property
    def unanswered(self) -> int:
        """Count the partitions about which the leader has answered nothing yet."""
        return sum(not each.answers for each in self.partitions.values())


def named(request: FetchRequest) -> int:
    """Count the partitions that a request names."""
    return sum(len(topic.partitions) for topic in request.topics)


SHAPES = [(20_000, 1), (1, 45_000), (5_000, 4), (PARTITIONS_MAX, 1)]


@pytest.mark.parametrize(("topics", "each"), SHAPES)
def test_a_session_of_many_partitions_is_made_in_parts(topics: int, each: int) -> None:
    """Each request has fewer elements than a server accepts, and the parts follow each other without a wait."""
    follower = Follower(Leader(), topics, each)
    count = topics * each
    parts = -(-count // PARTITIONS_MAX)
    requests = follower.rounds(parts)
    assert follower.unanswered == 0
    assert follower.leader.known == count
    assert [request.session_epoch for request in requests] == list(range(parts))
    assert [request.max_wait_ms for request in requests] == [0] * (parts - 1) + [WAIT_MS]
    (quiet,) = follower.rounds(1)
    assert (named(quiet), quiet.max_wait_ms) == (0, WAIT_MS)


@pytest.mark.parametrize(("topics", "each"), SHAPES)
def test_without_a_session_the_parts_take_turns(topics: int, each: int) -> None:
    """If the leader grants no session, requests name all partitions in turns, and one request of each turn may wait."""
    follower = Follower(Leader(slots=0), topics, each)
    parts = -(-topics * each // PARTITIONS_MAX)
    for _ in range(2):
        for partition in follower.partitions.values():
            partition.answers = 0
        requests = follower.rounds(parts)
        assert follower.unanswered == 0
        assert [request.max_wait_ms for request in requests] == [0] * (parts - 1) + [WAIT_MS]


@pytest.mark.reaches("replication.session_begun_anew")
def test_a_leader_that_forgets_each_session_starves_nobody() -> None:
    """If the leader forgets each session at once, the next session begins with the partitions that have waited."""
    follower = Follower(Leader(forgets_sessions=True), 20_000, 1)
    follower.rounds(6)
    assert follower.unanswered == 0


def test_partitions_that_go_and_change_together_are_told_in_parts() -> None:
    """No request is too large when all partitions are new, when all change at once, or when nearly all are dropped."""
    follower = Follower(Leader(), 20_000, 1)
    follower.rounds(4)
    for partition in follower.partitions.values():
        partition.log.log_end_offset += 1
    for replica in follower.partitions:
        follower.fetcher._changed[replica] = None
    assert sum(map(named, follower.rounds(3))) == 20_000
    for replica in list(follower.partitions)[1:]:
        follower.fetcher.drop(replica)
    follower.rounds(3)
    assert follower.leader.known == 1


def test_a_request_of_the_most_partitions_is_taken_by_a_server() -> None:
    """A server decodes a request that names and forgets as many partitions as allowed, each of a topic of its own."""
    topics = [(number + 1).to_bytes(16, "big") for number in range(2 * PARTITIONS_MAX)]
    request = FetchRequest(
        replica_state=ReplicaState(1, 5),
        topics=[FetchTopic("", each, [FetchPartition(0)]) for each in topics[:PARTITIONS_MAX]],
        forgotten_topics_data=[ForgottenTopic("", each, [0]) for each in topics[PARTITIONS_MAX:]],
    )
    taken, _ = bounded_decoder(FetchRequest, VERSION)(memoryview(encode(request, VERSION)), 0)
    assert taken == request
    assert fetcher_module.FETCH_VERSION == VERSION
    assert 4 * PARTITIONS_MAX < ELEMENTS_MAX
