"""What the parts of a node take from its configuration. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from data_plane.broker import BrokerSettings
from data_plane.groups.group_settings import GroupSettings
from metadata_quorum.raft.core_state import RaftConfig
from metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from metadata_quorum.replica.quorum_driver import NO_VOTERS, QuorumSettings
from metadata_quorum.replica.snapshots import SnapshotSettings
from metadata_quorum.replica.wire_messages import Endpoint
from metadata_quorum.service import MetadataSettings
from odradek.node.broker_lifecycle import LifecycleTimes
from odradek.node.configuration.node_config import NodeConfig
from wire.structure import Message

__all__ = ["broker_settings", "lifecycle_times", "metadata_settings"]

FETCH_SESSION_EVICTION_MS = 120_000
"""Kafka's constant: a session is safe from smaller newcomers for so long."""


def broker_settings(config: NodeConfig, cluster_id: str) -> BrokerSettings:
    return BrokerSettings(
        node_id=config.node_id,
        cluster_id=cluster_id,
        auto_create_topics_enable=config.get_bool("auto.create.topics.enable"),
        fetch_max_bytes=config.get_int("fetch.max.bytes"),
        fetch_session_slots_max=config.get_int("max.incremental.fetch.session.cache.slots"),
        fetch_session_eviction_ms=FETCH_SESSION_EVICTION_MS,
        request_timeout_ms=config.get_int("request.timeout.ms"),
        request_partitions_max=config.get_int("max.request.partition.size.limit"),
        groups=_group_settings(config),
        config_layers=config.config_layers,
        release=config.release,
        listener_of_brokers=config.inter_broker_listener_name if len(config.broker_listeners) > 1 else None,
    )


def lifecycle_times(config: NodeConfig) -> LifecycleTimes:
    return LifecycleTimes(
        initial_registration_ms=config.get_int("initial.broker.registration.timeout.ms"),
        log_dir_failure_ms=config.get_int("log.dir.failure.timeout.ms"),
        shutdown_retries_max=config.get_optional_int("controlled.shutdown.max.retries"),
        shutdown_backoff_ms=config.get_optional_int("controlled.shutdown.retry.backoff.ms"),
    )


def _group_settings(config: NodeConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_ms_min=config.get_int("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        group_size_max=config.get_int("group.max.size"),
        offset_metadata_bytes_max=config.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
        offsets_commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
        append_bytes_max=config.get_int("message.max.bytes"),
        topic_partitions=config.get_int("offsets.topic.num.partitions"),
        topic_replication_factor=config.get_int("offsets.topic.replication.factor"),
        topic_segment_bytes=config.get_int("offsets.topic.segment.bytes"),
        compression_type=config.get_int("offsets.topic.compression.codec"),
    )


def _raft_config(config: NodeConfig) -> RaftConfig:
    """`controller.quorum.*`, in seconds."""

    def seconds(key: str) -> float:
        return config.get_int(key) / 1000

    return RaftConfig(
        election_timeout_seconds=seconds("controller.quorum.election.timeout.ms"),
        election_backoff_seconds_max=seconds("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_seconds=seconds("controller.quorum.fetch.timeout.ms"),
        retry_backoff_seconds=seconds("controller.quorum.retry.backoff.ms"),
        request_timeout_seconds=seconds("controller.quorum.request.timeout.ms"),
        fetch_bytes_max=config.get_int("controller.quorum.fetch.max.bytes"),
    )


def _static_voters(config: NodeConfig) -> VoterSet:
    """`controller.quorum.voters`; nobody knows their directories. None of them where the key is not set."""
    if not config.static_voters:
        return NO_VOTERS
    name = config.controller_listener_names[0]
    return VoterSet.of(
        Voter(ReplicaKey(each.node_id), ((name, each.host, each.port),)) for each in config.static_voters
    )


def metadata_settings(
    config: NodeConfig,
    me: ReplicaKey,
    cluster_id: str,
    *,
    endpoints: tuple[Endpoint, ...],
    bootstrap: Sequence[Message],
) -> MetadataSettings:
    """`me` and `bootstrap`, the first records, are what the log directory says; `endpoints` what this node listens on."""
    quorum = QuorumSettings(
        me, cluster_id, _raft_config(config), _static_voters(config), config.bootstrap_servers, endpoints
    )
    snapshots = SnapshotSettings(
        config.get_int("metadata.log.max.record.bytes.between.snapshots"),
        config.get_int("metadata.log.max.snapshot.interval.ms"),
    )
    controller = config.controller_settings() if config.is_controller else None
    return MetadataSettings(quorum, controller, snapshots, bootstrap, config.release)
