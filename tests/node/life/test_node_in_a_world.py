"""A whole node in the simulator, with overwritten receive buffers, reads that miss the page cache, and failing disks."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from odradek.data_plane.replication.partition import Partition
from odradek.env.ports import ConnectionLost
from odradek.node.node import NodeFailed
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.api_versions import ApiVersionsRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.weather import Weather
from sim.machine.world import World
from testkit.by_hand import KeptLog
from testkit.lone_node import (
    answer_to,
    create_topic,
    fetch_request,
    play,
    produce,
    produce_request,
    request,
)
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch


@pytest.mark.parametrize(
    "weather",
    [
        Weather(),
        Weather(
            cold_probability=0.5,
            split_probability=0.5,
            short_recv_probability=0.5,
            short_send_probability=0.5,
        ),
    ],
    ids=["calm", "torn and cold"],
)
def test_nothing_outlives_its_frame(weather: Weather) -> None:
    """The receive buffer is overwritten after each request. Stored batches, names and parked fetches stay correct."""
    batches = [bytes(good_batch(3, timestamp_ms=1, size=size)) for size in (10, 300, 70_000, 300_000)]

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client, consumer = await connect(), await connect()
        await create_topic(client)
        offset = 0
        for batch in batches:
            parked = fetch_request(offset, wait_ms=60_000)
            await consumer.send(bytes(frame(parked, 12)))
            await world.sleep(0.2)
            answer = await produce(client, batch)
            assert (answer.error_code, answer.base_offset) == (0, offset)
            got = bytes((await answer_to(consumer, parked, 12)).responses[0].partitions[0].records)
            assert got[16:] == batch[16:]
            assert len(records(got, decompressed_bytes_max=1 << 20)) == 3
            offset += 3
        await client.send(b"".join(bytes(frame(produce_request(batch), 9)) for batch in batches[:2] * 20))
        for serial in range(40):
            answer = await answer_to(client, produce_request(b""), 9)
            assert answer.responses[0].partition_responses[0].base_offset == offset + 3 * serial
        names = [topic.name for topic in (await request(client, MetadataRequest(None), 12)).topics]
        assert names == ["t"]
        everything = bytes((await request(client, fetch_request(9), 12)).responses[0].partitions[0].records)
        assert [header.base_offset for _, header in iter_batches(everything)] == list(
            range(9, offset + 120, 3)
        )

    play(script, weather)


def test_a_failed_sync_takes_the_directory_offline() -> None:
    """After a failed sync the request is refused. The node loses its only directory and stops with one line."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        assert (await produce(client, good_batch(1, timestamp_ms=1))).error_code == 0
        world.machine("server").disk.fail_next(errno.EIO, operation="sync", path_part="t-0")
        try:
            answer = await produce(client, good_batch(1, timestamp_ms=1))
            assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        except ConnectionLost:
            await world.sleep(0)
        await world.sleep(60)

    with pytest.raises(NodeFailed, match=r"t-0.*Input/output error"):
        play(script, log_flush_interval_messages="1")


def test_a_device_error_in_a_read_is_its_partitions() -> None:
    """A parked fetch that cannot be read from disk gets KAFKA_STORAGE_ERROR. The node loses its only directory and
    stops."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client, consumer = await connect(), await connect()
        await create_topic(client)
        assert (await produce(client, good_batch(1, timestamp_ms=1))).error_code == 0
        parked = fetch_request(0, wait_ms=1000, min_bytes=1 << 19)
        await consumer.send(bytes(frame(parked, 12)))
        await world.sleep(0.5)
        world.machine("server").disk.fail_next(errno.EIO, operation="read", path_part="t-0", times=1000)
        try:
            answer = (await answer_to(consumer, parked, 12)).responses[0].partitions[0]
            assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        except ConnectionLost:
            await world.sleep(0)
        await world.sleep(60)

    with pytest.raises(NodeFailed, match=r"t-0.*Input/output error"):
        play(script, Weather(cold_probability=1.0))


def test_a_bug_in_one_append_is_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug during one partition's append gives UNKNOWN_SERVER_ERROR there. Other partitions and the connection
    continue."""
    log = KeptLog()
    sound = Partition.append_as_leader

    def broken(self: Partition, *args: Any) -> Any:
        if self.log.partition == 1:
            raise OverflowError("a bug")
        return sound(self, *args)

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        created = await request(
            client, CreateTopicsRequest([CreatableTopic("t", 3, 1, [], [])], 10_000, False), 5
        )
        assert created.topics[0].error_code == 0
        asked = ProduceRequest(
            None,
            -1,
            5000,
            [
                TopicProduceData(
                    "t",
                    bytes(16),
                    [PartitionProduceData(at, good_batch(1, timestamp_ms=1)) for at in range(3)],
                )
            ],
        )
        monkeypatch.setattr(Partition, "append_as_leader", broken)
        answers = (await request(client, asked, 9)).responses[0].partition_responses
        monkeypatch.undo()
        assert [(each.index, each.error_code, each.base_offset) for each in answers] == [
            (0, 0, 0),
            (1, ErrorCode.UNKNOWN_SERVER_ERROR, -1),
            (2, 0, 0),
        ]
        answers = (await request(client, asked, 9)).responses[0].partition_responses
        assert [(each.error_code, each.base_offset) for each in answers] == [(0, 1), (0, 0), (0, 1)]

    play(script, log=log)
    assert log.events.count("produce.bug") == 1
    assert "connection.bug" not in log.events


def test_a_metadata_log_that_cannot_be_closed_leaves_no_other_log_open() -> None:
    """If the metadata log cannot be closed for lack of descriptors, the other directories are still closed cleanly."""
    stop, log, closed = trio.Event(), KeptLog(), []

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        disk = world.machine("server").disk
        disk.fail_next(errno.EMFILE, operation="open", path_part="__cluster_metadata-0", times=1000)
        stop.set()
        await world.sleep(60)
        disk.forget_faults()
        closed.append(disk.open_dir("/data").exists(".kafka_cleanshutdown"))

    play(script, stop=stop, log=log)
    assert log.events.count("node.metadata_log_not_closed") == 1
    assert log.events[-1] == "node.stopped"
    assert closed == [True]


def test_the_controllers_listener_has_the_limits_of_the_file() -> None:
    """`max.connections.per.ip` also limits the controller's listener, where extra connections could delay the
    quorum."""
    closed: list[bool] = []

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        network = world.node_env("client").network
        clients = [Client(await network.connect("server", 9093)) for _ in range(3)]
        closed.append(await clients[2].is_closed())
        versions = await request(clients[1], ApiVersionsRequest(), 0)
        assert versions.error_code == ErrorCode.NONE

    play(script, max_connections_per_ip="2")
    assert closed == [True]
