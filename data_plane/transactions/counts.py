"""Counts of a broker's coordinators. They outlive the shards, which change with leadership. PURE."""

from __future__ import annotations

import attrs


@attrs.define
class TransactionCounts:
    """Events since the broker has started."""

    committed: int = 0
    """Transactions whose commit markers are all written."""
    aborted: int = 0
    timed_out: int = 0
    """Transactions that the coordinator aborts since they took longer than their timeouts."""
    refused: int = 0
    """Answers to producers that are fenced, or were replaced."""
    refused_ids: int = 0
    """Times that a new transactional id found its coordinator full."""
    refused_partitions: int = 0
    """Requests for partitions that would have made a transaction, or its coordinator, too large."""
