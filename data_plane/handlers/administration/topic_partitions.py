"""DescribeTopicPartitions (KIP-966): describes topics in the order of their names, in pages."""

from __future__ import annotations

from odradek.data_plane.handlers.availability import availability
from odradek.data_plane.handlers.desk import Desk
from odradek.metadata_quorum.image.metadata_image import TopicImage
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS, invalid_topic_name_reason
from odradek.serving.authorized_operations import TOPIC_OPERATIONS
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Work, in_slices
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


class DescribeTopicPartitionsHandler:
    """Handler of DescribeTopicPartitions (API 75).

    The answer is a page; its cursor names the place where the next page begins.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handle(self, context: Context, request: DescribeTopicPartitionsRequest) -> Result:
        return in_slices(self._desk.long_work, self._answer(request))

    def _answer(self, request: DescribeTopicPartitionsRequest) -> Work[DescribeTopicPartitionsResponse]:
        topics = self._desk.image.topics
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
        room = max(1, min(self._desk.settings.request_partitions_max, request.response_partition_limit))
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
        brokers = self._desk.image.brokers
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
