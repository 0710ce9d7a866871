"""The errors of views, and the HTTP status of each error of the client. PURE."""

from __future__ import annotations

from odradek.client.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    ClientError,
    ConnectionBroken,
    RequestTimedOut,
    UnsupportedByBroker,
)
from odradek.wire.errors import ErrorCode, KafkaError, LocalProtocolError

__all__ = ["ViewError", "view_error_of"]


class ViewError(Exception):
    """A view cannot answer. `status` is HTTP's, `code` a stable name for programs, `sentence` says what to do."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.sentence = sentence


_FORBIDDEN = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING = frozenset(
    {
        ErrorCode.GROUP_ID_NOT_FOUND,
        # No topic has an invalid name.
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_WRONG = frozenset(
    {
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)


def view_error_of(error: Exception) -> ViewError | None:
    """Translate an error of the client into an error of a view. None means that `error` is a bug."""
    match error:
        case ViewError():
            return error
        case KafkaError():
            return ViewError(_status_of(error.code), error.code.name, _sentence(error))
        case AuthenticationFailed():
            return ViewError(401, "AUTHENTICATION_FAILED", f"{error}. Log in again")
        case RequestTimedOut():
            return ViewError(504, "REQUEST_TIMED_OUT", f"{error}. The cluster may be busy, or nodes are down")
        case BrokerUnavailable() | ConnectionBroken():
            return ViewError(502, "BROKER_UNAVAILABLE", f"{error}. Is a node running there?")
        case UnsupportedByBroker():
            return ViewError(501, "UNSUPPORTED_VERSION", f"{error}. This cluster does not have this function")
        case ClientError():
            return ViewError(502, "CLIENT_ERROR", str(error))
        case LocalProtocolError():
            return ViewError(400, "INVALID_REQUEST", f"the cluster cannot be asked for this: {error}")
        case _:
            return None


def _status_of(code: ErrorCode) -> int:
    if code in _FORBIDDEN:
        return 403
    if code in _MISSING:
        return 404
    if code in _WRONG:
        return 400
    if code in (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE):
        return 401
    if code is ErrorCode.REQUEST_TIMED_OUT:
        return 504
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return 501
    if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return 429
    return 503 if code.retriable else 502


def _sentence(error: KafkaError) -> str:
    return f"{error.message or error.code.name} ({error.code.name})"
