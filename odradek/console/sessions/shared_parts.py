"""What all sessions of a console share: decoders, and the keys for the controllers' listener.

They are read from the file with keys of clients (`odradek.console.client.config`, or `--command-config`):

| key | what it is |
| --- | --- |
| `schema.registry.url` | the address of a schema registry that speaks Confluent's protocol |
| `schema.registry.basic.auth.user.info` | `user:password` for it |
| `schema.registry.ssl.truststore.location` | a PEM file with the authorities of its certificate |
| `odradek.console.schemas` | a TOML file that gives topics their schemas (`decoding/schema_files.py`) |
| `odradek.console.as.certificate` | `true`: all users may see what the certificate in this file may see |
| `odradek.controller.KEY` | KEY for the controllers' listener, from which the history is read |
| `odradek.console.tokens.KEY` | KEY for the console's own user, who creates tokens for users with a certificate |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from odradek.cli.connecting import FOR_CONTROLLERS
from odradek.console.decoding.decoders import Decoders, DecodingSettings
from odradek.console.decoding.registry import RegistrySettings
from odradek.console.reading.pace import Pace
from odradek.console.sessions.audit_authors import AuditAuthors
from odradek.env.ports import Log
from odradek.node.configuration.console_config import AS_CERTIFICATE, TOKENS_PREFIX

__all__ = ["SharedParts", "shared_parts"]

URL = "schema.registry.url"
USER_INFO = "schema.registry.basic.auth.user.info"
TRUSTSTORE = "schema.registry.ssl.truststore.location"
SCHEMAS = "odradek.console.schemas"
_OWN = (URL, USER_INFO, TRUSTSTORE, SCHEMAS, AS_CERTIFICATE)


@attrs.frozen(eq=False)
class SharedParts:
    """The parts that sessions share."""

    decoders: Decoders
    for_controllers: Mapping[str, str] = attrs.field(factory=dict)
    """The keys that are other ones for the controllers' listener."""
    for_tokens: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The keys of the console's own user; empty if users cannot log in by certificate."""
    authors: AuditAuthors = attrs.field(factory=AuditAuthors)
    """Who has asked for changes."""
    pace: Pace = attrs.field(factory=Pace)
    """The pace of all searches."""


def shared_parts(
    properties: Mapping[str, str], log: Log | None = None, audit: Sequence[str] = ()
) -> tuple[SharedParts, dict[str, str]]:
    """Make the parts that sessions share. Return them with the keys that are left for clients. `audit` has the paths of
    audit logs. Decoders use `log`.

    Raises `ValueError` if the address of the registry, or the file of schemas, is wrong.
    """
    url, schemas = properties.get(URL), properties.get(SCHEMAS)
    registry = None
    if url:
        registry = RegistrySettings(url, properties.get(USER_INFO), properties.get(TRUSTSTORE))
    try:
        decoders = Decoders(DecodingSettings(registry, Path(schemas) if schemas else None), log)
    except OSError as error:
        raise ValueError(f"{TRUSTSTORE} cannot be read: {error}") from None
    left = {
        key: value
        for key, value in properties.items()
        if key not in _OWN and not key.startswith((FOR_CONTROLLERS, TOKENS_PREFIX))
    }
    shared = SharedParts(
        decoders,
        _under(FOR_CONTROLLERS, properties),
        _under(TOKENS_PREFIX, properties),
        AuditAuthors(audit, log),
    )
    return shared, left


def _under(prefix: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the keys with this prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}
