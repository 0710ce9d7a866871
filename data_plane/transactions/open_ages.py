"""The ages of open transactions by their coordinator's monotonic clock, which never jumps. PURE.

A transaction's record has its begin by the wall clock. A coordinator that has checked its transactions before and
after the begin also has two bounds of the age, whatever the wall clock does. Between these bounds the record
decides. The record also decides about transactions from an earlier coordinator, until they have been here for their
whole timeout.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.transactions.state import Transaction, TransactionsState

__all__ = ["OpenAges"]


@attrs.frozen
class _Seen:
    """One open transaction. `start_ms` and the epoch identify it among those of its id; the other times are monotonic."""

    start_ms: int
    producer_epoch: int
    began_after_ms: float
    seen_at_ms: float


class OpenAges:
    """The open transactions of one coordinator, with the bounds of their ages. Times are milliseconds."""

    __slots__ = ("_looked_at_ms", "_seen")

    def __init__(self) -> None:
        self._looked_at_ms = float("-inf")
        self._seen: dict[str, _Seen] = {}

    def look(self, state: TransactionsState, now_ms: float) -> None:
        """Note the transactions that are open at this monotonic time, and forget all others."""
        known, found = self._seen, {}
        for transactional_id, start_ms in state.open.items():
            epoch = state.transactions[transactional_id].producer_epoch
            seen = known.get(transactional_id)
            if seen is None or (seen.start_ms, seen.producer_epoch) != (start_ms, epoch):
                seen = _Seen(start_ms, epoch, self._looked_at_ms, now_ms)
            found[transactional_id] = seen
        self._looked_at_ms, self._seen = now_ms, found

    def is_late(self, transaction: Transaction, earliest_ms: int, now_ms: float) -> bool:
        """True if the transaction, which was open at the last look, has taken longer than its timeout.

        `earliest_ms` is the wall-clock time by which the record decides, `now_ms` the monotonic time.
        """
        if transaction.is_timeless:
            return False
        seen, timeout_ms = self._seen[transaction.transactional_id], transaction.timeout_ms
        if now_ms - seen.began_after_ms <= timeout_ms:
            return False
        return now_ms - seen.seen_at_ms > timeout_ms or seen.start_ms + timeout_ms < earliest_ms
