"""The keys of the console, which are our own, and the rule where it may be opened. PURE.

In keys of TLS, the console's listener has the name CONSOLE: `listener.name.console.ssl.KEY` overrides `ssl.KEY`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigError, ConfigValue
from odradek.node.configuration.listener_security import tls_settings
from odradek.node.configuration.metrics_config import parse_host_port

__all__ = [
    "AS_SASL",
    "CONSOLE",
    "CONSOLE_DEFS",
    "CONSOLE_LISTENER",
    "ConsoleConfig",
    "console_config",
    "console_refusal",
    "is_loopback",
]

CONSOLE = "CONSOLE"
"""The listener's name in configuration keys."""
CONSOLE_LISTENER = "odradek.console.listener"
PROTOCOL = "odradek.console.security.protocol"
HOSTS = "odradek.console.hosts"
CLIENT_CONFIG = "odradek.console.client.config"
IDLE = "odradek.console.idle.ms"
PLAINTEXT, SSL = "PLAINTEXT", "SSL"
AS_SASL = "SASL_SSL"
"""The protocol by whose rules the keys of TLS are read: browsers show a certificate only if a key of this listener asks."""
CONSOLE_DEFS: dict[str, ConfigDef] = {
    name: ConfigDef("broker", name, kind, default, valid, "medium", False, False)
    for name, kind, default, valid in (
        (CONSOLE_LISTENER, "string", "", ""),
        (PROTOCOL, "string", PLAINTEXT, f"[{PLAINTEXT}, {SSL}]"),
        (HOSTS, "list", "", ""),
        (CLIENT_CONFIG, "string", "", ""),
        (IDLE, "long", "600000", "[1000,...]"),
    )
}
_TRUST_PREFIX = "ssl.truststore."


@attrs.frozen(kw_only=True)
class ConsoleConfig:
    """The settings of a node's console."""

    host: str
    """The address to listen on; empty means every interface."""
    port: int
    hosts: Sequence[str]
    """More names by which browsers may reach it."""
    tls: Mapping[str, str] | None = attrs.field(repr=False)
    """The keys of TLS; None for plain HTTP."""
    listener: str
    """The name of the listener by which the console reaches its node."""
    client: Mapping[str, str] = attrs.field(repr=False)
    """Keys of clients for this listener, without credentials."""
    client_config: str
    """A file with keys of clients that override `client`; empty for none."""
    idle_seconds: float


def is_loopback(host: str) -> bool:
    """True if only programs on this machine reach this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def console_refusal(host: str, *, is_encrypted: bool, needs_login: bool) -> str | None:
    """Return a sentence that says why a console must not be opened at this address; None if it may."""
    if is_loopback(host):
        return None
    where = host or "every interface"
    if not is_encrypted:
        return (
            f"the console would show the cluster at {where} without encryption: set {PROTOCOL}={SSL} with a "
            "certificate, or listen on 127.0.0.1"
        )
    if not needs_login:
        return (
            f"the console would show the cluster at {where} to everybody, because the brokers ask for no login: "
            "listen on 127.0.0.1, or give the brokers a listener with SASL"
        )
    return None


def console_config(
    values: Mapping[str, ConfigValue],
    explicit: Mapping[str, str],
    clients: Sequence[tuple[str, str]],
    listeners: Collection[str],
) -> ConsoleConfig | None:
    """Read the console's settings; None if it is off. `clients` has name and security protocol of each listener for
    clients, the first one preferred. `listeners` are the names of all listeners. Raises `ConfigError`.
    """
    text = str(values[CONSOLE_LISTENER])
    if not text:
        return None
    host, port = parse_host_port(CONSOLE_LISTENER, text)
    is_encrypted = values[PROTOCOL] != PLAINTEXT
    if is_encrypted:
        if CONSOLE in listeners:
            raise ConfigError(
                PROTOCOL,
                SSL,
                f"the name {CONSOLE} belongs to the listener of the console: give this listener another name",
            )
        # Bad keys of TLS are an error of this file, though another process reads them again.
        tls_settings(CONSOLE, AS_SASL, explicit, serves=True)
    if not clients:
        raise ConfigError(
            CONSOLE_LISTENER, text, "only a broker serves the console: remove this key from a controller"
        )
    name, protocol = clients[0]
    client_file = str(values[CLIENT_CONFIG])
    # A file may change the protocol. The console judges it when it starts.
    refusal = console_refusal(
        host,
        is_encrypted=is_encrypted,
        needs_login=protocol.startswith("SASL") or bool(client_file),
    )
    if refusal is not None:
        raise ConfigError(CONSOLE_LISTENER, text, refusal)
    names, idle = values[HOSTS], values[IDLE]
    assert isinstance(idle, int)
    return ConsoleConfig(
        host=host,
        port=port,
        hosts=tuple(names) if isinstance(names, list) else (),
        tls=_keys_of_tls(explicit) if is_encrypted else None,
        listener=name,
        client={"security.protocol": protocol, **_trust(explicit, name, protocol)},
        client_config=client_file,
        idle_seconds=idle / 1000,
    )


def _keys_of_tls(explicit: Mapping[str, str]) -> Mapping[str, str]:
    prefixes = ("ssl.", f"listener.name.{CONSOLE.lower()}.ssl.")
    return {key: value for key, value in explicit.items() if key.startswith(prefixes)}


def _trust(explicit: Mapping[str, str], listener: str, protocol: str) -> Mapping[str, str]:
    """Return the keys by which a client trusts the brokers' certificates: those by which the brokers trust each other."""
    if not protocol.endswith("SSL"):
        return {}
    own = f"listener.name.{listener.lower()}."
    found = {key: value for key, value in explicit.items() if key.startswith(_TRUST_PREFIX)}
    for key, value in explicit.items():
        if key.startswith(f"{own}{_TRUST_PREFIX}"):
            found[key.removeprefix(own)] = value
    return found
