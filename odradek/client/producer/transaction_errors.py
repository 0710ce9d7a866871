"""The reaction to each error code of each transactional request. The tables follow Kafka's TransactionManager. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode

__all__ = ["Verdict", "produce_is_fatal", "verdict", "worst"]


class Verdict(IntEnum):
    """The reaction to an error code, from the mildest to the most severe. If an answer has several codes, the most
    severe reaction counts.
    """

    DONE = 0
    RETRY = 1
    FIND_AGAIN = 2
    """Look up the coordinator again, then retry."""
    ABORT = 3
    FATAL = 4


_COMMON = {
    ErrorCode.NONE: Verdict.DONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    ErrorCode.NOT_COORDINATOR: Verdict.FIND_AGAIN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.FIND_AGAIN,
    ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORT,
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict.ABORT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.ABORT,
}
_OF_REQUEST: dict[ApiKey, dict[ErrorCode, Verdict]] = {
    ApiKey.INIT_PRODUCER_ID: {
        ErrorCode.TRANSACTION_ABORTABLE: Verdict.FATAL,
        ErrorCode.UNKNOWN_PRODUCER_ID: Verdict.FATAL,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        # The broker did nothing for this partition because of another partition's error. The reaction to that
        # other error decides.
        ErrorCode.OPERATION_NOT_ATTEMPTED: Verdict.RETRY,
        ErrorCode.PRODUCER_FENCED: Verdict.FATAL,
        ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.FATAL,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        ErrorCode.INVALID_TXN_STATE: Verdict.FATAL,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT},
    ApiKey.TXN_OFFSET_COMMIT: {
        ErrorCode.REQUEST_TIMED_OUT: Verdict.FIND_AGAIN,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        ErrorCode.FENCED_INSTANCE_ID: Verdict.ABORT,
        ErrorCode.ILLEGAL_GENERATION: Verdict.ABORT,
        ErrorCode.UNKNOWN_MEMBER_ID: Verdict.ABORT,
        ErrorCode.STALE_MEMBER_EPOCH: Verdict.ABORT,
        ErrorCode.REBALANCE_IN_PROGRESS: Verdict.ABORT,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: Verdict.ABORT,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Verdict.ABORT,
    },
    ApiKey.END_TXN: {},
}
_OTHERWISE = {ApiKey.ADD_PARTITIONS_TO_TXN: Verdict.ABORT}
"""The reaction to an error code that is in none of the tables, by request. For requests that are missing
here, the reaction is FATAL.
"""
_FATAL_OF_PRODUCE = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def verdict(key: ApiKey, code: ErrorCode) -> Verdict:
    """Return the reaction to an error code in the answer to a transactional request."""
    found = _OF_REQUEST[key].get(code)
    if found is None:
        found = _COMMON.get(code)
    return found if found is not None else _OTHERWISE.get(key, Verdict.FATAL)


def worst(key: ApiKey, codes: Iterable[ErrorCode]) -> tuple[Verdict, ErrorCode]:
    """Return the most severe reaction to the codes of an answer, and the first code that causes it."""
    return max(((verdict(key, code), code) for code in codes), key=lambda each: each[0])


def produce_is_fatal(code: ErrorCode) -> bool:
    """True if this error of a batch ends the producer. For INVALID_PRODUCER_EPOCH the result is false,
    because only the answer to the abort shows whether the producer must end (KIP-588).
    """
    return code in _FATAL_OF_PRODUCE
