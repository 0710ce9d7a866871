"""Requests to transaction coordinators and their answers, as the machine receives and returns them. PURE."""

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
    """The answer with a producer id and epoch, or with an error."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH
    """The producer id and epoch of the transaction that was prepared before (KIP-939)."""


@attrs.frozen
class Verified:
    """The answer with one error for all partitions, or an error for each."""

    code: ErrorCode
    codes: Mapping[TopicPartitionPair, ErrorCode] = attrs.field(factory=dict)


@attrs.frozen
class InitProducer(Asks[Producer]):
    """An InitProducerId with a transactional id."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    """The producer's present epoch (KIP-360); both are -1 for a producer that begins."""
    two_phase: bool = False
    keep_prepared: bool = False


@attrs.frozen
class AddPartitions(Asks[ErrorCode]):
    """Partitions that the transaction is about to write to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartitionPair]
    client_version: int
    """The transaction version by which the client works: 0 or 2."""


@attrs.frozen
class VerifyPartitions(Asks[Verified]):
    """Partitions that should be in the open transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartitionPair]


@attrs.frozen
class EndTransaction(Asks[Producer]):
    """An EndTxn. Answered from client version 2 on with the epoch of the next transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int


@attrs.frozen
class MarkersWritten:
    """Report that all partitions have the markers of a transaction. Not answered."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_spent: bool = False
    """True if a partition has a higher epoch of the producer id, so that this id can no longer be used."""


@attrs.frozen
class AbortTimedOut(Asks[bool | ErrorCode]):
    """Abort transactions that have taken longer than their producers allow. Answered by True if some are left."""

    earliest_ms: int
    """Wall-clock milliseconds since 1970, by which the age of transactions is computed."""


@attrs.frozen
class ExpireIds(Asks[bool | ErrorCode]):
    """A request to forget transactional ids that have been idle for long. Answered as `AbortTimedOut`."""

    earliest_ms: int
    """Wall-clock milliseconds since 1970, by which the idle time is computed."""


@attrs.frozen
class DescribeTransaction(Asks[Transaction | ErrorCode]):
    """A request for the transaction of one id."""

    transactional_id: str


@attrs.frozen
class ListTransactions(Asks[TransactionsState | ErrorCode]):
    """All transactions of the shard."""
