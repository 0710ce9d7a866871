"""Closing a principal's connections on an operator's request: a new value of `odradek.disconnect.PRINCIPAL`. PURE.

The key is a dynamic broker configuration in the metadata log, which Apache Kafka stores and ignores. Its
value is the time of the request, so that two requests differ. Each broker compares the value with the
previous value that it knew. So a broker that catches up from a snapshot still closes the principal's
connections. A starting broker has no connections to close.

If a user is removed during a login, the login is refused at its end (`ScramServer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from odradek.data_plane.broker import Broker
from odradek.metadata_quorum.config.config_defs import DISCONNECT_PREFIX
from odradek.serving.contract import Context

__all__ = ["Disconnects"]


class _Connection(Protocol):
    @property
    def context(self) -> Context: ...

    def close(self) -> None: ...


class _Server(Protocol):
    @property
    def connections(self) -> Iterable[_Connection]: ...


class Disconnects:
    """Follows these configuration keys for one broker, and closes connections of its client listeners."""

    def __init__(self, broker: Broker, servers: Sequence[_Server]) -> None:
        """Count the requests in the present configuration as done, because a starting broker has no connections yet."""
        self._broker = broker
        self._servers = servers
        self._known = self._demands()
        broker.config_listeners.append(self.apply)

    def apply(self) -> None:
        """Close the connections of the principals whose configuration value is new."""
        before, self._known = self._known, self._demands()
        wanted = {each for each, value in self._known.items() if value != before.get(each)}
        if not wanted:
            return
        closed = dict.fromkeys(sorted(wanted), 0)
        for server in self._servers:
            for connection in list(server.connections):
                principal = connection.context.principal
                if principal in closed:
                    closed[principal] += 1
                    connection.close()
        for principal, count in closed.items():
            self._broker.log.info("connections.disconnected", principal=principal, count=count)

    def _demands(self) -> Mapping[str, str]:
        layers = self._broker.config_layers
        return {
            key.removeprefix(DISCONNECT_PREFIX): value
            for layer in (layers.dynamic_default, layers.dynamic)
            for key, value in layer.items()
            if key.startswith(DISCONNECT_PREFIX)
        }
