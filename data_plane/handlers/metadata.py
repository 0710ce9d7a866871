"""Handlers of Metadata, which may create missing topics, and of DescribeCluster. They answer from the broker's
metadata image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from odradek.data_plane.handlers.administration.forwarder import sender_of
from odradek.data_plane.handlers.availability import availability
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.internal_topics import internal_topic
from odradek.data_plane.replication.following.departures import Departures
from odradek.data_plane.topic_configs import OwnConfig
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.config.effective_config import broker_value
from odradek.metadata_quorum.controller.limits import RECORDS_PER_REQUEST_MAX
from odradek.metadata_quorum.envelope import Sender
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.metadata_quorum.ports import ControllerPort
from odradek.metadata_quorum.topic_names import INTERNAL_TOPICS, invalid_topic_name_reason
from odradek.serving.authorized_operations import (
    BROKERS_ENDPOINT,
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from odradek.serving.contract import Context, Result, Suspend
from odradek.serving.steps import SCANT_UNITS, SLICE_UNITS, Work, in_slices
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from odradek.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.schema.versions import METADATA_EMPTY_MEANS_NONE, METADATA_QUERY_BY_ID
from odradek.wire.structure import ZERO_UUID

CREATED_PER_REQUEST_MAX = 100
"""The most topics that one Metadata request creates. Further topics are created by the next requests."""
CREATED_AT_ONCE_MAX = 500
"""The most topics, over all clients, whose creation by the controller may be pending at the same time."""


class MetadataHandler:
    """Handler of Metadata (API 3).

    It describes topics, and asks the controller to create missing ones if that is allowed.
    """

    def __init__(
        self, desk: Desk, controller: ControllerPort, own: OwnConfig, departures: Departures
    ) -> None:
        self._desk = desk
        self._controller = controller
        self._departures = departures
        self._own = own
        self._creating: dict[str, None] = {}
        """Topics whose creation was requested from the controller, and is still pending."""

    def handle(self, context: Context, request: MetadataRequest) -> Result:
        """Answer the request. While a leader has just gone, first wait for its successors."""
        leaders = self._departures.doubtful(self._leaders(context, request))
        if not leaders:
            return self._handle(context, request)
        later = context.for_later()

        async def answer() -> Result:
            await self._departures.wait_for_successors(leaders)
            return self._handle(later, request)

        return Suspend(answer, is_long=request.topics is None)

    def _leaders(self, context: Context, request: MetadataRequest) -> set[int] | None:
        """Return the leaders that the answer names, if it is about one small topic, or about none; otherwise None."""
        if (
            request.topics is not None
            and not request.topics
            and context.api_version >= METADATA_EMPTY_MEANS_NONE
        ):
            return set()
        if request.topics is None or len(request.topics) != 1:
            return None
        asked, image = request.topics[0], self._desk.image
        topic = image.topics_by_id.get(asked.topic_id) if asked.name is None else image.topics.get(asked.name)
        if topic is None:
            return set()
        return (
            None
            if len(topic.partitions) > SCANT_UNITS
            else {each.leader for each in topic.partitions.values()}
        )

    def _handle(self, context: Context, request: MetadataRequest) -> Result:
        """Answer the request.

        The most frequent request, about one small topic, is answered without slices.
        """
        desk, version = self._desk, context.api_version
        image, asked_topics = desk.image, request.topics
        if asked_topics is None or (version < METADATA_EMPTY_MEANS_NONE and not asked_topics):
            everything = [topic for _, topic in sorted(image.topics.items())]
            return in_slices(desk.long_work, self._answer(image, everything, request, context.listener))
        if version < METADATA_QUERY_BY_ID and any(
            asked.name is None or asked.topic_id != ZERO_UUID for asked in asked_topics
        ):
            code = ErrorCode.INVALID_REQUEST
            refused = [_missing(asked.name or "", asked.topic_id, code) for asked in asked_topics]
            return MetadataResponse(0, [], None, -1, refused, NOT_REQUESTED, code)
        if len(asked_topics) == 1:
            unknown: dict[str, None] = {}
            found = self._find(asked_topics[0], image, request, version, unknown)
            if unknown:
                self._create_some(unknown, sender_of(context))
            if not isinstance(found, TopicImage):
                return self._respond([found], image, request, context.listener)
            if len(found.partitions) <= SCANT_UNITS:
                desk.long_work.described += 1 + len(found.partitions)
                described = _describe_all(sorted(found.partitions.items()), image)
                return self._respond([_found(found, described, request)], image, request, context.listener)
        wanted = self._find_all(asked_topics, image, request, version, sender_of(context))
        return in_slices(desk.long_work, self._answer(image, wanted, request, context.listener))

    def _answer(
        self,
        image: MetadataImage,
        wanted: Iterable[TopicImage | MetadataResponseTopic | None],
        request: MetadataRequest,
        listener: str,
    ) -> Work[MetadataResponse]:
        """Describe each topic in `wanted`, and build the response.

        If an item of `wanted` is an answer already, it is used as it is. An item `None` stands for a topic
        that was described before, and is skipped.
        """
        topics: list[MetadataResponseTopic] = []
        for found in wanted:
            yield 1
            if isinstance(found, TopicImage):
                of_topic = sorted(found.partitions.items())
                described: list[MetadataResponsePartition] = []
                for start in range(0, len(of_topic), SLICE_UNITS):
                    some = of_topic[start : start + SLICE_UNITS]
                    described += _describe_all(some, image)
                    yield len(some)
                topics.append(_found(found, described, request))
            elif found is not None:
                topics.append(found)
        return self._respond(topics, image, request, listener)

    def _respond(
        self,
        topics: list[MetadataResponseTopic],
        image: MetadataImage,
        request: MetadataRequest,
        listener: str,
    ) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(node_id, endpoint.host, endpoint.port, broker.rack)
            for node_id, broker in sorted(image.brokers.items())
            if self._departures.is_mentioned(node_id, broker)
            and (endpoint := broker.endpoint(listener)) is not None
        ]
        cluster_operations = (
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        )
        return MetadataResponse(
            0,
            brokers,
            image.cluster_id,
            _controller_id(self._desk),
            topics,
            cluster_operations,
            ErrorCode.NONE,
        )

    def _find_all(
        self,
        asked_topics: list[MetadataRequestTopic],
        image: MetadataImage,
        request: MetadataRequest,
        version: int,
        sender: Sender,
    ) -> Iterator[TopicImage | MetadataResponseTopic | None]:
        """Yield each requested topic, or the answer for a missing one. `None` stands for a topic that the
        request named before.

        At the end, ask the controller to create unknown topics, if the request allows this.
        """
        named_before: set[tuple[str | None, bytes]] = set()
        unknown: dict[str, None] = {}
        for asked in asked_topics:
            found = self._find(asked, image, request, version, unknown)
            key = (found.name, found.topic_id)
            yield None if key in named_before else found
            named_before.add(key)
        if unknown:
            self._create_some(unknown, sender)

    def _find(
        self,
        asked: MetadataRequestTopic,
        image: MetadataImage,
        request: MetadataRequest,
        version: int,
        unknown: dict[str, None],
    ) -> TopicImage | MetadataResponseTopic:
        """Return the requested topic, or the answer for a missing one."""
        name = asked.name
        if name is None or (asked.topic_id != ZERO_UUID and version >= METADATA_QUERY_BY_ID):
            by_id = image.topics_by_id.get(asked.topic_id)
            return self._missing(asked.topic_id, request, unknown) if by_id is None else by_id
        by_name = image.topics.get(name)
        return self._missing(name, request, unknown) if by_name is None else by_name

    def _missing(
        self, key: str | bytes, request: MetadataRequest, unknown: dict[str, None]
    ) -> MetadataResponseTopic:
        """Build the answer for a missing topic. If the topic may be created, add its name to `unknown`."""
        if isinstance(key, bytes):
            return _missing(None, key, ErrorCode.UNKNOWN_TOPIC_ID)
        operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED
        if invalid_topic_name_reason(key) is not None:
            return _missing(key, ZERO_UUID, ErrorCode.INVALID_TOPIC_EXCEPTION, operations)
        if request.allow_auto_topic_creation and self._desk.settings.auto_create_topics_enable:
            unknown[key] = None
        return _missing(key, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, operations)

    def _create_some(self, unknown: Mapping[str, None], sender: Sender) -> None:
        """Start to create unknown topics through the controller, on behalf of the client (KIP-590). As with
        Kafka, the client then requests metadata again.

        A single request to the controller creates all these topics. It leaves out topics whose creation is
        pending. Topics beyond the limits are created by the client's next Metadata requests.
        """
        names = [name for name in unknown if name not in self._creating]
        partitions = broker_value("num.partitions", self._own.layers)
        fitting = RECORDS_PER_REQUEST_MAX // (1 + partitions) if isinstance(partitions, int) else 1
        room = min(CREATED_PER_REQUEST_MAX, max(1, fitting), CREATED_AT_ONCE_MAX - len(self._creating))
        names = names[: max(0, room)]
        if names:
            self._creating.update(dict.fromkeys(names))
            self._desk.tasks.start_soon(self._create, names, sender)

    async def _create(self, names: list[str], sender: Sender) -> None:
        desk = self._desk
        topics = [
            internal_topic(desk.settings, name) or CreatableTopic(name, -1, -1, [], []) for name in names
        ]
        request = CreateTopicsRequest(topics, desk.settings.request_timeout_ms, False)
        deadline = desk.clock.monotonic() + desk.settings.request_timeout_ms / 1000
        try:
            version = CreateTopicsRequest.VALID_VERSIONS[1]
            response = await self._controller.forward(sender, request, version, deadline)
            refused = [
                result
                for result in response.topics
                if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            ]
            if refused:
                desk.log.warning(
                    "topic.auto_create_refused",
                    topic=refused[0].name,
                    error=ErrorCode(refused[0].error_code).name,
                    count=len(refused),
                )
        except (KafkaError, ConnectionLost) as error:
            desk.log.warning("topic.auto_create_failed", topic=names[0], error=str(error), count=len(names))
        finally:
            for name in names:
                del self._creating[name]


def _controller_id(desk: Desk) -> int:
    """Return the broker id that clients get as the controller's id. This is the id of this broker, which
    forwards requests, or -1 while this broker is fenced.
    """
    own = desk.image.brokers.get(desk.settings.node_id)
    return -1 if own is None or own.fenced else desk.settings.node_id


def _found(
    topic: TopicImage, described: list[MetadataResponsePartition], request: MetadataRequest
) -> MetadataResponseTopic:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED
    internal = topic.name in INTERNAL_TOPICS
    return MetadataResponseTopic(ErrorCode.NONE, topic.name, topic.topic_id, internal, described, operations)


def _missing(
    name: str | None, topic_id: bytes, code: ErrorCode, operations: int = NOT_REQUESTED
) -> MetadataResponseTopic:
    internal = name in INTERNAL_TOPICS
    return MetadataResponseTopic(code, name, topic_id, internal, [], operations)


def _describe_all(
    partitions: Iterable[tuple[int, PartitionImage]], image: MetadataImage
) -> list[MetadataResponsePartition]:
    brokers = image.brokers
    described = []
    for index, partition in partitions:
        code, offline = availability(partition, brokers)
        replicas, isr = list(partition.replicas), list(partition.isr)
        leader, epoch = partition.leader, partition.leader_epoch
        described.append(MetadataResponsePartition(code, index, leader, epoch, replicas, isr, offline))
    return described


class DescribeClusterHandler:
    """Handler of DescribeCluster (API 60, KIP-700), for brokers. Requests about controllers are refused."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handle(self, context: Context, request: DescribeClusterRequest) -> Result:
        image = self._desk.image
        if request.endpoint_type != BROKERS_ENDPOINT:
            return DescribeClusterResponse(
                0,
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == 2
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
                if request.endpoint_type == 2
                else f"Unsupported endpoint type {request.endpoint_type}",
                BROKERS_ENDPOINT,
            )
        brokers = [
            DescribeClusterBroker(node_id, endpoint.host, endpoint.port, broker.rack, broker.fenced)
            for node_id, broker in sorted(image.brokers.items())
            if (not broker.fenced or request.include_fenced_brokers)
            and (endpoint := broker.endpoint(context.listener)) is not None
        ]
        operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        controller_id = _controller_id(self._desk)
        return DescribeClusterResponse(
            0, ErrorCode.NONE, None, BROKERS_ENDPOINT, image.cluster_id, controller_id, brokers, operations
        )
