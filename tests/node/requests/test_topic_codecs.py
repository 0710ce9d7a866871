"""`compression.type` over the wire, in the simulator: the loop recompresses small batches, workers large ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from odradek.env.ports import ConnectionLost
from odradek.wire.batches.batch_header import HEADER_SIZE, iter_batches
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.records import records
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.produce import ProduceRequest
from odradek.wire.record_batch import RecordBatchBuilder
from sim.machine.world import World
from testkit.lone_node import answer_to, fetch_request, play, produce_request, request
from testkit.raw_requests import frame
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch

BYTES_MAX = 1 << 20
SIZES = (10, 30_000, 200)


async def create(client: Client, **settings: str) -> None:
    configs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in settings.items()]
    created = await request(
        client, CreateTopicsRequest([CreatableTopic("t", 1, 1, [], configs)], 10_000, False), 5
    )
    assert created.topics[0].error_code == 0


def without_answer(batch: bytes | bytearray) -> ProduceRequest:
    asked = produce_request(batch)
    asked.acks = 0
    return asked


async def stored(client: Client) -> bytes:
    return bytes((await request(client, fetch_request(0), 12)).responses[0].partitions[0].records)


@pytest.mark.parametrize("flush", ["", "1"])
def test_batches_get_their_topics_codec(flush: str) -> None:
    """Pipelined batches of all sizes and acks are stored in order, recompressed with the topic's codec."""
    batches = [bytes(good_batch(3, timestamp_ms=1, size=size)) for size in SIZES]

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create(client, compression_type="gzip", **({"flush_messages": flush} if flush else {}))
        asked = [produce_request(batch) for batch in batches]
        unanswered = [without_answer(batch) for batch in batches]
        await client.send(b"".join(bytes(frame(each, 9)) for each in (*unanswered, *asked, *unanswered)))
        for serial, each in enumerate(asked):
            answer = (await answer_to(client, each, 9)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, 9 + 3 * serial)
        got = await stored(client)
        while len(list(iter_batches(got))) < 9:
            # Batches with acks=0 may still wait for their sync, and cannot be read until then.
            got = await stored(client)
        headers = list(iter_batches(got))
        assert [header.compression_type for _, header in headers] == [CompressionType.GZIP] * 9
        for serial, (at, header) in enumerate(headers):
            assert header.base_offset == 3 * serial
            fresh = records(got, at, decompressed_bytes_max=BYTES_MAX)
            sent = records(batches[serial % 3], decompressed_bytes_max=BYTES_MAX)
            assert [(each.key, each.value) for each in fresh] == [(each.key, each.value) for each in sent]

    play(script)


def test_what_cannot_be_recompressed_is_refused() -> None:
    """A batch that cannot be recompressed is refused. The size limit applies to the batch as it would be stored."""

    async def script(world: World, connect: Callable[[], Awaitable[Client]]) -> None:
        client = await connect()
        await create(client, compression_type="uncompressed", max_message_bytes="20000")
        damaged = good_batch(3, timestamp_ms=1, size=5000)
        damaged[HEADER_SIZE + 9] ^= 1
        damaged[22] |= CompressionType.GZIP
        answer = (await request(client, produce_request(damaged), 9)).responses[0].partition_responses[0]
        assert ErrorCode(answer.error_code) is ErrorCode.CORRUPT_MESSAGE
        builder = RecordBatchBuilder(compression_type=CompressionType.GZIP)
        builder.append(1, b"k", bytes(30_000))
        answer = (
            (await request(client, produce_request(builder.build()), 9)).responses[0].partition_responses[0]
        )
        assert ErrorCode(answer.error_code) is ErrorCode.MESSAGE_TOO_LARGE
        assert await stored(client) == b""
        await client.send(bytes(frame(without_answer(damaged), 9)))
        with pytest.raises(ConnectionLost):
            await client.answer()

    play(script)
