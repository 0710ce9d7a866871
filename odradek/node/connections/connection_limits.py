"""The limits on a node's connections: in total, for each listener, for each address, and for each second.
PURE.

All listeners of a node share one `ConnectionLimits`. Limits may change at any time; open connections stay.

Connections of other nodes (peers) are always accepted: the brokers' own listener is exempt from the total
limit and rate. If a peer exceeds the total, the client connection that has been idle for the longest is
closed (KIP-402).

The limit of open files also limits the connections of clients (`client_room`), even if the configuration allows more.
A node that has used up its descriptors can neither roll a segment nor reach its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from odradek.data_plane.quotas.address_rates import AddressRates
from odradek.metadata_quorum.config.typed_settings import setting
from odradek.metadata_quorum.quotas.quota_levels import CONNECTION_CREATION_RATE

INT_MAX = (1 << 31) - 1
LOGS_SHARE = 4
"""1 / `LOGS_SHARE` of the descriptors is reserved for the files of logs."""
OWN_DESCRIPTORS = 64
"""Descriptors that are reserved for listeners, peers, small files and the event loop."""
CLIENT_ROOM_MIN = 16


def client_room(descriptors_max: int) -> int:
    """Return how many client connections a limit of open files allows. A limit of -1 means no limit, as in
    `getrlimit`.
    """
    if descriptors_max < 0:
        return INT_MAX
    return max(CLIENT_ROOM_MIN, descriptors_max - descriptors_max // LOGS_SHARE - OWN_DESCRIPTORS)


class Closable(Protocol):
    """A connection that may be closed to make room for a peer."""

    last_active: float
    """The time of the last activity, in monotonic seconds."""

    def close(self) -> None: ...


@attrs.define
class _Second:
    """The number of connections accepted within the current second."""

    began_at: float = 0.0
    accepted: int = 0

    def accept_at(self, now: float, rate_max: int) -> float:
        """Return the time at which the next connection may be accepted: `now`, or the end of the current second."""
        if rate_max >= INT_MAX:
            return now
        if now >= self.began_at + 1.0:
            self.began_at = now
            self.accepted = 0
        return now if self.accepted < rate_max else self.began_at + 1.0


@attrs.define
class ConnectionLimits:
    """Counts open connections and applies limits. Call `enter` when a connection is accepted, and `leave` when it is
    closed.
    """

    connections_max: int = setting("max.connections")
    room: int = INT_MAX
    """The maximum number of client connections that the limit of open files allows (`client_room`); it
    applies even if `connections_max` is higher.
    """
    per_ip_max: int = setting("max.connections.per.ip")
    per_ip_overrides: Mapping[str, int] = attrs.field(factory=dict)
    creation_rate_max: int = setting("max.connection.creation.rate")
    """The maximum number of connections per second; further connections wait to be accepted."""
    listener_connections_max: Mapping[str, int] = attrs.field(factory=dict)
    """The maximum number of connections of each listener (`listener.name.NAME.max.connections`), by the
    listener's name.
    """
    listener_creation_rate_max: Mapping[str, int] = attrs.field(factory=dict)
    yielding: list[Callable[[], Iterable[Closable]]] = attrs.field(factory=list)
    """Functions that each return the open client connections of one listener. One of these connections may be
    closed to make room for another node.
    """
    addresses: AddressRates | None = None
    """The connection quotas of addresses; None if there are none."""
    refused_by: tuple[str, float] = attrs.field(init=False, default=("", 0))
    """The name and value of the limit that has refused the last connection."""
    _open: int = attrs.field(init=False, default=0)
    _reserved: int = attrs.field(init=False, default=0)
    """The number of open connections of peers."""
    _by_host: dict[str, int] = attrs.field(init=False, factory=dict)
    _by_listener: dict[str, int] = attrs.field(init=False, factory=dict)
    _second: _Second = attrs.field(init=False, factory=_Second)
    _second_of: dict[str, _Second] = attrs.field(init=False, factory=dict)

    def accept_at(self, now: float, listener: str = "", *, is_peers: bool = False) -> float:
        """Return the time at which the next connection may be accepted, `now` at the earliest; monotonic seconds."""
        of_listener = self.listener_creation_rate_max.get(listener, INT_MAX)
        at = self._second_of.setdefault(listener, _Second()).accept_at(now, of_listener)
        return at if is_peers else max(at, self._second.accept_at(now, self.creation_rate_max))

    def enter(self, host: str, listener: str = "", *, is_peers: bool = False, now: float = 0.0) -> bool:
        """Count a new connection. Return False if a limit is exceeded: the total, the listener's, or the address's.

        `is_peers` is true if the connection came to the brokers' own listener. As in Kafka, the total limit
        does not apply there.
        """
        self._second.accepted += not is_peers
        self._second_of.setdefault(listener, _Second()).accepted += 1
        from_host = self._by_host.get(host, 0)
        at_listener = self._by_listener.get(listener, 0)
        in_all = () if is_peers else self._in_all()
        for name, count, bound in (
            *in_all,
            (
                f"max.connections of {listener}",
                at_listener,
                self.listener_connections_max.get(listener, INT_MAX),
            ),
            ("max.connections.per.ip", from_host, self.per_ip_overrides.get(host, self.per_ip_max)),
        ):
            if count >= bound:
                self.refused_by = name, bound
                return False
        if self.addresses is not None and not is_peers and not self.addresses.admits(host, now):
            self.refused_by = CONNECTION_CREATION_RATE, self.addresses.rate(host)
            return False
        self._open += 1
        self._reserved += is_peers
        self._by_host[host] = from_host + 1
        self._by_listener[listener] = at_listener + 1
        if is_peers and self._open > self.connections_max:
            self._close_idlest()
        return True

    def _in_all(self) -> tuple[tuple[str, int, int], ...]:
        """List the limits on the total of connections, each as (name, number of counted connections, maximum)."""
        return (
            ("max.connections", self._open, self.connections_max),
            ("open files", self._open - self._reserved, self.room),
        )

    def _close_idlest(self) -> None:
        """Close the client connection that has been idle for the longest, if there is any."""
        clients = (each for connections in self.yielding for each in connections())
        idlest = min(clients, key=lambda each: each.last_active, default=None)
        if idlest is not None:
            idlest.close()

    def leave(self, host: str, listener: str = "", *, is_peers: bool = False) -> None:
        """Stop counting a connection that is closed."""
        self._open -= 1
        self._reserved -= is_peers
        self._by_listener[listener] -= 1
        rest = self._by_host[host] - 1
        if rest:
            self._by_host[host] = rest
        else:
            del self._by_host[host]

    def statistics(self) -> dict[str, int]:
        """Count the open connections and their distinct addresses."""
        return {"connections": self._open, "addresses": len(self._by_host)}
