"""Topics with many partitions, simulated: their logs are made in steps while the node serves."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import attrs

from odradek.data_plane.disks.log_making import INLINE_LOGS_MAX
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.lone_node import play, request
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

PARTITIONS = 300
SLOW_DISK = Weather(worker_seconds=(0.2, 0.4))
STALLING_DISK = Weather(worker_seconds=(0.001, 0.01), worker_spike_probability=0.2, worker_spike_seconds=2.0)


@attrs.define
class Clients:
    """Requests to a node with the directories /one and /two."""

    client: Client
    connect: Callable[[], Awaitable[Client]]

    async def create(self, topic: str = "t", partitions: int = PARTITIONS) -> None:
        request_ = CreateTopicsRequest([CreatableTopic(topic, partitions, 1)], 10_000)
        assert (await request(self.client, request_, 5)).topics[0].error_code == 0

    async def delete(self, topic: str = "t") -> None:
        answer = await request(self.client, DeleteTopicsRequest([], [topic], 10_000), 5)
        assert answer.responses[0].error_code == 0

    async def produce(self, partition: int, topic: str = "t") -> ErrorCode:
        data = PartitionProduceData(partition, good_batch(2, timestamp_ms=1))
        answer = await request(
            self.client, ProduceRequest(None, -1, 5000, [TopicProduceData(topic, bytes(16), [data])]), 9
        )
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def hosted(self, topic: str = "t") -> dict[str, int]:
        """Return how many partitions of a topic each directory holds."""
        results = (await request(self.client, DescribeLogDirsRequest(None), 4)).results
        return {
            result.log_dir: sum(len(found.partitions) for found in result.topics if found.name == topic)
            for result in results
        }


def play_with_two(
    script: Callable[[World, Clients], Awaitable[None]], weather: Weather | None = None
) -> None:
    async def connected(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        await script(world, Clients(await connect(), connect))

    play(connected, weather or Weather(), log_dirs="/one,/two")


async def until_hosted(world: World, clients: Clients, count: int = PARTITIONS, topic: str = "t") -> None:
    while sum((await clients.hosted(topic)).values()) < count:
        await world.sleep(0.01)


def test_a_large_topic_is_spread_over_the_disks_and_served() -> None:
    """All partitions of a large topic accept records in the end, and both directories hold equally many."""

    async def script(world: World, clients: Clients) -> None:
        await clients.create()
        await until_hosted(world, clients)
        assert await clients.hosted() == {"/one": PARTITIONS // 2, "/two": PARTITIONS // 2}
        for partition in range(PARTITIONS):
            assert await clients.produce(partition) is ErrorCode.NONE

    play_with_two(script)


def test_others_are_served_while_logs_are_made() -> None:
    """While logs are made, other requests are served and other topics created. A partition whose log is still missing
    answers with a retriable error."""

    async def script(world: World, clients: Clients) -> None:
        await clients.create("small", 1)
        await clients.create()
        codes = [await clients.produce(partition) for partition in (0, PARTITIONS - 1)]
        assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert await clients.produce(0, "small") is ErrorCode.NONE
        await clients.create("other", 2)
        assert await clients.produce(1, "other") is ErrorCode.NONE
        other = await clients.connect()
        assert (await request(other, ApiVersionsRequest(), 0)).error_code == 0
        assert sum((await clients.hosted()).values()) < PARTITIONS
        await until_hosted(world, clients)
        assert await clients.produce(PARTITIONS - 1) is ErrorCode.NONE

    play_with_two(script, SLOW_DISK)


def test_a_topic_deleted_while_its_logs_are_made_leaves_none() -> None:
    """A topic is deleted while its logs are made, and made anew under the same name. No log of the old topic
    remains."""

    async def script(world: World, clients: Clients) -> None:
        await clients.create()
        await clients.delete()
        await clients.create(partitions=INLINE_LOGS_MAX * 3)
        await until_hosted(world, clients, INLINE_LOGS_MAX * 3)
        for partition in range(INLINE_LOGS_MAX * 3):
            assert await clients.produce(partition) is ErrorCode.NONE
        await clients.delete()
        await world.sleep(120)
        assert sum((await clients.hosted()).values()) == 0
        disk = world.machine("server").disk
        names = [name for path in ("/one", "/two") for name in disk.open_dir(path).list()]
        assert [name for name in names if name.startswith("t-")] == []

    play_with_two(script, SLOW_DISK)


def test_two_disks_may_make_logs_of_the_same_name() -> None:
    """A topic is deleted and made anew ten times while a disk stalls now and then. With one more log on a directory, a
    partition's log changes the directory from life to life. So both make logs of the same name at the same time."""

    async def script(world: World, clients: Clients) -> None:
        for life in range(10):
            await clients.create(f"odd-{life}", 1)
            await clients.create(partitions=3 * INLINE_LOGS_MAX)
            await clients.delete()
        await clients.create()
        await until_hosted(world, clients)
        assert {await clients.produce(partition) for partition in range(PARTITIONS)} == {ErrorCode.NONE}

    play_with_two(script, STALLING_DISK)


def test_a_full_disk_is_passed_over_by_many_logs() -> None:
    """If one directory has no room, the logs are made in the other."""

    async def script(world: World, clients: Clients) -> None:
        world.machine("server").disk.fail_next(
            errno.ENOSPC, operation="open", path_part="/two/t-", times=1 << 30
        )
        await clients.create()
        await until_hosted(world, clients)
        assert await clients.hosted() == {"/one": PARTITIONS, "/two": 0}

    play_with_two(script)


def test_a_disk_that_fails_while_logs_are_made_takes_its_own_along() -> None:
    """If a disk fails while logs are made, the partitions on the other directory are served."""

    async def script(world: World, clients: Clients) -> None:
        disk = world.machine("server").disk
        await clients.create()
        disk.fail_next(errno.EIO, path_part="/two", times=1 << 30)
        results = (await request(clients.client, DescribeLogDirsRequest(None), 4)).results
        while not any(result.error_code for result in results):
            await world.sleep(0.01)
            results = (await request(clients.client, DescribeLogDirsRequest(None), 4)).results
        codes = [await clients.produce(partition) for partition in range(PARTITIONS)]
        while ErrorCode.NOT_LEADER_OR_FOLLOWER in codes:
            await world.sleep(0.1)
            codes = [await clients.produce(partition) for partition in range(PARTITIONS)]
        assert set(codes) == {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        assert codes.count(ErrorCode.NONE) > PARTITIONS // 2

    play_with_two(script, SLOW_DISK)


def test_a_request_of_too_many_elements_ends_its_connection() -> None:
    """A request with three million elements is refused by closing its connection. Others are served."""

    async def script(world: World, clients: Clients) -> None:
        other = await clients.connect()
        body = encode(DeleteTopicsRequest([], [""] * 3_000_000), 5)
        header = encode(RequestHeader(ApiKey.DELETE_TOPICS, 5, 1, None), 2)
        frame = header + body
        await other.send(len(frame).to_bytes(4, "big") + frame)
        assert await other.is_closed()
        assert (await request(clients.client, ApiVersionsRequest(), 0)).error_code == 0

    play_with_two(script)
