"""The settings of a broker that are fixed by its properties file. `TopicConfigs` has the values that may
change while the broker runs.
"""

from __future__ import annotations

import attrs

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.transactions.transactions_topic import TransactionSettings
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.features import THIS_RELEASE, Release
from odradek.security.tokens import TokenSecrets


@attrs.frozen(kw_only=True, slots=True)
class BrokerSettings:
    """A broker's fixed settings, taken from the configuration of its node."""

    node_id: int
    cluster_id: str
    auto_create_topics_enable: bool = setting("auto.create.topics.enable")
    fetch_max_bytes: int = setting("fetch.max.bytes")
    fetch_session_slots_max: int = setting("max.incremental.fetch.session.cache.slots")
    fetch_session_eviction_ms: int
    request_timeout_ms: int = setting("request.timeout.ms")
    request_partitions_max: int = setting("max.request.partition.size.limit")
    """The most partitions in one page of a DescribeTopicPartitions response."""
    add_partitions_retry_backoff_ms: int = setting("add.partitions.to.txn.retry.backoff.ms")
    add_partitions_retry_backoff_ms_max: int = setting("add.partitions.to.txn.retry.backoff.max.ms")
    telemetry_bytes_max: int = setting("telemetry.max.bytes")
    """The most bytes of metrics in one PushTelemetry request, as received (compressed)."""
    groups: GroupSettings
    transactions: TransactionSettings
    config_layers: BrokerConfigLayers
    """The values of the properties file. Dynamic values of brokers and topics take precedence."""
    suspicion_ms: int = 3_000
    """The milliseconds without any exchange after which this broker reports another broker to the controller as
    silent (`odradek.broker.suspicion.ms`). With 0, it reports nobody, as in Kafka.
    """
    scrub_interval_ms: int = 0
    """The interval in which the scrubber reads each log once, to find silently damaged bytes; 0 disables the
    scrubber.
    """
    cleaner_threads_per_disk: int = 1
    """The number of logs of one disk that the cleaner may clean at a time."""
    release: Release = THIS_RELEASE
    token_secrets: TokenSecrets | None = None
    """The secrets of delegation tokens; None if `delegation.token.secret.key` is unset."""
