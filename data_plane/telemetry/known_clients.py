"""A node's knowledge of its clients: each user and client id once, with the figures that its instances have
pushed. PURE.

Clients choose their ids, and many programs share a default one. So a client here is a user together with a client id.
There are `CLIENTS_MAX` of them. When there are more, one without instances gives way, else one of the user that has the
most. If that is the new client's own user, all further clients share one place. So nobody can push other users out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from odradek.data_plane.telemetry.figures import Pushed, Way, figure_of, joined

__all__ = ["CLIENTS_MAX", "KEPT_SECONDS", "ClientInstance", "KnownClient", "KnownClients", "Software"]

CLIENTS_MAX = 1_000
KEPT_SECONDS = 300.0
"""The seconds for which a client is shown after its last instance has gone. Its last push comes as it ends."""
NAME_LETTERS_MAX = 200
"""Longer names of users, clients and libraries are cut."""
OTHERS = ("", "<others>")

Software = tuple[str, str]
"""Name and version of a client's library."""


@attrs.define(eq=False, slots=True)
class ClientInstance:
    """One running client, by the id that it has from the first broker that it asked."""

    instance_id: bytes
    client: KnownClient
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    version: int
    """The version of the subscriptions by which it was matched."""
    expires_at: float = 0.0
    got_at: float = float("-inf")
    """The time at which it was last given its subscription."""
    pushed_at: float = float("-inf")
    """The time at which its last push came, if in time."""
    is_terminating: bool = False
    last_error: int = 0
    gauges: dict[int, float] = attrs.field(factory=dict)
    """Its last push, by slot."""


@attrs.define(eq=False, slots=True)
class KnownClient:
    """One user and client id."""

    principal: str
    client_id: str
    software: Software = ("unknown", "unknown")
    address: str = ""
    instances: dict[bytes, ClientInstance] = attrs.field(factory=dict)
    pushes: int = 0
    pushed_at: float | None = None
    interval_ms: int = 0
    ended_at: float = 0.0
    """The time at which its last instance went. It counts while there is none."""
    counts: dict[int, float] = attrs.field(factory=dict)
    last_gauges: dict[int, float] = attrs.field(factory=dict)
    """The gauges of the instance that went last."""

    def take(self, instance: ClientInstance, pushed: Pushed, now: float) -> None:
        """Take the numbers of one push."""
        self.pushes += 1
        self.pushed_at = now
        self.interval_ms = instance.interval_ms
        instance.gauges = dict(pushed.gauges)
        for slot, count in pushed.counts.items():
            self.counts[slot] = self.counts.get(slot, 0.0) + count

    def forget(self, instance: ClientInstance, now: float) -> None:
        """Let an instance go. The last one leaves its gauges behind."""
        if self.instances.pop(instance.instance_id, None) is not None and not self.instances:
            self.ended_at = now
            self.last_gauges = instance.gauges

    def figures(self) -> Iterator[tuple[int, float]]:
        """Yield the slots that were pushed and their numbers, in the order of the slots."""
        values: dict[int, list[float]] = {}
        pushed = [each.gauges for each in self.instances.values() if each.gauges] or [self.last_gauges]
        for gauges in pushed:
            for slot, value in gauges.items():
                values.setdefault(slot, []).append(value)
        for slot in sorted([*values, *self.counts]):
            way = figure_of(slot).way
            yield slot, self.counts[slot] if way is Way.COUNT else joined(way, values[slot])


class KnownClients:
    """All clients of a node, up to a limited number."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._clients: dict[tuple[str, str], KnownClient] = {}
        self._of_principal: Counter[str] = Counter()

    def find(self, principal: str, client_id: str | None, now: float) -> KnownClient:
        """Find a client, or make a place for it."""
        key = _short(principal), _short(client_id or "")
        found = self._clients.get(key)
        if found is None:
            if len(self._clients) >= self._clients_max and not self._make_room(key[0]):
                key = OTHERS
            found = self._clients.get(key)
            if found is None:
                found = self._clients[key] = KnownClient(*key, ended_at=now)
                self._of_principal[key[0]] += 1
        return found

    def _make_room(self, principal: str) -> bool:
        """Drop a client for one of this user. False if the user has more clients than any other."""
        gone = min(
            (each for each in self._clients.values() if not each.instances),
            key=lambda each: each.ended_at,
            default=None,
        )
        if gone is None:
            most, count = self._of_principal.most_common(1)[0]
            if count <= self._of_principal[principal] + 1:
                return False
            gone = next(each for each in self._clients.values() if each.principal == most)
        self._drop(gone)
        return True

    def _drop(self, client: KnownClient) -> None:
        del self._clients[client.principal, client.client_id]
        self._of_principal[client.principal] -= 1
        if not self._of_principal[client.principal]:
            del self._of_principal[client.principal]

    def drop_ended(self, now: float) -> None:
        """Drop the clients whose last instance went long ago."""
        ended = [
            each
            for each in self._clients.values()
            if not each.instances and now - each.ended_at > KEPT_SECONDS
        ]
        for client in ended:
            self._drop(client)

    def all(self) -> list[KnownClient]:
        """List all clients. The client with the last push comes first."""
        return sorted(
            self._clients.values(),
            key=lambda each: float("-inf") if each.pushed_at is None else each.pushed_at,
            reverse=True,
        )

    def __len__(self) -> int:
        return len(self._clients)


def _short(text: str) -> str:
    return text[:NAME_LETTERS_MAX]
