"""Counts of a broker's coordinators. They outlive the shards, which change with leadership. PURE."""

from __future__ import annotations

import attrs


@attrs.define
class TransactionCounts:
    """Counts of events since the broker has started."""

    committed: int = 0
    """Transactions whose commit markers are all written."""
    aborted: int = 0
    timed_out: int = 0
    """Transactions that the coordinator has aborted because they took longer than their timeouts."""
    refused: int = 0
    """Requests refused because their producers are fenced, or were replaced."""
    refused_ids: int = 0
    """Requests with a new transactional id that were refused because the coordinator has no room for more ids."""
    refused_partitions: int = 0
    """Requests refused because their partitions would make a transaction, or its coordinator, too large."""
