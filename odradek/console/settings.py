"""The settings of a console process, as its starter writes them: a JSON object. PURE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import attrs

from odradek.metadata_quorum.config.config_defs import ConfigError
from odradek.node.configuration.console_config import (
    certificate_login_refusal,
    console_refusal,
    credentials_refusal,
)

__all__ = ["ConsoleSettings", "SettingsRefused", "why_refused"]


class SettingsRefused(Exception):
    """The settings cannot be used. The text says in one sentence why, and what to change."""


@attrs.frozen(kw_only=True)
class ConsoleSettings:
    """What a console needs to know."""

    bootstrap: str
    """The addresses of some brokers."""
    host: str = "127.0.0.1"
    """The address of the listener, as it is configured; empty for every interface."""
    hosts: Sequence[str] = ()
    """More names by which browsers may reach it."""
    client: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Keys of clients for the connections to the cluster, without credentials of users."""
    tls: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """Keys such as `ssl.keystore.location` for the listener; None for plain HTTP."""
    idle_seconds: float | None = None
    """The process ends after so many seconds without a request; None means that it stays."""
    super_users: Sequence[str] = ()
    """The principals that may do everything, as far as the starter knows them. They get no token."""
    audit: Sequence[str] = ()
    """Audit logs of controllers on this machine: files, or directories with them."""
    node_id: int | None = None
    """The node that has started the console, for its log."""

    @property
    def needs_login(self) -> bool:
        """True if users log in, because the cluster's listener asks for it."""
        return self.client.get("security.protocol", "PLAINTEXT").upper().startswith("SASL")

    def link(self, port: int) -> str:
        """Return the address for a browser on this machine."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self.tls is None else 'https'}://{shown}:{port}/"

    def encode(self) -> bytes:
        """Encode the settings for the process."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ConsoleSettings:
        """Decode what `encode` has made."""
        return cls(**json.loads(data))


def why_refused(settings: ConsoleSettings) -> str | None:
    """Return a sentence that says why such a console must not be opened; None if it may."""
    try:
        refusal = certificate_login_refusal(settings.client, settings.tls)
    except ConfigError as error:
        return f"the console's certificate cannot be used: {error}"
    return (
        refusal
        or credentials_refusal(settings.client)
        or console_refusal(
            settings.host, is_encrypted=settings.tls is not None, needs_login=settings.needs_login
        )
    )
