"""A request with tens of thousands of elements is processed in many pieces, with the same response as always."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.node.node import Node
from odradek.serving.long_work import Share
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.world import World
from testkit.lone_node import answer_to, play, request
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

COUNT = 20_000
PIECE_MAX = 2_000
"""The most elements that one piece may handle."""
PARTITIONS = 100
Ask = Callable[[Any, int], Awaitable[Any]]


class Pieces:
    """A counter of the pieces of long work that ran on the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.node: Any = None
        self.then: dict[int, Callable[[], None]] = {}
        """Actions to run after a piece, by the piece's number."""
        on_loop = Share.on_loop

        async def counted(share: Share, function: Callable[..., Any], *args: object) -> Any:
            result = await on_loop(share, function, *args)
            self.count += 1
            self.then.pop(self.count, lambda: None)()
            return result

        monkeypatch.setattr(Share, "on_loop", counted)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    return Pieces(monkeypatch)


def with_topic(
    script: Callable[[World, Ask, Callable[[], Awaitable[Client]]], Awaitable[None]],
    pieces: Pieces | None = None,
) -> None:
    """Run a script with a node that has a topic `t` and coordinators."""

    async def prepared(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()

        async def ask(message: Any, version: int) -> Any:
            return await request(client, message, version)

        await ask(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1, [], [])], 10_000, False), 5)
        for _ in range(100):
            found = (await ask(FindCoordinatorRequest("", 0, ["g"]), 4)).coordinators[0]
            codes = {found.error_code, *codes_of(await ask(commit(1), 8))}
            if codes == {0}:
                return await script(world, ask, connect)
            await world.sleep(0.1)
        raise AssertionError("the coordinators were not ready in time")

    def made(node: Node) -> None:
        if pieces is not None:
            pieces.node = node

    play(
        prepared,
        made=made,
        offsets_topic_num_partitions="2",
        offsets_topic_replication_factor="1",
        log_message_timestamp_type="LogAppendTime",
    )


def commit(count: int, *, metadata: str = "") -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(index, 5, -1, metadata) for index in range(count)]
    return OffsetCommitRequest("g", -1, "", None, -1, [OffsetCommitRequestTopic("t", partitions=partitions)])


def codes_of(response: Any) -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]


def fetch(
    topics: list[FetchTopic], *, epoch: int = -1, session_id: int = 0, wait_ms: int = 0
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
    )


def fetched_topic(name: str, count: int = 1) -> FetchTopic:
    return FetchTopic(
        name, bytes(16), [FetchPartition(index, -1, 0, -1, -1, 1 << 20) for index in range(count)]
    )


def test_a_fetch_of_very_many_partitions_takes_many_pieces(pieces: Pieces) -> None:
    """A fetch of very many partitions answers each of them in order, with the records that they have."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        data = PartitionProduceData(0, good_batch())
        await ask(ProduceRequest(None, -1, 5000, [TopicProduceData("t", bytes(16), [data])]), 9)
        named = [f"n{number}" for number in range(COUNT // 2)]
        for epoch in (-1, 0):
            before = pieces.count
            topics = [fetched_topic("t", PARTITIONS), *map(fetched_topic, named)]
            answer = await ask(fetch(topics, epoch=epoch), 11)
            assert pieces.count - before > COUNT // 2 // PIECE_MAX
            assert [topic.topic for topic in answer.responses] == ["t", *named]
            partitions = answer.responses[0].partitions
            assert [each.partition_index for each in partitions] == list(range(PARTITIONS))
            assert [bool(each.records) for each in partitions] == [True] + [False] * (PARTITIONS - 1)
            codes = {each.error_code for topic in answer.responses[1:] for each in topic.partitions}
            assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    with_topic(script)


def test_a_session_of_very_many_partitions_goes_on_with_its_news() -> None:
    """A fetch session of very many partitions then reports only changes, like any session."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        topics = [fetched_topic("t", PARTITIONS), *(fetched_topic(f"n{number}") for number in range(3_000))]
        first = await ask(fetch(topics, epoch=0), 11)
        assert first.session_id > 0
        again = await ask(
            fetch([fetched_topic(f"m{n}") for n in range(3_000)], epoch=1, session_id=first.session_id), 11
        )
        assert again.error_code == 0
        assert {topic.topic[0] for topic in again.responses} == {"n", "m"}
        assert sum(len(topic.partitions) for topic in again.responses) == 6_000

    with_topic(script)


def test_a_fetch_of_very_many_partitions_that_waits_is_answered_with_what_comes() -> None:
    """A long fetch without data parks. One record for one of its partitions completes it."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        created = await ask(CreateTopicsRequest([CreatableTopic("wide", 2_500, 1, [], [])], 60_000, False), 5)
        assert created.topics[0].error_code == 0
        await world.sleep(20.0)
        consumer = await connect()
        message = fetch([fetched_topic("wide", 2_500)], wait_ms=600_000)
        await consumer.send(bytes(frame(message, 11)))
        await world.sleep(5.0)
        data = PartitionProduceData(2_400, good_batch())
        await ask(ProduceRequest(None, -1, 5000, [TopicProduceData("wide", bytes(16), [data])]), 9)
        asked_at = world.now
        answer = await answer_to(consumer, message, 11)
        assert world.now - asked_at < 60
        told = {
            each.partition_index for topic in answer.responses for each in topic.partitions if each.records
        }
        assert told == {2_400}

    with_topic(script)


def test_records_that_come_between_two_pieces_of_a_fetch_end_its_wait(pieces: Pieces) -> None:
    """A record reaches a partition after a long fetch has read it. The fetch returns it instead of parking."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        created = await ask(CreateTopicsRequest([CreatableTopic("wide", 2_500, 1, [], [])], 60_000, False), 5)
        assert created.topics[0].error_code == 0
        await world.sleep(20.0)
        partition = pieces.node.broker.topics["wide"].partitions[0]
        pieces.then[pieces.count + 5] = lambda: partition.append_as_leader(memoryview(good_batch()), 0)
        asked_at = world.now
        answer = await ask(fetch([fetched_topic("wide", 2_500)], wait_ms=600_000), 11)
        assert pieces.then == {}
        assert world.now - asked_at < 60
        told = {
            each.partition_index for topic in answer.responses for each in topic.partitions if each.records
        }
        assert told == {0}

    with_topic(script, pieces)


def test_offsets_of_very_many_partitions_are_committed_and_deleted_in_pieces(pieces: Pieces) -> None:
    """OffsetCommit and OffsetDelete of very many partitions answer each in order. Only the unknown partition fails."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        created = await ask(CreateTopicsRequest([CreatableTopic("wide", 6_000, 1, [], [])], 60_000, False), 5)
        assert created.topics[0].error_code == 0
        missing = 10
        named = [index if index != missing else 99_999 for index in range(6_000)]
        message = commit(0)
        partitions = [OffsetCommitRequestPartition(index, index, -1, "") for index in named]
        message.topics = [OffsetCommitRequestTopic("wide", partitions=partitions)]
        before = pieces.count
        answer = await ask(message, 8)
        assert pieces.count - before > len(named) // PIECE_MAX
        codes = {
            each.partition_index: each.error_code for topic in answer.topics for each in topic.partitions
        }
        assert len(codes) == len(named)
        assert {index for index, code in codes.items() if code} == {99_999}
        wanted = [OffsetFetchRequestTopics("wide", bytes(16), list(range(6_000)))]
        told = await ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, wanted)]), 8)
        offsets = [each.committed_offset for each in told.groups[0].topics[0].partitions]
        assert offsets == [index if index != missing else -1 for index in range(6_000)]
        deleted = await ask(
            OffsetDeleteRequest(
                "g",
                [OffsetDeleteRequestTopic("wide", [OffsetDeleteRequestPartition(n) for n in range(6_000)])],
            ),
            0,
        )
        assert deleted.error_code == 0
        assert set(codes_of(deleted)) == {0}
        told = await ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, wanted)]), 8)
        assert {each.committed_offset for each in told.groups[0].topics[0].partitions} == {-1}

    with_topic(script)


def test_a_commit_that_is_too_large_commits_nothing(pieces: Pieces) -> None:
    """The size limit applies to the whole OffsetCommit, in however many pieces it is processed. Above the limit, no
    offset is committed."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        message = commit(0)
        partitions = [OffsetCommitRequestPartition(index % PARTITIONS, 7, -1, "") for index in range(COUNT)]
        message.topics = [OffsetCommitRequestTopic("t", partitions=partitions)]
        before = pieces.count
        assert set(codes_of(await ask(message, 8))) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert pieces.count - before > COUNT // PIECE_MAX
        wanted = [OffsetFetchRequestTopics("t", bytes(16), list(range(PARTITIONS)))]
        told = await ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, wanted)]), 8)
        assert {each.committed_offset for each in told.groups[0].topics[0].partitions} == {-1, 5}

    with_topic(script)


def test_many_who_leave_are_answered_each(pieces: Pieces) -> None:
    """A LeaveGroup for very many unknown members answers UNKNOWN_MEMBER_ID for each, with its name."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        members = [MemberIdentity("", f"i{number}") for number in range(COUNT)]
        before = pieces.count
        answer = await ask(LeaveGroupRequest("g", members=members), 5)
        assert pieces.count - before > COUNT // PIECE_MAX
        assert answer.error_code == 0
        assert [each.group_instance_id for each in answer.members] == [
            each.group_instance_id for each in members
        ]
        assert {each.error_code for each in answer.members} == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert (await ask(LeaveGroupRequest("", members=members), 5)).error_code == ErrorCode.INVALID_GROUP_ID

    with_topic(script)


def test_topics_are_described_in_the_order_of_their_names(pieces: Pieces) -> None:
    """DescribeTopicPartitions returns topics sorted by name, each once, even if the request repeats names."""

    async def script(world: World, ask: Ask, connect: Any) -> None:
        names = [f"n{number}" for number in range(COUNT)]
        before = pieces.count
        message = DescribeTopicPartitionsRequest(
            [TopicRequest(name) for name in [*names, "t", "n5"]], 1 << 30
        )
        answer = await ask(message, 0)
        assert pieces.count - before > COUNT // PIECE_MAX
        assert [topic.name for topic in answer.topics] == sorted([*names, "t"])

    with_topic(script)
