"""The end of a transaction: the check of the producer, the outcome, and the state afterwards. PURE."""

from __future__ import annotations

import attrs

from odradek.data_plane.transactions.requests import EndTransaction
from odradek.data_plane.transactions.state import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionStatus,
)
from odradek.metadata_quorum.features import EPOCHS_GROW_LEVEL
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode

__all__ = [
    "after_end",
    "completed",
    "decided",
    "expected_producer",
    "fenced",
    "may_end",
    "needs_next_id",
    "outcome_of",
]


def expected_producer(transaction: Transaction) -> tuple[int, int]:
    """Return the producer id and epoch that requests must have.

    For a resumed transaction, they are the id and epoch of the resuming producer.
    """
    if transaction.next_producer_epoch >= 0 and not transaction.status.is_ending:
        return transaction.next_producer_id, transaction.next_producer_epoch
    return transaction.producer_id, transaction.producer_epoch


def may_end(transaction: Transaction, request: EndTransaction) -> ErrorCode:
    """Check a request to end a transaction.

    Returns NONE if the transaction may end. Otherwise returns the error: another producer sent the request,
    or markers are being written.
    """
    if transaction.status.is_ending and request.client_version >= EPOCHS_GROW_LEVEL:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    producer_id, epoch = expected_producer(transaction)
    if request.producer_epoch == EPOCH_MAX:
        reached("transactions.reserved_epoch_refused")
        # Only the coordinator uses this epoch, for fencing. A client that sends it must have guessed it.
        return (
            ErrorCode.PRODUCER_FENCED
            if request.producer_id == producer_id
            else ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
    if request.producer_id != producer_id and not _repeats_overflow(transaction, request):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.client_version < EPOCHS_GROW_LEVEL:
        is_valid = request.producer_epoch == epoch
    elif transaction.status.is_complete:
        is_valid = request.producer_epoch == epoch or _is_retry(transaction, request)
    else:
        is_valid = request.producer_epoch == epoch
    return ErrorCode.NONE if is_valid else ErrorCode.PRODUCER_FENCED


def _repeats_overflow(transaction: Transaction, request: EndTransaction) -> bool:
    """True if the request is a retry of an EndTxn that was sent before the producer id was replaced. (An id
    is replaced when its epochs are used up.)
    """
    return (
        request.producer_id == transaction.previous_producer_id
        and request.producer_epoch == EPOCH_MAX - 1
        and transaction.producer_epoch == 0
    )


def _is_retry(transaction: Transaction, request: EndTransaction) -> bool:
    return transaction.producer_epoch == request.producer_epoch + 1 or _repeats_overflow(transaction, request)


def outcome_of(transaction: Transaction, request: EndTransaction) -> TransactionStatus | ErrorCode:
    """Return the next state of the transaction. If its state stays the same, return the error code of the
    answer instead; for a retry this is NONE.
    """
    status, is_commit = transaction.status, request.is_commit
    grows = request.client_version >= EPOCHS_GROW_LEVEL
    if status is TransactionStatus.ONGOING:
        return TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT
    if status.is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if status.is_complete:
        is_same = is_commit == (status is TransactionStatus.COMPLETE_COMMIT)
        if is_same and (not grows or _is_retry(transaction, request)):
            return ErrorCode.NONE
        if is_commit or not grows or _is_retry(transaction, request):
            reached("transactions.other_end_refused")
            return ErrorCode.INVALID_TXN_STATE
        return TransactionStatus.PREPARE_ABORT
    return ErrorCode.INVALID_TXN_STATE if is_commit or not grows else TransactionStatus.PREPARE_ABORT


def needs_next_id(transaction: Transaction) -> bool:
    """True if the producer needs a new id after this transaction, because its next epoch would be the last
    one.
    """
    return expected_producer(transaction)[1] >= EPOCH_MAX - 1


def decided(
    transaction: Transaction, status: TransactionStatus, client_version: int, next_id: int, wall_ms: int
) -> Transaction:
    """Return the transaction with its decided outcome. Its markers will have the producer epoch of the
    returned state.

    `next_id` is the producer id after this transaction if `needs_next_id` is true, else -1.
    """
    epoch, last_epoch = transaction.producer_epoch, transaction.last_producer_epoch
    next_epoch = transaction.next_producer_epoch
    if client_version >= EPOCHS_GROW_LEVEL:
        last_epoch = expected_producer(transaction)[1]
        epoch, next_epoch = _grown(epoch), _next_epoch(next_epoch, next_id)
    is_open = transaction.status is TransactionStatus.ONGOING
    return attrs.evolve(
        transaction,
        status=status,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=transaction.next_producer_id if next_id < 0 else next_id,
        next_producer_epoch=next_epoch,
        partitions=transaction.partitions if is_open else frozenset(),
        start_ms=transaction.start_ms if is_open else wall_ms,
        last_update_ms=wall_ms,
        client_version=client_version,
    )


def _grown(epoch: int) -> int:
    """Return the next epoch, but at most `EPOCH_MAX`, because the log of an earlier release may already have
    this epoch.
    """
    return min(epoch + 1, EPOCH_MAX)


def _next_epoch(next_epoch: int, next_id: int) -> int:
    """Return the epoch that the resuming producer has after the transaction ends; -1 if no producer has
    resumed the transaction.
    """
    if next_epoch < 0:
        return NO_PRODUCER_EPOCH
    return _grown(next_epoch) if next_id < 0 else 0


def fenced(transaction: Transaction, wall_ms: int, next_id: int = NO_PRODUCER_ID) -> Transaction:
    """Return the open transaction in the state after its abort by the coordinator. Its epoch grows, which
    fences its producer.

    If `needs_next_id` is true, the producer id has no epochs left, and `next_id` replaces it. If no new id is
    available, `next_id` is -1: the last epoch stays, and the next InitProducerId gets a new id.
    """
    return attrs.evolve(
        transaction,
        status=TransactionStatus.PREPARE_ABORT,
        producer_epoch=_grown(transaction.producer_epoch),
        last_producer_epoch=transaction.producer_epoch,
        next_producer_id=transaction.next_producer_id if next_id < 0 else next_id,
        next_producer_epoch=_next_epoch(transaction.next_producer_epoch, next_id),
        last_update_ms=wall_ms,
    )


def after_end(ending: Transaction) -> tuple[int, int]:
    """Return the producer id and epoch that are valid after the end of this transaction."""
    if ending.next_producer_epoch >= 0:
        return ending.next_producer_id, ending.next_producer_epoch
    if ending.next_producer_id >= 0:
        return ending.next_producer_id, 0
    return ending.producer_id, ending.producer_epoch


def completed(transaction: Transaction, wall_ms: int) -> Transaction:
    if transaction.next_producer_id >= 0:
        reached("transactions.completed_with_next_id")
    is_commit = transaction.status is TransactionStatus.PREPARE_COMMIT
    producer_id, epoch = after_end(transaction)
    is_new_id = producer_id != transaction.producer_id
    return attrs.evolve(
        transaction,
        status=TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=transaction.producer_id if is_new_id else transaction.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=frozenset(),
        last_update_ms=wall_ms,
    )
