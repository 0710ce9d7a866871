"""The faces of a node for people and monitoring: its console and its metrics page, as an inventory describes them. PURE.

A setting of the inventory overrides what a variable says, as in the properties file that the role writes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

NONE, LOOPBACK, NETWORK = PLACES = ("none", "loopback", "network")
"""Where browsers reach a console: nowhere, on the host itself, or from other machines."""
OPEN, TLS, LOGIN = ACCESS = ("open", "tls", "login")
"""Who may read a metrics page: everybody, everybody by HTTPS, or only users of the cluster."""
CONSOLE_PORT = 9098
CONSOLE_KEYS = "/etc/odradek/console.properties"
"""The file of client keys with which a host's consoles connect to the cluster."""
_LISTENER = "odradek.console.listener"
_PROTOCOL = "odradek.console.security.protocol"
_CLIENT = "odradek.console.client.config"
_PAGE_PROTOCOL, _PAGE_LOGIN = "odradek.metrics.security.protocol", "odradek.metrics.login"
_PAGE_LISTENER = "odradek.metrics.listener"
_PLAINTEXT, _SSL = "plaintext", "SSL"
_AS_CERTIFICATE = "odradek.console.as.certificate"
_PASSWORDS = ("odradek.sasl.", "sasl.")
_CERTIFICATES = ("odradek.ssl.keystore.", "ssl.key.", "ssl.keystore.")
"""Beginnings of keys that are credentials, as a node refuses them (docs/console.md)."""


def settings_of(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that an inventory gives a node, the last ones first: its own, its host's, those of all nodes."""
    found: dict[str, str] = {}
    for each in (
        values.get("node_settings") or values.get("odradek_settings"),
        values.get("odradek_host_settings"),
        own,
    ):
        if isinstance(each, Mapping):
            found |= {str(key): str(value) for key, value in each.items() if value is not None}
    return found


def faces_of(
    values: Mapping[str, Any], node: Mapping[str, Any], settings: Mapping[str, str], stage: str
) -> dict[str, Any]:
    """Return the faces of a node as entries of its plan: `console` is None for a node without a console."""
    is_secured = stage != _PLAINTEXT
    access = str(values.get("odradek_metrics_access") or OPEN)
    page = {_PAGE_PROTOCOL: _SSL} if is_secured and access in (TLS, LOGIN) else {}
    if page and access == LOGIN:
        page[_PAGE_LOGIN] = "true"
    told = {_PAGE_LISTENER: f"{node['address']}:{node['metrics_port']}", **page, **settings}
    return {
        "console": _console(values, node, settings, is_secured),
        "metrics": {
            "target": told[_PAGE_LISTENER],
            "scheme": "https" if told.get(_PAGE_PROTOCOL, "").upper() == _SSL else "http",
            "login": told.get(_PAGE_LOGIN, "").lower() == "true",
            "settings": page,
        },
    }


def _console(
    values: Mapping[str, Any], node: Mapping[str, Any], settings: Mapping[str, str], is_secured: bool
) -> dict[str, Any] | None:
    place = str(values.get("odradek_console") or NONE)
    is_broker = "broker" in node["roles"]
    host = {LOOPBACK: "127.0.0.1", NETWORK: str(node["address"])}.get(place, "") if is_broker else ""
    written: dict[str, str] = {}
    if host:
        written[_LISTENER] = f"{host}:{node['console_port']}"
        if place == NETWORK and is_secured:
            written[_PROTOCOL] = _SSL
    told = {**written, **settings}
    text = told.get(_LISTENER, "")
    if not text:
        return None
    where, _, port = text.rpartition(":")
    return {
        "host": where.strip("[]"),
        "port": int(port) if port.isdecimal() else None,
        "is_encrypted": told.get(_PROTOCOL, "").upper() == _SSL,
        "settings": written,
    }


def is_loopback(host: str) -> bool:
    """True if only programs on the same machine reach this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def face_problems(
    values: Mapping[str, Any], node: Mapping[str, Any], settings: Mapping[str, str], stage: str
) -> Iterator[str]:
    """Yield a sentence for each face of a planned node that the node would refuse, or that cannot be made. It is without
    the host's name, because several hosts may have the same problem.
    """
    access = str(values.get("odradek_metrics_access") or OPEN)
    if access in (TLS, LOGIN) and stage == _PLAINTEXT:
        yield (
            f"odradek_metrics_access is {access}, and hosts have certificates only if odradek_security is beside, "
            "within or only."
        )
    console = node["console"]
    if console is None:
        return
    told = values.get("odradek_console_client")
    client = {str(key): str(value) for key, value in told.items()} if isinstance(told, Mapping) else {}
    protocol = client.get("security.protocol", "PLAINTEXT" if stage == _PLAINTEXT else "SASL_SSL").upper()
    has_logins = protocol.startswith("SASL")
    refused = _credentials(client, has_logins)
    if refused:
        yield (
            f"the console takes no credentials ({', '.join(refused)}): remove them from odradek_console_client, or "
            f"allow those of certificates and controllers there by {_AS_CERTIFICATE}: true."
        )
    if is_loopback(console["host"]):
        return
    # With these keys, the node alone knows which listener the console uses.
    is_known = not {"listeners", "advertised.listeners", _CLIENT} & settings.keys()
    if not has_logins and is_known:
        yield (
            "a console would show the cluster to other machines without logins: "
            "set odradek_security to beside, within or only, or odradek_console to loopback."
        )
    elif not console["is_encrypted"]:
        yield (
            "a console would show the cluster to other machines without encryption: "
            f"set odradek_console to network in place of {_LISTENER}, or {_PROTOCOL} to {_SSL}."
        )


def _credentials(client: Mapping[str, str], has_logins: bool) -> list[str]:
    """Return the keys of credentials that a node refuses in the keys of clients for its console."""
    found = [key for key in client if key.startswith(_PASSWORDS)]
    if client.get(_AS_CERTIFICATE, "false").lower() != "true":
        mine = () if has_logins else _CERTIFICATES
        theirs = tuple(f"odradek.controller.{each}" for each in (*_PASSWORDS, *_CERTIFICATES))
        found += [key for key in client if key.startswith((*mine, *theirs))]
    return sorted(found)
