"""Recompression of batches in a Produce request whose codec is not their topic's `compression.type`."""

from __future__ import annotations

from odradek.data_plane.log.batch_work import AT_ONCE, HandedOff
from odradek.data_plane.log.log_config import KEEP_CODEC, LogConfig
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.serving.contract import Context
from odradek.wire.batches.batch_header import HEADER_SIZE
from odradek.wire.batches.recompression import codec_of, recompress
from odradek.wire.errors import KafkaError
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest
from odradek.wire.record_batch import parse_produced, validate_for_append
from odradek.wire.schema.versions import PRODUCE_TOPIC_IDS

QUICK_BYTES_MAX = 2048
"""The most bytes that the loop recompresses itself. With any codec, this takes less time than a worker needs
to start.
"""


class Batch:
    """One batch to be recompressed, and its place in the request."""

    __slots__ = ("api_version", "config", "data", "place")

    def __init__(
        self, data: PartitionProduceData, config: LogConfig, api_version: int, place: tuple[int, int]
    ) -> None:
        """`place` is the index of the topic in the request, and the index of the partition in the topic."""
        self.data = data
        self.config = config
        self.api_version = api_version
        self.place = place

    @property
    def size(self) -> int:
        return len(self.data.records or b"")

    def recompress(self, handed_off: HandedOff | None = None, at_once_max: int = 0) -> None:
        """Replace the records of this batch in the request by recompressed records. Invalid records are left
        as they are; the append will report the error.

        `handed_off` receives the decompressed size; it is required if the records are compressed. Raises
        `LargerThanThought` if the records decompress to more than `at_once_max` bytes.
        """
        records = memoryview(self.data.records or b"")
        config = self.config
        try:
            header = parse_produced(records, self.api_version)
            validate_for_append(
                records,
                0,
                header,
                size_max=config.max_message_bytes,
                decompressed_bytes_max=config.decompressed_bytes_max,
                inflation=AT_ONCE if handed_off is None else _Within(handed_off, at_once_max),
            )
            fresh = recompress(
                records, header, config.codec, config.codec_level, config.decompressed_bytes_max
            )
        except KafkaError:
            return
        self.data.records = memoryview(fresh)
        if handed_off is not None:
            handed_off.records = self.data.records
            if not header.compression_type:
                handed_off.size = header.size - HEADER_SIZE


class _Within:
    """An `Inflation` that keeps to the request's budget, and stores the decompressed size for the later append."""

    __slots__ = ("_at_once_max", "_handed_off")

    def __init__(self, handed_off: HandedOff, at_once_max: int) -> None:
        self._handed_off = handed_off
        self._at_once_max = at_once_max

    def size_of(self, compression_type: int, data: memoryview, size_max: int) -> int:
        self._handed_off.inflate(self._at_once_max)
        return self._handed_off.size_of(compression_type, data, size_max)


def are_quick(batches: list[Batch]) -> bool:
    """True if all batches together are small and uncompressed, so that the loop may recompress them itself."""
    return sum(batch.size for batch in batches) <= QUICK_BYTES_MAX and not any(
        codec_of(batch.data.records or b"") for batch in batches
    )


def find_batches(partitions: ServedPartitions, context: Context, request: ProduceRequest) -> list[Batch]:
    """Find the batches whose codec differs from their topic's codec, in partitions that this broker leads."""
    by_id = context.api_version >= PRODUCE_TOPIC_IDS
    found = []
    for topic_at, topic in enumerate(request.topic_data):
        hosted = partitions.by_id.get(topic.topic_id) if by_id else partitions.by_name.get(topic.name)
        if hosted is None or hosted.config.codec == KEEP_CODEC:
            continue
        for partition_at, data in enumerate(topic.partition_data):
            partition = hosted.partitions.get(data.index)
            if partition is None or not partition.is_leader or data.records is None:
                continue
            if codec_of(data.records) not in (-1, hosted.config.codec):
                found.append(Batch(data, hosted.config, context.api_version, (topic_at, partition_at)))
    return found
