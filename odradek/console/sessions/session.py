"""A session: one who looks at the cluster, and the clients that ask it with the rights of this user. SHELL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.client.core.client_keys import AdminSettings
from odradek.client.shells.admin_client import Admin
from odradek.client.shells.blocking import Client
from odradek.client.shells.consumer import Consumer
from odradek.console.decoding.decoders import Decoders, DecodingSettings
from odradek.console.sessions.history import History
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.sessions.lag_history import LagHistory
from odradek.console.sessions.samples import Samples
from odradek.console.sessions.shared_parts import SharedParts

__all__ = ["ASK_SECONDS_MAX", "Session"]

ASK_SECONDS_MAX = 10.0
"""The greatest number of seconds that a view waits for the cluster."""


class ConsoleAsker(NamedTuple):
    """What functions of the command line ask: an object with an admin."""

    admin: Admin


class Session:
    """One user of the console. All sessions with the same credentials share this object."""

    def __init__(
        self,
        properties: Mapping[str, object],
        user: str | None = None,
        mechanism: str | None = None,
        shared: SharedParts | None = None,
    ) -> None:
        """Make the clients; they connect at first use. `properties` are keys of clients. Raises `ValueError`.

        All sessions of a console have the same `shared` parts.
        """
        shared = shared or SharedParts(Decoders(DecodingSettings()))
        self.decoders = shared.decoders
        """What shows keys and values of records as texts."""
        self.user = user
        """The name with which the user has logged in; None if the cluster has no logins, or the name is in a token."""
        self.mechanism = mechanism
        timeout = int(ASK_SECONDS_MAX * 1000)
        self._properties = {
            **properties,
            "client.id": "odradek-console",
            "request.timeout.ms": timeout,
            "default.api.timeout.ms": timeout,
        }
        self.client = Admin(self._properties)
        """The client for administration. Views may call it from any thread."""
        self.asker = ConsoleAsker(self.client)
        """The same client, for functions of the command line."""
        self.cache = KeptValues()
        """Values that views of this user keep for a moment."""
        self.samples = Samples(self.client, self.open_client)
        """The state of the cluster at two moments, for views with rates."""
        self.lags = LagHistory()
        """The lag of groups at several moments."""
        self.history = History(self.open_client, {**self._properties, **shared.for_controllers})
        """The changes of the cluster."""
        self.pace = shared.pace
        """The pace of the searches of all sessions."""
        self.authors = shared.authors
        """Who has asked for these changes, as far as audit logs on this machine say so."""
        self.is_closed = False

    @property
    def is_limited(self) -> bool:
        """True if a user has logged in, who gets a share of the console. A console without logins has only one session."""
        return self.mechanism is not None

    def consumer(self, **keys: object) -> Consumer:
        """Make a consumer with the rights of this user; the caller closes it. Keys have `_` for `.`."""
        more = {name.replace("_", "."): value for name, value in keys.items()}
        return Consumer({**self._properties, **more})

    def open_client(self) -> Client:
        """Make a client with connections of its own, for one thread that waits for records; the caller closes it."""
        config = AdminSettings.from_properties(self._properties).client_config(fail_fast=True)
        return Client(self.bootstrap, timeout_ms=int(ASK_SECONDS_MAX * 1000), config=config)

    @property
    def bootstrap(self) -> str:
        """The addresses of some brokers."""
        return str(self._properties["bootstrap.servers"])

    def close(self) -> None:
        """End all calls of this user, and close the connections."""
        self.is_closed = True
        self.history.close()
        self.samples.close()
        self.client.close()
