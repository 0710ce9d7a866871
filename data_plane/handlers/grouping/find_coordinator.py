"""FindCoordinator: which broker coordinates a group; the topic behind it is created at first need."""

from __future__ import annotations

from data_plane.broker import Broker
from data_plane.groups.coordinator import partition_of
from data_plane.groups.offsets_topic import OFFSETS_TOPIC, offsets_topic
from odradek.env.ports import ConnectionLost
from odradek.serving.contract import Context, Result
from odradek.serving.slices import Work, in_slices
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_SINCE = 4
GROUP, TRANSACTION, SHARE = 0, 1, 2
KEY_CHARACTERS_PER_UNIT = 30
"""A key's partition comes of a sum over its characters."""
NO_TRANSACTIONS = "this cluster does not support transactions yet: leave transactional.id out of the producer's configuration"


class FindCoordinatorHandler:
    """API 10. From version 4 on for many keys at once (KIP-699)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._creating = False

    def handle(self, context: Context, request: FindCoordinatorRequest) -> Result:
        if context.api_version >= BATCHED_SINCE:
            return in_slices(self._broker.long_work, self._find_all(context.listener, request))
        one = self._find(context.listener, request.key_type, request.key)
        return FindCoordinatorResponse(
            0,
            one.error_code,
            one.error_message or ErrorCode(one.error_code).message or "NONE",
            one.node_id,
            one.host,
            one.port,
        )

    def _find_all(self, listener: str, request: FindCoordinatorRequest) -> Work[FindCoordinatorResponse]:
        """Each key is looked up once, and told as often as it is named."""
        found: dict[str, Coordinator] = {}
        for key in request.coordinator_keys:
            if key not in found:
                found[key] = self._find(listener, request.key_type, key)
            yield 1 + len(key) // KEY_CHARACTERS_PER_UNIT
        return FindCoordinatorResponse(coordinators=[found[key] for key in request.coordinator_keys])

    def _find(self, listener: str, key_type: int, key: str) -> Coordinator:
        if key_type == TRANSACTION:
            # Every other error makes some client ask again for ever, where the answer will not change.
            return _missing(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
        if key_type == SHARE:
            return _missing(key, ErrorCode.INVALID_REQUEST)
        if key_type != GROUP:
            return _missing(key, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST.message)
        image = self._broker.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            self._start_creation()
            return _missing(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = topic.partitions[partition_of(key, len(topic.partitions))]
        leader = image.brokers.get(partition.leader)
        endpoint = None if leader is None or leader.fenced else leader.endpoint(listener)
        if endpoint is None:
            return _missing(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(key, partition.leader, endpoint.host, endpoint.port, ErrorCode.NONE, "")

    def _start_creation(self) -> None:
        """Ask the controller once; clients ask again until the topic is there."""
        if not self._creating:
            self._creating = True
            self._broker.tasks.start_soon(self._create)

    async def _create(self) -> None:
        broker = self._broker
        topic = offsets_topic(broker.groups.settings)
        timeout_ms = broker.settings.request_timeout_ms
        deadline = broker.clock.monotonic() + timeout_ms / 1000
        try:
            response = await broker.controller.request(
                CreateTopicsRequest([topic], timeout_ms, False), deadline
            )
            result = response.topics[0]
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                broker.log.warning(
                    "groups.topic_refused",
                    topic=OFFSETS_TOPIC,
                    error=ErrorCode(result.error_code).name,
                    reason=result.error_message,
                )
        except (KafkaError, ConnectionLost) as error:
            broker.log.warning("groups.topic_not_created", topic=OFFSETS_TOPIC, error=str(error))
        finally:
            self._creating = False


def _missing(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key, -1, "", -1, code, message)
