"""The keys of the console, which are our own, and the rule where it may be opened. PURE.

In keys of TLS, the console's listener has the name CONSOLE: `listener.name.console.ssl.KEY` overrides `ssl.KEY`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigDef, ConfigError, ConfigValue
from odradek.node.configuration.audit_config import AuditConfig
from odradek.node.configuration.listener_security import principal_rules, tls_settings
from odradek.node.configuration.metrics_config import parse_host_port
from odradek.security.acls.authorizer import AuthorizerSettings

__all__ = [
    "AS_SASL",
    "CONSOLE",
    "CONSOLE_DEFS",
    "CONSOLE_LISTENER",
    "TOKENS_PREFIX",
    "ConsoleConfig",
    "asks_for_certificates",
    "certificate_login_refusal",
    "console_config",
    "console_refusal",
    "credentials_refusal",
    "is_loopback",
]

CONSOLE = "CONSOLE"
"""The listener's name in configuration keys."""
CONSOLE_LISTENER = "odradek.console.listener"
PROTOCOL = "odradek.console.security.protocol"
HOSTS = "odradek.console.hosts"
CLIENT_CONFIG = "odradek.console.client.config"
IDLE = "odradek.console.idle.ms"
AS_CERTIFICATE = "odradek.console.as.certificate"
"""A key in the file with keys of clients, which allows that all users see what the file's credentials may see."""
TOKENS_PREFIX = "odradek.console.tokens."
"""The prefix of keys for the console's own user, in the file with keys of clients. This user creates delegation tokens for
users who log in by a certificate.
"""
_PASSWORDS = ("odradek.sasl.", "sasl.")
_KEYS_OF_CERTIFICATES = ("odradek.ssl.keystore.", "ssl.key.", "ssl.keystore.")
_FOR_CONTROLLERS = "odradek.controller."
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
    super_users: Sequence[str] = ()
    """The principals for which the console creates no token (`super.users` of its node)."""
    audit_directory: str | None = None
    """The directory of the node's audit log; None if it has none."""


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


def credentials_refusal(client: Mapping[str, str]) -> str | None:
    """Return a sentence that says why a console must not use these keys of clients; None if it may.

    Passwords are always refused. A client's certificate is refused where users do not log in. Credentials for the
    controllers are refused, too. The nodes would take every user for their owner. `AS_CERTIFICATE` allows the last two.
    """
    passwords = [key for key in client if key.startswith(_PASSWORDS)]
    if passwords:
        return (
            f"the console takes no credentials ({', '.join(sorted(passwords))}), because each user logs in with his own: "
            "remove these keys from its file"
        )
    if client.get(AS_CERTIFICATE, "false").strip().lower() == "true":
        return None
    has_logins = client.get("security.protocol", PLAINTEXT).upper().startswith("SASL")
    mine = () if has_logins else _KEYS_OF_CERTIFICATES
    theirs = tuple(f"{_FOR_CONTROLLERS}{each}" for each in (*_PASSWORDS, *_KEYS_OF_CERTIFICATES))
    given = [key for key in client if key.startswith((*mine, *theirs))]
    if not given:
        return None
    return (
        f"everybody who reaches the console would see what the owner of these credentials may see "
        f"({', '.join(sorted(given))}): remove them from its file, or allow it there by {AS_CERTIFICATE}=true"
    )


def asks_for_certificates(tls: Mapping[str, str] | None) -> bool:
    """True if a listener with these keys of TLS asks browsers for certificates. Raises `ConfigError`."""
    return tls is not None and tls_settings(CONSOLE, AS_SASL, tls, serves=True).client_auth != "none"


def certificate_login_refusal(client: Mapping[str, str], tls: Mapping[str, str] | None) -> str | None:
    """Return a sentence that says why logins by certificate do not work with these keys; None if they do, or are off.

    `client` has the keys of clients, `tls` those of the console's listener. Raises `ConfigError` for bad keys of TLS.
    """
    if not any(key.startswith(TOKENS_PREFIX) for key in client):
        return None
    if not asks_for_certificates(tls):
        return (
            f"{TOKENS_PREFIX}* is for logins by certificate, and the console's listener asks browsers for none: set "
            f"listener.name.{CONSOLE.lower()}.ssl.client.auth=requested, or remove these keys"
        )
    assert tls is not None, "a listener without TLS asks for no certificate"
    trust = tls_settings(CONSOLE, AS_SASL, tls, serves=True)
    if trust.truststore_location is None and trust.truststore_certificates is None:
        return (
            "the console would let in the certificates of every public authority: name yours in "
            f"listener.name.{CONSOLE.lower()}.ssl.truststore.location"
        )
    if not client.get("security.protocol", PLAINTEXT).upper().startswith("SASL"):
        return (
            "users with a certificate get delegation tokens, which log in by SCRAM: set security.protocol to SASL_SSL "
            f"in the console's file, or remove {TOKENS_PREFIX}*"
        )
    return None


def console_config(
    values: Mapping[str, ConfigValue],
    explicit: Mapping[str, str],
    clients: Sequence[tuple[str, str]],
    listeners: Collection[str],
    authorizer: AuthorizerSettings | None = None,
    audit: AuditConfig | None = None,
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
        principal_rules(CONSOLE, explicit)
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
        super_users=() if authorizer is None else sorted(authorizer.super_users),
        audit_directory=None if audit is None else audit.directory,
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
