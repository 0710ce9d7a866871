"""Expensive requests of transactional producers, and requests about transactions."""

from __future__ import annotations

from bench.budget.frames import THINGS, Costly
from bench.budget.values import distinct, group, partition, producer_id, transactional_id, wide
from odradek.wire.api_keys import ApiKey

_PRODUCER = {"transactional_id": transactional_id, "producer_id": producer_id, "producer_epoch": 0}

TRANSACTION_LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Costly(
            "Each partition is looked up, and kept in the state of the transaction.",
            THINGS,
            {
                "transactions.transactional_id": transactional_id,
                "transactions.producer_id": producer_id,
                "transactions.producer_epoch": 0,
                "transactions.topics.name": wide,
                "transactions.topics.partitions": partition,
                "v3_and_below_transactional_id": transactional_id,
                "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics.name": wide,
                "v3_and_below_topics.partitions": partition,
            },
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (Costly("A group id as long as can be is hashed.", ("group_id",), _PRODUCER),),
    ApiKey.END_TXN: (
        Costly("A transactional id as long as can be is hashed.", ("transactional_id",), {"producer_id": 1}),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        Costly(
            "Each partition is looked up, and would be a record of the coordinator's log.",
            THINGS,
            {
                **_PRODUCER,
                "group_id": group,
                "generation_id": -1,
                "group_instance_id": None,
                "topics.name": wide,
                "topics.partitions.partition_index": partition,
                "topics.partitions.committed_leader_epoch": -1,
            },
        ),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Costly(
            "Each transactional id is a question to its coordinator.",
            THINGS,
            {"transactional_ids": distinct},
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: (
        Costly(
            "Each filter is compared with each transaction.",
            ("state_filters", "producer_id_filters"),
            {"state_filters": distinct, "duration_filter": -1, "transactional_id_pattern": None},
        ),
    ),
}
"""The expensive requests of each API."""
