"""Describes the clients that push telemetry to brokers (KIP-714). The functions are operations. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.core.operation import Operation
from odradek.client.core.scatter import deadline_of, item_error, reachable, scatter, this_broker
from odradek.client.errors import UnsupportedByBroker

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError
    from odradek.wire.messages.get_telemetry_subscriptions import (
        GetTelemetrySubscriptionsRequest,
        GetTelemetrySubscriptionsResponse,
    )
    from odradek.wire.messages.get_telemetry_subscriptions import KnownClient as Answer

__all__ = ["BrokerClients", "ClientDescription", "ClientFigure", "describe_clients"]


@attrs.frozen
class ClientFigure:
    """One metric value that a client has pushed. docs/metrics.md lists the names, with the prefix
    `odradek_client_`.
    """

    role: str
    """`producer`, `consumer` or `admin`."""
    name: str
    value: float


@attrs.frozen
class ClientDescription:
    """A description of all clients that have the same user and the same client id. It comes from one broker."""

    principal: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    instances: int
    """The number of running clients with this user and id; 0 if the last of them has just left."""
    push_interval_ms: int
    pushes: int
    since_push_ms: int | None
    """Milliseconds since the last push of these clients; None if they have pushed nothing."""
    figures: tuple[ClientFigure, ...]


@attrs.frozen
class BrokerClients:
    """The clients that one broker knows. `clients` is empty if `error` is set."""

    broker: int
    clients: tuple[ClientDescription, ...]
    error: CallError | None = None


def describe_clients(
    core: ClientCore,
    brokers: Sequence[int] | None = None,
    *,
    client_id: str | None = None,
    timeout: float | None = None,
) -> Operation[list[BrokerClients]]:
    """Describe the clients that have requested a telemetry subscription from these brokers (None: from all
    brokers). With `client_id`, only clients with that id are described.

    A client pushes its telemetry to one broker at a time. Only Odradek's brokers answer this request; the
    result for any other broker is an error. Raises `ClientError`.
    """
    from odradek.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)

    def message(_: list[int], __: int) -> GetTelemetrySubscriptionsRequest:
        return GetTelemetrySubscriptionsRequest(include_clients=True, client_id=client_id)

    def take(
        response: GetTelemetrySubscriptionsResponse, nodes: list[int]
    ) -> Iterable[tuple[int, BrokerClients | CallError]]:
        (node,) = nodes
        error = item_error(response.error_code, None, f"broker {node}")
        if error is None and response.clients is None:
            yield node, UnsupportedByBroker(f"broker {node} keeps no list of its clients")
        else:
            yield node, error or BrokerClients(node, tuple(map(_description, response.clients or ())))

    wanted = sorted(core.cluster.brokers) if brokers is None else list(brokers)
    outcomes = yield from scatter(
        core, wanted, this_broker(lambda node: int(node)), message, take, deadline=deadline
    )
    return [
        found if isinstance(found, BrokerClients) else BrokerClients(node, (), found)
        for node, found in outcomes.items()
        # If all brokers were meant, leave out a broker that has left the cluster during the request.
        if brokers is not None or node in core.cluster.brokers
    ]


def _description(answer: Answer) -> ClientDescription:
    return ClientDescription(
        answer.principal,
        answer.client_id or "",
        answer.software_name,
        answer.software_version,
        answer.address,
        answer.instances,
        answer.push_interval_ms,
        answer.pushes,
        None if answer.since_push_ms < 0 else answer.since_push_ms,
        tuple(ClientFigure(each.role, each.name, each.value) for each in answer.figures),
    )
