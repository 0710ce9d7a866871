"""Limits of one request: how many records it may write, and how many items it may name."""

from __future__ import annotations

from collections.abc import Sized

import attrs

from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.structure import Structure

RECORDS_PER_REQUEST_MAX = 10_000
"""Kafka's limit for the records of one request. A request beyond it gets POLICY_VIOLATION as a whole."""

NAMED_PER_REQUEST_MAX = 2 * RECORDS_PER_REQUEST_MAX
"""The most items (topics, partitions, ...) that one request may name. This is twice the limit of records. A
record may need two names, for example those of a partition and of its topic.
"""
_OF_ONE_THING = frozenset(("broker_ids", "replicas"))

ELECTIONS_PER_TURN_MAX = 1_000
"""The most leaderships that one periodic election of preferred leaders moves (Kafka's number). Between two of these
elections the controller handles other requests.
"""


def check_batch(records: Sized) -> None:
    """Refuse a decision with too many records. Raises `KafkaError` POLICY_VIOLATION."""
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise batch_too_large()


def batch_too_large() -> KafkaError:
    """Make the error of a request that would write too many records."""
    return KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


def check_named(request: Structure) -> None:
    """Refuse a client's request that names so many items that its decision would take too long. Raises
    `KafkaError` POLICY_VIOLATION.

    Such a request could not succeed anyway. It would need more than `RECORDS_PER_REQUEST_MAX` records, or
    would change nothing.
    """
    if names_more_than(request, NAMED_PER_REQUEST_MAX):
        raise batch_too_large()


def names_more_than(message: Structure, things_max: int) -> bool:
    """True if a message contains more than `things_max` items. Counting stops as soon as this is known."""
    left = things_max
    structures = [message]
    while structures:
        structure = structures.pop()
        for field in attrs.fields(type(structure)):
            value = getattr(structure, field.name)
            if type(value) is list and value and field.name not in _OF_ONE_THING:
                left -= len(value)
                if left < 0:
                    return True
                if isinstance(value[0], Structure):
                    structures += value
    return False
