"""The check of groups' configurations (KIP-848, KIP-932, KIP-1071) against limits in the broker's
configuration.

A group's key `KIND.rest` has the broker's `group.KIND.rest` as its default. Its value must lie between
`group.KIND.min.rest` and `group.KIND.max.rest`.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.metadata_quorum.config.config_defs import (
    ConfigError,
    ConfigValue,
    InvalidConfiguration,
    broker_defs,
    group_defs,
)
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value, group_value

_LIMITED_AS = {"num.standby.replicas": "standby.replicas"}


def validate_group_configs(configs: Mapping[str, str], broker: BrokerConfigLayers) -> None:
    """Check the overrides of one group against the broker's limits.

    Raises `ConfigError` with Kafka's message.
    """
    definitions = group_defs()
    for name, value in configs.items():
        if name not in definitions:
            raise InvalidConfiguration(name, value, f"Unknown group config name: {name}")
    values: dict[str, ConfigValue] = {}
    for name in definitions:
        values[name] = _parse(name, configs[name]) if name in configs else group_value(name, {}, broker)
    for name in sorted(configs):
        _check_limits(name, values[name], broker)
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if session in configs or heartbeat in configs:
            _check_order(session, values[session], heartbeat, values[heartbeat])


def _parse(name: str, text: str) -> ConfigValue:
    try:
        return group_defs()[name].parse(text)
    except ConfigError as error:
        if name != "share.auto.offset.reset":
            raise
        raise ConfigError(
            name,
            text,
            f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' or "
            "of the format 'by_duration:<PnDTnHnMn.nS>'.",
        ) from error


def limit_keys(name: str) -> tuple[str, str]:
    """Return the names of the broker keys for the minimum and the maximum of a group's key.

    Such keys may not exist.
    """
    kind, _, rest = name.partition(".")
    rest = _LIMITED_AS.get(rest, rest)
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"


def _check_limits(name: str, value: ConfigValue, broker: BrokerConfigLayers) -> None:
    if not isinstance(value, int):
        return
    lowest, highest = limit_keys(name)
    if lowest in broker_defs():
        limit = broker_value(lowest, broker)
        if isinstance(limit, int) and value < limit:
            raise InvalidConfiguration(name, value, f"{name} must be greater than or equal to {lowest}")
    if highest in broker_defs():
        limit = broker_value(highest, broker)
        if isinstance(limit, int) and value > limit:
            raise InvalidConfiguration(name, value, f"{name} must be less than or equal to {highest}")


def _check_order(session: str, session_ms: ConfigValue, heartbeat: str, heartbeat_ms: ConfigValue) -> None:
    if isinstance(session_ms, int) and isinstance(heartbeat_ms, int) and session_ms <= heartbeat_ms:
        raise InvalidConfiguration(session, session_ms, f"{session} must be greater than {heartbeat}")
