"""A client uses a new client id in each request, and sends small batches that decompress to very large ones."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from odradek.wire.batches.batch_header import HEADER, BatchHeader, seal
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.metadata import MetadataRequest
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.attacks.outcome import Outcome
from tests.attacks.place import Place

WHO = "client"
CLIENT_IDS = 40_000
CLIENT_ID_LENGTH = 248
PER_TURN = 50
GROWTH_KIB_MAX = 48 << 10
PAGE_LINES_MAX = 5_000
TOPIC = "memory"
ZSTD = 4
RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"
BOMB_BYTES = 1 << 30
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
TRIES_MAX = 10_000
QUOTA = 1e12
"""A quota in bytes per second that is too large to limit any client."""


def name_anew(place: Place, mark: str, count: int) -> None:
    """Send `count` requests, each with another client id."""
    body = bytes(encode(MetadataRequest([], False, False, False), 9))
    with place.client() as client:
        for start in range(0, count, PER_TURN):
            frames = b""
            for number in range(start, start + PER_TURN):
                client.client_id = f"{mark}-{number}".ljust(CLIENT_ID_LENGTH, "c")
                frames += client.frame(3, 9, body)
            client.socket.sendall(frames)
            for _ in range(PER_TURN):
                client.receive_frame()


def set_quotas(place: Place, *, remove: bool) -> None:
    """Give each client id its own quotas, or remove them."""
    ops = [OpData(key, QUOTA, remove) for key in QUOTAS]
    entry = AlterClientQuotasRequestEntryData([EntityData("client-id", None)], ops)
    with place.admin() as admin:
        answer = admin.call(AlterClientQuotasRequest([entry], False), 1).entries[0]
        assert not answer.error_code, answer.error_message


def growth_kib(place: Place, mark: str, count: int) -> int:
    """Send `count` client ids. Return by how many KiB the node's resident memory has grown."""
    before = place.node.process.rss_kib()
    name_anew(place, mark, count)
    return place.node.process.rss_kib() - before


def batch(records: bytes) -> bytes:
    """Make a batch that claims one record and has `records` as its compressed bytes."""
    made = bytearray(HEADER.pack(*BatchHeader(0, 49 + len(records), -1, 2, 0, ZSTD, 0, 0, 0, -1, -1, -1, 1)))
    made += records
    seal(made)
    return bytes(made)


def windowed(window_log: int) -> bytes:
    """Compress a record into a frame that asks the reader for a window of 2 ** `window_log` bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, enable_ldm=True, compression_level=1, write_content_size=0
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(RECORD) + compressor.flush()


def bomb() -> bytes:
    """Compress a gibibyte of zeros into a few kilobytes."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    piece = bytes(1 << 20)
    parts = [compressor.compress(piece) for _ in range(BOMB_BYTES >> 20)]
    return b"".join(parts) + compressor.flush()


def bombs(place: Place) -> Iterator[Outcome]:
    """Send frames that ask for large windows, then a small frame that decompresses to a gibibyte of zeros."""
    with place.admin() as admin:
        # In a cluster, the attacked node must lead the partition. It has the smallest id.
        led_here = [CreatableReplicaAssignment(0, [1])]
        made = admin.call(CreateTopicsRequest([CreatableTopic(TOPIC, -1, -1, led_here, [])], 5000, False), 7)
        assert not made.topics[0].error_code, made.topics[0].error_message

        def produce(records: bytes) -> int:
            data = TopicProduceData(TOPIC, bytes(16), [PartitionProduceData(0, batch(records))])
            answer = admin.call(ProduceRequest(None, -1, 5000, [data]), 9)
            return int(answer.responses[0].partition_responses[0].error_code)

        for _ in range(TRIES_MAX):
            if produce(windowed(20)) not in NOT_YET:
                break
        before = place.node.process.rss_kib()
        codes = {window: produce(windowed(window)) for window in (23, 27, 28, 30, 31)}
        code = produce(bomb())
        grown = place.node.process.rss_kib() - before
        admin.call(DeleteTopicsRequest([DeleteTopicState(TOPIC, bytes(16))], [], 5000), 6)
    yield Outcome(
        "a batch that stands for a gibibyte is refused", code == ErrorCode.INVALID_RECORD, f"code {code}"
    )
    yield Outcome(
        "a window beyond zstd's usual ones is refused",
        all((taken == ErrorCode.NONE) == (window <= 27) for window, taken in codes.items()),
        f"codes by window {codes}",
    )
    yield Outcome("neither takes memory for good", grown <= GROWTH_KIB_MAX, f"{grown >> 10} MiB")


def attack(place: Place, scale: float) -> Iterator[Outcome]:
    """Send many client ids without quotas, then many with a quota each. At last send the batches of `bombs`."""
    count = max(2_000, int(CLIENT_IDS * scale))
    name_anew(place, "warm", PER_TURN)
    grown = growth_kib(place, "bare", count)
    yield Outcome(f"{count} client ids leave nothing behind", grown <= GROWTH_KIB_MAX, f"{grown >> 10} MiB")
    set_quotas(place, remove=False)
    try:
        grown = growth_kib(place, "held", count)
        lines = place.node.page().count("\n")
    finally:
        set_quotas(place, remove=True)
    yield Outcome(
        f"{count} client ids with a quota each take bounded memory",
        grown <= GROWTH_KIB_MAX,
        f"{grown >> 10} MiB",
    )
    yield Outcome("the metrics page stays short", lines <= PAGE_LINES_MAX, f"{lines} lines")
    yield from bombs(place)
