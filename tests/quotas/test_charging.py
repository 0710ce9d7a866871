"""Who is charged for a request: clients, but not nodes."""

from __future__ import annotations

from typing import Any

from odradek.data_plane.quotas.client_quotas import ClientQuotas, QuotaSettings
from odradek.metadata_quorum.quotas.quota_levels import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from odradek.node.connections.charging import Charging
from odradek.serving.contract import Context
from odradek.wire.api_keys import ApiKey
from odradek.wire.messages.fetch import FetchResponse

SIZE, ANSWER_BYTES, SECONDS = 100, 5_000, 0.25
FETCH, METADATA = int(ApiKey.FETCH), int(ApiKey.METADATA)
OF_FOLLOWER, OF_CONSUMER = object(), object()
BROKER = "User:broker"


def charging(*, is_of_nodes: bool = False) -> tuple[Charging, ClientQuotas]:
    """Make the charging of a broker on which each user has a quota of fetched bytes and a quota of CPU time."""
    quotas = ClientQuotas(QuotaSettings(11, 1))
    of_each = ((USER, None),)
    quotas.apply({(of_each, CONSUMER_BYTE_RATE): 1000.0, (of_each, REQUEST_PERCENTAGE): 10.0})
    made = Charging(
        quotas,
        is_of_nodes=is_of_nodes,
        is_node=lambda context: context.principal == BROKER,
        is_follower=lambda request: request is OF_FOLLOWER,
    )
    return made, quotas


def used(quotas: ClientQuotas) -> dict[str, float]:
    return {account.key: account.used for _, account in quotas.accounts() if account.used}


def ask(made: Charging, context: Context, api_key: int, request: Any = OF_CONSUMER) -> int:
    """Charge a request, its answer and the CPU time of its turn. Return the wait."""
    wait = made.charge(context, api_key, SIZE, request, 0.0)
    made.charge_answer(context, api_key, FetchResponse(0, 0, 0, [], []), ANSWER_BYTES, 0.0)
    pay = made.payer(context)
    if pay is not None:
        pay(SECONDS, 0.0)
    return wait


def test_a_client_pays_for_answers_and_time() -> None:
    """KIP-124: a client is charged the bytes of a Fetch answer and its CPU time."""
    made, quotas = charging()
    ask(made, Context("PLAINTEXT", "10.0.0.1"), FETCH)
    assert used(quotas) == {CONSUMER_BYTE_RATE: ANSWER_BYTES, REQUEST_PERCENTAGE: SECONDS}
    assert (quotas.exempt_requests, quotas.exempt_bytes) == (0, 0)


def test_a_fetch_of_a_broker_costs_nobody_anything() -> None:
    """KIP-124: a follower's fetch is unlimited and free of charge, also for clients of the same user."""
    made, quotas = charging()
    context = Context("PLAINTEXT", "10.0.0.1")
    for _ in range(100):
        assert ask(made, context, FETCH, OF_FOLLOWER) == 0
        assert context.quota.fetch_bytes_max is None
    assert used(quotas) == {}
    assert (quotas.exempt_requests, quotas.exempt_bytes) == (100, 100 * SIZE)
    ask(made, context, METADATA)
    assert used(quotas) == {REQUEST_PERCENTAGE: SECONDS}, "the next request is judged by itself"


def test_markers_of_transactions_are_exempt() -> None:
    """As in Kafka, WriteTxnMarkers is free of charge, since nodes send it."""
    made, quotas = charging()
    assert ask(made, Context("PLAINTEXT", "10.0.0.1"), int(ApiKey.WRITE_TXN_MARKERS)) == 0
    assert used(quotas) == {}
    assert quotas.exempt_requests == 1


def test_nodes_are_known_by_their_listener_and_by_their_right() -> None:
    """KIP-124: nodes, known by their listener or by their right, are not charged. Their requests are counted."""
    for is_of_nodes, principal in ((True, "User:ANONYMOUS"), (False, BROKER)):
        made, quotas = charging(is_of_nodes=is_of_nodes)
        context = Context("BROKERS", "10.0.0.1")
        context.principal = principal
        for api_key in (FETCH, METADATA, FETCH):
            assert ask(made, context, api_key) == 0
        assert used(quotas) == {}
        assert (quotas.exempt_requests, quotas.exempt_bytes) == (3, 3 * SIZE)


def test_a_connection_that_logs_in_anew_pays_as_somebody_else() -> None:
    """KIP-368: after a new login on a connection, the new principal is charged, or exempt if it is a node."""
    made, quotas = charging()
    context = Context("SASL", "10.0.0.1")
    context.principal = BROKER
    ask(made, context, METADATA)
    context.principal = "User:ann"
    ask(made, context, METADATA)
    assert used(quotas) == {REQUEST_PERCENTAGE: SECONDS}
    assert quotas.exempt_requests == 1


def test_a_debt_of_months_is_told_as_the_longest_wait_there_is() -> None:
    """With a quota of 1 byte per second a wait may last months. The answer shows the longest wait that fits 32 bits."""
    made, quotas = charging()
    quotas.apply({(((USER, None),), PRODUCER_BYTE_RATE): 1.0})
    wait = made.charge(Context("PLAINTEXT", "10.0.0.1"), int(ApiKey.PRODUCE), 1 << 30, OF_CONSUMER, 0.0)
    assert wait == (1 << 31) - 1
    ((_, account),) = quotas.accounts()
    assert account.throttled_seconds == wait / 1000
