"""The clients of a node: each pair of user and client id once, with the figures that its instances have
pushed. PURE.

Programs choose their client ids, and many use the same default. So a client here is a user together with a
client id. There are at most `CLIENTS_MAX` clients. A further client replaces a client without instances. If
there is none, it replaces a client of the user who has the most clients. But if the new client's own user has
as many clients, or only one fewer, the new client shares one entry with all further clients. So no user can
displace other users' clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from odradek.data_plane.telemetry.figures import Pushed, Way, figure_of, joined

__all__ = ["CLIENTS_MAX", "KEPT_SECONDS", "ClientInstance", "KnownClient", "KnownClients", "Software"]

CLIENTS_MAX = 1_000
KEPT_SECONDS = 300.0
"""The time, in seconds, for which a client is shown after its last instance has gone. (An instance sends its
last push when it ends.)
"""
NAME_LETTERS_MAX = 200
"""The longest name of a user, client or library, in characters. Longer names are cut."""
OTHERS = ("", "<others>")

Software = tuple[str, str]
"""The name and version of a client's library."""


@attrs.define(eq=False, slots=True)
class ClientInstance:
    """One running client program, identified by the id that its first broker gave to it."""

    instance_id: bytes
    client: KnownClient
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    version: int
    """The version of the subscriptions (`Subscriptions.version`) with which `metrics` and `interval_ms` were
    found.
    """
    expires_at: float = 0.0
    got_at: float = float("-inf")
    """The time, in monotonic seconds, at which the instance last got its subscription."""
    pushed_at: float = float("-inf")
    """The time, in monotonic seconds, of the last push that was not too early."""
    is_terminating: bool = False
    last_error: int = 0
    gauges: dict[int, float] = attrs.field(factory=dict)
    """The gauges of the last accepted push, by slot."""


@attrs.define(eq=False, slots=True)
class KnownClient:
    """One pair of user and client id, with its instances and figures."""

    principal: str
    client_id: str
    software: Software = ("unknown", "unknown")
    address: str = ""
    instances: dict[bytes, ClientInstance] = attrs.field(factory=dict)
    pushes: int = 0
    pushed_at: float | None = None
    interval_ms: int = 0
    ended_at: float = 0.0
    """The time at which the last instance was removed, in monotonic seconds. It is valid while there are no
    instances.
    """
    counts: dict[int, float] = attrs.field(factory=dict)
    last_gauges: dict[int, float] = attrs.field(factory=dict)
    """The gauges of the instance that was removed last, by slot."""

    def take(self, instance: ClientInstance, pushed: Pushed, now: float) -> None:
        """Store the numbers of one push of `instance`."""
        self.pushes += 1
        self.pushed_at = now
        self.interval_ms = instance.interval_ms
        instance.gauges = dict(pushed.gauges)
        for slot, count in pushed.counts.items():
            self.counts[slot] = self.counts.get(slot, 0.0) + count

    def forget(self, instance: ClientInstance, now: float) -> None:
        """Remove an instance that is gone. If it was the last one, keep its gauges."""
        if self.instances.pop(instance.instance_id, None) is not None and not self.instances:
            self.ended_at = now
            self.last_gauges = instance.gauges

    def figures(self) -> Iterator[tuple[int, float]]:
        """Yield each slot that was pushed and its number, sorted by slot.

        The numbers of several instances are combined.
        """
        values: dict[int, list[float]] = {}
        pushed = [each.gauges for each in self.instances.values() if each.gauges] or [self.last_gauges]
        for gauges in pushed:
            for slot, value in gauges.items():
                values.setdefault(slot, []).append(value)
        for slot in sorted([*values, *self.counts]):
            way = figure_of(slot).way
            yield slot, self.counts[slot] if way is Way.COUNT else joined(way, values[slot])


class KnownClients:
    """All clients of a node, `clients_max` at most."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._clients: dict[tuple[str, str], KnownClient] = {}
        self._of_principal: Counter[str] = Counter()

    def find(self, principal: str, client_id: str | None, now: float) -> KnownClient:
        """Return the client of this user and client id, or create it.

        If there is no room, return the entry that all further clients share.
        """
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
        """Drop one client, so that this user may add another.

        Returns False and drops none if all clients have instances, and no other user has at least two clients
        more than this user.
        """
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
        """Drop the clients whose last instance was removed more than `KEPT_SECONDS` ago."""
        ended = [
            each
            for each in self._clients.values()
            if not each.instances and now - each.ended_at > KEPT_SECONDS
        ]
        for client in ended:
            self._drop(client)

    def all(self) -> list[KnownClient]:
        """List all clients, sorted by their last push; the latest push is first."""
        return sorted(
            self._clients.values(),
            key=lambda each: float("-inf") if each.pushed_at is None else each.pushed_at,
            reverse=True,
        )

    def __len__(self) -> int:
        return len(self._clients)


def _short(text: str) -> str:
    return text[:NAME_LETTERS_MAX]
