"""Expensive requests that the active controller decides, and requests of the metadata quorum."""

from __future__ import annotations

from bench.budget.frames import THINGS, Costly, Stage, costly_request, framed
from bench.budget.values import (
    WITH_TIMEOUT,
    cluster,
    distinct,
    epoch,
    narrow,
    partition,
    wide,
    wide_id,
)
from odradek.wire.api_keys import ApiKey
from odradek.wire.principal import encode_principal


def _envelope_body(stage: Stage, size: int) -> bytes:
    line = CONTROLLER_LINES[ApiKey.INCREMENTAL_ALTER_CONFIGS][0]
    request = costly_request(line, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, size, stage)
    return framed(request, 1)[4:]


_DEFAULTED = {"topics.num_partitions": 1, "topics.replication_factor": 1, "topics.assignments": []}
_VOTER = {
    "cluster_id": cluster,
    "topics.topic_name": "__cluster_metadata",
    "topics.name": "__cluster_metadata",
}
_BROKER = {"broker_id": 2, "broker_epoch": epoch, "cluster_id": cluster}

_JUDGED_TOPICS = Costly(
    "Each topic is judged with its whole configuration.",
    THINGS,
    {
        "resources.resource_type": 2,
        "resources.resource_name": distinct,
        "resources.configs.name": "retention.ms",
        "resources.configs.value": "1",
        "validate_only": True,
    },
    "topics",
)

CONTROLLER_LINES: dict[ApiKey, tuple[Costly, ...]] = {
    ApiKey.CREATE_TOPICS: (
        Costly(
            "Each topic is judged and placed; they are not made, since what is made stays.",
            THINGS,
            {
                **WITH_TIMEOUT,
                "topics.name": distinct,
                **_DEFAULTED,
                "topics.configs": [],
                "validate_only": True,
            },
            "topics",
        ),
        Costly(
            "Each key of a topic's configuration is judged.",
            ("topics.configs",),
            {
                **WITH_TIMEOUT,
                "topics.name": "made",
                **_DEFAULTED,
                "topics.configs.name": "retention.ms",
                "topics.configs.value": "1",
                "validate_only": True,
            },
            "configs",
        ),
        Costly(
            "One number of partitions stands for as many records and replicas.",
            THINGS,
            {
                **WITH_TIMEOUT,
                "topics.name": distinct,
                "topics.num_partitions": 10_000,
                "topics.replication_factor": 1,
                "topics.assignments": [],
                "topics.configs": [],
                "validate_only": True,
            },
            "partitions",
        ),
        Costly(
            "Each partition's replicas are told, and judged.",
            ("topics.assignments",),
            {
                **WITH_TIMEOUT,
                "topics.name": "made",
                "topics.num_partitions": -1,
                "topics.replication_factor": -1,
                "topics.assignments.partition_index": lambda _, n: n,
                "topics.assignments.broker_ids": 1,
                "topics.configs": [],
                "validate_only": True,
            },
            "assignments",
        ),
    ),
    ApiKey.DELETE_TOPICS: (
        Costly(
            "Each name is looked up and answered, repeated ones too.",
            THINGS,
            {**WITH_TIMEOUT, "topics.name": distinct, "topic_names": distinct},
        ),
    ),
    ApiKey.ALTER_CONFIGS: (
        Costly(
            "Each key is judged.",
            ("resources.configs",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": wide,
                "resources.configs.name": distinct,
                "resources.configs.value": "1",
                "validate_only": True,
            },
            "keys",
        ),
        _JUDGED_TOPICS,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Costly(
            "Each change is judged, and appends to a list that gets longer.",
            ("resources.configs",),
            {
                "resources.resource_type": 2,
                "resources.resource_name": wide,
                "resources.configs.name": distinct,
                "resources.configs.config_operation": 2,
                "resources.configs.value": "1",
                "validate_only": True,
            },
            "keys",
        ),
        _JUDGED_TOPICS,
    ),
    ApiKey.CREATE_PARTITIONS: (
        Costly(
            "Each topic is judged, and its new partitions are placed.",
            THINGS,
            {
                **WITH_TIMEOUT,
                "topics.name": narrow,
                "topics.count": 10_000,
                "topics.assignments": None,
                "validate_only": True,
            },
            "topics",
        ),
        Costly(
            "Each new partition's replicas are told, and judged.",
            ("topics.assignments",),
            {
                **WITH_TIMEOUT,
                "topics.name": narrow,
                "topics.count": 10_001,
                "topics.assignments.broker_ids": 1,
                "validate_only": True,
            },
            "assignments",
        ),
    ),
    ApiKey.CREATE_ACLS: (
        Costly(
            "Each ACL is judged, and would be a record.",
            THINGS,
            {
                "creations.resource_type": 2,
                "creations.resource_name": distinct,
                "creations.resource_pattern_type": 3,
                "creations.principal": "User:a",
                "creations.host": "*",
                "creations.operation": 3,
                "creations.permission_type": 3,
            },
        ),
    ),
    ApiKey.DELETE_ACLS: (
        Costly(
            "Each filter is compared with every ACL.",
            THINGS,
            {
                "filters.resource_type_filter": 1,
                "filters.resource_name_filter": distinct,
                "filters.pattern_type_filter": 1,
                "filters.principal_filter": None,
                "filters.host_filter": None,
                "filters.operation": 1,
                "filters.permission_type": 1,
            },
        ),
    ),
    ApiKey.ELECT_LEADERS: (
        Costly(
            "Each partition is looked up, and answered.",
            THINGS,
            {**WITH_TIMEOUT, "topic_partitions.topic": wide, "topic_partitions.partitions": partition},
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Costly(
            "Each partition's replicas are told, judged, and would be recorded.",
            THINGS,
            {
                **WITH_TIMEOUT,
                "topics.name": wide,
                "topics.partitions.partition_index": lambda _, n: n,
                "topics.partitions.replicas": [9, 8],
            },
        ),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        Costly(
            "Each partition is looked up.",
            ("topics.partition_indexes",),
            {**WITH_TIMEOUT, "topics.name": wide, "topics.partition_indexes": partition},
        ),
    ),
    ApiKey.VOTE: (
        Costly(
            "Each partition is a vote; a quorum has one.", ("topics.partitions",), {**_VOTER, "voter_id": 1}
        ),
    ),
    ApiKey.BEGIN_QUORUM_EPOCH: (
        Costly(
            "Each endpoint is kept; a quorum has one partition.",
            ("leader_endpoints", "topics.partitions"),
            _VOTER,
        ),
    ),
    ApiKey.END_QUORUM_EPOCH: (
        Costly(
            "Each successor is looked for; a quorum has one partition.",
            ("topics.partitions.preferred_candidates", "topics.partitions.preferred_successors"),
            _VOTER,
        ),
    ),
    ApiKey.DESCRIBE_QUORUM: (
        Costly("Each partition would be described; a quorum has one.", ("topics.partitions",), _VOTER),
    ),
    ApiKey.ALTER_PARTITION: (
        Costly(
            "Each partition is judged against the image.",
            THINGS,
            {
                **_BROKER,
                "topics.topic_id": wide_id,
                "topics.partitions.partition_index": partition,
                "topics.partitions.new_isr": 2,
                "topics.partitions.new_isr_with_epochs.broker_id": 2,
                "topics.partitions.new_isr_with_epochs.broker_epoch": -1,
            },
        ),
    ),
    ApiKey.UPDATE_FEATURES: (
        Costly(
            "Each feature is looked up and refused.",
            ("feature_updates",),
            {**WITH_TIMEOUT, "feature_updates.feature": distinct, "validate_only": True},
        ),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        Costly(
            "Each credential is judged; those that are sound would cost three HMACs and a record.",
            ("upsertions",),
            {
                "upsertions.name": distinct,
                "upsertions.mechanism": 1,
                "upsertions.iterations": 1,
                "deletions": [],
            },
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        Costly(
            "Each entity is judged, and its values compared with those that are there.",
            THINGS,
            {
                "entries.entity.entity_type": "user",
                "entries.entity.entity_name": distinct,
                "entries.ops.key": "producer_byte_rate",
                "entries.ops.value": 1e9,
                "entries.ops.remove": False,
                "validate_only": True,
            },
        ),
        Costly(
            "One entity with many changes, of which each key stands again and again.",
            ("entries.ops",),
            {
                "entries.entity.entity_type": "user",
                "entries.entity.entity_name": "somebody",
                "entries.ops.key": distinct,
                "entries.ops.remove": True,
            },
        ),
    ),
    ApiKey.ENVELOPE: (
        Costly(
            "The bytes inside are a request of their own, decoded and decided.",
            ("request_data",),
            {
                "request_principal": encode_principal("User:ANONYMOUS"),
                "client_host_address": b"\x7f\x00\x00\x01",
            },
            "",
            _envelope_body,
        ),
    ),
    ApiKey.FETCH_SNAPSHOT: (
        Costly(
            "Each partition would be read; a quorum has one.",
            ("topics.partitions",),
            {**_VOTER, "replica_id": 2},
        ),
    ),
    ApiKey.BROKER_REGISTRATION: (
        Costly(
            "Each listener, feature and directory is judged, and would be recorded.",
            ("listeners",),
            {**_BROKER, "broker_id": 3, "listeners.name": distinct, "listeners.host": "h", "features": []},
        ),
    ),
    ApiKey.BROKER_HEARTBEAT: (
        Costly(
            "Each directory that is offline is compared with all replicas of the broker.",
            ("offline_log_dirs",),
            {
                **_BROKER,
                "offline_log_dirs": lambda _, n: (n + (1 << 64)).to_bytes(16, "big"),
                "want_fence": True,
            },
        ),
    ),
    ApiKey.UNREGISTER_BROKER: (Costly("Nothing in it grows.", (), {"broker_id": 99}),),
    ApiKey.ALLOCATE_PRODUCER_IDS: (Costly("Nothing in it grows.", (), _BROKER),),
    ApiKey.CONTROLLER_REGISTRATION: (
        Costly(
            "Each listener and feature is judged, and would be recorded.",
            ("listeners",),
            {"controller_id": 9, "listeners.name": distinct, "listeners.host": "h", "features": []},
        ),
    ),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (
        Costly(
            "Each replica is looked up, and would be recorded.",
            THINGS,
            {
                **_BROKER,
                "directories.id": bytes(15) + b"\x09",
                "directories.topics.topic_id": wide_id,
                "directories.topics.partitions.partition_index": partition,
            },
        ),
    ),
    ApiKey.ADD_RAFT_VOTER: (
        Costly(
            "Each listener is judged, and would be recorded.",
            ("listeners",),
            {
                **WITH_TIMEOUT,
                "cluster_id": cluster,
                "voter_id": 1,
                "listeners.name": distinct,
                "listeners.host": "h",
            },
        ),
    ),
    ApiKey.REMOVE_RAFT_VOTER: (
        Costly("Nothing in it grows but the cluster's name.", ("cluster_id",), {"voter_id": 9}),
    ),
    ApiKey.UPDATE_RAFT_VOTER: (
        Costly(
            "Each listener is judged, and would be recorded.",
            ("listeners",),
            {"cluster_id": cluster, "voter_id": 9, "listeners.name": distinct, "listeners.host": "h"},
        ),
    ),
}
"""The expensive requests of each API."""
