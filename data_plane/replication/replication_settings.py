"""What replication takes from the broker's configuration. Times in milliseconds, sizes in bytes."""

from __future__ import annotations

import attrs

from metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value

RACK_AWARE_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "RackAwareReplicaSelector",
)


@attrs.frozen
class ReplicationSettings:
    """Kafka's keys; see docs/configuration.md."""

    listener: str
    """Where brokers reach each other (`inter.broker.listener.name`)."""
    lag_ms_max: int
    fetch_wait_ms_max: int
    fetch_bytes_min: int
    fetch_bytes_max: int
    """The bytes of one partition (`replica.fetch.max.bytes`)."""
    response_bytes_max: int
    backoff_ms_max: int
    socket_timeout_ms: int
    selects_by_rack: bool
    """Whether consumers are sent to a replica in their rack (KIP-392)."""

    @classmethod
    def of(cls, layers: BrokerConfigLayers) -> ReplicationSettings:
        """From what the properties file says."""

        def number(name: str) -> int:
            value = broker_value(name, layers)
            assert isinstance(value, int), name
            return value

        name = broker_value("inter.broker.listener.name", layers)
        protocol = broker_value("security.inter.broker.protocol", layers)
        return cls(
            listener=str(name or protocol).upper(),
            lag_ms_max=number("replica.lag.time.max.ms"),
            fetch_wait_ms_max=number("replica.fetch.wait.max.ms"),
            fetch_bytes_min=number("replica.fetch.min.bytes"),
            fetch_bytes_max=number("replica.fetch.max.bytes"),
            response_bytes_max=number("replica.fetch.response.max.bytes"),
            backoff_ms_max=number("replica.fetch.backoff.ms"),
            socket_timeout_ms=number("replica.socket.timeout.ms"),
            selects_by_rack=broker_value("replica.selector.class", layers) in RACK_AWARE_SELECTORS,
        )
