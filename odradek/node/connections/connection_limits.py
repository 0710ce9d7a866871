"""The limits on a node's connections: in all, from one address, in one second. PURE.

All listeners of a node share one `ConnectionLimits`. Limits may change at any time; open connections stay.

Clients get only the connections that the limit of open files leaves them (`client_room`), even if the configuration
allows more. A node that runs out of descriptors can neither roll a segment nor reach its peers.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from metadata_quorum.config.typed_settings import setting

INT_MAX = (1 << 31) - 1
LOGS_SHARE = 4
"""One in so many descriptors is kept for logs."""
OWN_DESCRIPTORS = 64
"""Kept for listeners, peers, small files and the event loop."""
CLIENT_ROOM_MIN = 16


def client_room(descriptors_max: int) -> int:
    """The number of clients' connections that fit a limit of open files; -1 stands for no limit, as in `getrlimit`."""
    if descriptors_max < 0:
        return INT_MAX
    return max(CLIENT_ROOM_MIN, descriptors_max - descriptors_max // LOGS_SHARE - OWN_DESCRIPTORS)


@attrs.define
class ConnectionLimits:
    """Counts the open connections. `enter` when one is accepted; `leave` once it is gone."""

    connections_max: int = setting("max.connections")
    room: int = INT_MAX
    """The most connections of clients that descriptors allow (`client_room`); `connections_max` yields to it."""
    per_ip_max: int = setting("max.connections.per.ip")
    per_ip_overrides: Mapping[str, int] = attrs.field(factory=dict)
    creation_rate_max: int = setting("max.connection.creation.rate")
    """Connections per second; further ones wait to be accepted."""
    _open: int = attrs.field(init=False, default=0)
    _reserved: int = attrs.field(init=False, default=0)
    """The number of open connections that are peers'."""
    _by_host: dict[str, int] = attrs.field(init=False, factory=dict)
    _second_began_at: float = attrs.field(init=False, default=0.0)
    _accepted_in_second: int = attrs.field(init=False, default=0)

    def accept_at(self, now: float) -> float:
        """The time at which the next connection may be accepted, `now` at the earliest; monotonic seconds."""
        if self.creation_rate_max >= INT_MAX:
            return now
        if now >= self._second_began_at + 1.0:
            self._second_began_at = now
            self._accepted_in_second = 0
        if self._accepted_in_second < self.creation_rate_max:
            return now
        return self._second_began_at + 1.0

    def enter(self, host: str, *, is_peers: bool = False) -> bool:
        """Count a new connection; False when there are too many, in all or from its address.

        `is_peers`: it came to the brokers' own listener. As in Kafka, the limit of all connections does not hold
        there.
        """
        self._accepted_in_second += 1
        from_host = self._by_host.get(host, 0)
        is_full = self._open - self._reserved >= min(self.connections_max, self.room)
        if (is_full and not is_peers) or from_host >= self.per_ip_overrides.get(host, self.per_ip_max):
            return False
        self._open += 1
        self._reserved += is_peers
        self._by_host[host] = from_host + 1
        return True

    def leave(self, host: str, *, is_peers: bool = False) -> None:
        """Stop counting a connection that is closed."""
        self._open -= 1
        self._reserved -= is_peers
        rest = self._by_host[host] - 1
        if rest:
            self._by_host[host] = rest
        else:
            del self._by_host[host]

    def statistics(self) -> dict[str, int]:
        """Connections that are open, and the addresses they come from."""
        return {"connections": self._open, "addresses": len(self._by_host)}
