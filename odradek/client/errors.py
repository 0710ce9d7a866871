"""The errors that a client detects, which errors may be tried again, and a broker's error code as an exception.
An error code in a broker's answer becomes an `odradek.wire.errors.KafkaError` instead.

A request that fails without an answer from a broker ends in a `ClientError`. Both kinds have the attribute
`retriable`. It is true if the same operation may succeed later.
"""

from __future__ import annotations

import re

from odradek.wire.errors import ErrorCode, KafkaError

__all__ = [
    "AuthenticationFailed",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ConnectionBroken",
    "IllegalTransactionCall",
    "ProducerFencedError",
    "RecordsNotEncoded",
    "RequestTimedOut",
    "TransactionAbortableError",
    "TransactionAborted",
    "TransactionError",
    "TransactionFatalError",
    "UnsupportedByBroker",
    "broker_error",
    "error_code",
    "is_retriable",
]


class ClientError(Exception):
    """The base of all errors that the client detects itself. (A broker's error code becomes a `KafkaError`.)"""

    retriable = False


class BrokerUnavailable(ClientError):
    """Every attempt to connect to the broker (or to any broker) failed, so the request was not sent."""

    retriable = True


class AuthenticationFailed(ClientError):
    """The broker refused the client's login, or could not prove its own identity. A retry is useless."""


class ConnectionBroken(ClientError):
    """The connection ended after the request was sent, before the answer. The broker may or may not have performed
    the request.
    """

    retriable = True


class RequestTimedOut(ClientError):
    """The deadline passed before an answer came. The broker may or may not have performed the request."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker supports no version of this request that the client supports."""


class BufferFull(ClientError):
    """`buffer.memory` was full for `max.block.ms`, because the application sends faster than the cluster
    accepts records.
    """

    retriable = True


class RecordsNotEncoded(ClientError):
    """The records of one batch cannot be encoded in Kafka's protocol; `__cause__` is the reason. Other batches are
    not affected.
    """


class ClientClosed(ClientError):
    """The client was closed while the operation was under way."""


class TransactionError(ClientError):
    """The base of all transaction errors. The subclass says which calls may follow."""


class TransactionAbortableError(TransactionError):
    """The transaction can only be aborted. After the abort the producer can begin another transaction.
    `__cause__` is the reason.
    """


class TransactionAborted(TransactionError):
    """The record was not written, because its transaction was aborted first."""


class TransactionFatalError(TransactionError):
    """This producer can only be closed. A new producer with the same `transactional.id` aborts the transaction that
    this producer has open.
    """


class ProducerFencedError(TransactionFatalError):
    """Another producer with the same `transactional.id` has taken over, or the coordinator aborted this producer's
    transaction after `transaction.timeout.ms`.
    """


class IllegalTransactionCall(RuntimeError):
    """A call that the transaction's state forbids, such as sending while no transaction is open."""


def is_retriable(error: BaseException) -> bool:
    """True if the operation may succeed when it is repeated unchanged."""
    if isinstance(error, KafkaError):
        return error.code.retriable
    return isinstance(error, ClientError) and error.retriable


def error_code(number: int) -> ErrorCode:
    """Return the error code with this number; UNKNOWN_SERVER_ERROR if this client does not know the number."""
    return ErrorCode(number)


def broker_error(number: int, text: str | None, subject: str) -> KafkaError:
    """Make the `KafkaError` of a broker's answer about `subject`. The error has the broker's text, or else
    the standard text of the code.
    """
    code = error_code(number)
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and text in (None, "", code.message):
        # This text is clearer than Kafka's own ("This server does not host this topic-partition").
        return KafkaError(code, f"{subject} does not exist")
    reason = text or code.message or code.name
    name = subject.rpartition(" ")[2]
    # Some of Kafka's texts already name the subject; most do not.
    named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-]*\w)", reason) is not None
    return KafkaError(code, reason if named else f"{subject}: {reason}")
