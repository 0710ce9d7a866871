"""DescribeProducers: the idempotent producers of a partition, as the replica on this broker knows them (KIP-664).

As in Kafka, any replica answers, not only the leader. An operator who searches for a hanging transaction
sends the request to each replica.
"""

from __future__ import annotations

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.replication.served_partitions import ServedPartitions
from odradek.env.ports import DiskError
from odradek.metadata_quorum.topic_names import invalid_topic_name_reason
from odradek.serving.answer_size import TOO_LARGE, TOO_LARGE_MESSAGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

PRODUCER_BYTES = 40
Answered = dict[tuple[str, int], PartitionResponse]
"""The answers by topic and partition. The key is a plain tuple, since a request may repeat a partition a
million times.
"""


class DescribeProducersHandler:
    """Handler of DescribeProducers (API 61)."""

    def __init__(self, desk: Desk, partitions: ServedPartitions) -> None:
        self._desk = desk
        self._partitions = partitions

    def handle(self, context: Context, request: DescribeProducersRequest) -> Result:
        return in_slices(self._desk.long_work, self._answer(request))

    def _answer(self, request: DescribeProducersRequest) -> Work[DescribeProducersResponse]:
        answered: Answered = {}
        repeated = RepeatedSize()
        topics = []
        for topic in request.topics:
            topics.append(TopicResponse(topic.name, (yield from self._topic(topic, answered, repeated))))
        return DescribeProducersResponse(0, topics)

    def _topic(
        self, topic: TopicRequest, answered: Answered, repeated: RepeatedSize
    ) -> Work[list[PartitionResponse]]:
        reason = invalid_topic_name_reason(topic.name)
        if reason is not None:
            failure = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        elif topic.name not in self._desk.image.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            failure = KafkaError(code, code.message)
        else:
            partitions = []
            for index in topic.partition_indexes:
                answer = answered.get((topic.name, index))
                if answer is None:
                    answer = answered[topic.name, index] = self._describe(topic.name, index)
                    yield 1 + len(answer.active_producers)
                elif not repeated.has_room(PRODUCER_BYTES * (1 + len(answer.active_producers))):
                    answer = PartitionResponse(index, TOO_LARGE, TOO_LARGE_MESSAGE, [])
                partitions.append(answer)
                yield 1
            return partitions
        yield len(topic.partition_indexes)
        return [
            PartitionResponse(index, failure.code, failure.message, []) for index in topic.partition_indexes
        ]

    def _describe(self, topic: str, index: int) -> PartitionResponse:
        try:
            partition = self._partitions.find(topic, index)
        except KafkaError as error:
            return PartitionResponse(index, error.code, None, [])
        log = partition.log
        if log.offline:
            return PartitionResponse(index, ErrorCode.KAFKA_STORAGE_ERROR, None, [])
        try:
            active = list(log.load_producers().active_producers())
        except KafkaError as error:
            return PartitionResponse(index, error.code, None, [])
        except DiskError as error:
            log.home.failed(error)
            return PartitionResponse(index, ErrorCode.KAFKA_STORAGE_ERROR, None, [])
        producers = [
            ProducerState(
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )
            for producer in active
        ]
        return PartitionResponse(index, ErrorCode.NONE, None, producers)
