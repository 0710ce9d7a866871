"""The settings of a node's parts, made from its configuration. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.data_plane.broker_settings import BrokerSettings
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.metadata_log import MetadataLogSettings, MetadataRetention
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.config.typed_settings import settings_of
from odradek.metadata_quorum.raft.core_state import RaftConfig
from odradek.metadata_quorum.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.metadata_quorum.replica.driver_protocol import NO_VOTERS, QuorumSettings
from odradek.metadata_quorum.replica.snapshots import SnapshotSettings
from odradek.metadata_quorum.replica.wire_messages import Endpoint
from odradek.metadata_quorum.service import MetadataSettings
from odradek.node.broker_lifecycle import LifecycleSettings
from odradek.node.configuration.node_config import NodeConfig
from odradek.node.configuration.own_keys import (
    CLEANER_THREADS_PER_DISK,
    CONSUMER_MEMBERS,
    SCRUB_INTERVAL,
    SUSPICION,
    TRANSACTIONAL_IDS,
)
from odradek.node.connections.listener_settings import SEND_BUFFER_BYTES, ListenerSettings
from odradek.wire.structure import Message

__all__ = [
    "broker_settings",
    "lifecycle_settings",
    "listener_settings",
    "metadata_log_settings",
    "metadata_settings",
]

FETCH_SESSION_EVICTION_MS = 120_000
"""A fetch session that was idle for more than this number of milliseconds may be evicted for any new session. A session
that was made longer ago may be evicted for a session with more partitions. (Kafka's constant.)
"""


def broker_settings(config: NodeConfig, cluster_id: str) -> BrokerSettings:
    layers = config.config_layers
    return settings_of(
        BrokerSettings,
        layers,
        node_id=config.node_id,
        cluster_id=cluster_id,
        fetch_session_eviction_ms=FETCH_SESSION_EVICTION_MS,
        groups=settings_of(
            GroupSettings, layers, consumer_members_per_partition_max=config.get_int(CONSUMER_MEMBERS)
        ),
        transactions=settings_of(
            TransactionSettings, layers, ids_per_partition_max=config.get_int(TRANSACTIONAL_IDS)
        ),
        config_layers=layers,
        release=config.release,
        token_secrets=config.token_secrets,
        suspicion_ms=config.get_int(SUSPICION),
        scrub_interval_ms=config.get_int(SCRUB_INTERVAL),
        cleaner_threads_per_disk=config.get_int(CLEANER_THREADS_PER_DISK),
    )


def lifecycle_settings(config: NodeConfig) -> LifecycleSettings:
    return settings_of(
        LifecycleSettings,
        config.config_layers,
        shutdown_retries_max=config.get_optional_int("controlled.shutdown.max.retries"),
        shutdown_backoff_ms=config.get_optional_int("controlled.shutdown.retry.backoff.ms"),
    )


def listener_settings(config: NodeConfig) -> ListenerSettings:
    return settings_of(
        ListenerSettings,
        config.config_layers,
        send_buffer_bytes=_buffer_bytes(config, "socket.send.buffer.bytes", SEND_BUFFER_BYTES),
        receive_buffer_bytes=_buffer_bytes(config, "socket.receive.buffer.bytes", None),
    )


def _buffer_bytes(config: NodeConfig, key: str, unset: int | None) -> int | None:
    """Return the socket buffer's size in bytes from the file (None for -1: the kernel decides), or `unset` if it is
    not set.
    """
    if key not in config.explicit:
        return unset
    size = config.get_int(key)
    return None if size < 0 else size


def metadata_log_settings(config: NodeConfig) -> MetadataLogSettings:
    layers = config.config_layers
    return settings_of(MetadataLogSettings, layers, retention=settings_of(MetadataRetention, layers))


def _static_voters(config: NodeConfig) -> VoterSet:
    """Parse `controller.quorum.voters` into voters without directory ids; empty if the key is not set."""
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
    """Make the settings of the metadata service. `me` and the first records (`bootstrap`) come from the log
    directory; `endpoints` are this node's addresses.
    """
    layers = config.config_layers
    raft = settings_of(RaftConfig, layers)
    quorum = QuorumSettings(
        me,
        cluster_id,
        raft,
        _static_voters(config),
        config.bootstrap_servers,
        endpoints,
        config.controller_listener_names[0],
    )
    snapshots = settings_of(SnapshotSettings, layers)
    controller = config.controller_settings() if config.is_controller else None
    return MetadataSettings(quorum, controller, snapshots, bootstrap, config.release)
