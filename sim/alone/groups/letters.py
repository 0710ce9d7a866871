"""Messages between clients and coordinators in a schedule: late, in any order, lost or given up. PURE.

A client has one request under way. Answers are shown to the checks when a coordinator gives them, whether or not they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

import attrs

from odradek.data_plane.coordination.asking import Ask
from sim.alone.groups.group_host import GroupHost

__all__ = ["Client", "GroupRequest", "Post"]

A = TypeVar("A")
RIGHT_SHARE = 0.95
"""The share of requests that go to a broker that leads, as far as it knows."""


class GroupRequest(Protocol):
    """A request to the coordinator of a group."""

    @property
    def group_id(self) -> str: ...


class Client:
    """A client with at most one request under way; its requests are numbered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = False
        self.number = 0

    def act(self) -> None:
        """Take the next step."""

    def gave_up(self) -> None:
        """Called when the answer to the request under way is waited for no longer."""


@attrs.define(eq=False)
class _Letter:
    """A request on its way to a coordinator, or its answer on the way back."""

    client: Client
    number: int
    deliver: Callable[[], None]


@attrs.define(eq=False)
class _Reply(Generic[A]):
    """`odradek.data_plane.groups.classic_group.Reply`."""

    post: Post
    client: Client
    host: GroupHost
    number: int
    checked: Callable[[GroupHost, A], None]
    answered: Callable[[A], None]

    def complete(self, response: A, /) -> None:
        if self.host.broker.lives and self.post.is_of_this_life(self.host):
            self.checked(self.host, response)
            self.post.send_back(self, response)


class Post:
    """All messages of a schedule. `hosts` are those of the living brokers; `decided` is called after each decision."""

    def __init__(
        self, random: Random, hosts: Mapping[int, GroupHost], decided: Callable[[GroupHost], None]
    ) -> None:
        self.random = random
        self.all: Sequence[Client] = ()
        self._hosts = hosts
        self._decided = decided
        self._letters: list[_Letter] = []

    def is_of_this_life(self, host: GroupHost) -> bool:
        """True if the broker still lives the life of this host."""
        return self._hosts.get(host.broker.node_id) is host

    def act(self) -> None:
        """Let a client take its next step."""
        client = self.random.choice(self.all)
        if not client.waits:
            client.act()

    def send(
        self,
        client: Client,
        request: GroupRequest,
        version: int,
        checked: Callable[[GroupHost, A], None],
        answered: Callable[[A], None],
    ) -> None:
        """Send a request to the broker that the client takes for the coordinator."""
        client.waits = True
        client.number += 1
        number = client.number
        led = [host for host in self._hosts.values() if host.shard is not None]
        others = list(self._hosts.values())
        if not others:
            return
        host = self.random.choice(led if led and self.random.random() < RIGHT_SHARE else others)

        def deliver() -> None:
            if self.is_of_this_life(host):
                self.arrives(request)
                reply = _Reply(self, client, host, number, checked, answered)
                ask = Ask(request, version, reply, host.clock.wall_ms(), client.name, "/h")
                host.coordinator.submit(request.group_id, ask)
                self._decided(host)

        self._letters.append(_Letter(client, number, deliver))

    def arrives(self, request: GroupRequest) -> None:
        """Called when a request arrives at a broker that lives."""

    def send_back(self, reply: _Reply[A], response: A) -> None:
        """Send an answer."""

        def deliver() -> None:
            if reply.client.number == reply.number and reply.client.waits:
                reply.client.waits = False
                reply.answered(response)

        self._letters.append(_Letter(reply.client, reply.number, deliver))

    def deliver_one(self) -> None:
        """Deliver a message: mostly the oldest."""
        if self._letters:
            at = self.random.choice((0, 0, 0, self.random.randrange(len(self._letters))))
            self._letters.pop(at).deliver()

    def deliver_oldest(self) -> None:
        """Deliver the oldest message."""
        if self._letters:
            self._letters.pop(0).deliver()

    def lose_one(self) -> None:
        """Lose a message; the client will ask again."""
        if self._letters:
            letter = self._letters.pop(self.random.randrange(len(self._letters)))
            self._give_up(letter.client)

    def time_out(self) -> None:
        """Let some client give up its request, which may still be performed."""
        self._give_up(self.random.choice(self.all))

    def give_up_all(self) -> None:
        """Let all waiting clients ask again."""
        for client in self.all:
            self._give_up(client)

    @staticmethod
    def _give_up(client: Client) -> None:
        if client.waits:
            client.waits = False
            client.gave_up()
