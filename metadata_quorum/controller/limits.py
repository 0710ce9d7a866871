"""How much one decision may write."""

from __future__ import annotations

from collections.abc import Sized

from wire.errors import ErrorCode, KafkaError

RECORDS_PER_REQUEST_MAX = 10_000
"""Kafka's limit of what one request may write; a request beyond it gets POLICY_VIOLATION as a whole."""

ELECTIONS_PER_TURN_MAX = 1_000
"""How many leaderships a turn of the balancer moves, so that requests come in between (Kafka's number)."""


def check_batch(records: Sized) -> None:
    """Raises `KafkaError` POLICY_VIOLATION when a request writes too much."""
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
