"""The door of GetTelemetrySubscriptions.

With Odradek's own field, this request lists the broker's clients.
"""

from __future__ import annotations

from odradek.security.acls.rules import Operation
from odradek.security.doors.door import Asked
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

__all__ = ["get_telemetry_subscriptions_door"]


def get_telemetry_subscriptions_door(
    asked: Asked, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse | None:
    """Let in all clients. A request for the list of clients needs DESCRIBE on the cluster."""
    if not request.include_clients or asked.may_cluster(Operation.DESCRIBE):
        return None
    return GetTelemetrySubscriptionsResponse(0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
