"""The settings of a console process, as its starter writes them: a JSON object. PURE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import attrs

from odradek.console.http.request_rules import is_loopback

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
    """Keys of clients for the connections to the cluster, without credentials."""
    tls: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """Keys such as `ssl.keystore.location` for the listener; None for plain HTTP."""
    idle_seconds: float | None = None
    """The seconds without a request after which the process ends; None if it never does."""

    @property
    def needs_login(self) -> bool:
        """True if users log in, because the cluster's listener asks for it."""
        return self.client.get("security.protocol", "PLAINTEXT").upper().startswith("SASL")

    def encode(self) -> bytes:
        """Encode the settings for the process."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ConsoleSettings:
        """Decode what `encode` has made."""
        return cls(**json.loads(data))


def why_refused(settings: ConsoleSettings) -> str | None:
    """Return a sentence that says why such a console must not be opened; None if it may."""
    if is_loopback(settings.host):
        return None
    where = settings.host or "every interface"
    if settings.tls is None:
        return (
            f"the console would show the cluster at {where} without encryption: set "
            "odradek.console.security.protocol=SSL with a certificate, or listen on 127.0.0.1"
        )
    if not settings.needs_login:
        return (
            f"the console would show the cluster at {where} to everybody, because its brokers ask for no login: listen "
            "on 127.0.0.1, or give the brokers a listener with SASL"
        )
    return None
