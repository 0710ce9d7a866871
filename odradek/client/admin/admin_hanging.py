"""Finds open transactions that block `read_committed` readers, with their producers and the states that coordinators
report. The functions are operations. PURE.

A partition's leader knows which transactions are open; the coordinator of a transaction knows how it will end. A
transaction hangs on a partition if no coordinator knows it as open there. It then stays open until an operator ends it
(KIP-664).

A transaction whose outcome is decided cannot complete while a partition refuses its marker. A partition refuses a
marker whose producer epoch, or coordinator epoch, is lower than the epoch that the partition has stored. Coordinators
do not repeat a refused marker, because a newer producer or coordinator may have written to the partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from odradek.client.admin.admin_logs import ActiveProducer, PartitionProducers, describe_producers
from odradek.client.admin.admin_offsets import offset_spans
from odradek.client.admin.admin_topics import describe_topics
from odradek.client.admin.admin_transactions import (
    TransactionDescription,
    describe_transactions,
    list_transactions,
)
from odradek.client.core.operation import Operation
from odradek.client.core.scatter import deadline_of
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.admin.admin_offsets import OffsetSpan
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = ["HangingSearch", "OldTransaction", "Prospect", "RefusedMarker", "find_hanging_transactions"]

_DECIDED_STATES = ("PrepareCommit", "PrepareAbort")
_LIVE_STATES = ("Ongoing", *_DECIDED_STATES)
_STATE_TOPIC = "__transaction_state"
_UNKNOWN = -1


class Prospect(Enum):
    """The way in which an open transaction will end."""

    NEVER = "hanging"
    """No coordinator has the transaction open on this partition."""
    TIMES_OUT = "open"
    """The producer ends the transaction, or the coordinator aborts it after the transaction's timeout."""
    PREPARED = "prepared"
    """The prepared transaction has no timeout: only its producer, or an operator, ends it (KIP-939)."""
    ENDS = "ending"
    """The outcome of the transaction is decided, and its markers are under way."""


@attrs.frozen
class OldTransaction:
    """An open transaction on one partition. It has written nothing there for longer than the given limit."""

    topic: str
    partition: int
    producer: ActiveProducer
    holds: bool
    """True if this is the first open transaction in the partition. Then the last stable offset equals its
    first offset.
    """
    held_back: int | None
    """The number of offsets from the transaction's first offset to the high watermark; None if unknown."""
    prospect: Prospect
    transaction: TransactionDescription | None
    """The coordinator's description of the transaction; None if no transactional id has this producer id."""


@attrs.frozen
class RefusedMarker:
    """A transaction marker that a partition refuses. Until it is accepted, the transaction stays in
    PrepareCommit or PrepareAbort.
    """

    topic: str
    partition: int
    transaction: TransactionDescription
    producer: ActiveProducer
    """The partition's state for the producer that the marker belongs to."""
    coordinator_epoch: int
    """The coordinator epoch in the marker, which is the leader epoch of the coordinator's partition of
    `__transaction_state`; -1 if unknown.
    """

    @property
    def is_newer_producer(self) -> bool:
        """True if the partition refuses the marker because of the producer epoch. False means that the reason is the
        coordinator epoch.
        """
        return self.producer.producer_epoch > self.transaction.producer_epoch


@attrs.frozen
class HangingSearch:
    """The result of a search. It has the transactions that were found, sorted by partition and offset, and
    the refused markers. It also has an error for each partition whose leader gave no answer.
    """

    found: tuple[OldTransaction, ...]
    refused: tuple[RefusedMarker, ...]
    partition_count: int
    errors: dict[TopicPartition, CallError]


def find_hanging_transactions(
    core: ClientCore,
    *,
    now_ms: int,
    older_than_ms: int,
    topic: str | None = None,
    partition: int | None = None,
    broker: int | None = None,
    timeout: float | None = None,
) -> Operation[HangingSearch]:
    """Find the open transactions whose last write is more than `older_than_ms` ago. Also ask the coordinators
    for the states of these transactions.

    The search covers the partitions of `topic` (or one `partition`), the partitions that `broker` leads, or
    all partitions. Refused markers are found at any age. `now_ms` is the present in milliseconds since 1970.
    Raises `KafkaError` (also for a coordinator that does not answer) and `ClientError`.
    """
    deadline = deadline_of(core, timeout)
    topics = yield from describe_topics(core, None if topic is None else [topic], timeout=deadline - core.now)
    keys = [
        TopicPartition(each.name, index)
        for each in topics
        for index, known in sorted(each.partitions.items())
        if partition in (None, index) and broker in (None, known.leader)
    ]
    if topic is not None and partition is not None and not keys:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
    by_partition = yield from describe_producers(core, keys, timeout=deadline - core.now)
    old = {
        key: [each for each in _open(by_partition[key]) if now_ms - each.last_timestamp > older_than_ms]
        for key in keys
    }
    old = {key: producers for key, producers in old.items() if producers}
    spans = yield from offset_spans(core, old, timeout=deadline - core.now)
    producer_ids = sorted({each.producer_id for producers in old.values() for each in producers})
    transactions = yield from _transactions_of(core, producer_ids, deadline)
    found = [
        _judged(key, producer, by_partition[key], spans[key], transactions.get(producer.producer_id))
        for key, producers in old.items()
        for producer in producers
    ]
    errors = {key: each.error for key, each in by_partition.items() if each.error is not None}
    refused = yield from _refused_markers(core, by_partition, deadline)
    return HangingSearch(tuple(found), refused, len(keys), errors)


def _refused_markers(
    core: ClientCore, by_partition: Mapping[TopicPartition, PartitionProducers], deadline: float
) -> Operation[tuple[RefusedMarker, ...]]:
    """List the markers that these partitions refuse, for all transactions whose outcome is decided.

    `by_partition` may be older than the coordinators' answers. A partition's epochs only grow, so a marker that did not
    fit the older epochs is still refused now.
    """
    listed = yield from list_transactions(core, states=_DECIDED_STATES, timeout=deadline - core.now)
    if not listed:
        return ()
    ids = [each.transactional_id for each in listed]
    described = yield from describe_transactions(core, ids, timeout=deadline - core.now)
    epochs = yield from _coordinator_epochs(core, deadline)
    found = []
    for transaction in described:
        if transaction.error is not None and not _is_gone(transaction.error):
            raise transaction.error
        if transaction.state not in _DECIDED_STATES:
            continue
        index = coordinator_partition(transaction.transactional_id, max(1, len(epochs)))
        for key in transaction.partitions:
            for producer in by_partition[key].producers if key in by_partition else ():
                marker = RefusedMarker(*key, transaction, producer, epochs.get(index, _UNKNOWN))
                if producer.producer_id == transaction.producer_id and _refuses(marker):
                    found.append(marker)
    return tuple(found)


def _refuses(marker: RefusedMarker) -> bool:
    known = marker.coordinator_epoch
    return marker.is_newer_producer or (known != _UNKNOWN and marker.producer.coordinator_epoch > known)


def _coordinator_epochs(core: ClientCore, deadline: float) -> Operation[dict[int, int]]:
    """Find the leader epoch of each partition of `__transaction_state`."""
    (topic,) = yield from describe_topics(core, [_STATE_TOPIC], timeout=deadline - core.now)
    return {index: each.leader_epoch for index, each in topic.partitions.items()}


def _open(by_partition: PartitionProducers) -> list[ActiveProducer]:
    """List a partition's producers with open transactions, the earliest transaction first."""
    found = [each for each in by_partition.producers if each.current_transaction_start_offset >= 0]
    return sorted(found, key=lambda each: each.current_transaction_start_offset)


def _transactions_of(
    core: ClientCore, producer_ids: Sequence[int], deadline: float
) -> Operation[dict[int, TransactionDescription]]:
    """Describe the transactions of those producers that have a transactional id, by producer id."""
    if not producer_ids:
        return {}
    listed = yield from list_transactions(core, producer_ids=producer_ids, timeout=deadline - core.now)
    if not listed:
        return {}
    ids = [each.transactional_id for each in listed]
    described = yield from describe_transactions(core, ids, timeout=deadline - core.now)
    transactions = {}
    for each in described:
        if each.error is None:
            transactions[each.producer_id] = each
        elif not _is_gone(each.error):
            raise each.error
    return transactions


def _is_gone(error: CallError) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _judged(
    key: TopicPartition,
    producer: ActiveProducer,
    by_partition: PartitionProducers,
    span: OffsetSpan | CallError,
    transaction: TransactionDescription | None,
) -> OldTransaction:
    start = producer.current_transaction_start_offset
    if transaction is None or key not in transaction.partitions or transaction.state not in _LIVE_STATES:
        prospect = Prospect.NEVER
    elif transaction.state != "Ongoing":
        prospect = Prospect.ENDS
    else:
        prospect = Prospect.PREPARED if transaction.is_timeless else Prospect.TIMES_OUT
    return OldTransaction(
        key.topic,
        key.partition,
        producer,
        holds=_open(by_partition)[0] is producer,
        held_back=None if isinstance(span, Exception) else max(0, span.end - start),
        prospect=prospect,
        transaction=transaction,
    )
