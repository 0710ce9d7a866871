"""Invalid batches get Kafka's error code and are not appended. Other partitions and clients are not affected."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable, Iterator

import attrs
import cramjam
import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE
from odradek.wire.batches.compression import CompressionType
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.processes import ServerProcess, memory_kib
from testkit.raw_requests import RawClient, frame
from tests.node_process import RunningNode

HOUR_MS = 3_600_000
BATCH_BYTES_MAX = 100_000
BOMB_BYTES = 512 << 20
RSS_GROWTH_KIB_MAX = 160 << 10
"""The decompression limit (128 MiB), which some codecs allocate at once, and some slack."""
NO_OFFSET = -1
LATEST, NOT_A_REPLICA = -1, -1


def good_batch(records: int = 3, *, timestamp_ms: int | None = None, size: int = 50) -> bytearray:
    """Make an uncompressed batch, with the current time by default."""
    builder = RecordBatchBuilder()
    now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    for serial in range(records):
        builder.append(now, b"key-%d" % serial, b"v" * size)
    return builder.build()


def sealed(batch: bytearray) -> bytearray:
    """Set a batch's length and checksum, so that only the intended damage is wrong."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def damaged(at: int, form: str, value: int) -> bytearray:
    """Make a good batch with one field replaced and a correct checksum."""
    batch = good_batch()
    struct.pack_into(form, batch, at, value)
    return sealed(batch)


def wrong_checksum() -> bytearray:
    batch = good_batch()
    batch[-1] ^= 1
    return batch


def with_body(codec: CompressionType, body: bytes) -> bytearray:
    """Make a batch whose records are the bytes `body` and whose header names `codec`."""
    batch = good_batch()[:HEADER_SIZE] + bytearray(body)
    struct.pack_into(">h", batch, 21, codec)
    return sealed(batch)


def bomb(codec: CompressionType) -> bytes:
    """Compress half a GiB of zeros as small as possible."""
    piece = bytes(1 << 20)
    count = BOMB_BYTES >> 20
    if codec is CompressionType.GZIP:
        member: bytes = gzip.compress(piece * 16, 9)
        return member * (count // 16)
    if codec is CompressionType.LZ4:
        packer = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        begun: bytes = packer.begin()
        return begun + b"".join(packer.compress(piece) for _ in range(count)) + bytes(packer.flush())
    if codec is CompressionType.ZSTD:
        stream = zstandard.ZstdCompressor(level=1).compressobj()
        packed: bytes = b"".join(stream.compress(piece) for _ in range(count)) + stream.flush()
        return packed
    block = bytes(cramjam.snappy.compress_raw(piece))
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * count


@attrs.frozen
class Place:
    """A topic with one partition, and a connection to its node."""

    client: RawClient
    topic: str
    server: ServerProcess

    def log_end_offset(self) -> int:
        request = ListOffsetsRequest(
            NOT_A_REPLICA, 0, [ListOffsetsTopic(self.topic, [ListOffsetsPartition(0, -1, LATEST)])]
        )
        answer = self.client.request(request, 7).topics[0].partitions[0]
        assert answer.error_code == 0
        offset: int = answer.offset
        return offset


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)], 10_000, False)
    assert client.request(request, 5).topics[0].error_code == 0


@pytest.fixture
def place(node: RunningNode, fresh_topic: Callable[[str], str]) -> Iterator[Place]:
    """A topic for a bad batch.

    After the test, the same connection must append a good batch directly after the last good batch.
    """
    if node.process is None:
        pytest.skip("ODRADEK_TEST_BOOTSTRAP names the server, and the test needs a process of its own")
    with RawClient(node.bootstrap) as client:
        topic = fresh_topic("bad-batches")
        create_topic(
            client,
            topic,
            max_message_bytes=str(BATCH_BYTES_MAX),
            message_timestamp_after_max_ms=str(HOUR_MS),
            message_timestamp_before_max_ms=str(HOUR_MS),
        )
        place = Place(client, topic, node.process)
        assert client.produce(topic, good_batch(2)).base_offset == 0
        yield place
        assert place.log_end_offset() == 2
        assert client.produce(topic, good_batch(1)).base_offset == 2


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        pytest.param(wrong_checksum, ErrorCode.CORRUPT_MESSAGE, id="wrong checksum"),
        pytest.param(
            lambda: damaged(57, ">i", 4), ErrorCode.INVALID_RECORD, id="one record more than counted"
        ),
        pytest.param(
            lambda: damaged(57, ">i", 2), ErrorCode.INVALID_RECORD, id="one record less than counted"
        ),
        pytest.param(lambda: damaged(57, ">i", 0), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(lambda: damaged(57, ">i", -1), ErrorCode.INVALID_RECORD, id="a negative count"),
        pytest.param(lambda: damaged(23, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD, id="a huge delta"),
        pytest.param(lambda: damaged(16, ">b", 1), ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(lambda: damaged(16, ">b", 0), ErrorCode.INVALID_RECORD, id="magic 0"),
        pytest.param(lambda: damaged(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(lambda: damaged(0, ">q", 5), ErrorCode.INVALID_RECORD, id="base offset 5"),
        pytest.param(lambda: damaged(21, ">h", 0x20), ErrorCode.INVALID_RECORD, id="control batch"),
        pytest.param(lambda: damaged(43, ">q", 7), ErrorCode.INVALID_RECORD, id="producer without sequence"),
        pytest.param(lambda: good_batch() + good_batch(), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(lambda: good_batch()[:-1], ErrorCode.INVALID_RECORD, id="cut by a byte"),
        pytest.param(lambda: good_batch()[:40], ErrorCode.INVALID_RECORD, id="half a header"),
        pytest.param(lambda: good_batch(size=BATCH_BYTES_MAX), ErrorCode.MESSAGE_TOO_LARGE, id="too large"),
        pytest.param(
            lambda: good_batch(timestamp_ms=time.time_ns() // 1_000_000 + 2 * HOUR_MS),
            ErrorCode.INVALID_TIMESTAMP,
            id="from the future",
        ),
        pytest.param(
            lambda: good_batch(timestamp_ms=time.time_ns() // 1_000_000 - 2 * HOUR_MS),
            ErrorCode.INVALID_TIMESTAMP,
            id="from the past",
        ),
        pytest.param(
            lambda: damaged(21, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="unknown codec"
        ),
        *(
            pytest.param(
                lambda codec=codec: with_body(codec, b"this is not compressed"),
                ErrorCode.INVALID_RECORD,
                id=f"not {codec.name}",
            )
            for codec in CompressionType
            if codec
        ),
    ],
)
def test_a_bad_batch_is_refused(place: Place, batch: Callable[[], bytearray], error: ErrorCode) -> None:
    """A bad batch is not appended. It gets Kafka's error code, and -1 as base offset and append time."""
    answer = place.client.produce(place.topic, batch())
    assert ErrorCode(answer.error_code) is error
    assert (answer.base_offset, answer.log_append_time_ms) == (NO_OFFSET, -1)


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_a_decompression_bomb_takes_no_memory(
    node: RunningNode, fresh_topic: Callable[[str], str], codec: CompressionType
) -> None:
    """Half a GiB compressed to a few MiB is refused by its size or its number of blocks, with bounded memory."""
    if node.process is None:
        pytest.skip("ODRADEK_TEST_BOOTSTRAP names the server, and the test needs a process of its own")
    batch = with_body(codec, bomb(codec))
    with RawClient(node.bootstrap) as client:
        topic = fresh_topic("bombs")
        create_topic(client, topic, max_message_bytes=str(64 << 20))
        before = memory_kib(node.process.pid, "VmHWM")
        answer = client.produce(topic, batch)
        assert ErrorCode(answer.error_code) in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)
        assert Place(client, topic, node.process).log_end_offset() == 0
        grown = memory_kib(node.process.pid, "VmHWM") - before
    assert grown < RSS_GROWTH_KIB_MAX, f"a batch of {len(batch)} bytes raised the peak memory by {grown} KiB"


def test_other_partitions_of_the_request_are_unharmed(
    place: Place, fresh_topic: Callable[[str], str]
) -> None:
    """In a Produce for several partitions, each partition gets its own result."""
    topic = fresh_topic("neighbours")
    create_topic(place.client, topic, partitions=3)
    data = [
        PartitionProduceData(0, good_batch()),
        PartitionProduceData(1, wrong_checksum()),
        PartitionProduceData(2, good_batch()),
        PartitionProduceData(9, good_batch()),
    ]
    request = ProduceRequest(None, -1, 5000, [TopicProduceData(topic, bytes(16), data)])
    answers = place.client.request(request, 9).responses[0].partition_responses
    assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 0, 0),
        (1, ErrorCode.CORRUPT_MESSAGE, NO_OFFSET),
        (2, 0, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSET),
    ]


def test_null_records_and_unknown_acks(place: Place) -> None:
    """Null records get INVALID_RECORD, and acks other than -1, 0 and 1 get INVALID_REQUIRED_ACKS: nothing is
    appended."""
    request = ProduceRequest(
        None, -1, 5000, [TopicProduceData(place.topic, bytes(16), [PartitionProduceData(0, None)])]
    )
    answer = place.client.request(request, 9).responses[0].partition_responses[0]
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_RECORD
    answer = place.client.produce(place.topic, good_batch(), acks=2)
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUIRED_ACKS


def test_an_error_without_an_answer_closes_the_connection(node: RunningNode, place: Place) -> None:
    """With `acks=0` an error closes the connection without a response. Batches before the bad one are appended."""

    def unanswered(batch: bytearray) -> bytearray:
        topics = [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, batch)])]
        return frame(ProduceRequest(None, 0, 5000, topics), 9)

    topic = place.topic + "-unanswered"
    create_topic(place.client, topic)
    with RawClient(node.bootstrap) as client:
        client.send(unanswered(good_batch(3)) + unanswered(wrong_checksum()))
        assert client.is_closed_by_node()
    assert Place(place.client, topic, place.server).log_end_offset() == 3
