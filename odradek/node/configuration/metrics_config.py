"""The keys of the metrics page, which are our own. PURE.

In keys of TLS, the page's listener has the name METRICS: `listener.name.metrics.ssl.KEY` overrides `ssl.KEY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigError, ConfigValue
from odradek.node.configuration.listener_security import ListenerSecurity, listener_security

__all__ = [
    "METRICS",
    "METRICS_DEFS",
    "METRICS_LISTENER",
    "MetricsConfig",
    "metrics_config",
    "metrics_security",
    "parse_host_port",
]

METRICS = "METRICS"
"""The listener's name in configuration keys, in the log and in the audit log."""
METRICS_LISTENER = "odradek.metrics.listener"
PROTOCOL = "odradek.metrics.security.protocol"
LOGIN = "odradek.metrics.login"
NAMES = "odradek.metrics.names"
PLAINTEXT, SSL = "PLAINTEXT", "SSL"
METRICS_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, default, valid, "medium", False, False)
    for name, kind, default, valid in (
        (METRICS_LISTENER, "string", "", ""),
        (PROTOCOL, "string", PLAINTEXT, f"[{PLAINTEXT}, {SSL}]"),
        (LOGIN, "boolean", "false", ""),
        (NAMES, "boolean", None, ""),
    )
}
_HOST_PORT = re.compile(r"\[?([0-9a-zA-Z\-%._:]*?)\]?:([0-9]+)\Z")
_LOOPBACK = re.compile(r"^(localhost|::1|127(\.\d{1,3}){3})$", re.I)


@attrs.frozen
class MetricsConfig:
    """The settings of the metrics page: its address, who may read it, and whether it names topics and users."""

    host: str
    """The address to listen on; empty means every interface."""
    port: int
    has_login: bool
    """True if only users of the cluster may read the page."""
    has_names: bool
    """True if the page names topics, users and client ids."""


def metrics_security(
    values: Mapping[str, ConfigValue], explicit: Mapping[str, str], listeners: Mapping[str, object]
) -> ListenerSecurity | None:
    """Read the TLS settings of the page; None if the page has no TLS. Raises `ConfigError`."""
    if not values[METRICS_LISTENER] or values[PROTOCOL] == PLAINTEXT:
        return None
    if METRICS in listeners:
        raise ConfigError(
            PROTOCOL,
            SSL,
            f"the name {METRICS} belongs to the listener of the metrics page: give this listener "
            "another name",
        )
    return listener_security(METRICS, SSL, explicit)


def parse_host_port(key: str, text: str) -> tuple[str, int]:
    """Split an address such as `host:port` or `:port`. Raises `ConfigError` about this key."""
    match = _HOST_PORT.match(text)
    if match is None or int(match[2]) > 65535:
        raise ConfigError(key, text, "the value must be host:port, or :port for every interface")
    return match[1], int(match[2])


def metrics_config(
    values: Mapping[str, ConfigValue], security: ListenerSecurity | None
) -> MetricsConfig | None:
    """Read the page's settings; None if the page is off. Raises `ConfigError`."""
    text = str(values[METRICS_LISTENER])
    if not text:
        return None
    host, port = parse_host_port(METRICS_LISTENER, text)
    has_login, has_names = values[LOGIN] is True, values[NAMES]
    if has_login and security is None:
        raise ConfigError(LOGIN, "true", f"passwords must be encrypted: set {PROTOCOL}={SSL}")
    asks_certificate = (
        security is not None and security.tls is not None and security.tls.client_auth == "required"
    )
    if has_names is None:
        has_names = has_login or asks_certificate or _LOOPBACK.match(host) is not None
    return MetricsConfig(host, port, has_login, has_names is True)
