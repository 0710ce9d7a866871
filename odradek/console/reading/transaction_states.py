"""Finds out for each transactional batch whether its transaction was committed, was aborted, or is open. PURE.

Below the last stable offset, the broker lists the aborted transactions of a fetched range; all others were
committed. Above it, a transaction may be open. There, the next marker of the same producer decides; without a
marker, it is open or its marker comes later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from odradek.wire.batches.batch_header import BatchHeader, iter_batches
from odradek.wire.batches.transaction_markers import EndMarker, parse_marker

__all__ = ["Markers", "StableStates", "TransactionState", "markers_in", "state_by_markers"]

Markers = Mapping[int, Sequence[tuple[int, bool]]]
"""For each producer id, the offset of each of its markers in a range, and whether it aborts."""


class TransactionState(Enum):
    """The state of the transaction that a record belongs to."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"
    """It has ended, but its marker lies too far behind the record to look for it."""


def _reversed(aborted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(reversed(aborted))


@attrs.define
class StableStates:
    """The states of batches below the last stable offset, in the order of their offsets."""

    _aborted: list[tuple[int, int]] = attrs.field(converter=_reversed)
    _open_aborted: set[int] = attrs.field(factory=set, init=False)

    def state_of(self, header: BatchHeader, marker: EndMarker | None) -> TransactionState:
        """Return the state of the next transactional batch. A control batch is given with its marker."""
        while self._aborted and self._aborted[-1][0] <= header.last_offset:
            self._open_aborted.add(self._aborted.pop()[1])
        if header.is_control:
            if marker is None or not marker.is_abort:
                return TransactionState.COMMITTED
            self._open_aborted.discard(header.producer_id)
            return TransactionState.ABORTED
        is_aborted = header.producer_id in self._open_aborted
        return TransactionState.ABORTED if is_aborted else TransactionState.COMMITTED


def markers_in(data: memoryview) -> dict[int, list[tuple[int, bool]]]:
    """Collect the markers in fetched batches. Raises `KafkaError` for a damaged header."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for position, header in iter_batches(data):
        if header.is_control and header.is_transactional:
            marker = parse_marker(data[position : position + header.size])
            if marker is not None:
                found.setdefault(header.producer_id, []).append((header.base_offset, marker.is_abort))
    return found


def state_by_markers(markers: Markers, producer_id: int, offset: int) -> TransactionState | None:
    """Return the state of a batch by the next marker of its producer; None if there is no such marker."""
    listed = markers.get(producer_id, ())
    place = bisect_right(listed, (offset, True))
    if place == len(listed):
        return None
    return TransactionState.ABORTED if listed[place][1] else TransactionState.COMMITTED
