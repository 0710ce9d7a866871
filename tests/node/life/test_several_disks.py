"""A node with several log directories, simulated: where replicas are placed, and what a failed disk takes offline."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import pytest

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.platter import Inode
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

PARTITIONS = 6
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


@attrs.define
class Cluster:
    """A client with the requests of these tests, to a node with the directories /one and /two."""

    client: Client

    async def create(self, topic: str = "t") -> None:
        created = await request(
            self.client, CreateTopicsRequest([CreatableTopic(topic, PARTITIONS, 1, [], [])], 10_000, False), 5
        )
        assert created.topics[0].error_code == 0

    async def produce(self, partition: int) -> ErrorCode:
        data = PartitionProduceData(partition, good_batch(2, timestamp_ms=1))
        answer = await request(
            self.client, ProduceRequest(None, -1, 5000, [TopicProduceData("t", bytes(16), [data])]), 9
        )
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def directories(self) -> dict[str, Any]:
        """Return the partitions of "t" by directory; for an offline directory, its error code."""
        results = (await request(self.client, DescribeLogDirsRequest(None), 4)).results
        return {
            result.log_dir: ErrorCode(result.error_code)
            if result.error_code
            else [
                partition.partition_index
                for topic in result.topics
                if topic.name == "t"
                for partition in topic.partitions
            ]
            for result in results
        }

    async def leaders(self) -> dict[int, tuple[int, list[int]]]:
        """Return (leader, offline replicas) by partition."""
        answer = await request(self.client, MetadataRequest([MetadataRequestTopic(name="t")]), 12)
        return {
            partition.partition_index: (partition.leader_id, partition.offline_replicas)
            for partition in answer.topics[0].partitions
        }


def play_with_two(script: Callable[[World, Cluster], Awaitable[None]]) -> None:
    async def connected(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        await script(world, Cluster(await connect()))

    play(connected, Weather(), log_dirs="/one,/two")


def test_a_failed_disk_takes_down_only_its_own_partitions() -> None:
    """Only the failed disk's partitions get KAFKA_STORAGE_ERROR and lose their leader. DescribeLogDirs shows the
    failure."""

    async def script(world: World, cluster: Cluster) -> None:
        await cluster.create()
        before = await cluster.directories()
        assert sorted(before["/one"] + before["/two"]) == list(range(PARTITIONS))
        assert len(before["/one"]) == len(before["/two"])
        for partition in range(PARTITIONS):
            assert await cluster.produce(partition) is ErrorCode.NONE
        await world.sleep(1)
        world.machine("server").disk.fail_next(errno.EIO, path_part="two", times=1 << 30)
        lost = before["/two"]
        assert await cluster.produce(lost[0]) is STORAGE_ERROR
        await world.sleep(1)
        assert await cluster.directories() == {"/one": before["/one"], "/two": STORAGE_ERROR}
        for partition in range(PARTITIONS):
            expected = STORAGE_ERROR if partition in lost else ErrorCode.NONE
            assert await cluster.produce(partition) is expected
        assert await cluster.leaders() == {
            partition: (-1, [1]) if partition in lost else (1, []) for partition in range(PARTITIONS)
        }
        await cluster.create("later")
        assert (await cluster.directories())["/two"] is STORAGE_ERROR

    play_with_two(script)


def test_a_full_disk_is_passed_over() -> None:
    """If one directory has no room for a new log, the next one gets it."""

    async def script(world: World, cluster: Cluster) -> None:
        world.machine("server").disk.fail_next(
            errno.ENOSPC, operation="open", path_part="/two/t-", times=1 << 30
        )
        await cluster.create()
        found = await cluster.directories()
        assert found == {"/one": list(range(PARTITIONS)), "/two": []}

    play_with_two(script)


def test_deleted_records_are_not_brought_back_by_a_crash() -> None:
    """When DeleteRecords is answered, the new log start offset is already durable, even with a timeout of 0."""

    async def script(world: World, cluster: Cluster) -> None:
        await cluster.create()
        assert await cluster.produce(0) is ErrorCode.NONE
        found = await cluster.directories()
        path = "/one" if 0 in found["/one"] else "/two"
        wanted = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 1)])], 0)
        deleted = await request(cluster.client, wanted, 2)
        stored = world.machine("server").disk.on_platter(path)["log-start-offset-checkpoint"]
        assert deleted.topics[0].partitions[0].low_watermark == 1
        assert isinstance(stored, Inode)
        assert "t 0 1" in stored.data[: stored.durable_size].decode().splitlines()

    play_with_two(script)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_on_one_disk_stays_there(seed: int) -> None:
    """The second disk begins to fail at a random operation, amid writes and topic changes. Partitions on the first
    disk accept every record. Partitions on the second disk accept it or answer KAFKA_STORAGE_ERROR."""
    random = Random(seed)

    async def script(world: World, cluster: Cluster) -> None:
        disk = world.machine("server").disk
        await cluster.create()
        here = (await cluster.directories())["/one"]
        operations: list[str | None] = [None, "append", "sync", "open", "rename", "write", "stat", "read"]
        begins_at = random.randrange(30)
        for step in range(60):
            if step == begins_at:
                disk.fail_next(
                    random.choice((errno.EIO, errno.EROFS)),
                    operation=random.choice(operations),
                    path_part="two",
                    times=random.choice((1, 1 << 30)),
                )
            action = random.randrange(8)
            if action == 0:
                await cluster.create(f"u{step}")
            elif action == 1:
                names = [f"u{random.randrange(step + 1)}"]
                await request(cluster.client, DeleteTopicsRequest(topic_names=names, timeout_ms=5000), 4)
            elif action == 2:
                await world.sleep(random.random() * 90)
            else:
                partition = random.randrange(PARTITIONS)
                code = await cluster.produce(partition)
                assert code is ErrorCode.NONE or (partition not in here and code is STORAGE_ERROR)
        await world.sleep(120)
        for partition in here:
            assert await cluster.produce(partition) is ErrorCode.NONE

    play_with_two(script)
