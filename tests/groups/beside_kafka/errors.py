"""The errors that requests about groups can get. Most are provoked by conversations, and each other one has a
reason."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["ASKED", "NOT_ASKED", "required"]

_OF_A_COORDINATOR = "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"
NOT_ASKED = dict.fromkeys(
    _OF_A_COORDINATOR.split(),
    "one node is the coordinator from its start on; tests/groups/scripts and the simulator have those that load and move",
) | {
    "INVALID_COMMIT_OFFSET_SIZE": "a commit larger than a batch needs a topic of 100,000 partitions; tests/groups/test_group_state.py",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "neither server keeps logs of the old formats",
    "UNKNOWN_SERVER_ERROR": "no request may lead to it",
}
"""Errors that the specification lists for these requests but that no conversation provokes, each with the reason."""

_HEARTBEAT = """NONE FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND
    GROUP_MAX_SIZE_REACHED INVALID_REQUEST TOPIC_AUTHORIZATION_FAILED UNKNOWN_MEMBER_ID UNRELEASED_INSTANCE_ID
    UNSUPPORTED_ASSIGNOR"""
_COMMIT = """NONE FENCED_INSTANCE_ID GROUP_AUTHORIZATION_FAILED ILLEGAL_GENERATION OFFSET_METADATA_TOO_LARGE
    TOPIC_AUTHORIZATION_FAILED UNKNOWN_MEMBER_ID"""
_FETCH = "NONE GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED"
_IN_A_TRANSACTION = f"""{_COMMIT} INVALID_GROUP_ID INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNKNOWN_TOPIC_OR_PARTITION"""

ASKED: dict[str, dict[int, str]] = {
    "ConsumerGroupHeartbeat": {0: _HEARTBEAT, 1: f"{_HEARTBEAT} INVALID_REGULAR_EXPRESSION"},
    "ConsumerGroupDescribe": dict.fromkeys(
        (0, 1),
        "NONE GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND INVALID_GROUP_ID TOPIC_AUTHORIZATION_FAILED",
    ),
    "OffsetCommit": {
        8: f"{_COMMIT} REBALANCE_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION UNSUPPORTED_VERSION",
        9: f"{_COMMIT} REBALANCE_IN_PROGRESS GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH UNKNOWN_TOPIC_OR_PARTITION",
        10: f"{_COMMIT} REBALANCE_IN_PROGRESS GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH UNKNOWN_TOPIC_ID UNKNOWN_TOPIC_OR_PARTITION",
    },
    "OffsetFetch": {
        8: f"{_FETCH} UNSTABLE_OFFSET_COMMIT",
        9: f"{_FETCH} STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNSTABLE_OFFSET_COMMIT",
        10: f"{_FETCH} STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_TOPIC_ID UNSTABLE_OFFSET_COMMIT",
    },
    "TxnOffsetCommit": {
        3: f"{_IN_A_TRANSACTION} INVALID_TXN_STATE",
        4: f"{_IN_A_TRANSACTION} TRANSACTION_ABORTABLE",
        5: _IN_A_TRANSACTION,
    },
    "OffsetDelete": {
        0: "NONE GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND GROUP_SUBSCRIBED_TO_TOPIC TOPIC_AUTHORIZATION_FAILED "
        "UNKNOWN_TOPIC_OR_PARTITION"
    },
    "DescribeGroups": {6: "NONE GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND"},
    "DeleteGroups": {2: "NONE GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND NON_EMPTY_GROUP"},
}
"""The errors that the conversations provoke, by the name of the request and its versions."""


def required() -> Iterator[tuple[str, int, str]]:
    """Yield each error of `ASKED` with the name and version of its request."""
    for name, by_version in ASKED.items():
        for version, errors in by_version.items():
            for error in errors.split():
                yield name, version, error
