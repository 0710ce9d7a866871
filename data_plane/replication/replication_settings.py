"""The settings of replication, from the broker's configuration. Times in milliseconds, sizes in bytes."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value
from odradek.metadata_quorum.config.typed_settings import setting, settings_of

RACK_AWARE_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "RackAwareReplicaSelector",
)


@attrs.frozen
class ReplicationSettings:
    """The values of Kafka's configuration keys for replication; docs/configuration.md describes them."""

    listener: str
    """The name of the listener through which brokers reach each other (`inter.broker.listener.name`)."""
    lag_ms_max: int = setting("replica.lag.time.max.ms")
    fetch_wait_ms_max: int = setting("replica.fetch.wait.max.ms")
    fetch_bytes_min: int = setting("replica.fetch.min.bytes")
    fetch_bytes_max: int = setting("replica.fetch.max.bytes")
    """The most bytes of one partition in a fetch, unless the partition's first batch is larger."""
    response_bytes_max: int = setting("replica.fetch.response.max.bytes")
    backoff_ms_max: int = setting("replica.fetch.backoff.ms")
    socket_timeout_ms: int = setting("replica.socket.timeout.ms")
    selects_by_rack: bool = setting("replica.selector.class", RACK_AWARE_SELECTORS.__contains__)
    """True if consumers are sent to a replica in their rack (KIP-392)."""

    @classmethod
    def of(cls, layers: BrokerConfigLayers) -> ReplicationSettings:
        """Read the settings from the properties file's layer of the configuration."""
        name = broker_value("inter.broker.listener.name", layers)
        protocol = broker_value("security.inter.broker.protocol", layers)
        return settings_of(cls, layers, listener=str(name or protocol).upper())
