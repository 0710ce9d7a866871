"""What a controller takes from its node's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from metadata_quorum.features import THIS_RELEASE, Release


@attrs.frozen
class ControllerSettings:
    """Times in milliseconds. `static_config` is the node's properties file, for the values that topics inherit."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    broker_session_timeout_ms: int = 9000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    unclean_leader_election_interval_ms: int = 300_000
    remote_storage_enable: bool = False
    static_config: Mapping[str, str] = attrs.field(factory=dict)
    release: Release = THIS_RELEASE
