"""Requests with very many names, or with one name many times: each thing is described once, and other connections get
their turns."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_groups import DeleteGroupsRequest
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client
from tests.node.requests.test_long_pieces import Ask, Pieces, with_topic

COUNT = 6_000
"""More elements than are decoded at once; enough for six slices of work."""
NAMES = [f"n{number}" for number in range(COUNT)]
PIECES_MIN = COUNT // 2_000
"""The least number of pieces of work for `COUNT` elements, since one piece handles at most 2,000 of them."""

LONG: dict[str, tuple[Any, int]] = {
    "metadata": (
        MetadataRequest([MetadataRequestTopic(name=name) for name in NAMES], False, False, False),
        9,
    ),
    "find_coordinator": (FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), 4),
    "describe_groups": (DescribeGroupsRequest(NAMES), 5),
    "delete_groups": (DeleteGroupsRequest(NAMES), 2),
    "offset_fetch": (
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, None, -1, None) for name in NAMES]),
        8,
    ),
    "list_offsets": (
        ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(index, -1, -1) for index in range(COUNT)])]
        ),
        7,
    ),
    "offset_for_leader_epoch": (
        OffsetForLeaderEpochRequest(
            -2,
            [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(index, -1, 0) for index in range(COUNT)])],
        ),
        4,
    ),
    "delete_records": (
        DeleteRecordsRequest(
            [DeleteRecordsTopic("t", [DeleteRecordsPartition(index, 0) for index in range(COUNT)])], 1000
        ),
        2,
    ),
    "alter_replica_log_dirs": (
        AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir("/none", [AlterReplicaLogDirTopic("t", list(range(COUNT)))])]
        ),
        2,
    ),
    "describe_configs": (
        DescribeConfigsRequest([DescribeConfigsResource(2, name, None) for name in NAMES], True, True),
        4,
    ),
}


@pytest.mark.parametrize("api", LONG)
def test_others_are_answered_while_a_long_answer_is_made(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long response is built in many pieces, between which other connections get their turns."""
    message, version = LONG[api]
    pieces = Pieces(monkeypatch)
    counts: list[int] = []

    async def script(world: World, ask: Ask, connect: Callable[[], Awaitable[Client]]) -> None:
        del world, connect
        before = pieces.count
        await ask(message, version)
        counts.append(pieces.count - before)

    with_topic(script)
    assert counts[0] >= PIECES_MIN


PARTITIONS = 300
TIMES = 1_000
REPEATING: dict[str, tuple[Any, int]] = {
    "metadata": (
        MetadataRequest([MetadataRequestTopic(name="many")] * TIMES, False, False, False),
        9,
    ),
    "describe_producers": (DescribeProducersRequest([TopicRequest("many", [0] * TIMES)]), 0),
}


@pytest.mark.parametrize("what", REPEATING)
def test_what_is_named_many_times_is_described_once(what: str) -> None:
    """If a request repeats a name, the memory depends on the request and the described things, not on their product."""
    message, version = REPEATING[what]
    peaks: list[int] = []

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        topic = CreatableTopic("many", PARTITIONS, 1, [], [])
        await request(client, CreateTopicsRequest([topic], 10_000, False), 7)
        await world.sleep(5.0)
        tracemalloc.start()
        await request(client, message, version)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    play(script)
    assert peaks[0] < 12 << 20
