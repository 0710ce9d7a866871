"""Counters of a broker's transaction coordinators. They keep their values when the broker loses the leadership
of a partition and ends its shard. PURE.
"""

from __future__ import annotations

import attrs


@attrs.define
class TransactionCounts:
    """Counts of events since the start of the broker."""

    committed: int = 0
    """Transactions whose commit markers are all written."""
    aborted: int = 0
    timed_out: int = 0
    """Transactions that the coordinator has aborted because they exceeded their timeouts."""
    refused: int = 0
    """Requests that were refused because their producers are fenced or replaced."""
    refused_ids: int = 0
    """Requests with a new transactional id that were refused because the coordinator has no room for more ids."""
    refused_partitions: int = 0
    """Requests refused because their partitions would make a transaction, or its coordinator, too large."""
