"""Connections that an operator ends: a new value of `odradek.disconnect.PRINCIPAL` closes those of that principal. PURE.

The key is a dynamic value of brokers in the metadata log, which Apache Kafka keeps and ignores. Its value is the time of
the demand and only sets one demand apart from the next. Each broker compares it with the value that it knew before. So a
broker that was behind, and begins anew from a snapshot, still closes what it has; a starting broker has nothing to close.

A login that has begun before its user was removed is refused at its end (`ScramServer`), so nobody slips in between.
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
    """Follows the keys of one broker, and closes connections of its listeners for clients."""

    def __init__(self, broker: Broker, servers: Sequence[_Server]) -> None:
        """Take the demands that are in the log now as done: a starting broker has no connections yet."""
        self._broker = broker
        self._servers = servers
        self._known = self._demands()
        broker.config_listeners.append(self.apply)

    def apply(self) -> None:
        """Close the connections of the principals that a newer demand names."""
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
