"""Simulated messages between clients and coordinators: late, out of order, lost, or no longer awaited. PURE.

A client has at most one request in flight. The checks see each answer when a coordinator gives it, even if the answer
is lost later.
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
"""The share of requests that go to a broker which considers itself the partition's leader."""


class GroupRequest(Protocol):
    """A request to a group coordinator."""

    @property
    def group_id(self) -> str: ...


class Client:
    """A simulated client with at most one request in flight. `number` counts its requests, so that late answers are
    recognised.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = False
        self.number = 0

    def act(self) -> None:
        """Take the client's next step, such as sending a request."""

    def gave_up(self) -> None:
        """Called when the client stops waiting for the answer to its request."""


@attrs.define(eq=False)
class _Letter:
    """A request on its way to a coordinator, or an answer on its way back."""

    client: Client
    number: int
    deliver: Callable[[], None]
    is_dropped_late: bool = False
    """True for a request that is dropped once its client has got the answer to a later request."""


@attrs.define(eq=False)
class _Reply(Generic[A]):
    """The coordinator's handle for an answer: `odradek.data_plane.groups.classic_group.Reply`."""

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
    """The simulated network between clients and coordinators. `hosts` has only the living brokers; `decided` is called
    after each request.
    """

    def __init__(
        self, random: Random, hosts: Mapping[int, GroupHost], decided: Callable[[GroupHost], None]
    ) -> None:
        self.random = random
        self.all: Sequence[Client] = ()
        self._hosts = hosts
        self._decided = decided
        self._letters: list[_Letter] = []

    def is_of_this_life(self, host: GroupHost) -> bool:
        """True if the process for which `host` was made is still the broker's present process."""
        return self._hosts.get(host.broker.node_id) is host

    def act(self) -> None:
        """Let a random client take a step, unless it waits for an answer."""
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
        """Send a request to a random broker, mostly to a leader. `checked` is called when the coordinator gives its
        answer, `answered` when the answer arrives at the client.
        """
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
                self.arrives(host, request)
                reply = _Reply(self, client, host, number, checked, answered)
                ask = Ask(request, version, reply, host.clock.wall_ms(), client.name, "/h")
                host.coordinator.submit(request.group_id, ask)
                self._decided(host)

        self._letters.append(_Letter(client, number, deliver, self.is_dropped_late(request)))

    def is_dropped_late(self, request: GroupRequest) -> bool:
        """True if the request never arrives after its client has got the answer to a later request."""
        return False

    def arrives(self, host: GroupHost, request: GroupRequest) -> None:
        """Called when a request arrives at a living broker, before the coordinator there gets it."""

    def send_back(self, reply: _Reply[A], response: A) -> None:
        """Put an answer on its way to the client."""

        def deliver() -> None:
            if reply.client.number == reply.number and reply.client.waits:
                reply.client.waits = False
                self._letters = [
                    each
                    for each in self._letters
                    if each.client is not reply.client or not each.is_dropped_late
                ]
                reply.answered(response)

        self._letters.append(_Letter(reply.client, reply.number, deliver))

    def deliver_one(self) -> None:
        """Deliver one message: mostly the oldest, in one of four cases a random message."""
        if self._letters:
            at = self.random.choice((0, 0, 0, self.random.randrange(len(self._letters))))
            self._letters.pop(at).deliver()

    def deliver_oldest(self) -> None:
        """Deliver the oldest message, if there is any."""
        if self._letters:
            self._letters.pop(0).deliver()

    def lose_one(self) -> None:
        """Lose a random message. The client stops waiting, and will send its request again."""
        if self._letters:
            letter = self._letters.pop(self.random.randrange(len(self._letters)))
            self._give_up(letter.client)

    def time_out(self) -> None:
        """Let a random client stop waiting for its answer; the request may still be executed."""
        self._give_up(self.random.choice(self.all))

    def give_up_all(self) -> None:
        """Let all waiting clients stop waiting, so that they send again."""
        for client in self.all:
            self._give_up(client)

    @staticmethod
    def _give_up(client: Client) -> None:
        if client.waits:
            client.waits = False
            client.gave_up()
