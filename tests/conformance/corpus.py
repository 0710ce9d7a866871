"""The corpus, whole: importing this module enters the cases of all APIs, one file each in `cases/`."""

from __future__ import annotations

from importlib import import_module

from odradek.wire.api import ApiKey
from tests.conformance.asking.broken_frames import enter
from tests.conformance.asking.talk import CORPUS, hold

APIS = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "add_raft_voter",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "alter_user_scram_credentials",
    "api_versions",
    "create_acls",
    "create_delegation_token",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_delegation_token",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topic_partitions",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "end_txn",
    "expire_delegation_token",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_config_resources",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "remove_raft_voter",
    "renew_delegation_token",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
    "txn_offset_commit",
    "unregister_broker",
    "update_features",
    "write_txn_markers",
)
"""In the order of conversation."""

for _api in APIS:
    import_module(f"tests.conformance.cases.{_api}")
    enter(ApiKey[_api.upper()])


def cases_of(api: str) -> list[str]:
    """Return the names of the cases that are about one API."""
    return [name for name in CORPUS if name.partition(" ")[0] == api]


def key_of(api: str) -> ApiKey:
    """Return the API key of a file of cases."""
    return ApiKey[api.upper()]


__all__ = ["APIS", "CORPUS", "cases_of", "hold", "key_of"]
