"""Batches of a Produce request whose codec is not the one that their topic keeps (`compression.type`)."""

from __future__ import annotations

from data_plane.broker import Broker
from data_plane.handlers.contract import Context
from data_plane.log.config import KEEP_CODEC, LogConfig
from wire.errors import KafkaError
from wire.messages.produce import PartitionProduceData, ProduceRequest
from wire.recompression import codec_of, recompress
from wire.record_batch import parse_produced, validate_for_append

TOPIC_IDS_SINCE = 13
QUICK_BYTES_MAX = 2048
"""An uncompressed batch up to this size is compressed by any codec in less time than a worker takes to start."""


class Batch:
    """One batch to be recompressed, where it stands in its request."""

    __slots__ = ("api_version", "config", "data")

    def __init__(self, data: PartitionProduceData, config: LogConfig, api_version: int) -> None:
        self.data = data
        self.config = config
        self.api_version = api_version

    @property
    def is_quick(self) -> bool:
        """Whether the loop may do it."""
        records = self.data.records
        return records is not None and len(records) <= QUICK_BYTES_MAX and codec_of(records) == 0

    def recompress(self) -> None:
        """Replace the records in the request. What is wrong with them is for the append to find, and to say."""
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
            )
            fresh = recompress(
                records, header, config.codec, config.codec_level, config.decompressed_bytes_max
            )
        except KafkaError:
            return
        self.data.records = memoryview(fresh)


def find_batches(broker: Broker, context: Context, request: ProduceRequest) -> list[Batch]:
    """The batches of partitions led here that have another codec than their topics want."""
    by_id = context.api_version >= TOPIC_IDS_SINCE
    found = []
    for topic in request.topic_data:
        hosted = broker.topics_by_id.get(topic.topic_id) if by_id else broker.topics.get(topic.name)
        if hosted is None or hosted.config.codec == KEEP_CODEC:
            continue
        for data in topic.partition_data:
            partition = hosted.partitions.get(data.index)
            if partition is None or not partition.is_leader or data.records is None:
                continue
            if codec_of(data.records) not in (-1, hosted.config.codec):
                found.append(Batch(data, hosted.config, context.api_version))
    return found
