"""The transactional ids of one partition of `__transaction_state`: an immutable value, changed by replay alone,
and its records with their sizes. PURE.
"""

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
"""The first version of the record's value that has the fields of transaction version 2."""
CLIENT_VERSION_MAX = (1 << 7) - 1
"""The largest transaction version that fits into a request to write markers. The request has one signed byte
for it; the transaction's record has two bytes.
"""
CHARACTERS_PER_WEIGHT = 256
PARTITIONS_PER_WEIGHT = 8
"""The number of partitions in a transaction that count as one unit of weight, about 1 KiB of memory.
`CHARACTERS_PER_WEIGHT` characters of a transactional id count as one unit, too.
"""
SHOWN_BYTES = 64
"""The most bytes of an unreadable key that are shown in a log line."""

_FIXED_BYTES_MAX = 61 + 36 + 4 + 70
"""The bytes of a batch's header, a record's frame, its key without the id, and its value without partitions.
"""
_TOPIC_BYTES_MAX = 2 + 5 + 1
"""The bytes that one topic takes besides its name: lengths and tagged fields, in either version of records.
"""
_PARTITION_BYTES = 4

TopicPartitionPair: TypeAlias = tuple[str, int]
"""Topic and partition, as a plain tuple, since one transaction may have many thousands."""


class TransactionStatus(IntEnum):
    """Kafka's states of a transaction, with the numbers that records contain."""

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
        """The name of the state as clients see it, e.g. `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_ending(self) -> bool:
        """True while markers are being written."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


@attrs.frozen(slots=True)
class Transaction:
    """A transactional id, and its present or last transaction. All times are in milliseconds since 1970."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartitionPair] = frozenset()
    start_ms: int = NO_TIME
    last_update_ms: int = NO_TIME
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the present one, as long as a producer may still send it. As in Kafka, this field is
    not written to the log.
    """
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to use after this transaction, because the epochs of the present id are used up; -1 if
    there is none.
    """
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0
    """The transaction version that the client used to begin the transaction."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the next epoch would be the last one, which is reserved for fencing."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def is_timeless(self) -> bool:
        """True for transactions without a timeout (KIP-939)."""
        return self.timeout_ms == TIMELESS


TIMELESS = (1 << 31) - 1


@attrs.frozen
class TransactionsState:
    """The transactional ids of one partition of `__transaction_state`, and their transactions."""

    transactions: LayeredMap[str, Transaction] = attrs.field(factory=LayeredMap)
    open: LayeredMap[str, int] = attrs.field(factory=LayeredMap)
    """The start time of each ongoing transaction, in milliseconds since 1970, by transactional id."""
    weight: int = 0
    """The sum of `weight_of` over all transactional ids, as a measure of memory."""

    def replay(self, records: Sequence[CoordinatorRecord | TransactionEnd]) -> TransactionsState:
        """Apply the records of one decision. Returns the new state."""
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
    """Estimate the memory of a transactional id, in units of about 1 KiB.

    An id of ordinary size has weight 1.
    """
    if transaction is None:
        return 0
    names = len(transaction.transactional_id) // CHARACTERS_PER_WEIGHT
    return 1 + names + len(transaction.partitions) // PARTITIONS_PER_WEIGHT


@attrs.frozen
class TransactionRecord(CoordinatorRecord):
    """The record of a transactional id's newest state; a tombstone if `transaction` is None.

    The replay uses `transaction` itself rather than the encoded value, which lacks one of its fields.
    """

    transactional_id: str = ""
    transaction: Transaction | None = None


def record_of(transaction: Transaction, value_version: int) -> TransactionRecord:
    """Make the record of a transaction's state.

    Only value version 1 has the fields of transaction version 2.
    """
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
    """Compute the largest size, in bytes, of a batch with any later record of this transaction, until its
    markers are written.

    Later records have the same partitions, and may have all tagged fields. The version of later records may
    differ, too.
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
    """Decode a transaction from its record.

    Raises `MalformedMessage` for an unknown state, or a transaction version that does not fit into a marker.
    """
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
    """Build the state from the latest value of every key in the log.

    A malformed record cannot come from a coordinator. Such a record is left out, and a text about it is
    appended to `skipped`.
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
            # A newer version wrote a key of this type. Kafka skips it, too.
            continue
        except MalformedMessage as error:
            skipped.append(f"{error}, key {raw_key[:SHOWN_BYTES].hex()}")
            continue
        transactions[key.transactional_id] = transaction
        weight += weight_of(transaction)
        if transaction.status is TransactionStatus.ONGOING:
            is_open[key.transactional_id] = transaction.start_ms
    return TransactionsState(LayeredMap(transactions), LayeredMap(is_open), weight)
