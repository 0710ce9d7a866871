"""Dynamic configuration (KIP-226): a running node applies changed values, such as limits of connections, except
those for logs. This module applies all values except those for logs, which the broker applies itself. PURE.

Values in the metadata log have been checked before (`config_values.check_value`). An invalid value of the properties
file is skipped, with an error in the node's log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.env.ports import Log
from odradek.metadata_quorum.config.config_defs import ConfigError, broker_defs
from odradek.metadata_quorum.config.config_values import LISTENER_PREFIX, parse_overrides
from odradek.metadata_quorum.config.dynamic_broker_config import ALL_DIRECTORIES
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.config.typed_settings import setting, settings_of
from odradek.node.connections.connection_limits import ConnectionLimits
from odradek.serving.disk_troubles import RELEASED_LOG_DIRS


@attrs.frozen
class DynamicSettings:
    """The settings of a broker that may change while it runs."""

    connections_max: int = setting("max.connections")
    connections_per_ip_max: int = setting("max.connections.per.ip")
    connections_per_ip_overrides: str = setting("max.connections.per.ip.overrides")
    connection_rate_max: int = setting("max.connection.creation.rate")
    producer_id_expiration_ms: int = setting("producer.id.expiration.ms")
    cordoned_paths: tuple[str, ...] = setting("cordoned.log.dirs")
    """Directories in which no new replicas are placed (KIP-1066)."""


def set_limits(limits: ConnectionLimits, layers: BrokerConfigLayers, log: Log) -> None:
    """Set the limits of connections to the present values of the configuration."""
    now = settings_of(DynamicSettings, layers)
    limits.connections_max = now.connections_max
    limits.per_ip_max = now.connections_per_ip_max
    limits.creation_rate_max = now.connection_rate_max
    limits.listener_connections_max = _by_listener(layers, "max.connections", log)
    limits.listener_creation_rate_max = _by_listener(layers, "max.connection.creation.rate", log)
    try:
        limits.per_ip_overrides = parse_overrides(now.connections_per_ip_overrides)
    except ConfigError as error:
        limits.per_ip_overrides = {}
        log.error("config.not_applied", reason=str(error))


def _by_listener(layers: BrokerConfigLayers, key: str, log: Log) -> dict[str, int]:
    """Read the values of `key` that are set for single listeners (`listener.name.NAME.KEY`), by listener name."""
    found: dict[str, int] = {}
    suffix = f".{key}"
    for _, layer in reversed(list(layers.layers())):
        for name, text in layer.items():
            if name.startswith(LISTENER_PREFIX) and name.endswith(suffix):
                try:
                    value = broker_defs()[key].parse(text)
                except ConfigError as error:
                    log.error("config.not_applied", reason=str(error))
                    continue
                assert isinstance(value, int), f"{key} is a number"
                found[name[len(LISTENER_PREFIX) : -len(suffix)].upper()] = value
    return found


class DynamicConfig:
    """Applies this broker's dynamic values whenever they change. Call `apply` once before the listeners open."""

    def __init__(
        self,
        broker: Broker,
        limits: ConnectionLimits,
        by_path: Mapping[str, LogDir],
        metadata_path: str,
        heartbeat_now: Callable[[], None],
    ) -> None:
        """`by_path` has the log directories by their configured paths. `heartbeat_now` sends a heartbeat at once."""
        self._broker = broker
        self._limits = limits
        self._by_path = by_path
        self._metadata_path = metadata_path
        self._heartbeat_now = heartbeat_now
        broker.config_listeners.append(self.apply)

    def apply(self) -> None:
        """Apply the present values of the broker's configuration."""
        now = settings_of(DynamicSettings, self._broker.config_layers)
        set_limits(self._limits, self._broker.config_layers, self._broker.log)
        for log_dir in self._by_path.values():
            context = log_dir.context
            if now.producer_id_expiration_ms != context.producer_id_expiration_ms:
                log_dir.context = attrs.evolve(
                    context, producer_id_expiration_ms=now.producer_id_expiration_ms
                )
        cordoned = self._ids(now.cordoned_paths)
        if cordoned != self._broker.placement.cordoned:
            self._broker.placement.cordoned = cordoned
            self._heartbeat_now()
        self._release()

    def _release(self) -> None:
        """Stop the use of empty directories that an operator wants to remove. The directory of the metadata
        log and the last remaining directory stay in use.
        """
        broker = self._broker
        wanted = broker.newest.image.broker_configs(broker.node_id).get(RELEASED_LOG_DIRS, "")
        for path in filter(None, wanted.split(",")):
            log_dir = self._by_path.get(path)
            if log_dir is None or not log_dir.is_served or not log_dir.is_loaded:
                continue
            is_last = all(each is log_dir or not each.is_served for each in self._by_path.values())
            uses = {
                "the directory is the broker's last one": is_last,
                "the directory holds the metadata log": path == self._metadata_path,
                "the directory holds logs of partitions": log_dir.logs or log_dir.logs_being_made,
                "a replica is moving to or from the directory": broker.moves.in_directory(log_dir),
            }
            reason = next((text for text, holds in uses.items() if holds), None)
            if reason is None:
                log_dir.release()
            else:
                broker.log.warning(
                    "log_dir.not_released", directory=path, reason=reason, logs=len(log_dir.logs)
                )

    def _ids(self, paths: tuple[str, ...]) -> tuple[bytes, ...]:
        """Return the ids of the directories at these paths."""
        return tuple(
            sorted(
                log_dir.directory_id
                for path, log_dir in self._by_path.items()
                if path in paths or ALL_DIRECTORIES in paths
            )
        )
