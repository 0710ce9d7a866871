"""Batches of records, valid and broken, for the cases, and topics that hold some."""

from __future__ import annotations

import struct

from crc32c import crc32c

from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.record_batch import RecordBatchBuilder
from tests.conformance.asking.talk import Talk

Batch = bytes | bytearray | None


def batch(count: int = 3, *, timestamp: int = 1_000, value: bytes = b"value", **header: int) -> bytearray:
    """Make a valid batch. `header` holds arguments of the builder."""
    builder = RecordBatchBuilder(**header)  # type: ignore[arg-type]  # counts and ids
    for number in range(count):
        builder.append(timestamp + number, b"key", value)
    return builder.build()


def sealed(data: bytearray) -> bytearray:
    """Restore the batch's checksum."""
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


def patched(offset: int, layout: str, value: int, *, seal: bool = True) -> bytearray:
    """Make a valid batch, then change one field of its header."""
    data = batch()
    struct.pack_into(layout, data, offset, value)
    return sealed(data) if seal else data


def filled(talk: Talk, stem: str, partitions: int = 1) -> tuple[str, bytes]:
    """Make a topic whose partition 0 holds three batches of three records at 1000, 2000 and 3000 ms.

    Any retention removes records of 1970. Kafka first applies it 30 seconds after its start.
    """
    name, topic_id = talk.topic(stem, partitions, retention_ms="-1")
    for timestamp in (1_000, 2_000, 3_000):
        append(talk, name, timestamp)
    return name, topic_id


def append(talk: Talk, name: str, timestamp: int, partition: int = 0) -> None:
    """Append three more records to the topic."""
    data = [PartitionProduceData(partition, batch(timestamp=timestamp))]
    talk.ask_silently(ProduceRequest(None, -1, 5_000, [TopicProduceData(name, bytes(16), data)]), 9)
