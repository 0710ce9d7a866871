"""CreatePartitions, and DescribeTopicPartitions (KIP-966): topics in the order of their names, page by page."""

from __future__ import annotations

from typing import Any

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.administration.topic_requests import (
    ask_controller,
    names_many,
    refuse_in_turn,
    sender_of,
)
from odradek.data_plane.handlers.availability import availability
from odradek.metadata_quorum.image.metadata_image import TopicImage
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS, invalid_topic_name_reason
from odradek.serving.authorized_operations import TOPIC_OPERATIONS
from odradek.serving.contract import Context, Result, Suspend
from odradek.serving.slices import Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_partitions import CreatePartitionsRequest
from odradek.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.wire.schema.anatomy import refuse


class CreatePartitionsHandler:
    """Handler of CreatePartitions (API 37), which the controller decides."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: CreatePartitionsRequest) -> Result:
        version, sender = context.api_version, sender_of(context)

        async def ask() -> Any:
            try:
                return await ask_controller(self._broker, sender, request, request.timeout_ms, version)
            except KafkaError as error:
                return await refuse_in_turn(self._broker, refuse, request, error)

        return Suspend(ask, is_long=names_many(request))


class DescribeTopicPartitionsHandler:
    """Handler of DescribeTopicPartitions (API 75), in pages with a cursor."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: DescribeTopicPartitionsRequest) -> Result:
        return in_slices(self._broker.long_work, self._answer(request))

    def _answer(self, request: DescribeTopicPartitionsRequest) -> Work[DescribeTopicPartitionsResponse]:
        topics = self._broker.image.topics
        cursor = request.cursor
        first = "" if cursor is None else cursor.topic_name
        every = not request.topics
        wanted: dict[str, None] = {}
        for name in topics if every else (topic.name for topic in request.topics):
            if name >= first:
                wanted[name] = None
            yield 1
        names = sorted(wanted)
        if cursor is not None and (cursor.partition_index < 0 or (not every and first not in wanted)):
            return _refused(request, ErrorCode.INVALID_REQUEST)
        response = DescribeTopicPartitionsResponse(0, [], None)
        room = max(1, min(self._broker.settings.request_partitions_max, request.response_partition_limit))
        for name in names:
            if room == 0:
                response.next_cursor = Cursor(name, 0)
                break
            topic: TopicImage | None = topics.get(name)
            yield 1
            if topic is None:
                response.topics.append(_missing(name))
                continue
            start = cursor.partition_index if cursor is not None and name == first else 0
            shown = self._describe(topic, start, room)
            response.topics.append(shown)
            room -= len(shown.partitions)
            yield len(shown.partitions)
            if start + len(shown.partitions) < len(topic.partitions):
                response.next_cursor = Cursor(name, start + len(shown.partitions))
                break
        return response

    def _describe(self, topic: TopicImage, start: int, count: int) -> DescribeTopicPartitionsResponseTopic:
        brokers = self._broker.image.brokers
        partitions = []
        for index in range(start, min(len(topic.partitions), start + count)):
            image = topic.partitions[index]
            error, offline = availability(image, brokers)
            partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    error,
                    index,
                    image.leader,
                    image.leader_epoch,
                    list(image.replicas),
                    list(image.isr),
                    list(image.elr),
                    list(image.last_known_elr),
                    offline,
                )
            )
        return DescribeTopicPartitionsResponseTopic(
            ErrorCode.NONE,
            topic.name,
            topic.topic_id,
            topic.name in INTERNAL_TOPICS,
            partitions,
            TOPIC_OPERATIONS,
        )


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    bad = invalid_topic_name_reason(name) is not None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _refused(request: DescribeTopicPartitionsRequest, code: ErrorCode) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        0, [DescribeTopicPartitionsResponseTopic(code, topic.name) for topic in request.topics], None
    )
