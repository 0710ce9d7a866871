"""The handlers of a broker. An API that stands here is advertised; no other is."""

from __future__ import annotations

from collections.abc import Callable

from data_plane.broker import Broker
from data_plane.handlers.administration.alter_configs import (
    ABSOLUTE,
    INCREMENTAL,
    AlterConfigsHandler,
)
from data_plane.handlers.administration.delete_records import DeleteRecordsHandler
from data_plane.handlers.administration.forwarded import forwarding_handlers
from data_plane.handlers.administration.log_dirs import AlterReplicaLogDirsHandler, DescribeLogDirsHandler
from data_plane.handlers.administration.topic_partitions import (
    CreatePartitionsHandler,
    DescribeTopicPartitionsHandler,
)
from data_plane.handlers.administration.topic_requests import (
    CreateTopicsHandler,
    DeleteTopicsHandler,
    InitProducerIdHandler,
)
from data_plane.handlers.fetching.fetch import FetchHandler
from data_plane.handlers.fetching.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler
from data_plane.handlers.grouping.find_coordinator import FindCoordinatorHandler
from data_plane.handlers.grouping.group_offsets import (
    OffsetCommitHandler,
    OffsetDeleteHandler,
    OffsetFetchHandler,
)
from data_plane.handlers.grouping.group_requests import (
    DeleteGroupsHandler,
    DescribeGroupsHandler,
    LeaveGroupHandler,
    ListGroupsHandler,
    MemberRequestHandler,
    SyncGroupHandler,
)
from data_plane.handlers.metadata import DescribeClusterHandler, MetadataHandler
from data_plane.handlers.producing.produce import ProduceHandler
from data_plane.handlers.producing.producers import DescribeProducersHandler
from data_plane.handlers.producing.txn_markers import WriteTxnMarkersHandler
from metadata_quorum.describe_configs import (
    DescribeConfigsHandler,
    ListConfigResourcesHandler,
)
from metadata_quorum.features import KRAFT_VERSION
from odradek.serving.api_table import ApiTable
from odradek.serving.api_versions import ApiVersionsHandler
from odradek.serving.contract import Handler
from wire.api import PRODUCE_ADVERTISED_MIN, ApiKey, api_versions


def build_table(broker: Broker, kraft_version: Callable[[], int] = lambda: 0) -> ApiTable:
    """The API table of a broker's client listener."""
    forwarded = forwarding_handlers(broker)
    handlers: dict[int, Handler] = {
        ApiKey.PRODUCE: ProduceHandler(broker).handle,
        ApiKey.FETCH: FetchHandler(broker).handle,
        ApiKey.LIST_OFFSETS: ListOffsetsHandler(broker).handle,
        ApiKey.METADATA: MetadataHandler(broker).handle,
        ApiKey.OFFSET_COMMIT: OffsetCommitHandler(broker).handle,
        ApiKey.OFFSET_FETCH: OffsetFetchHandler(broker).handle,
        ApiKey.FIND_COORDINATOR: FindCoordinatorHandler(broker).handle,
        ApiKey.JOIN_GROUP: MemberRequestHandler(broker).handle,
        ApiKey.HEARTBEAT: MemberRequestHandler(broker).handle,
        ApiKey.LEAVE_GROUP: LeaveGroupHandler(broker).handle,
        ApiKey.SYNC_GROUP: SyncGroupHandler(broker).handle,
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsHandler(broker).handle,
        ApiKey.LIST_GROUPS: ListGroupsHandler(broker).handle,
        ApiKey.DELETE_GROUPS: DeleteGroupsHandler(broker).handle,
        ApiKey.OFFSET_DELETE: OffsetDeleteHandler(broker).handle,
        ApiKey.CREATE_TOPICS: CreateTopicsHandler(broker).handle,
        ApiKey.DELETE_TOPICS: DeleteTopicsHandler(broker).handle,
        ApiKey.INIT_PRODUCER_ID: InitProducerIdHandler(broker).handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochHandler(broker).handle,
        ApiKey.CREATE_PARTITIONS: CreatePartitionsHandler(broker).handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsHandler(broker).handle,
        ApiKey.ALTER_CONFIGS: AlterConfigsHandler(broker, ABSOLUTE).handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: AlterConfigsHandler(broker, INCREMENTAL).handle,
        ApiKey.LIST_CONFIG_RESOURCES: ListConfigResourcesHandler(broker).handle,
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsHandler(
            broker.settings.node_id, broker, broker.troubles.text
        ).handle,
        ApiKey.DELETE_RECORDS: DeleteRecordsHandler(broker).handle,
        ApiKey.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsHandler(broker).handle,
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsHandler(broker).handle,
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducersHandler(broker).handle,
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersHandler(broker).handle,
        ApiKey.DESCRIBE_CLUSTER: DescribeClusterHandler(broker).handle,
        **forwarded,
    }
    release = broker.settings.release
    served = {
        int(key): api_versions(key) if key in forwarded else release.client_versions(key)
        for key in (*handlers, ApiKey.API_VERSIONS)
    }
    advertised = dict(served)
    advertised[ApiKey.PRODUCE] = (PRODUCE_ADVERTISED_MIN, served[ApiKey.PRODUCE][1])
    versions = ApiVersionsHandler(
        advertised, release.features, lambda: broker.image, lambda: {KRAFT_VERSION: kraft_version()}
    )
    handlers[ApiKey.API_VERSIONS] = versions.handle
    return ApiTable(handlers, advertised, served, versions.unsupported)
