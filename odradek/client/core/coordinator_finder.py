"""Finds the coordinator of a group or of a transactional id, sends requests to it, and finds it again after
it has moved. PURE.

Requests whose order matters have their own lane to the coordinator. Brokers answer the requests of a connection in
order, and may delay a JoinGroup for minutes. So requests that must not wait for a JoinGroup use the ordinary lane.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from odradek.client.core.known_cluster import Broker
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import broker_error, is_retriable
from odradek.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["BESIDE_JOIN_LANE", "COORDINATOR_LANE", "MOVED", "CoordinatorFinder", "CoordinatorKind"]

COORDINATOR_LANE = 2
BESIDE_JOIN_LANE = 0
MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The errors that mean that the coordinator may be another broker now."""


class CoordinatorKind(IntEnum):
    """The kind of key that a coordinator is looked up by, with its number in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorFinder:
    """Finds the coordinator of one group or transactional id, and sends requests to it."""

    def __init__(self, core: ClientCore, kind: CoordinatorKind, key: str) -> None:
        self.node: int | None = None
        self.lane = COORDINATOR_LANE
        """The lane of most requests. JoinGroup, and requests that must follow it in order, use another lane."""
        self._core = core
        self._kind = kind
        self._key = key
        name = "group" if kind is CoordinatorKind.GROUP else "transactional id"
        self.subject = f"{name} {key}"
        """The name of the key in error texts, such as "group g1"."""

    def lost(self) -> None:
        """Forget the coordinator, because it has moved or cannot be reached. The next request looks it up again."""
        self.node = None

    def find(self, *, deadline: float) -> Operation[int]:
        """Return the broker id of the coordinator; look it up if it is unknown. A retriable error is raised
        only when the deadline leaves no time for another attempt. Any other error is raised at once.
        """
        from odradek.wire.messages.find_coordinator import FindCoordinatorRequest

        core = self._core
        attempt = 0
        while self.node is None:
            request = FindCoordinatorRequest(key=self._key, key_type=self._kind, coordinator_keys=[self._key])
            call = core.call(request, node=None, deadline=deadline)
            yield Wait([call])
            error = call.error if call.error is not None else self._found(call.response)
            if error is None:
                break
            wake_at = core.now + core.backoff(attempt)
            if not is_retriable(error) or wake_at >= deadline:
                raise error
            attempt += 1
            yield Wait(until=wake_at)
        assert self.node is not None
        return self.node

    def _found(self, response: Any) -> KafkaError | None:
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            return broker_error(found.error_code, found.error_message, self.subject)
        self._core.cluster.add_brokers([Broker(found.node_id, found.host, found.port)])
        self.node = found.node_id
        return None

    def request(
        self, message: Any, *, deadline: float, version_min: int = 0, version_max: int | None = None
    ) -> Operation[Any]:
        """Send a request to the coordinator; look the coordinator up if it is unknown. After a broken connection the
        request is sent again.
        """
        attempt = 0
        core = self._core
        while True:
            node = yield from self.find(deadline=deadline)
            call = core.call(
                message,
                node=node,
                deadline=deadline,
                version_min=version_min,
                version_max=version_max,
                lane=self.lane,
            )
            yield Wait([call])
            if call.error is None:
                return call.response
            self.lost()
            wake_at = core.now + core.backoff(attempt)
            if not is_retriable(call.error) or wake_at >= deadline:
                raise call.error
            attempt += 1
            yield Wait(until=wake_at)

    def noted(self, code: ErrorCode) -> None:
        """Handle the error code of an answer. If it says that the coordinator has moved, the next request looks the
        coordinator up again.
        """
        if code in MOVED:
            self.lost()
