"""Settings of a controller, from its node's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from odradek.metadata_quorum.config.typed_settings import seconds_as_milliseconds, setting
from odradek.metadata_quorum.features import THIS_RELEASE, Release
from odradek.security.tokens import TokenSecrets


@attrs.frozen
class ControllerSettings:
    """The settings of a controller. `static_config` has the values of the node's properties file. Topics
    inherit from these values.
    """

    num_partitions: int = setting("num.partitions")
    default_replication_factor: int = setting("default.replication.factor")
    delete_topic_enable: bool = setting("delete.topic.enable")
    broker_session_timeout_ms: int = setting("broker.session.timeout.ms")
    auto_leader_rebalance_enable: bool = setting("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_ms: int = setting(
        "leader.imbalance.check.interval.seconds", seconds_as_milliseconds
    )
    unclean_leader_election_interval_ms: int = setting("unclean.leader.election.interval.ms")
    unclean_recovery_manager_enabled: bool = True
    """True if unclean recovery is enabled (KIP-966): if all in-sync replicas may have lost records, the
    replica with the longest log is elected.
    """
    unclean_recovery_timeout_ms: int = 300_000
    """The longest time, in milliseconds, for which an unclean recovery waits for the reports of replicas."""
    token_max_lifetime_ms: int = setting("delegation.token.max.lifetime.ms")
    token_expiry_ms: int = setting("delegation.token.expiry.time.ms")
    token_expiry_check_interval_ms: int = setting("delegation.token.expiry.check.interval.ms")
    quota_windows: int = setting("controller.quota.window.num")
    quota_window_seconds: int = setting("controller.quota.window.size.seconds")
    """The length of a quota window, in seconds. A client's burst is the number of changes that its quota
    allows in all windows together (KIP-599).
    """
    remote_storage_enable: bool = setting("remote.log.storage.system.enable")
    static_config: Mapping[str, str] = attrs.field(factory=dict)
    release: Release = THIS_RELEASE
    has_authorizer: bool = False
    """True if `authorizer.class.name` is set. Otherwise ACLs cannot be created."""
    tokens_per_owner_max: int = 1_000
    """The most delegation tokens that one owner may have (`odradek.delegation.token.max.per.owner`)."""
    suspicion_ms: int = 3_000
    """A broker whose last heartbeat is so many milliseconds old is suspected of being dead
    (`odradek.broker.suspicion.ms`). With 0, only the end of its session matters, as in Kafka. Brokers know this key,
    too: they send at least four heartbeats in that time.
    """
    token_secrets: TokenSecrets | None = None
    """The secrets of delegation tokens. None if `delegation.token.secret.key` is unset; then requests for
    tokens are refused.
    """
