"""Laws that each record of `__transaction_state` must obey, whatever has led to it. PURE.

`judge_transaction` compares a record with the former record of its transactional id. It shares no rules with the product's
code.

* **States** follow Kafka's state machine. A prepared transaction completes with its own outcome. A transactional id is
  removed only between transactions.
* **Time.** A transaction begins at the time of its first record. This time and the timeout stay until the next
  InitProducerId, so a producer that hangs is aborted in time.
* **Partitions** are only added, and only while the transaction is ongoing. An outcome is decided for all of them.
* **Producers.** An ongoing transaction keeps its producer id and epoch. The epoch never falls, and grows by one at most.
  The producer id changes only if its epochs are used up, or if a resumed transaction has named the next id (KIP-939).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from odradek.wire.messages.coordinator_records import TransactionLogValue
from sim.history import SafetyViolation

__all__ = ["TransactionJudge", "judge_transaction"]

TransactionJudge: TypeAlias = Callable[[str, TransactionLogValue | None, TransactionLogValue | None], None]
"""A function that is called with a transactional id, its value before a record, and the record's value. It raises
`SafetyViolation`.
"""
EPOCH_MAX = (1 << 15) - 1
NO_TIME = -1


class _State(IntEnum):
    """Kafka's states of a transaction, with the numbers that records contain."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


_BETWEEN = (_State.EMPTY, _State.COMPLETE_COMMIT, _State.COMPLETE_ABORT)
"""The states in which no transaction is open."""
_PREPARED = (_State.PREPARE_COMMIT, _State.PREPARE_ABORT)
_FROM_BETWEEN = (_State.EMPTY, _State.ONGOING, _State.PREPARE_ABORT)
_NEXT: dict[int | None, tuple[_State, ...]] = {
    None: (_State.EMPTY,),
    _State.EMPTY: _FROM_BETWEEN,
    _State.ONGOING: (_State.ONGOING, *_PREPARED),
    _State.PREPARE_COMMIT: (_State.COMPLETE_COMMIT,),
    _State.PREPARE_ABORT: (_State.COMPLETE_ABORT,),
    _State.COMPLETE_COMMIT: _FROM_BETWEEN,
    _State.COMPLETE_ABORT: _FROM_BETWEEN,
}
"""The states that may follow each state. None stands for a transactional id without a record."""


def judge_transaction(
    transactional_id: str, before: TransactionLogValue | None, after: TransactionLogValue | None
) -> None:
    """Raise `SafetyViolation` if a record breaks a law. `before` is the value of the former record, `after` that of this
    record; None stands for no record, or for a tombstone.
    """
    complaint = _complaint(before, after)
    if complaint is not None:
        raise SafetyViolation(
            f"transaction record of {transactional_id}: {complaint}: {after} follows {before}"
        )


def _complaint(before: TransactionLogValue | None, after: TransactionLogValue | None) -> str | None:
    """Describe the first law that a record breaks; None if it obeys all."""
    if after is None:
        is_open = before is not None and before.transaction_status not in _BETWEEN
        return "the id is removed while its transaction is open" if is_open else None
    state = None if before is None else before.transaction_status
    if after.transaction_status not in _NEXT.get(state, ()):
        return f"the state {after.transaction_status} never follows {state}"
    there = _partitions(after)
    if after.transaction_status in (*_BETWEEN,) and there:
        return "partitions are in no transaction"
    if after.transaction_status == _State.EMPTY and after.transaction_start_timestamp_ms != NO_TIME:
        return "no transaction has begun, and it has a start time"
    if before is None:
        return None
    if after.transaction_status != _State.EMPTY and (
        after.transaction_timeout_ms != before.transaction_timeout_ms
    ):
        return "the timeout changes without an InitProducerId"
    return _of_time(before, after) or _of_partitions(before, after) or _of_producer(before, after)


def _of_time(before: TransactionLogValue, after: TransactionLogValue) -> str | None:
    begun, now = before.transaction_start_timestamp_ms, after.transaction_start_timestamp_ms
    if before.transaction_status in (_State.ONGOING, *_PREPARED):
        return None if begun == now else f"the transaction began at {begun}, and now at {now}"
    if after.transaction_status == _State.ONGOING and now != after.transaction_last_update_timestamp_ms:
        return "the transaction has not begun with its first record"
    return None


def _of_partitions(before: TransactionLogValue, after: TransactionLogValue) -> str | None:
    known, there = _partitions(before), _partitions(after)
    if after.transaction_status == _State.ONGOING:
        is_lost = before.transaction_status == _State.ONGOING and not known <= there
        return f"the transaction loses {sorted(known - there)}" if is_lost else None
    if after.transaction_status in _PREPARED and known != there:
        return f"an outcome is decided for {sorted(there)}, and the transaction has {sorted(known)}"
    return None


def _of_producer(before: TransactionLogValue, after: TransactionLogValue) -> str | None:
    epoch, now = before.producer_epoch, after.producer_epoch
    if after.producer_id != before.producer_id:
        is_used_up = epoch >= EPOCH_MAX - 1 and now == 0
        is_named = (after.producer_id, now) == (before.next_producer_id, before.next_producer_epoch)
        is_free = after.transaction_status in _BETWEEN
        return None if is_free and (is_used_up or is_named) else "the producer id changes too early"
    if now < min(epoch, EPOCH_MAX - 1):
        return "the producer epoch falls"
    if after.transaction_status == _State.ONGOING and now != epoch:
        return "the producer epoch changes within a transaction"
    # A marker that an administrator has written uses the producer id up.
    is_spent = before.transaction_status in _PREPARED and now == EPOCH_MAX - 1
    if now > epoch + 1 and now != before.next_producer_epoch and not is_spent:
        return "the producer epoch skips others"
    return None


def _partitions(value: TransactionLogValue) -> frozenset[tuple[str, int]]:
    return frozenset(
        (topic.topic, index) for topic in value.transaction_partitions or () for index in topic.partition_ids
    )
