"""The requests to a transaction coordinator, and their answers, as the state machine uses them. PURE."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.data_plane.coordination.asking import Asks
from odradek.data_plane.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartitionPair,
    Transaction,
    TransactionsState,
)
from odradek.wire.errors import ErrorCode


@attrs.frozen
class Producer:
    """The answer to `InitProducer` and `EndTransaction`: a producer id and epoch, or an error."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH
    """The producer epoch of the transaction that is still prepared; -1 if there is none (KIP-939).
    `ongoing_producer_id` is the producer id of this transaction.
    """


@attrs.frozen
class Verified:
    """The answer to `VerifyPartitions`: one error for all partitions, or NONE and a code for each partition."""

    code: ErrorCode
    codes: Mapping[TopicPartitionPair, ErrorCode] = attrs.field(factory=dict)


@attrs.frozen
class InitProducer(Asks[Producer]):
    """An InitProducerId request with a transactional id."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    """The producer's present epoch (KIP-360). Id and epoch are both -1 for a producer that has just started.
    """
    two_phase: bool = False
    keep_prepared: bool = False


@attrs.frozen
class AddPartitions(Asks[ErrorCode]):
    """A request to add partitions to the open transaction, or to begin a transaction with them.

    It is answered with an error code.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartitionPair]
    client_version: int
    """The transaction version that the client uses: 0 or 2."""


@attrs.frozen
class VerifyPartitions(Asks[Verified]):
    """A request to check that partitions belong to the open transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartitionPair]


@attrs.frozen
class EndTransaction(Asks[Producer]):
    """An EndTxn request to commit or abort a transaction. From client version 2 on, the answer has the
    producer epoch for the next transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int


@attrs.frozen
class MarkersWritten:
    """A request to complete a transaction, because all of its partitions have their markers. It has no
    answer.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_spent: bool = False
    """True if some partition has a higher epoch of the producer id, so that this id can no longer be used."""


@attrs.frozen
class AbortTimedOut(Asks[bool | ErrorCode]):
    """A request to abort transactions that exceed their timeouts.

    It is answered with True if more of them are left.
    """

    earliest_ms: int
    """The present wall-clock time, in milliseconds since 1970, for the ages of transactions."""


@attrs.frozen
class ExpireIds(Asks[bool | ErrorCode]):
    """A request to forget transactional ids that have been idle for long.

    It is answered with True if more of them are left.
    """

    earliest_ms: int
    """The present wall-clock time, in milliseconds since 1970, for the time since the last use of ids."""


@attrs.frozen
class DescribeTransaction(Asks[Transaction | ErrorCode]):
    """A request to describe the transaction of one transactional id."""

    transactional_id: str


@attrs.frozen
class ListTransactions(Asks[TransactionsState | ErrorCode]):
    """A request for all transactions of the shard. It is answered with the shard's whole state."""
