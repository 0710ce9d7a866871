"""Decides which transactional batches a cleaning pass removes, as Kafka's `CleanedTransactionMetadata` does.
PURE.

The first pass removes the records of an aborted transaction. Their keys never enter the offset map. A marker
stays as long as its transaction has batches in the log. The first pass that finds none of these batches gives
the marker a delete horizon, like that of a tombstone. A pass after this horizon removes the marker. So a
reader who needs less than `delete.retention.ms` for the log learns how each transaction ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

from odradek.wire.batches.batch_header import BatchHeader
from odradek.wire.batches.transaction_markers import UNREADABLE_EPOCH, EndMarker

Aborted: TypeAlias = tuple[int, int, int]
"""An aborted transaction: producer id, first offset, and the offset of its marker."""


class EndedTransactions:
    """The transactions in the part of a log that one pass cleans. All of them have ended, because a pass
    cleans only below the last stable offset.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, last_offset in sorted(aborted):
            firsts, lasts = self._aborted.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            lasts.append(last_offset)
        self._seen: set[int] = set()
        """Producer ids. The pass has read a batch of each producer's current transaction, but not yet the
        transaction's marker.
        """

    def begin_rewriting(self) -> None:
        """Prepare for a second reading of the batches, from the start of the log."""
        self._seen.clear()

    def is_aborted(self, header: BatchHeader) -> bool:
        """True if this batch belongs to an aborted transaction."""
        found = self._aborted.get(header.producer_id)
        if found is None or not header.is_transactional:
            return False
        firsts, lasts = found
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < lasts[at]

    def note_batch(self, header: BatchHeader) -> None:
        """Record that the pass has read a data batch of a transaction."""
        self._seen.add(header.producer_id)

    def is_needless(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """True if the transaction of this marker has no batch left in the log. `marker` is None if the
        marker's record is gone.
        """
        had_batches = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        if marker is None:
            return True
        return not had_batches and marker.coordinator_epoch != UNREADABLE_EPOCH
