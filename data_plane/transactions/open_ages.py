"""The ages of open transactions, measured with the coordinator's monotonic clock, which never jumps. PURE.

A transaction's record has its start time by the wall clock, which may jump. The coordinator checks its open
transactions periodically. A transaction starts between two checks. The monotonic times of these two checks
give an upper and a lower bound of its age. If the timeout lies between the bounds, the start time in the
record decides whether the transaction is late. For a transaction that an earlier coordinator began, the upper
bound is missing. So the start time decides until this coordinator has had the transaction for its whole
timeout.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.transactions.state import Transaction, TransactionsState

__all__ = ["OpenAges"]


@attrs.frozen
class _Seen:
    """One open transaction.

    `start_ms` and `producer_epoch` distinguish it from other transactions of its transactional id. `start_ms`
    is a wall-clock time, the other two times are monotonic.
    """

    start_ms: int
    producer_epoch: int
    began_after_ms: float
    seen_at_ms: float


class OpenAges:
    """The open transactions of one coordinator, with the bounds of their ages. All times are milliseconds."""

    __slots__ = ("_looked_at_ms", "_seen")

    def __init__(self) -> None:
        self._looked_at_ms = float("-inf")
        self._seen: dict[str, _Seen] = {}

    def look(self, state: TransactionsState, now_ms: float) -> None:
        """Record which transactions are open at this monotonic time, and forget all others."""
        known, found = self._seen, {}
        for transactional_id, start_ms in state.open.items():
            epoch = state.transactions[transactional_id].producer_epoch
            seen = known.get(transactional_id)
            if seen is None or (seen.start_ms, seen.producer_epoch) != (start_ms, epoch):
                seen = _Seen(start_ms, epoch, self._looked_at_ms, now_ms)
            found[transactional_id] = seen
        self._looked_at_ms, self._seen = now_ms, found

    def is_late(self, transaction: Transaction, earliest_ms: int, now_ms: float) -> bool:
        """True if the transaction has been open for longer than its timeout. It must have been open at the
        last call of `look`.

        `now_ms` is the monotonic time. If the timeout lies between the bounds of the transaction's age, the
        record decides. The transaction is then late if the record's start time plus the timeout is before
        `earliest_ms`, a wall-clock time.
        """
        if transaction.is_timeless:
            return False
        seen, timeout_ms = self._seen[transaction.transactional_id], transaction.timeout_ms
        if now_ms - seen.began_after_ms <= timeout_ms:
            return False
        return now_ms - seen.seen_at_ms > timeout_ms or seen.start_ms + timeout_ms < earliest_ms
