"""Workers decompress batches that would take the event loop too long. All rules for appends still apply.

Whole nodes run in the simulator with poisoned receive buffers. The sizes are those of production.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest

from odradek.data_plane.log.batch_work import RATION, REQUEST_BYTES_MIN
from odradek.env.ports import Event
from odradek.node.node import Node
from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches
from odradek.wire.batches.compression import CHUNK_BYTES, CompressionType, compress
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.delete_topics import DeleteTopicsRequest
from odradek.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.world import World
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
from tests.node.requests.test_bad_batches import good_batch, sealed

LARGE = 5 << 20
"""More bytes than the event loop decompresses in a turn, with any codec."""
CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
SLACK = 2 * CHUNK_BYTES


def large_batch(
    codec: CompressionType = CompressionType.ZSTD, *, key: bytes | None = b"k", count: int = 1
) -> bytes:
    builder = RecordBatchBuilder(compression_type=codec)
    for _ in range(count):
        builder.append(1, key, bytes(LARGE // count))
    return bytes(builder.build())


def of_zeros(size: int, codec: CompressionType = CompressionType.ZSTD) -> bytes:
    """Make a batch whose records decompress to `size` zeros. The append does not need to parse them."""
    return of_body(codec, compress(codec, bytes(size)))


def of_body(codec: CompressionType, body: bytes) -> bytes:
    """Make a batch whose header announces three records with old timestamps, and whose body is these bytes."""
    batch = good_batch(3, timestamp_ms=1)[:HEADER_SIZE] + bytearray(body)
    struct.pack_into(">h", batch, 21, codec)
    return bytes(sealed(batch))


def asking(batches: Sequence[bytes | bytearray], acks: int = -1) -> ProduceRequest:
    """Make a Produce request that names the same partition once for each batch."""
    return ProduceRequest(
        None,
        acks,
        5000,
        [TopicProduceData("t", bytes(16), [PartitionProduceData(0, batch) for batch in batches])],
    )


async def codes(client: Client, asked: ProduceRequest) -> list[ErrorCode]:
    answer = await request(client, asked, 9)
    return [ErrorCode(each.error_code) for each in answer.responses[0].partition_responses]


async def stored(client: Client, offset: int = 0) -> list[tuple[int, bytes]]:
    """Fetch from an offset; return (offset, value) of each record."""
    got = bytes((await request(client, fetch_request(offset), 12)).responses[0].partitions[0].records)
    return [
        (each.offset, each.value or b"")
        for at, _ in iter_batches(got)
        for each in records(got, at, decompressed_bytes_max=16 << 20)
    ]


@attrs.define
class Gate:
    """Workers that start only when the test opens the gate (`CountedWorkers` of `odradek.data_plane.produce_workers`)."""

    workers: Any
    opened: Event
    arrived: Event
    in_progress: int = 0

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        self.in_progress += 1
        self.arrived.set()
        await self.opened.wait()
        return await self.workers.run(function, *args)


@attrs.define
class Stage:
    """A node whose produce workers can be stopped by a gate."""

    nodes: list[Node] = attrs.field(factory=list)

    def gate(self, world: World) -> Gate:
        broker = self.nodes[0].broker
        assert broker is not None
        env = world.node_env("client")
        gate = Gate(broker.produce_workers.small, env.event(), env.event())
        broker.produce_workers.small = gate  # type: ignore[assignment]  # has the methods that are used
        return gate

    def figures(self) -> dict[str, Any]:
        broker = self.nodes[0].broker
        assert broker is not None
        return broker.statistics()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_what_the_loop_decompresses_is_bounded(codec: CompressionType, acks: int) -> None:
    """A worker decompresses large batches. Small batches before and after them keep their order, and all are stored
    unchanged."""
    stage = Stage()
    small = bytes(good_batch(1, timestamp_ms=1, size=5))

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        asked = asking([small, large_batch(codec), small, large_batch(codec), small], acks)
        await client.send(bytes(frame(asked, 9)) + bytes(frame(produce_request(small), 9)))
        if acks:
            answer = (await answer_to(client, asked, 9)).responses[0].partition_responses
            assert [(each.error_code, each.base_offset) for each in answer] == [
                (0, offset) for offset in range(5)
            ]
        last = (await answer_to(client, produce_request(small), 9)).responses[0].partition_responses[0]
        assert (last.error_code, last.base_offset) == (0, 5)
        assert [(offset, len(value)) for offset, value in await stored(client)] == [
            (0, 5),
            (1, LARGE),
            (2, 5),
            (3, LARGE),
            (4, 5),
            (5, 5),
        ]
        figures = stage.figures()
        assert figures["loop_inflated_bytes"] <= 2 * RATION + SLACK
        assert figures["produce_workers"]["inflated_bytes"] >= 2 * LARGE

    play(script, made=stage.nodes.append)


def test_a_request_has_a_budget_of_decompressed_bytes() -> None:
    """All batches of a request share a budget of decompressed bytes. Batches beyond it get MESSAGE_TOO_LARGE, and the
    next request has a new budget."""
    stage = Stage()
    bomb = of_zeros(REQUEST_BYTES_MIN - (1 << 20))

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        small = bytes(good_batch(1, timestamp_ms=1, size=5))
        assert await codes(client, asking([bomb, *[bomb] * 7, small])) == [
            ErrorCode.NONE,
            *[ErrorCode.MESSAGE_TOO_LARGE] * 7,
            ErrorCode.NONE,
        ]
        figures = stage.figures()
        assert figures["produce_workers"]["inflated_bytes"] < 2 * REQUEST_BYTES_MIN
        assert figures["loop_inflated_bytes"] <= 2 * RATION + SLACK
        assert await codes(client, asking([bomb])) == [ErrorCode.NONE]

    play(script, made=stage.nodes.append)


def test_hundreds_of_batches_are_decompressed_in_workers() -> None:
    """A frame may name one partition hundreds of times. The loop decompresses no more than in one turn; workers do the
    rest."""
    stage = Stage()
    batch = of_zeros(100_000, CompressionType.GZIP)

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        answer = await request(client, asking([batch] * 700), 9)
        answers = answer.responses[0].partition_responses
        assert [(each.error_code, each.base_offset) for each in answers] == [
            (0, 3 * number) for number in range(700)
        ]
        assert stage.figures()["loop_inflated_bytes"] <= 2 * RATION + SLACK

    play(script, made=stage.nodes.append)


@pytest.mark.parametrize("acks", [0, 1])
def test_others_are_served_between_the_appends_of_one_request(
    acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of small batches in one frame are appended in order, over many turns of the loop."""
    stage = Stage()
    small = bytes(good_batch(1, timestamp_ms=1, size=1))

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        broker = stage.nodes[0].broker
        assert broker is not None
        appended: list[int] = []
        turns = [0]
        """The number of batches appended after each turn, for turns that appended any."""
        run_woken = broker.run_woken

        def end_turn() -> None:
            if len(appended) > turns[-1]:
                turns.append(len(appended))
            run_woken()

        broker.on_produced = lambda _connection, _number, _log, result: appended.append(result.base_offset)
        monkeypatch.setattr(broker, "run_woken", end_turn)
        asked = asking([small] * 3000, acks)
        await client.send(bytes(frame(asked, 9)))
        if acks:
            assert not any(
                each.error_code
                for each in (await answer_to(client, asked, 9)).responses[0].partition_responses
            )
        assert await codes(client, asking([small])) == [ErrorCode.NONE]
        assert appended == list(range(3001))
        turns.append(len(appended))
        assert all(after - before <= 600 for before, after in pairwise(turns))

    play(script, made=stage.nodes.append)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_topic_that_goes_while_its_batch_is_decompressed(acks: int) -> None:
    """If a topic is deleted while a worker decompresses its batch, the batch gets UNKNOWN_TOPIC_OR_PARTITION."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client, other = await connect(), await connect()
        await create_topic(client)
        gate = stage.gate(world)
        asked = asking([bytes(good_batch(1, timestamp_ms=1)), large_batch()], acks)
        await client.send(bytes(frame(asked, 9)))
        await gate.arrived.wait()
        deleted = await request(other, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
        assert deleted.responses[0].error_code == 0
        gate.opened.set()
        first, second = (await answer_to(client, asked, 9)).responses[0].partition_responses
        assert first.error_code == 0
        assert ErrorCode(second.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(script, made=stage.nodes.append)


def test_a_flush_that_ends_while_a_later_batch_is_decompressed() -> None:
    """A request's first batch is flushed while its second one is being decompressed. The response still waits for
    both."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        await set_config(client, "flush.messages", "1")
        gate = stage.gate(world)
        asked = asking([bytes(good_batch(1, timestamp_ms=1)), large_batch()])
        await client.send(bytes(frame(asked, 9)))
        await gate.arrived.wait()
        await world.sleep(60.0)
        gate.opened.set()
        answers = (await answer_to(client, asked, 9)).responses[0].partition_responses
        assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0), (0, 1)]

    play(script, made=stage.nodes.append)


def test_limits_that_change_while_a_batch_is_decompressed() -> None:
    """If limits change while a batch is decompressed, the append uses the new limits."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client, other = await connect(), await connect()
        await create_topic(client)
        gate = stage.gate(world)
        asked = asking([large_batch()])
        await client.send(bytes(frame(asked, 9)))
        await gate.arrived.wait()
        await set_config(other, "max.message.bytes", "100")
        gate.opened.set()
        (answer,) = (await answer_to(client, asked, 9)).responses[0].partition_responses
        assert ErrorCode(answer.error_code) is ErrorCode.MESSAGE_TOO_LARGE
        assert await stored(other) == []

    play(script, made=stage.nodes.append)


async def set_config(client: Client, key: str, value: str) -> None:
    asked = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(2, "t", [AlterableConfig(key, 0, value)])], False
    )
    assert (await request(client, asked, 1)).responses[0].error_code == 0


def test_a_connection_that_is_cut_while_its_batch_is_decompressed() -> None:
    """If a client leaves while its batch is decompressed, the batch is still appended. Other connections are served
    meanwhile."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client, other = await connect(), await connect()
        await create_topic(client)
        gate = stage.gate(world)
        small = bytes(good_batch(1, timestamp_ms=1, size=7))
        await client.send(bytes(frame(asking([large_batch()]), 9)))
        await gate.arrived.wait()
        client.conn.close()
        assert (await produce(other, small)).base_offset == 0
        gate.opened.set()
        await world.sleep(5.0)
        assert (await produce(other, small)).base_offset == 2
        assert [len(value) for _, value in await stored(other)] == [7, LARGE, 7]

    play(script, made=stage.nodes.append)


def test_connections_that_wait_for_workers_hold_up_nobody_else() -> None:
    """Fifty connections wait for decompression. Meanwhile others can sync and append small compressed batches."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        other = await connect()
        await create_topic(other)
        gate = stage.gate(world)
        crowd = [await connect() for _ in range(50)]
        for client in crowd:
            await client.send(bytes(frame(asking([large_batch()]), 9)))
        small = RecordBatchBuilder(compression_type=CompressionType.GZIP)
        small.append(1, b"k", bytes(20_000))
        await world.sleep(1.0)
        assert gate.in_progress == len(crowd)
        await set_config(other, "flush.messages", "1")
        assert await codes(other, asking([small.build()])) == [ErrorCode.NONE]
        gate.opened.set()
        for client in crowd:
            answer = (await answer_to(client, asking([]), 9)).responses[0].partition_responses[0]
            assert answer.error_code == 0

    play(script, made=stage.nodes.append)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_rules_about_records_are_looked_at_in_workers(codec: CompressionType) -> None:
    """Workers also check rules on records: a compacted topic refuses 20,000 records without keys, with 1,000 record
    errors."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        topic = CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("cleanup.policy", "compact")])
        assert (await request(client, CreateTopicsRequest([topic], 10_000, False), 5)).topics[
            0
        ].error_code == 0
        good, bad = (bytes(build(codec, key, 20_000, 20)) for key in (b"k", None))
        answer = await request(client, asking([good, bad, good]), 9)
        first, second, third = answer.responses[0].partition_responses
        assert (first.base_offset, third.base_offset) == (0, 20_000)
        assert ErrorCode(second.error_code) is ErrorCode.INVALID_RECORD
        assert len(second.record_errors) == 1000
        assert stage.figures()["loop_inflated_bytes"] <= 2 * RATION + SLACK

    play(script, made=stage.nodes.append)


def build(codec: CompressionType, key: bytes | None, count: int, size: int) -> bytearray:
    builder = RecordBatchBuilder(compression_type=codec)
    for _ in range(count):
        builder.append(1, key, bytes(size))
    return builder.build()


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.ZSTD])
def test_damage_is_found_in_workers_too(codec: CompressionType) -> None:
    """Records that a worker cannot decompress get INVALID_RECORD. Other batches of the request are appended."""
    stage = Stage()

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create_topic(client)
        whole = compress(codec, bytes(LARGE))
        cut = of_body(codec, whole[:-9])
        assert await codes(client, asking([cut, large_batch(codec), cut])) == [
            ErrorCode.INVALID_RECORD,
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
        ]

    play(script, made=stage.nodes.append)
