"""DeleteRecords: raise the log start offset of partitions that are led here (KIP-107)."""

from __future__ import annotations

from data_plane.broker import Broker
from data_plane.handlers.contract import Context, Result
from data_plane.handlers.metadata import INTERNAL_TOPICS
from wire.errors import ErrorCode, KafkaError
from wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
NO_OFFSET = -1


class DeleteRecordsHandler:
    """API 21. What is below the new start is never served again; whole segments go with the next retention run.

    The low watermark is the lowest log start offset of the replicas in sync; with this broker's replica alone,
    it is there at once, so nothing waits for `timeout_ms`.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: DeleteRecordsRequest) -> Result:
        # As in Kafka the last of several entries about one partition holds.
        asked: dict[str, dict[int, int]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                asked.setdefault(topic.name, {})[partition.partition_index] = partition.offset
        return DeleteRecordsResponse(
            0,
            [
                DeleteRecordsTopicResult(
                    name, [self._delete(name, index, offset) for index, offset in offsets.items()]
                )
                for name, offsets in asked.items()
            ],
        )

    def _delete(self, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
        try:
            low_watermark = self._raise_log_start(topic, index, offset)
        except KafkaError as error:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, error.code)
        return DeleteRecordsPartitionResult(index, low_watermark, ErrorCode.NONE)

    def _raise_log_start(self, topic: str, index: int, offset: int) -> int:
        """The low watermark. Raises `KafkaError`, in Kafka's order of checks."""
        broker = self._broker
        if broker.image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition = broker.partition(topic, index)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if not log.config.deletes_by_retention:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.set_log_start_offset(offset)
        return log.log_start_offset
