"""The door of each API that a broker serves, in one table. A broker that serves another API does not start."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.doors import group_doors as groups
from odradek.data_plane.handlers.doors import producing_doors as producing
from odradek.data_plane.handlers.doors import topic_doors as topics
from odradek.data_plane.handlers.doors import transaction_doors as transactions
from odradek.data_plane.handlers.doors.decisions import Decisions
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Operation
from odradek.security.doors.config_doors import alter_configs_door, describe_configs_door
from odradek.security.doors.door import PASSES, Admitted, Again, Asked, Door, GuardedHandler
from odradek.security.doors.needing import (
    for_cluster,
    needing,
    on_group,
    on_topic,
    on_transactional_id,
    unless_on_cluster,
)
from odradek.security.doors.token_doors import describe_tokens_door
from odradek.security.doors.user_doors import refuse_describe_users
from odradek.serving.contract import Handler
from odradek.wire.api_keys import ApiKey
from odradek.wire.config_resources import RESOURCE_BROKER_LOGGER
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from odradek.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

__all__ = ["AT_CONTROLLER", "DOORS", "broker_doors", "guarded"]

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

AT_CONTROLLER = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    )
)
"""APIs that a broker passes on as they are: the controller judges them, by the client's principal and address."""


def _no_move(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    moved: dict[str, dict[int, None]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            moved.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    return AlterReplicaLogDirsResponse(
        0,
        [
            AlterReplicaLogDirTopicResult(
                name, [AlterReplicaLogDirPartitionResult(index, _DENIED) for index in indexes]
            )
            for name, indexes in moved.items()
        ],
    )


def describe_cluster_door(asked: Asked, request: DescribeClusterRequest) -> Admitted | None:
    """Everybody; the operations on the cluster are told to those who may DESCRIBE it."""
    if not request.include_cluster_authorized_operations:
        return None

    def merge(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if not response.error_code:
            response.cluster_authorized_operations = topics.cluster_operations(asked)
        return response

    return Admitted(request, merge)


DOORS: Mapping[ApiKey, Door] = {
    ApiKey.PRODUCE: producing.produce_door,
    ApiKey.FETCH: producing.fetch_door,
    ApiKey.LIST_OFFSETS: needing(each=on_topic(Operation.DESCRIBE)),
    ApiKey.OFFSET_COMMIT: needing(on_group(Operation.READ), each=on_topic(Operation.READ)),
    ApiKey.OFFSET_FETCH: groups.offset_fetch_door,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator_door,
    ApiKey.JOIN_GROUP: needing(on_group(Operation.READ)),
    ApiKey.HEARTBEAT: needing(on_group(Operation.READ)),
    ApiKey.LEAVE_GROUP: needing(on_group(Operation.READ)),
    ApiKey.SYNC_GROUP: needing(on_group(Operation.READ)),
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups_door,
    ApiKey.LIST_GROUPS: groups.list_groups_door,
    ApiKey.SASL_HANDSHAKE: PASSES,
    ApiKey.API_VERSIONS: PASSES,
    ApiKey.DELETE_RECORDS: needing(each=on_topic(Operation.DELETE)),
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id_door,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: unless_on_cluster(
        Operation.CLUSTER_ACTION, needing(each=on_topic(Operation.DESCRIBE))
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn_door,
    ApiKey.ADD_OFFSETS_TO_TXN: needing(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
    ApiKey.END_TXN: needing(on_transactional_id(Operation.WRITE)),
    ApiKey.WRITE_TXN_MARKERS: for_cluster(Operation.CLUSTER_ACTION, Operation.ALTER),
    ApiKey.TXN_OFFSET_COMMIT: needing(
        on_transactional_id(Operation.WRITE), on_group(Operation.READ), each=on_topic(Operation.READ)
    ),
    ApiKey.DESCRIBE_ACLS: PASSES,
    ApiKey.DESCRIBE_CONFIGS: describe_configs_door,
    ApiKey.ALTER_CONFIGS: alter_configs_door(RESOURCE_BROKER_LOGGER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs_door(RESOURCE_BROKER_LOGGER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: for_cluster(Operation.ALTER, refuse=_no_move),
    ApiKey.SASL_AUTHENTICATE: PASSES,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: for_cluster(Operation.DESCRIBE, refuse=refuse_describe_users),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_tokens_door,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: for_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_LOG_DIRS: for_cluster(Operation.DESCRIBE),
    ApiKey.DELETE_GROUPS: needing(each=on_group(Operation.DELETE)),
    ApiKey.OFFSET_DELETE: needing(on_group(Operation.DELETE), each=on_topic(Operation.READ)),
    ApiKey.DESCRIBE_CLUSTER: describe_cluster_door,
    ApiKey.DESCRIBE_PRODUCERS: needing(each=on_topic(Operation.READ), text=lambda _, code: code.message),
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions_door,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions_door,
    ApiKey.LIST_CONFIG_RESOURCES: for_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions_door,
    **dict.fromkeys(AT_CONTROLLER, PASSES),
}
"""Doors by API; that of Metadata depends on the broker (`broker_doors`). DescribeAcls and the requests about delegation
tokens judge by themselves."""

_AGAIN: Mapping[ApiKey, Again] = {ApiKey.PRODUCE: producing.produce_again}
"""Requests that wait and are judged again. A Fetch reads anew, and so judges anew."""


def broker_doors(desk: Desk) -> Mapping[ApiKey, Door]:
    """The door of each API of a broker."""
    return {**DOORS, ApiKey.METADATA: topics.metadata_door(lambda: desk.settings.auto_create_topics_enable)}


def guarded(
    desk: Desk, authorizer: Authorizer, decisions: Decisions, handlers: Mapping[int, Handler]
) -> dict[int, Handler]:
    """Handlers behind their doors, which `check_doors` has found complete."""
    doors = broker_doors(desk)
    return {
        key: GuardedHandler(
            handle,
            doors[ApiKey(key)],
            authorizer,
            lambda: desk.image,
            _AGAIN.get(ApiKey(key)),
            long_work=desk.long_work,
            after_work=desk.run_woken,
            api_key=key,
        )
        .counting(decisions.get(ApiKey(key)))
        .handle
        for key, handle in handlers.items()
    }
