"""The client's core on a simulated network: requests arrive late and in the order of their connection, answers are late,
and connections break. PURE.

Requests and answers are objects, so nothing is encoded. If a connection breaks, the requests that have not arrived are
lost, and so are all answers.
"""

from __future__ import annotations

from random import Random

import attrs

from odradek.client.core.client_config import ClientConfig
from odradek.client.core.client_core import ClientCore
from odradek.client.core.operation import Call
from odradek.client.errors import ConnectionBroken, RequestTimedOut
from odradek.wire.structure import Message
from odradek.wire.topic_partition import TopicPartition

__all__ = ["REQUEST_SECONDS", "LooseCore", "Sent"]

REQUEST_SECONDS = 2.0


@attrs.define(eq=False)
class Sent:
    """A request that has no answer yet."""

    call: Call
    seen: int
    """How many answers the client had got when it sent the request."""
    has_arrived: bool = False
    delivered: int | None = None
    """How many answers the client had got when it had got this one; None before that."""
    answer: Message | None = None
    """The answer on its way to the client; None before the broker has answered."""
    ownerships: dict[TopicPartition, int] | None = None
    """The number of the present ownership of each assigned partition; None if the answer has no assignment."""

    @property
    def connection(self) -> tuple[int, int]:
        """Return the connection of the request: the broker's id (0 for any broker) and the lane."""
        return self.call.node or 0, self.call.lane


class LooseCore(ClientCore):
    """The client's core, whose requests wait in a list until the schedule moves them."""

    def __init__(self, random: Random) -> None:
        super().__init__([("broker", 9092)], ClientConfig(request_timeout=REQUEST_SECONDS), random)
        self.sent: list[Sent] = []
        self.answers_seen = 0

    def _place(self, call: Call) -> None:
        self.sent.append(Sent(call, self.answers_seen))

    def next_arrivals(self) -> list[Sent]:
        """Return the request of each connection that arrives next."""
        found: dict[tuple[int, int], Sent] = {}
        for each in self.sent:
            if not each.has_arrived:
                found.setdefault(each.connection, each)
        return list(found.values())

    def next_answers(self) -> list[Sent]:
        """Return the request of each connection whose answer comes next, if the broker has answered it."""
        found: dict[tuple[int, int], Sent] = {}
        for each in self.sent:
            found.setdefault(each.connection, each)
        return [each for each in found.values() if each.answer is not None]

    def deliver(self, sent: Sent) -> None:
        """Deliver the answer to a request."""
        self.sent.remove(sent)
        self.answers_seen += 1
        sent.delivered = self.answers_seen
        sent.call.succeed(sent.answer)
        self.tick(self.now)

    def connections(self) -> list[tuple[int, int]]:
        """List the connections that have requests under way."""
        return sorted({each.connection for each in self.sent})

    def break_connection(self, connection: tuple[int, int]) -> None:
        """Break a connection. Its requests get no answer."""
        self._lose(connection)
        self.tick(self.now)

    def _lose(self, connection: tuple[int, int]) -> None:
        broken = [each for each in self.sent if each.connection == connection]
        self.sent = [each for each in self.sent if each.connection != connection]
        for each in broken:
            each.call.fail(ConnectionBroken("the connection broke"))

    def tick(self, now: float) -> None:
        """Process the passing of time. If a request is overdue, its connection breaks, as that of the product does."""
        self._at(now)
        while True:
            overdue = [each for each in self.sent if each.call.deadline <= now]
            self.sent = [each for each in self.sent if each.call.deadline > now]
            for each in overdue:
                each.call.fail(RequestTimedOut("no answer in time"))
            for each in overdue:
                self._lose(each.connection)
            super().tick(now)
            # An operation may have sent a request whose deadline has passed already.
            if all(each.call.deadline > now for each in self.sent):
                return
