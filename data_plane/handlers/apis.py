"""The APIs of a broker's listener in one table, each with its handler, its door and the right that it requires.

Other APIs are not advertised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.administration.alter_configs import (
    ABSOLUTE,
    INCREMENTAL,
    AlterConfigsHandler,
)
from odradek.data_plane.handlers.administration.delete_records import DeleteRecordsHandler
from odradek.data_plane.handlers.administration.forwarded import (
    AclForwardingHandler,
    ForwardingHandler,
    Refuse,
    TokenForwardingHandler,
)
from odradek.data_plane.handlers.administration.forwarder import Forwarder
from odradek.data_plane.handlers.administration.log_dirs import (
    AlterReplicaLogDirsHandler,
    DescribeLogDirsHandler,
)
from odradek.data_plane.handlers.administration.topic_partitions import DescribeTopicPartitionsHandler
from odradek.data_plane.handlers.client_telemetry import (
    GetTelemetrySubscriptionsHandler,
    PushTelemetryHandler,
)
from odradek.data_plane.handlers.doors import decisions
from odradek.data_plane.handlers.doors import group_doors as groups
from odradek.data_plane.handlers.doors import producing_doors as producing
from odradek.data_plane.handlers.doors import telemetry_doors as telemetry
from odradek.data_plane.handlers.doors import topic_doors as topics
from odradek.data_plane.handlers.doors import transaction_doors as transactions
from odradek.data_plane.handlers.doors.decisions import Decisions
from odradek.data_plane.handlers.fetching.fetch import FetchHandler
from odradek.data_plane.handlers.fetching.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler
from odradek.data_plane.handlers.grouping.consumer_groups import (
    ConsumerGroupDescribeHandler,
    ConsumerGroupHeartbeatHandler,
)
from odradek.data_plane.handlers.grouping.find_coordinator import FindCoordinatorHandler
from odradek.data_plane.handlers.grouping.group_offsets import (
    OffsetCommitHandler,
    OffsetDeleteHandler,
    OffsetFetchHandler,
)
from odradek.data_plane.handlers.grouping.group_requests import (
    DeleteGroupsHandler,
    DescribeGroupsHandler,
    LeaveGroupHandler,
    ListGroupsHandler,
    MemberRequestHandler,
    SyncGroupHandler,
)
from odradek.data_plane.handlers.grouping.txn_offset_commit import TxnOffsetCommitHandler
from odradek.data_plane.handlers.metadata import DescribeClusterHandler, MetadataHandler
from odradek.data_plane.handlers.producing.produce import ProduceHandler
from odradek.data_plane.handlers.producing.producers import DescribeProducersHandler
from odradek.data_plane.handlers.producing.txn_markers import WriteTxnMarkersHandler
from odradek.data_plane.handlers.transacting.descriptions import (
    DescribeTransactionsHandler,
    ListTransactionsHandler,
)
from odradek.data_plane.handlers.transacting.partition_requests import (
    AddOffsetsToTxnHandler,
    AddPartitionsToTxnHandler,
)
from odradek.data_plane.handlers.transacting.producer_requests import EndTxnHandler, InitProducerIdHandler
from odradek.metadata_quorum.controller.refusals import refusal
from odradek.metadata_quorum.describing.describe_acls import DescribeAclsHandler
from odradek.metadata_quorum.describing.describe_client_quotas import DescribeClientQuotasHandler
from odradek.metadata_quorum.describing.describe_configs import (
    DescribeConfigsHandler,
    ListConfigResourcesHandler,
)
from odradek.metadata_quorum.describing.describe_scram_users import DescribeScramUsersHandler
from odradek.metadata_quorum.describing.describe_tokens import DescribeTokensHandler
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.acls.authorizer import Authorizer
from odradek.security.acls.rules import Operation
from odradek.security.doors.config_doors import alter_configs_door, describe_configs_door
from odradek.security.doors.door import PASSES, Again, Door
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
from odradek.serving import sasl_requests
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.contract import Handler
from odradek.wire.api_keys import ApiKey
from odradek.wire.config_resources import RESOURCE_BROKER_LOGGER
from odradek.wire.schema.anatomy import refuse

__all__ = ["APIS", "Api", "Place"]


@attrs.frozen
class Place:
    """A broker, with the objects that are needed to build the handlers for its listener."""

    broker: Broker
    authorizer: Authorizer | None
    versions: ApiVersionsHandler

    @property
    def forwarder(self) -> Forwarder:
        """A new forwarder of requests to the active controller."""
        return Forwarder(self.broker, self.broker.controller)

    def image(self) -> MetadataImage:
        """Return the newest metadata image."""
        return self.broker.image


@attrs.frozen
class Api:
    """One API of a broker: how its handler is built, its door, and how rights are checked."""

    handler: Callable[[Place], Handler]
    door: Door
    decisions: Decisions | None = None
    """A function that counts the access decisions of the door for a request. None if the door always makes
    few decisions.
    """
    again: Again | None = None
    """A function that checks the rights again for the answer of a request that had to wait. None for Fetch,
    because a parked Fetch checks the rights itself when it reads again.
    """
    is_forwarded: bool = False
    """True if the broker forwards the request unchanged. The controller then checks the rights of the client.
    """
    is_of_cluster: bool = False
    """True if the served versions of the API are decided by the controller's release, not by this broker's
    release.
    """


def _forwarded(refuse: Refuse, kind: type[ForwardingHandler] = ForwardingHandler) -> Api:
    def make(at: Place) -> Handler:
        return kind(at.forwarder, refuse).handle

    return Api(make, PASSES, is_forwarded=True, is_of_cluster=True)


def _about_topics(at: Place) -> Handler:
    # These requests have a timeout, after which the client stops waiting. So the broker does not wait longer
    # than this timeout.
    return ForwardingHandler(at.forwarder, refuse, waits_as_asked=True).handle


APIS: Mapping[ApiKey, Api] = {
    ApiKey.PRODUCE: Api(
        lambda at: ProduceHandler(at.broker, at.broker.served).handle,
        producing.produce_door,
        again=producing.produce_again,
    ),
    ApiKey.FETCH: Api(
        lambda at: (
            FetchHandler(at.broker, at.broker.served, at.broker.sessions, at.broker.replication).handle
        ),
        producing.fetch_door,
    ),
    ApiKey.LIST_OFFSETS: Api(
        lambda at: ListOffsetsHandler(at.broker, at.broker.served).handle,
        needing(each=on_topic(Operation.DESCRIBE)),
        decisions.of_each("topics"),
    ),
    # `build_table` replaces this door by a door that knows whether Metadata requests may create topics.
    ApiKey.METADATA: Api(
        lambda at: (
            MetadataHandler(
                at.broker, at.broker.controller, at.broker.own_config, at.broker.replication.departures
            ).handle
        ),
        topics.metadata_door(lambda: True),
        decisions.of_metadata,
    ),
    ApiKey.OFFSET_COMMIT: Api(
        lambda at: OffsetCommitHandler(at.broker, at.broker.groups).handle,
        needing(on_group(Operation.READ), each=on_topic(Operation.READ)),
        decisions.of_each("topics"),
    ),
    ApiKey.OFFSET_FETCH: Api(
        lambda at: OffsetFetchHandler(at.broker, at.broker.groups).handle,
        groups.offset_fetch_door,
        decisions.of_offsets,
    ),
    ApiKey.FIND_COORDINATOR: Api(
        lambda at: (
            FindCoordinatorHandler(at.broker, at.broker.controller, at.broker.replication.departures).handle
        ),
        groups.find_coordinator_door,
        decisions.of_each("coordinator_keys"),
    ),
    ApiKey.JOIN_GROUP: Api(
        lambda at: MemberRequestHandler(at.broker.groups).handle, needing(on_group(Operation.READ))
    ),
    ApiKey.HEARTBEAT: Api(
        lambda at: MemberRequestHandler(at.broker.groups).handle, needing(on_group(Operation.READ))
    ),
    ApiKey.LEAVE_GROUP: Api(
        lambda at: LeaveGroupHandler(at.broker, at.broker.groups).handle, needing(on_group(Operation.READ))
    ),
    ApiKey.SYNC_GROUP: Api(
        lambda at: SyncGroupHandler(at.broker.groups).handle, needing(on_group(Operation.READ))
    ),
    ApiKey.DESCRIBE_GROUPS: Api(
        lambda at: DescribeGroupsHandler(at.broker, at.broker.groups).handle,
        groups.describe_groups_door,
        decisions.of_groups,
    ),
    ApiKey.LIST_GROUPS: Api(
        lambda at: ListGroupsHandler(at.broker, at.broker.groups).handle,
        groups.list_groups_door,
        decisions.of_all_groups,
    ),
    ApiKey.SASL_HANDSHAKE: Api(lambda at: sasl_requests.handshake, PASSES),
    ApiKey.API_VERSIONS: Api(lambda at: at.versions.handle, PASSES),
    ApiKey.CREATE_TOPICS: Api(_about_topics, PASSES, is_forwarded=True),
    ApiKey.DELETE_TOPICS: Api(_about_topics, PASSES, is_forwarded=True),
    ApiKey.DELETE_RECORDS: Api(
        lambda at: DeleteRecordsHandler(at.broker, at.broker.served).handle,
        needing(each=on_topic(Operation.DELETE)),
        decisions.of_each("topics"),
    ),
    ApiKey.INIT_PRODUCER_ID: Api(
        lambda at: InitProducerIdHandler(at.broker, at.broker.transactions).handle,
        transactions.init_producer_id_door,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        lambda at: OffsetForLeaderEpochHandler(at.broker, at.broker.served).handle,
        unless_on_cluster(Operation.CLUSTER_ACTION, needing(each=on_topic(Operation.DESCRIBE))),
        decisions.of_each("topics"),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        lambda at: AddPartitionsToTxnHandler(at.broker, at.broker.transactions).handle,
        transactions.add_partitions_to_txn_door,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(
        lambda at: AddOffsetsToTxnHandler(at.broker, at.broker.groups, at.broker.transactions).handle,
        needing(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
    ),
    ApiKey.END_TXN: Api(
        lambda at: EndTxnHandler(at.broker, at.broker.transactions).handle,
        needing(on_transactional_id(Operation.WRITE)),
    ),
    ApiKey.WRITE_TXN_MARKERS: Api(
        lambda at: WriteTxnMarkersHandler(at.broker, at.broker.marker_writer).handle,
        for_cluster(Operation.CLUSTER_ACTION, Operation.ALTER),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Api(
        lambda at: TxnOffsetCommitHandler(at.broker, at.broker.groups).handle,
        needing(
            on_transactional_id(Operation.WRITE), on_group(Operation.READ), each=on_topic(Operation.READ)
        ),
        decisions.of_each("topics"),
    ),
    ApiKey.DESCRIBE_ACLS: Api(
        lambda at: (
            DescribeAclsHandler(at.authorizer, lambda: at.image().access.acls, at.broker.long_work).handle
        ),
        PASSES,
    ),
    ApiKey.CREATE_ACLS: _forwarded(refusal, AclForwardingHandler),
    ApiKey.DELETE_ACLS: _forwarded(refusal, AclForwardingHandler),
    ApiKey.DESCRIBE_CONFIGS: Api(
        lambda at: (
            DescribeConfigsHandler(at.broker.settings.node_id, at.broker, at.broker.troubles.text).handle
        ),
        describe_configs_door,
        decisions.of_each("resources"),
    ),
    ApiKey.ALTER_CONFIGS: Api(
        lambda at: AlterConfigsHandler(at.broker, at.forwarder, at.broker.own_config, ABSOLUTE).handle,
        alter_configs_door(RESOURCE_BROKER_LOGGER),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(
        lambda at: AlterReplicaLogDirsHandler(at.broker, at.broker.disks, at.broker.served).handle,
        for_cluster(Operation.ALTER, refuse=topics.refuse_moves),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Api(
        lambda at: DescribeLogDirsHandler(at.broker, at.broker.disks, at.broker.scrubber).handle,
        for_cluster(Operation.DESCRIBE),
    ),
    ApiKey.SASL_AUTHENTICATE: Api(lambda at: sasl_requests.authenticate, PASSES),
    ApiKey.CREATE_PARTITIONS: Api(_about_topics, PASSES, is_forwarded=True),
    ApiKey.CREATE_DELEGATION_TOKEN: _forwarded(refusal, TokenForwardingHandler),
    ApiKey.RENEW_DELEGATION_TOKEN: _forwarded(refusal, TokenForwardingHandler),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _forwarded(refusal, TokenForwardingHandler),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(
        lambda at: (
            DescribeTokensHandler(at.image, at.broker.long_work, at.broker.settings.token_secrets).handle
        ),
        describe_tokens_door,
    ),
    ApiKey.DELETE_GROUPS: Api(
        lambda at: DeleteGroupsHandler(at.broker, at.broker.groups).handle,
        needing(each=on_group(Operation.DELETE)),
        decisions.of_each("groups_names"),
    ),
    ApiKey.ELECT_LEADERS: _forwarded(refusal),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        lambda at: AlterConfigsHandler(at.broker, at.forwarder, at.broker.own_config, INCREMENTAL).handle,
        alter_configs_door(RESOURCE_BROKER_LOGGER),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _forwarded(refusal),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _forwarded(refusal),
    ApiKey.OFFSET_DELETE: Api(
        lambda at: OffsetDeleteHandler(at.broker, at.broker.groups).handle,
        needing(on_group(Operation.DELETE), each=on_topic(Operation.READ)),
        decisions.of_each("topics"),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(
        lambda at: DescribeClientQuotasHandler(at.image, at.broker.long_work).handle,
        for_cluster(Operation.DESCRIBE_CONFIGS),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: _forwarded(refusal),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        lambda at: DescribeScramUsersHandler(at.image, at.broker.long_work).handle,
        for_cluster(Operation.DESCRIBE, refuse=refuse_describe_users),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _forwarded(refusal),
    ApiKey.DESCRIBE_QUORUM: _forwarded(refuse),
    ApiKey.UPDATE_FEATURES: _forwarded(refusal),
    ApiKey.DESCRIBE_CLUSTER: Api(
        lambda at: DescribeClusterHandler(at.broker).handle, topics.describe_cluster_door
    ),
    ApiKey.DESCRIBE_PRODUCERS: Api(
        lambda at: DescribeProducersHandler(at.broker, at.broker.served).handle,
        needing(each=on_topic(Operation.READ), text=lambda _, code: code.message),
        decisions.of_each("topics"),
    ),
    ApiKey.UNREGISTER_BROKER: _forwarded(refusal),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(
        lambda at: DescribeTransactionsHandler(at.broker, at.broker.transactions).handle,
        transactions.describe_transactions_door,
        decisions.of_each("transactional_ids"),
    ),
    ApiKey.LIST_TRANSACTIONS: Api(
        lambda at: ListTransactionsHandler(at.broker, at.broker.transactions).handle,
        transactions.list_transactions_door,
        decisions.of_all_transactions,
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(
        lambda at: ConsumerGroupHeartbeatHandler(at.broker, at.broker.groups, at.authorizer).handle,
        groups.consumer_group_heartbeat_door,
        decisions.of_subscription,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(
        lambda at: ConsumerGroupDescribeHandler(at.broker, at.broker.groups).handle,
        groups.consumer_group_describe_door,
        decisions.of_consumer_groups,
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(
        lambda at: GetTelemetrySubscriptionsHandler(at.broker.telemetry, at.broker.long_work).handle,
        telemetry.get_telemetry_subscriptions_door,
    ),
    ApiKey.PUSH_TELEMETRY: Api(
        lambda at: PushTelemetryHandler(at.broker.telemetry, at.broker.long_work).handle, PASSES
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Api(
        lambda at: ListConfigResourcesHandler(at.broker).handle, for_cluster(Operation.DESCRIBE_CONFIGS)
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        lambda at: DescribeTopicPartitionsHandler(at.broker).handle,
        topics.describe_topic_partitions_door,
        decisions.of_topic_partitions,
    ),
    ApiKey.ADD_RAFT_VOTER: _forwarded(refuse),
    ApiKey.REMOVE_RAFT_VOTER: _forwarded(refuse),
}
"""The APIs of a broker. The handlers of DescribeAcls and of the requests about delegation tokens check rights
themselves.
"""
