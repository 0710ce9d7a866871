"""Mutants of transactions: of partitions, of coordinators, and of offsets that wait for an outcome."""

from __future__ import annotations

from tests.mutants.mutant import CAMPAIGN, Mutant

MUTANTS_OF_TRANSACTIONS: tuple[Mutant, ...] = (
    Mutant(
        "stable-over-an-open-transaction",
        "KIP-98: readers of committed records stop at the first open transaction.",
        "data_plane.log.partition_log:PartitionLog._stable_offset",
        "return min(high_watermark, max(state.first_unstable_offset(high_watermark), self.log_start_offset))",
        "return high_watermark",
        CAMPAIGN,
        40,
    ),
    Mutant(
        "prepared-at-a-failover-is-forgotten",
        "KIP-98: a new coordinator completes what it finds in PrepareCommit and PrepareAbort.",
        "data_plane.transactions.coordinator:TransactionShard.began",
        "if transaction.status.is_ending:",
        "if transaction.status.is_ending and transaction.start_ms < 0:",
        CAMPAIGN,
        40,
    ),
    Mutant(
        "markers-sent-only-once",
        "KIP-98: a marker that a partition has refused, since its leader moved, is sent again.",
        "data_plane.transactions.markers:MarkerSender._answered",
        "                    again.append(partition)",
        "                    ending.left.discard(partition)",
        CAMPAIGN,
        40,
    ),
    Mutant(
        "pending-offsets-count-at-once",
        "KIP-98: offsets of a transaction count when it commits.",
        "data_plane.groups.state:GroupsState.replay",
        "        if first is not None and first.producer is not None:\n",
        "        if first is not None and first.producer is not None and not records:\n",
        CAMPAIGN,
        40,
    ),
    Mutant(
        "pending-offsets-forgotten-at-failover",
        "KIP-98: a group's new coordinator finds the offsets of open transactions in its log.",
        "data_plane.groups.state:state_of",
        "LayeredMap(_pending(latest, skipped)),",
        "LayeredMap({}),",
        CAMPAIGN,
        40,
    ),
)
