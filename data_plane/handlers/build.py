"""The handlers of a broker. An API that stands here is advertised; no other is."""

from __future__ import annotations

from collections.abc import Callable

from odradek.data_plane.broker import Broker
from odradek.data_plane.handlers.administration.alter_configs import (
    ABSOLUTE,
    INCREMENTAL,
    AlterConfigsHandler,
)
from odradek.data_plane.handlers.administration.delete_records import DeleteRecordsHandler
from odradek.data_plane.handlers.administration.forwarded import forwarding_handlers, topic_handlers
from odradek.data_plane.handlers.administration.forwarder import Forwarder
from odradek.data_plane.handlers.administration.log_dirs import (
    AlterReplicaLogDirsHandler,
    DescribeLogDirsHandler,
)
from odradek.data_plane.handlers.administration.topic_partitions import DescribeTopicPartitionsHandler
from odradek.data_plane.handlers.doors.broker_doors import broker_doors, guarded
from odradek.data_plane.handlers.doors.decisions import decisions_of
from odradek.data_plane.handlers.fetching.fetch import FetchHandler
from odradek.data_plane.handlers.fetching.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler
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
from odradek.metadata_quorum.describing.describe_acls import DescribeAclsHandler
from odradek.metadata_quorum.describing.describe_client_quotas import DescribeClientQuotasHandler
from odradek.metadata_quorum.describing.describe_configs import (
    DescribeConfigsHandler,
    ListConfigResourcesHandler,
)
from odradek.metadata_quorum.describing.describe_scram_users import DescribeScramUsersHandler
from odradek.metadata_quorum.describing.describe_tokens import DescribeTokensHandler
from odradek.metadata_quorum.features import KRAFT_VERSION
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.security.acls.authorizer import Authorizer
from odradek.security.doors.door import check_doors
from odradek.serving.api_table import ApiTable
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.contract import Handler
from odradek.serving.sasl_requests import sasl_handlers
from odradek.wire.api import PRODUCE_ADVERTISED_MIN, ApiKey, api_versions

BETWEEN_BROKERS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS)
"""Brokers ask each other without negotiation, in the newest version that the cluster's level allows."""


def build_table(
    broker: Broker, kraft_version: Callable[[], int] = lambda: 0, authorizer: Authorizer | None = None
) -> ApiTable:
    """The API table of a broker's client listener. With an authorizer each handler stands behind its door."""
    partitions, own = broker.served, broker.own_config
    forwarder = Forwarder(broker, broker.controller)
    forwarded = forwarding_handlers(forwarder)
    handlers: dict[int, Handler] = {
        ApiKey.PRODUCE: ProduceHandler(broker).handle,
        ApiKey.FETCH: FetchHandler(broker, partitions, broker.sessions, broker.replication).handle,
        ApiKey.LIST_OFFSETS: ListOffsetsHandler(broker, partitions).handle,
        ApiKey.METADATA: MetadataHandler(broker, broker.controller, own).handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochHandler(broker, partitions).handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsHandler(broker).handle,
        ApiKey.ALTER_CONFIGS: AlterConfigsHandler(broker, forwarder, own, ABSOLUTE).handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: AlterConfigsHandler(broker, forwarder, own, INCREMENTAL).handle,
        ApiKey.LIST_CONFIG_RESOURCES: ListConfigResourcesHandler(broker).handle,
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsHandler(
            broker.settings.node_id, broker, broker.troubles.text
        ).handle,
        ApiKey.DELETE_RECORDS: DeleteRecordsHandler(broker, partitions).handle,
        ApiKey.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsHandler(broker, broker.disks, partitions).handle,
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsHandler(broker, broker.disks, broker.scrubber).handle,
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersHandler(broker, broker.marker_writer).handle,
        ApiKey.DESCRIBE_CLUSTER: DescribeClusterHandler(broker).handle,
        **topic_handlers(forwarder),
        **_access_handlers(broker, authorizer),
        **_group_handlers(broker),
        **_producer_handlers(broker),
        **forwarded,
    }
    release = broker.settings.release
    served = {
        int(key): api_versions(key) if key in forwarded else release.client_versions(key)
        for key in (*handlers, ApiKey.API_VERSIONS)
    }
    if broker.transactions.settings.two_phase_commit:
        first, last = served[ApiKey.INIT_PRODUCER_ID]
        served[ApiKey.INIT_PRODUCER_ID] = (first, last + 1)
    advertised = dict(served)
    for key in BETWEEN_BROKERS:
        served[key] = api_versions(key)
    advertised[ApiKey.PRODUCE] = (PRODUCE_ADVERTISED_MIN, served[ApiKey.PRODUCE][1])
    versions = ApiVersionsHandler(
        advertised, release.features, lambda: broker.image, lambda: {KRAFT_VERSION: kraft_version()}
    )
    handlers[ApiKey.API_VERSIONS] = versions.handle
    check_doors(handlers, broker_doors(broker), "data_plane/handlers/doors/broker_doors.py")
    if authorizer is not None:
        handlers = guarded(broker, authorizer, decisions_of(broker.groups, broker.transactions), handlers)
    return ApiTable(handlers, advertised, served, versions.unsupported)


def _access_handlers(broker: Broker, authorizer: Authorizer | None) -> dict[int, Handler]:
    def image() -> MetadataImage:
        return broker.image

    return {
        **sasl_handlers(),
        ApiKey.DESCRIBE_ACLS: DescribeAclsHandler(
            authorizer, lambda: broker.image.access.acls, broker.long_work
        ).handle,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeScramUsersHandler(image, broker.long_work).handle,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotasHandler(image, broker.long_work).handle,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: DescribeTokensHandler(
            image, broker.long_work, broker.settings.token_secrets
        ).handle,
    }


def _group_handlers(broker: Broker) -> dict[int, Handler]:
    return {
        ApiKey.OFFSET_COMMIT: OffsetCommitHandler(broker, broker.groups).handle,
        ApiKey.OFFSET_FETCH: OffsetFetchHandler(broker, broker.groups).handle,
        ApiKey.FIND_COORDINATOR: FindCoordinatorHandler(broker, broker.controller).handle,
        ApiKey.JOIN_GROUP: MemberRequestHandler(broker.groups).handle,
        ApiKey.HEARTBEAT: MemberRequestHandler(broker.groups).handle,
        ApiKey.LEAVE_GROUP: LeaveGroupHandler(broker, broker.groups).handle,
        ApiKey.SYNC_GROUP: SyncGroupHandler(broker.groups).handle,
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsHandler(broker, broker.groups).handle,
        ApiKey.LIST_GROUPS: ListGroupsHandler(broker, broker.groups).handle,
        ApiKey.DELETE_GROUPS: DeleteGroupsHandler(broker, broker.groups).handle,
        ApiKey.OFFSET_DELETE: OffsetDeleteHandler(broker, broker.groups).handle,
        ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommitHandler(broker, broker.groups).handle,
    }


def _producer_handlers(broker: Broker) -> dict[int, Handler]:
    return {
        ApiKey.INIT_PRODUCER_ID: InitProducerIdHandler(broker, broker.transactions).handle,
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducersHandler(broker, broker.served).handle,
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnHandler(broker, broker.transactions).handle,
        ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnHandler(broker, broker.groups, broker.transactions).handle,
        ApiKey.END_TXN: EndTxnHandler(broker, broker.transactions).handle,
        ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsHandler(broker, broker.transactions).handle,
        ApiKey.LIST_TRANSACTIONS: ListTransactionsHandler(broker, broker.transactions).handle,
    }
