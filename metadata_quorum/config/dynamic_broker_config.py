"""The check of changes to a running broker's configuration (KIP-226): keys and values, in Kafka's order.

The check looks at the whole configuration that the broker would have after the change. This configuration has
three layers: the properties file, the dynamic values for all brokers, and the broker's own dynamic values.
Later layers override earlier ones. Kafka can also change the listeners of a running broker, and most of their
security settings. Here such changes are refused, since the stored value would have no effect. Key and trust
stores of single listeners, and limits of listeners, can be changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from odradek.metadata_quorum.config.config_defs import (
    ConfigError,
    ConfigValue,
    broker_defs,
    running_def,
)
from odradek.metadata_quorum.config.config_values import (
    LISTENER_PREFIX,
    broker_def,
    check_value,
    listener_of,
    parse_overrides,
)
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, broker_value, inherited_text
from odradek.serving.disk_troubles import (
    DEMOTED_LOG_DIRS,
    RATE_BEFORE,
    RELEASED_LOG_DIRS,
    RETIRING_LOG_DIRS,
    TROUBLED_LOG_DIRS,
)
from odradek.wire.config_resources import RESOURCE_BROKER
from odradek.wire.errors import ErrorCode, KafkaError, listed

CLEANER_BYTES_PER_THREAD_MIN = 1 << 20
ALL_DIRECTORIES = "*"

_KEY_STORES = frozenset(
    f"ssl.{name}"
    for name in (
        "keystore.type",
        "keystore.location",
        "keystore.password",
        "keystore.key",
        "keystore.certificate.chain",
        "key.password",
        "truststore.type",
        "truststore.location",
        "truststore.password",
        "truststore.certificates",
    )
)
_NOT_SUPPORTED = frozenset(
    (
        "listeners",
        "listener.security.protocol.map",
        "principal.builder.class",
        "config.providers",
        "ssl.engine.factory.class",
    )
)
_PERSONAL = frozenset(
    ("listeners", "listener.security.protocol.map", "principal.builder.class", "cordoned.log.dirs")
)
_OF_ALL_BROKERS = frozenset(("max.connections", "max.connection.creation.rate", "num.network.threads"))
"""Keys of listeners that can also be set without a listener's name. Such a value applies to all listeners of
all brokers.
"""
_OF_LISTENERS = _KEY_STORES | {"max.connections", "max.connection.creation.rate"}
"""The keys that can be set for a single listener of a running broker."""
_OWN_PREFIX = "odradek."
_OWN_DIRECTORIES = frozenset(
    (DEMOTED_LOG_DIRS, RATE_BEFORE, RELEASED_LOG_DIRS, RETIRING_LOG_DIRS, TROUBLED_LOG_DIRS)
)
"""Keys of ours about log directories, which change while a broker runs."""
_OWN_RECOVERY_PREFIX = "odradek.recovery."
"""The prefix of the keys that a recovery of the quorum writes."""
_THREAD_COUNTS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)


def check_broker_change(
    after: Mapping[str, str], layers: BrokerConfigLayers, *, per_broker: bool, log_dirs: Collection[str]
) -> None:
    """Check a change of dynamic broker values. Raises `KafkaError` INVALID_REQUEST.

    `after` has the dynamic values after the change. They are the values of this broker if `per_broker` is
    set, otherwise the values of all brokers. `layers` has the values before the change.
    """
    _check_keys(after)
    _check_own_keys(after, layers.dynamic if per_broker else layers.dynamic_default)
    try:
        for name, text in after.items():
            definition = broker_def(name.removeprefix(listener_of(name)))
            if definition is not None:
                definition.parse(text)
    except ConfigError as error:
        raise _invalid(str(error)) from error
    personal = [name for name in after if _is_of_one_broker(name)]
    if personal and not per_broker:
        raise _invalid(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            + _listed(personal)
        )
    _check_supported(after)
    if per_broker:
        changed = attrs.evolve(layers, dynamic=after)
    else:
        changed = attrs.evolve(layers, dynamic_default=after)
    _check_times(changed)
    _check_cleaner(layers, changed)
    _check_connections(changed)
    _check_directories(changed, log_dirs)
    for name in _THREAD_COUNTS:
        _check_thread_count(name, _number(layers, name), _number(changed, name))
    try:
        for name, text in after.items():
            check_value(RESOURCE_BROKER, name, text)
    except ConfigError as error:
        raise _invalid(str(error)) from error


def has_key_stores(after: Mapping[str, str]) -> bool:
    """True if some key configures the key store or trust store of a single listener. Only the broker itself
    can check these stores.
    """
    return any(
        name.startswith(LISTENER_PREFIX) and name.removeprefix(listener_of(name)) in _KEY_STORES
        for name in after
    )


def refused_stores(reason: str) -> KafkaError:
    """Make the error for a key or trust store that the broker cannot use."""
    return _refused_update(f"Validation of dynamic config update of SSLFactory failed: {reason}")


def _check_keys(after: Mapping[str, str]) -> None:
    definitions = broker_defs()
    fixed = [name for name in after if name in definitions and not definitions[name].dynamic]
    if fixed:
        raise _invalid(f"Cannot update these configs dynamically: {_listed(fixed)}")
    security = [name for name in after if name in _KEY_STORES]
    if security:
        raise _invalid(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            + _listed(security)
        )


def _check_own_keys(after: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Refuse new values of keys of ours that are read only at the start. Kafka accepts unknown keys, since a plugin
    may know them; but no plugin knows ours. Values that earlier releases have accepted do not disturb.
    """
    fixed = [
        name
        for name, text in after.items()
        if name.startswith(_OWN_PREFIX)
        and name not in _OWN_DIRECTORIES
        and not name.startswith(_OWN_RECOVERY_PREFIX)
        and running_def(name) is None
        and before.get(name) != text
    ]
    if fixed:
        raise _invalid(f"Cannot update these configs dynamically: {_listed(fixed)}")


def _check_supported(after: Mapping[str, str]) -> None:
    missing = [
        name
        for name, text in after.items()
        if name in _NOT_SUPPORTED
        or (name.startswith(LISTENER_PREFIX) and name.removeprefix(listener_of(name)) not in _OF_LISTENERS)
        or (name == "metric.reporters" and text.strip())
    ]
    if missing:
        raise _invalid(f"This version cannot update these configs dynamically: {_listed(missing)}")


def _is_of_one_broker(name: str) -> bool:
    if name.startswith(LISTENER_PREFIX):
        return name.removeprefix(listener_of(name)) not in _OF_ALL_BROKERS
    return name in _PERSONAL or name.startswith(("ssl.", "sasl."))


def _check_times(changed: BrokerConfigLayers) -> None:
    def number_of(name: str) -> int:
        return int(inherited_text(name, changed))

    if number_of("retention.ms") == 0:
        raise _required("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    if number_of("segment.ms") < 1:
        raise _required("log.roll.ms must be greater than or equal to 1")
    if number_of("segment.jitter.ms") < 0:
        raise _required("log.roll.jitter.ms must be greater than or equal to 0")
    for unit in ("ms", "bytes"):
        name, limit_name = f"log.local.retention.{unit}", f"log.retention.{unit}"
        local, limit = number_of(f"local.retention.{unit}"), max(-1, number_of(f"retention.{unit}"))
        if limit != -1 and local == -1:
            allowed = f"Value must not be -1 as {limit_name} value is set as {limit}."
        elif limit != -1 and local > limit:
            allowed = f"Value must not be more than {limit_name} property value: {limit}"
        else:
            continue
        raise _refused_update(f"Invalid value {local} for configuration {name}: {allowed}")


def _check_cleaner(layers: BrokerConfigLayers, changed: BrokerConfigLayers) -> None:
    threads = _number(changed, "log.cleaner.threads")
    if threads < 1:
        raise _invalid(
            f"Invalid value {threads} for configuration log.cleaner.threads: Value must be at least 1"
        )
    if _number(changed, "log.cleaner.dedupe.buffer.size") // threads < CLEANER_BYTES_PER_THREAD_MIN:
        raise _required("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    current = _number(layers, "log.cleaner.threads")
    if threads < current // 2:
        raise _refused_update(
            f"Log cleaner threads cannot be reduced to less than half the current value {current}"
        )
    if threads > current * 2:
        raise _refused_update(
            f"Log cleaner threads cannot be increased to more than double the current value {current}"
        )


def _check_connections(changed: BrokerConfigLayers) -> None:
    key = "max.connections.per.ip.overrides"
    overrides = broker_value(key, changed)
    try:
        parse_overrides(str(overrides or ""))
    except ConfigError as error:
        raise _invalid(str(error)) from error
    if _number(changed, "max.connections.per.ip") == 0 and not overrides:
        raise _required(f"max.connections.per.ip can be set to zero only if {key} property is set.")
    rate = _number(changed, "max.connection.creation.rate")
    if rate <= 0:
        raise _refused_update(f"Invalid max.connection.creation.rate {rate}")


def _check_directories(changed: BrokerConfigLayers, log_dirs: Collection[str]) -> None:
    cordoned = broker_value("cordoned.log.dirs", changed)
    items = cordoned if isinstance(cordoned, list) else []
    missing = [path for path in items if path not in log_dirs and items != [ALL_DIRECTORIES]]
    if missing:
        raise _required(
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {listed(missing)}"
        )


def _check_thread_count(name: str, current: int, wanted: int) -> None:
    complaint = f"Dynamic thread count update validation failed for {name}={wanted}, value should "
    if wanted < current // 2:
        raise _refused_update(f"{complaint}be at least half the current value {current}")
    if wanted > current * 2:
        raise _refused_update(f"{complaint}not be greater than double the current value {current}")


def _number(layers: BrokerConfigLayers, name: str, missing: int = -1) -> int:
    value: ConfigValue = broker_value(name, layers)
    return value if isinstance(value, int) else missing


def _listed(names: list[str]) -> str:
    return f"[{listed(names)}]"


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _required(message: str) -> KafkaError:
    return _invalid(f"requirement failed: {message}")


def _refused_update(message: str) -> KafkaError:
    """Make the error for a change that the broker cannot apply, in Kafka's wording."""
    return _invalid(
        f"Invalid value org.apache.kafka.common.config.ConfigException: {message} "
        "for configuration Invalid dynamic configuration"
    )
