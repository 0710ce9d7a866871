"""How many connections a node takes: in all, from one address, in one second. PURE.

All listeners of a node share one. Limits may change at any time; connections that are open stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

INT_MAX = (1 << 31) - 1


@attrs.define
class ConnectionLimits:
    """Counts the open connections. `enter` when one is accepted; `leave` once it is gone."""

    connections_max: int = INT_MAX
    per_ip_max: int = INT_MAX
    per_ip_overrides: Mapping[str, int] = attrs.field(factory=dict)
    creation_rate_max: int = INT_MAX
    """Connections per second; further ones wait to be accepted."""
    _open: int = attrs.field(init=False, default=0)
    _by_host: dict[str, int] = attrs.field(init=False, factory=dict)
    _second_began_at: float = attrs.field(init=False, default=0.0)
    _accepted_in_second: int = attrs.field(init=False, default=0)

    def accept_at(self, now: float) -> float:
        """When the next connection may be accepted, `now` at the earliest; monotonic seconds."""
        if self.creation_rate_max >= INT_MAX:
            return now
        if now >= self._second_began_at + 1.0:
            self._second_began_at = now
            self._accepted_in_second = 0
        if self._accepted_in_second < self.creation_rate_max:
            return now
        return self._second_began_at + 1.0

    def enter(self, host: str) -> bool:
        """Take a connection in; False when there are too many, in all or from its address."""
        self._accepted_in_second += 1
        from_host = self._by_host.get(host, 0)
        if self._open >= self.connections_max or from_host >= self.per_ip_overrides.get(
            host, self.per_ip_max
        ):
            return False
        self._open += 1
        self._by_host[host] = from_host + 1
        return True

    def leave(self, host: str) -> None:
        """A connection that entered is gone."""
        self._open -= 1
        rest = self._by_host[host] - 1
        if rest:
            self._by_host[host] = rest
        else:
            del self._by_host[host]

    def statistics(self) -> dict[str, int]:
        """Connections that are open, and the addresses they come from."""
        return {"connections": self._open, "addresses": len(self._by_host)}
