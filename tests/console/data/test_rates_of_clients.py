"""The rates of clients that push their figures: those between two pushes, and none before."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

from odradek.client.admin import BrokerClients, ClientDescription
from odradek.client.admin.admin_clients import ClientFigure
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.views import clients as clients_module
from odradek.console.views.clients import ClientsQuery, clients

PUSH = ClientDescription(
    "User:ann",
    "reader",
    "library",
    "1",
    "10.0.0.1",
    1,
    10_000,
    1,
    2_000,
    (ClientFigure("consumer", "incoming_bytes_total", 1_000.0),),
)
NEXT = attrs.evolve(PUSH, pushes=2, figures=(ClientFigure("consumer", "incoming_bytes_total", 6_000.0),))


@pytest.mark.parametrize(
    ("looks", "rates"),
    [
        ([PUSH, PUSH, PUSH], [None, None, None]),
        ([PUSH, NEXT, NEXT], [None, 500.0, 500.0]),
        ([PUSH, NEXT, attrs.evolve(NEXT, since_push_ms=60_000)], [None, 500.0, None]),
    ],
)
def test_a_rate_is_that_between_two_pushes(
    looks: list[ClientDescription], rates: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate of a client is unknown before its second push, and when a push is overdue."""
    left = list(looks)
    client = SimpleNamespace(
        describe_clients=lambda timeout: [BrokerClients(1, (left.pop(0),))], list_groups=lambda timeout: []
    )
    now = [0.0]
    monkeypatch.setattr(clients_module.time, "monotonic", lambda: now[0])
    session = SimpleNamespace(cache=KeptValues(lambda: now[0]), client=client)
    found = []
    for _ in looks:
        now[0] += 5.0
        (row,) = clients(session, ClientsQuery()).rows
        found.append(row.bytes_in_per_second)
        assert row.bytes_out_per_second is None, "the client does not push these bytes"
    assert found == rates
