"""Lists, describes and aborts transactions, and fences their producers (KIP-664). The functions are
operations. PURE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.admin.about_partitions import results_in
from odradek.client.admin.admin_logs import ActiveProducer, describe_producers
from odradek.client.core.operation import Operation
from odradek.client.core.scatter import (
    deadline_of,
    item_error,
    reachable,
    scatter,
    this_broker,
    to_leaders,
    to_transaction_coordinators,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import LIST_TRANSACTIONS_PATTERN
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "TIMELESS_MS",
    "FencedProducer",
    "TransactionDescription",
    "TransactionListing",
    "abort_transaction",
    "describe_transactions",
    "fence_producer",
    "list_transactions",
]

TIMELESS_MS = (1 << 31) - 1
"""The value that stands for "no timeout". A transaction has no timeout if another system decides how it ends
(KIP-939).
"""
_FENCING_TIMEOUT_MS = 60_000
"""The transaction timeout that the fencing request sets for the transactional id. It is valid until the next
producer with this id sets another timeout. Brokers may limit this value.
"""
_IGNORES_EPOCHS_GROWING = 0
"""The transaction version in a marker that an operator writes. With this version, the marker may have the same producer
epoch as the transaction's records. Version 2 requires a higher epoch (KIP-890).
"""


@attrs.frozen
class TransactionListing:
    """A transactional id in a coordinator's list. `state` is Kafka's name of the state: Ongoing,
    PrepareCommit, ...
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@attrs.frozen
class TransactionDescription:
    """A transactional id and its newest transaction. If `error` is set, only the id is known."""

    transactional_id: str
    coordinator: int = -1
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    """Milliseconds; `TIMELESS_MS` if the transaction has no timeout."""
    start_ms: int | None = None
    """The start of the transaction, in milliseconds since 1970; None if no transaction is open."""
    partitions: tuple[TopicPartition, ...] = ()
    error: CallError | None = None

    @property
    def is_timeless(self) -> bool:
        """True if the transaction has no timeout, so that only its producer or an operator ends it."""
        return self.timeout_ms == TIMELESS_MS


@attrs.frozen
class FencedProducer:
    """The result of `fence_producer`: the state before the fencing, and the producer id and epoch that are
    valid now.
    """

    before: TransactionDescription
    producer_id: int
    producer_epoch: int


def list_transactions(
    core: ClientCore,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    running_longer_than_ms: int | None = None,
    transactional_id_pattern: str | None = None,
    timeout: float | None = None,
) -> Operation[list[TransactionListing]]:
    """List the transactional ids that match all given filters, sorted by id. All coordinators are queried.

    The pattern has RE2's syntax and matches whole ids (KIP-1152). Raises the `KafkaError` or `ClientError` of
    the first broker that failed, because the list would be incomplete.
    """
    from odradek.wire.messages.list_transactions import ListTransactionsRequest

    deadline = deadline_of(core, timeout)
    yield from reachable(core, deadline)

    def message(_: list[int], __: int) -> ListTransactionsRequest:
        return ListTransactionsRequest(
            list(states),
            list(producer_ids),
            -1 if running_longer_than_ms is None else running_longer_than_ms,
            transactional_id_pattern,
        )

    def take(response: Any, nodes: list[int]) -> Iterable[tuple[int, Any]]:
        (node,) = nodes
        error = item_error(response.error_code, None, f"transactions of broker {node}")
        if error is not None and error.code is ErrorCode.INVALID_REGULAR_EXPRESSION:
            text = f"{transactional_id_pattern!r} is not a regular expression that brokers can read (RE2)"
            error = KafkaError(error.code, text)
        if error is None and response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            error = KafkaError(
                ErrorCode.INVALID_REQUEST, f"broker {node} does not know the transaction state {unknown}"
            )
        yield node, error or response.transaction_states

    outcomes = yield from scatter(
        core,
        sorted(core.cluster.brokers),
        this_broker(lambda node: int(node)),
        message,
        take,
        deadline=deadline,
        versions=(LIST_TRANSACTIONS_PATTERN if transactional_id_pattern is not None else 0, None),
    )
    found = []
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise outcome
        found += [
            TransactionListing(each.transactional_id, node, each.producer_id, each.transaction_state)
            for each in outcome
        ]
    return sorted(found, key=lambda each: (each.transactional_id, each.coordinator))


def describe_transactions(
    core: ClientCore, transactional_ids: Sequence[str], *, timeout: float | None = None
) -> Operation[list[TransactionDescription]]:
    """Describe the newest transaction of each transactional id, in the order of the ids. Each id's
    coordinator gives the description.

    Raises `ClientError`.
    """
    from odradek.wire.messages.describe_transactions import DescribeTransactionsRequest

    deadline = deadline_of(core, timeout)

    def message(wanted: list[str], _: int) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(wanted)

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, TransactionDescription | CallError]]:
        for each in response.transaction_states:
            error = item_error(each.error_code, None, f"transactional id {each.transactional_id}")
            if error is not None and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                error = KafkaError(error.code, f"transactional id {each.transactional_id} does not exist")
            yield each.transactional_id, error or _description(each)

    outcomes = yield from scatter(
        core, transactional_ids, to_transaction_coordinators, message, take, deadline=deadline
    )
    routed = yield from to_transaction_coordinators(core, list(outcomes), deadline)
    coordinators = {key: node for node, keys in routed.by_node.items() if node is not None for key in keys}
    return [
        attrs.evolve(found, coordinator=coordinators.get(key, -1))
        if isinstance(found, TransactionDescription)
        else TransactionDescription(key, error=found)
        for key, found in outcomes.items()
    ]


def fence_producer(
    core: ClientCore, transactional_id: str, *, timeout: float | None = None
) -> Operation[FencedProducer]:
    """Fence the producer of a transactional id. If the producer has an open transaction, the transaction is aborted,
    even if it is prepared.

    A transaction whose commit is decided already is committed instead. The call returns when the transaction
    has ended in all its partitions.

    Raises:
        KafkaError: TRANSACTIONAL_ID_NOT_FOUND for an unknown id, since the request would create it.
            CONCURRENT_TRANSACTIONS while some partitions have no marker yet.
        ClientError: no answer.
    """
    from odradek.wire.messages.init_producer_id import InitProducerIdRequest

    deadline = deadline_of(core, timeout)
    (before,) = yield from describe_transactions(core, [transactional_id], timeout=deadline - core.now)
    if before.error is not None:
        raise before.error
    kept_ms = min(before.timeout_ms, _FENCING_TIMEOUT_MS)

    def message(wanted: list[str], _: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(wanted[0], kept_ms)

    def take(response: Any, wanted: list[str]) -> Iterable[tuple[str, FencedProducer | CallError]]:
        error = item_error(response.error_code, None, f"transactional id {transactional_id}")
        yield wanted[0], error or FencedProducer(before, response.producer_id, response.producer_epoch)

    outcomes = yield from scatter(
        core, [transactional_id], to_transaction_coordinators, message, take, deadline=deadline
    )
    found = outcomes[transactional_id]
    if isinstance(found, FencedProducer):
        return found
    raise found


def abort_transaction(
    core: ClientCore, topic: str, partition: int, start_offset: int, *, timeout: float | None = None
) -> Operation[ActiveProducer]:
    """Abort the open transaction that begins at `start_offset`, on this partition only. Return the
    transaction's producer.

    Use this only for transactions that no coordinator knows any more: only this partition's leader learns of the abort.
    The marker has the producer's own epoch, and the epoch of the coordinator that wrote the partition's last marker.

    Raises:
        KafkaError: for instance INVALID_TXN_STATE: no transaction is open there.
        ClientError: no answer.
    """
    from odradek.wire.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    deadline = deadline_of(core, timeout)
    key = TopicPartition(topic, partition)
    producers = yield from describe_producers(core, [key], timeout=deadline - core.now)
    failure = producers[key].error
    if failure is not None:
        raise failure
    by_start = {each.current_transaction_start_offset: each for each in producers[key].producers}
    producer = by_start.get(start_offset) if start_offset >= 0 else None
    if producer is None:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{topic}-{partition} has no open transaction that begins at {start_offset}",
        )
    marker = WritableTxnMarker(
        producer.producer_id,
        producer.producer_epoch,
        False,
        [WritableTxnMarkerTopic(topic, [partition])],
        # The epoch is -1 if no coordinator has written to the partition yet.
        max(0, producer.coordinator_epoch),
        _IGNORES_EPOCHS_GROWING,
    )

    def message(_: list[TopicPartition], __: int) -> WriteTxnMarkersRequest:
        return WriteTxnMarkersRequest([marker])

    def take(response: Any, _: list[TopicPartition]) -> Iterable[tuple[TopicPartition, CallError | None]]:
        return [(named, error) for named, error, _ in results_in(response)]

    outcomes = yield from scatter(core, [key], to_leaders, message, take, deadline=deadline)
    refusal = outcomes[key]
    if refusal is not None:
        raise refusal
    return producer


def _description(answer: Any) -> TransactionDescription:
    return TransactionDescription(
        answer.transactional_id,
        state=answer.transaction_state,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        timeout_ms=answer.transaction_timeout_ms,
        start_ms=None if answer.transaction_start_time_ms < 0 else answer.transaction_start_time_ms,
        partitions=tuple(
            sorted(
                TopicPartition(topic.topic, index) for topic in answer.topics for index in topic.partitions
            )
        ),
    )
