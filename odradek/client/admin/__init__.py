"""All operations of administration under one name: topics, configurations, groups and their offsets, logs.
PURE.

Each call is an operation (see `operation.py`) in one of the `admin_*` modules. `admin_methods.py` turns the
operations into methods of the client shells. A call about several items sends one request to each broker that
must answer. Every item has its own outcome (`scatter.py`).

A module is imported when one of its names is first used (PEP 562), so a command loads only the modules that
it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.client.admin.admin_acls import create_acls, delete_acls, describe_acls
    from odradek.client.admin.admin_clients import (
        BrokerClients,
        ClientDescription,
        ClientFigure,
        describe_clients,
    )
    from odradek.client.admin.admin_configs import (
        AlterConfig,
        ConfigDescription,
        ConfigEntry,
        ConfigOperation,
        ConfigResource,
        ConfigSource,
        ConfigSynonym,
        ConfigType,
        ResourceType,
        describe_configs,
        incremental_alter_configs,
        list_config_resources,
    )
    from odradek.client.admin.admin_groups import (
        GroupDescription,
        GroupListing,
        GroupMember,
        delete_groups,
        describe_groups,
        list_groups,
    )
    from odradek.client.admin.admin_hanging import (
        HangingSearch,
        OldTransaction,
        Prospect,
        RefusedMarker,
        find_hanging_transactions,
    )
    from odradek.client.admin.admin_logs import (
        TO_HIGH_WATERMARK,
        ActiveProducer,
        BrokerLogDirs,
        DeletedRecords,
        LogDirDescription,
        LogDirReplica,
        PartitionProducers,
        ReplicaCleaning,
        alter_replica_log_dirs,
        delete_records,
        describe_log_dirs,
        describe_producers,
    )
    from odradek.client.admin.admin_offsets import (
        CommittedOffset,
        GroupOffsets,
        OffsetReset,
        OffsetSpan,
        PartitionLag,
        ResetTarget,
        ResetTo,
        alter_group_offsets,
        delete_group_offsets,
        describe_group_lag,
        describe_lag,
        list_group_offsets,
        offset_spans,
        plan_offset_reset,
    )
    from odradek.client.admin.admin_partitions import (
        ElectionType,
        Reassignment,
        alter_partition_reassignments,
        elect_leaders,
        list_partition_reassignments,
    )
    from odradek.client.admin.admin_quorum import (
        QuorumDescription,
        QuorumReplica,
        add_raft_voter,
        describe_controllers,
        describe_quorum,
        remove_raft_voter,
        unregister_broker,
        update_features,
    )
    from odradek.client.admin.admin_quotas import (
        QuotaAlteration,
        QuotaEntity,
        QuotaMatch,
        alter_client_quotas,
        describe_client_quotas,
    )
    from odradek.client.admin.admin_replicas import ReplicaLog, describe_replica_logs
    from odradek.client.admin.admin_tokens import (
        DelegationToken,
        create_delegation_token,
        describe_delegation_tokens,
        expire_delegation_token,
        renew_delegation_token,
    )
    from odradek.client.admin.admin_topics import (
        ClusterDescription,
        CreatedTopic,
        NewPartitions,
        NewTopic,
        create_partitions,
        create_topics,
        delete_topics,
        describe_cluster,
        describe_topic_partitions,
        describe_topics,
    )
    from odradek.client.admin.admin_transactions import (
        TIMELESS_MS,
        FencedProducer,
        TransactionDescription,
        TransactionListing,
        abort_transaction,
        describe_transactions,
        fence_producer,
        list_transactions,
    )
    from odradek.client.admin.admin_users import (
        ScramDeletion,
        ScramUpsertion,
        alter_user_scram_credentials,
        describe_user_scram_credentials,
    )
    from odradek.client.admin.moves.moving import (
        ClusterSurvey,
        MoveProgress,
        elect_preferred,
        move_partitions,
        release_throttles,
        survey_cluster,
        throttle_moves,
        unthrottle,
    )

__all__ = [
    "TIMELESS_MS",
    "TO_HIGH_WATERMARK",
    "ActiveProducer",
    "AlterConfig",
    "BrokerClients",
    "BrokerLogDirs",
    "ClientDescription",
    "ClientFigure",
    "ClusterDescription",
    "ClusterSurvey",
    "CommittedOffset",
    "ConfigDescription",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "DelegationToken",
    "DeletedRecords",
    "ElectionType",
    "FencedProducer",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupOffsets",
    "HangingSearch",
    "LogDirDescription",
    "LogDirReplica",
    "MoveProgress",
    "NewPartitions",
    "NewTopic",
    "OffsetReset",
    "OffsetSpan",
    "OldTransaction",
    "PartitionLag",
    "PartitionProducers",
    "Prospect",
    "QuorumDescription",
    "QuorumReplica",
    "QuotaAlteration",
    "QuotaEntity",
    "QuotaMatch",
    "Reassignment",
    "RefusedMarker",
    "ReplicaCleaning",
    "ReplicaLog",
    "ResetTarget",
    "ResetTo",
    "ResourceType",
    "ScramDeletion",
    "ScramUpsertion",
    "TransactionDescription",
    "TransactionListing",
    "abort_transaction",
    "add_raft_voter",
    "alter_client_quotas",
    "alter_group_offsets",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "alter_user_scram_credentials",
    "create_acls",
    "create_delegation_token",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_group_offsets",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_clients",
    "describe_cluster",
    "describe_configs",
    "describe_controllers",
    "describe_delegation_tokens",
    "describe_group_lag",
    "describe_groups",
    "describe_lag",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_replica_logs",
    "describe_topic_partitions",
    "describe_topics",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "elect_preferred",
    "expire_delegation_token",
    "fence_producer",
    "find_hanging_transactions",
    "incremental_alter_configs",
    "list_config_resources",
    "list_group_offsets",
    "list_groups",
    "list_partition_reassignments",
    "list_transactions",
    "move_partitions",
    "offset_spans",
    "plan_offset_reset",
    "release_throttles",
    "remove_raft_voter",
    "renew_delegation_token",
    "survey_cluster",
    "throttle_moves",
    "unregister_broker",
    "unthrottle",
    "update_features",
]

_HOMES = {
    name: f"odradek.client.admin.{module}"
    for module, names in {
        "admin_acls": "create_acls delete_acls describe_acls",
        "admin_clients": "BrokerClients ClientDescription ClientFigure describe_clients",
        "admin_configs": "AlterConfig ConfigDescription ConfigEntry ConfigOperation ConfigResource ConfigSource ConfigSynonym ConfigType ResourceType describe_configs incremental_alter_configs list_config_resources",
        "admin_groups": "GroupDescription GroupListing GroupMember delete_groups describe_groups list_groups",
        "admin_hanging": "HangingSearch OldTransaction Prospect RefusedMarker find_hanging_transactions",
        "admin_logs": "TO_HIGH_WATERMARK ActiveProducer BrokerLogDirs DeletedRecords LogDirDescription LogDirReplica PartitionProducers ReplicaCleaning alter_replica_log_dirs delete_records describe_log_dirs describe_producers",
        "admin_offsets": "CommittedOffset GroupOffsets OffsetReset OffsetSpan PartitionLag ResetTarget ResetTo alter_group_offsets delete_group_offsets describe_group_lag describe_lag list_group_offsets offset_spans plan_offset_reset",
        "admin_partitions": "ElectionType Reassignment alter_partition_reassignments elect_leaders list_partition_reassignments",
        "admin_quorum": "QuorumDescription QuorumReplica add_raft_voter describe_controllers describe_quorum remove_raft_voter unregister_broker update_features",
        "admin_quotas": "QuotaAlteration QuotaEntity QuotaMatch alter_client_quotas describe_client_quotas",
        "admin_replicas": "ReplicaLog describe_replica_logs",
        "admin_tokens": "DelegationToken create_delegation_token describe_delegation_tokens expire_delegation_token renew_delegation_token",
        "admin_topics": "ClusterDescription CreatedTopic NewPartitions NewTopic create_partitions create_topics delete_topics describe_cluster describe_topic_partitions describe_topics",
        "admin_transactions": "TIMELESS_MS FencedProducer TransactionDescription TransactionListing abort_transaction describe_transactions fence_producer list_transactions",
        "admin_users": "ScramDeletion ScramUpsertion alter_user_scram_credentials describe_user_scram_credentials",
        "moves.moving": "ClusterSurvey MoveProgress elect_preferred move_partitions release_throttles survey_cluster throttle_moves unthrottle",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found
