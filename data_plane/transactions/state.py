"""The transactional ids of one partition of `__transaction_state`: an immutable value, changed by replay alone. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import attrs

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.serving.layered_map import LayeredMap
from odradek.wire.errors import MalformedMessage
from odradek.wire.messages.coordinator_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from odradek.wire.metadata_frames import UnknownRecord, decode_coordinator_key, decode_coordinator_value

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = (1 << 15) - 1
NO_TIME = -1
RECORD_VERSION_FLEXIBLE = 1
"""The first version of records with the fields of transaction version 2."""
CLIENT_VERSION_MAX = (1 << 7) - 1
"""A marker's request has one byte for the transaction version; the record has two."""
CHARACTERS_PER_WEIGHT = 256
PARTITIONS_PER_WEIGHT = 8
"""The characters of a transactional id, and the partitions of its transaction, that take about 1 KiB of memory."""
SHOWN_BYTES = 64
"""The number of bytes of an unreadable key that a log line shows."""

_FIXED_BYTES_MAX = 61 + 36 + 4 + 70
"""The header of a batch, the frame of a record, its key without the id, its value without partitions."""
_TOPIC_BYTES_MAX = 2 + 5 + 1
"""Lengths and tagged fields of a topic in either version of records."""
_PARTITION_BYTES = 4

TopicPartitionPair: TypeAlias = tuple[str, int]
"""Topic and partition: plain tuples, since one transaction may have many thousands."""


class TransactionStatus(IntEnum):
    """Kafka's states, by the numbers that records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """The name that clients get."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_ending(self) -> bool:
        """True while markers are written."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


@attrs.frozen(slots=True)
class Transaction:
    """A transactional id and its newest transaction. Times in milliseconds since 1970."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartitionPair] = frozenset()
    start_ms: int = NO_TIME
    last_update_ms: int = NO_TIME
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the newest, while its producer may still use it. As in Kafka, it is not in the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, whose epochs are used up."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0
    """The transaction version by which the client has begun the transaction."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the next epoch would be the last one, which is kept for fencing."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def is_timeless(self) -> bool:
        """True for transactions without a timeout (KIP-939)."""
        return self.timeout_ms == TIMELESS


TIMELESS = (1 << 31) - 1


@attrs.frozen
class TransactionsState:
    """All transactional ids of one partition."""

    transactions: LayeredMap[str, Transaction] = attrs.field(factory=LayeredMap)
    open: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    """The begin of each ongoing transaction, by transactional id."""
    weight: int = 0
    """The weight of all partitions together, in ids of ordinary size (`weight_of`)."""

    def replay(self, records: Sequence[CoordinatorRecord | TransactionEnd]) -> TransactionsState:
        """Replay `records`, which are one decision; returns the new state."""
        changes: dict[str, Transaction | None] = {}
        for record in records:
            assert isinstance(record, TransactionRecord), (
                "the coordinator's log holds a record of another kind than TransactionRecord"
            )
            changes[record.transactional_id] = record.transaction
        is_open: dict[str, int | None] = {}
        weight = self.weight
        for transactional_id, transaction in changes.items():
            before = self.transactions.get(transactional_id)
            weight += weight_of(transaction) - weight_of(before)
            if transaction is not None and transaction.status is TransactionStatus.ONGOING:
                is_open[transactional_id] = transaction.start_ms
            elif transactional_id in self.open:
                is_open[transactional_id] = None
        return TransactionsState(
            self.transactions.changed(changes), self.open.changed(is_open) if is_open else self.open, weight
        )


def weight_of(transaction: Transaction | None) -> int:
    """Estimate the memory of a transactional id, in ids of ordinary size: each of them has about 1 KiB."""
    if transaction is None:
        return 0
    names = len(transaction.transactional_id) // CHARACTERS_PER_WEIGHT
    return 1 + names + len(transaction.partitions) // PARTITIONS_PER_WEIGHT


@attrs.frozen
class TransactionRecord(CoordinatorRecord):
    """A transactional id's newest state, or its tombstone.

    The transaction itself is replayed rather than its encoded form, which lacks one of its fields.
    """

    transactional_id: str = ""
    transaction: Transaction | None = None


def record_of(transaction: Transaction, value_version: int) -> TransactionRecord:
    """Make the record that keeps a transaction's state. Only version 1 has the fields of transaction version 2."""
    key = TransactionLogKey(transaction.transactional_id)
    return TransactionRecord(
        key,
        _value(transaction, value_version),
        value_version,
        transactional_id=transaction.transactional_id,
        transaction=transaction,
    )


def tombstone_of(transactional_id: str) -> TransactionRecord:
    return TransactionRecord(TransactionLogKey(transactional_id), None, transactional_id=transactional_id)


def record_bytes_max(transaction: Transaction) -> int:
    """Compute the most bytes that any record of this transaction takes as a batch, until the partitions have their
    markers.

    Later states have the same partitions, and may have all tagged fields. The version of records may change, too.
    """
    topics = {topic for topic, _ in transaction.partitions}
    return (
        _FIXED_BYTES_MAX
        + len(transaction.transactional_id.encode())
        + sum(len(topic.encode()) + _TOPIC_BYTES_MAX for topic in topics)
        + _PARTITION_BYTES * len(transaction.partitions)
    )


def _value(transaction: Transaction, version: int) -> TransactionLogValue:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    is_flexible = version >= RECORD_VERSION_FLEXIBLE
    return TransactionLogValue(
        transaction.producer_id,
        transaction.previous_producer_id if is_flexible else NO_PRODUCER_ID,
        transaction.next_producer_id if is_flexible else NO_PRODUCER_ID,
        transaction.producer_epoch,
        transaction.next_producer_epoch if is_flexible else NO_PRODUCER_EPOCH,
        transaction.timeout_ms,
        transaction.status,
        None
        if transaction.status is TransactionStatus.EMPTY
        else [PartitionsSchema(topic, partitions) for topic, partitions in topics.items()],
        transaction.last_update_ms,
        transaction.start_ms,
        transaction.client_version if is_flexible else 0,
    )


def _transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """Decode a transaction. Raises `MalformedMessage` for an unknown state, or a version that no marker can have."""
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise MalformedMessage(
            f"the transaction record has the unknown state {value.transaction_status}"
        ) from None
    if not 0 <= value.client_transaction_version <= CLIENT_VERSION_MAX:
        raise MalformedMessage(
            f"the transaction record has the unknown transaction version {value.client_transaction_version}"
        )
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        status,
        frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_version=value.client_transaction_version,
    )


def state_of(latest: Latest, skipped: list[str]) -> TransactionsState:
    """Make the state from the latest value of every key.

    A malformed record was not written by a coordinator. It is left out, and `skipped` gets a text about it.
    """
    transactions: dict[str, Transaction] = {}
    is_open: dict[str, int] = {}
    weight = 0
    for raw_key, raw_value in latest.values.items():
        if raw_value is None:
            continue
        try:
            key = decode_coordinator_key(raw_key, "transaction")
            value = decode_coordinator_value(key, raw_value)
            assert isinstance(key, TransactionLogKey)
            assert isinstance(value, TransactionLogValue)
            transaction = _transaction(key.transactional_id, value)
        except UnknownRecord:
            # The key has the type of a newer version, which Kafka skips, too.
            continue
        except MalformedMessage as error:
            skipped.append(f"{error}, key {raw_key[:SHOWN_BYTES].hex()}")
            continue
        transactions[key.transactional_id] = transaction
        weight += weight_of(transaction)
        if transaction.status is TransactionStatus.ONGOING:
            is_open[key.transactional_id] = transaction.start_ms
    return TransactionsState(LayeredMap(transactions), LayeredMap(is_open), weight)
