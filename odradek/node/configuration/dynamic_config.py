"""What a running node does with the values it is told (KIP-226), besides its logs, which the broker sees to. PURE.

What the metadata log tells has been judged (`config_values.check_value`); a value of the properties file that is none is
passed over with an error in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from data_plane.broker import Broker
from data_plane.log.directory.log_dir import LogDir
from metadata_quorum.config.config_defs import ConfigError
from metadata_quorum.config.config_values import parse_overrides
from metadata_quorum.config.dynamic_broker_config import ALL_DIRECTORIES
from metadata_quorum.config.effective_config import broker_value
from odradek.node.connections.connection_limits import ConnectionLimits


class DynamicConfig:
    """Applies this broker's values whenever they change. `apply` once before the listeners open."""

    def __init__(
        self,
        broker: Broker,
        limits: ConnectionLimits,
        by_path: Mapping[str, LogDir],
        heartbeat_now: Callable[[], None],
    ) -> None:
        """`by_path` are the log directories as the configuration names them; `heartbeat_now` sends news to the controller
        at once."""
        self._broker = broker
        self._limits = limits
        self._by_path = by_path
        self._heartbeat_now = heartbeat_now
        broker.config_listeners.append(self.apply)

    def apply(self) -> None:
        """Take the values that hold now."""
        limits = self._limits
        limits.connections_max = self._int("max.connections")
        limits.per_ip_max = self._int("max.connections.per.ip")
        limits.creation_rate_max = self._int("max.connection.creation.rate")
        overrides = self._value("max.connections.per.ip.overrides")
        try:
            limits.per_ip_overrides = parse_overrides(str(overrides or ""))
        except ConfigError as error:
            limits.per_ip_overrides = {}
            self._broker.log.error("config.not_applied", reason=str(error))
        for log_dir in self._by_path.values():
            context = log_dir.context
            expiration_ms = self._int("producer.id.expiration.ms")
            if expiration_ms != context.producer_id_expiration_ms:
                log_dir.context = attrs.evolve(context, producer_id_expiration_ms=expiration_ms)
        cordoned = self._cordoned_ids()
        if cordoned != self._broker.placement.cordoned:
            self._broker.placement.cordoned = cordoned
            self._heartbeat_now()

    def _cordoned_ids(self) -> tuple[bytes, ...]:
        """Directories that take no new replicas (KIP-1066), by their ids."""
        paths = self._value("cordoned.log.dirs") or ()
        return tuple(
            sorted(
                log_dir.directory_id
                for path, log_dir in self._by_path.items()
                if path in paths or ALL_DIRECTORIES in paths
            )
        )

    def _value(self, name: str) -> Any:
        return broker_value(name, self._broker.config_layers)

    def _int(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int), f"{name} is a whole number, also by default"
        return value
