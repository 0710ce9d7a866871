"""Handler of FindCoordinator: the broker that coordinates a group or a transactional id; creates the internal
topic when it is first needed.
"""

from __future__ import annotations

from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.internal_topics import internal_topic
from odradek.data_plane.replication.following.departures import Departures
from odradek.data_plane.transactions.transactions_topic import TRANSACTIONS_TOPIC
from odradek.env.ports import ConnectionLost
from odradek.metadata_quorum.ports import ControllerPort
from odradek.serving.contract import Context, Result, Suspend
from odradek.serving.steps import Work, in_slices
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.create_topics import CreateTopicsRequest
from odradek.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.schema.versions import FIND_COORDINATOR_BATCHED

GROUP, TRANSACTION, SHARE = 0, 1, 2
KEY_CHARACTERS_PER_UNIT = 30
"""The number of key characters that cost one unit of work, since the key's partition is computed from all its
characters.
"""
SHORT_CHARACTERS_MAX = 256
"""The longest key whose coordinator is found twice if need be: first to look whether it is alive."""


class FindCoordinatorHandler:
    """Handler of FindCoordinator (API 10). From version 4 on, a request has many keys (KIP-699)."""

    def __init__(self, desk: Desk, controller: ControllerPort, departures: Departures) -> None:
        self._desk = desk
        self._controller = controller
        self._departures = departures
        self._creating: set[str] = set()

    def handle(self, context: Context, request: FindCoordinatorRequest) -> Result:
        """Answer the request. While a leader has just gone, first wait for its successors."""
        leaders = self._departures.doubtful(self._leaders(request))
        if not leaders:
            return self._handle(context, request)
        later = context.for_later()

        async def answer() -> Result:
            await self._departures.wait_for_successors(leaders)
            return self._handle(later, request)

        return Suspend(answer)

    def _leaders(self, request: FindCoordinatorRequest) -> set[int] | None:
        """Return the leader that the answer to one short key names; otherwise None."""
        keys = request.coordinator_keys or [request.key]
        topic = self._desk.image.topics.get(
            OFFSETS_TOPIC if request.key_type == GROUP else TRANSACTIONS_TOPIC
        )
        if len(keys) != 1 or len(keys[0]) > SHORT_CHARACTERS_MAX or topic is None:
            return None
        return {topic.partitions[coordinator_partition(keys[0], len(topic.partitions))].leader}

    def _handle(self, context: Context, request: FindCoordinatorRequest) -> Result:
        if context.api_version >= FIND_COORDINATOR_BATCHED:
            return in_slices(self._desk.long_work, self._find_all(context.listener, request))
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
        """Find the coordinators of all keys, as work in slices.

        A key that the request names several times is looked up once. Each mention of it gets an answer.
        """
        found: dict[str, Coordinator] = {}
        for key in request.coordinator_keys:
            if key not in found:
                found[key] = self._find(listener, request.key_type, key)
            yield 1 + len(key) // KEY_CHARACTERS_PER_UNIT
        return FindCoordinatorResponse(coordinators=[found[key] for key in request.coordinator_keys])

    def _find(self, listener: str, key_type: int, key: str) -> Coordinator:
        if key_type == SHARE:
            return _missing(key, ErrorCode.INVALID_REQUEST)
        if key_type not in (GROUP, TRANSACTION):
            return _missing(key, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST.message)
        image = self._desk.image
        name = OFFSETS_TOPIC if key_type == GROUP else TRANSACTIONS_TOPIC
        topic = image.topics.get(name)
        if topic is None:
            self._start_creation(name)
            return _missing(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = topic.partitions[coordinator_partition(key, len(topic.partitions))]
        leader = image.brokers.get(partition.leader)
        endpoint = None if leader is None or leader.fenced else leader.endpoint(listener)
        if endpoint is None:
            return _missing(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(key, partition.leader, endpoint.host, endpoint.port, ErrorCode.NONE, "")

    def _start_creation(self, name: str) -> None:
        """Ask the controller to create the internal topic, unless a request for it is under way.

        Clients repeat their requests until the topic exists.
        """
        if name not in self._creating:
            self._creating.add(name)
            self._desk.tasks.start_soon(self._create, name)

    async def _create(self, name: str) -> None:
        desk = self._desk
        topic = internal_topic(desk.settings, name)
        assert topic is not None, "only the internal topics of coordinators are created here"
        timeout_ms = desk.settings.request_timeout_ms
        deadline = desk.clock.monotonic() + timeout_ms / 1000
        try:
            response = await self._controller.request(
                CreateTopicsRequest([topic], timeout_ms, False), deadline
            )
            result = response.topics[0]
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                desk.log.warning(
                    "coordinator.topic_refused",
                    topic=name,
                    error=ErrorCode(result.error_code).name,
                    reason=result.error_message,
                )
        except (KafkaError, ConnectionLost) as error:
            desk.log.warning("coordinator.topic_not_created", topic=name, error=str(error))
        finally:
            self._creating.discard(name)


def _missing(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key, -1, "", -1, code, message)
