"""The data types of a plan of moves: brokers, partitions, moves; and the bytes and seconds that the moves take.
PURE.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from odradek.wire.topic_partition import TopicPartition

__all__ = ["CannotPlan", "Move", "Placement", "Site", "seconds_of", "traffic_of"]


class CannotPlan(ValueError):
    """Raised if no broker or disk is allowed for some replica of the plan. The text names the replica."""


@attrs.frozen
class Site:
    """A broker that may have replicas, with its rack and host. `host` is any unit inside a rack that fails as
    a whole.
    """

    node_id: int
    rack: str | None = None
    host: str = ""


@attrs.frozen
class Placement:
    """A partition: the brokers of its replicas, the preferred leader first, and the size of one replica in
    bytes.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size: int

    @property
    def key(self) -> TopicPartition:
        """The partition as (topic, number)."""
        return TopicPartition(self.topic, self.partition)


@attrs.frozen
class Move:
    """The change of a partition's replicas: their brokers before and after, each with the preferred leader
    first.
    """

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def adding(self) -> tuple[int, ...]:
        """The brokers that get a new replica of the partition."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        """The brokers that drop their replica of the partition."""
        return tuple(node for node in self.before if node not in self.after)

    @property
    def bytes(self) -> int:
        """The bytes that the move copies in total."""
        return self.size * len(self.adding)


def traffic_of(moves: Iterable[Move]) -> dict[int, int]:
    """Compute the bytes that each broker has to receive, by broker id."""
    traffic: dict[int, int] = {}
    for move in moves:
        for node in move.adding:
            traffic[node] = traffic.get(node, 0) + move.size
    return dict(sorted(traffic.items()))


def seconds_of(moves: Iterable[Move], bytes_per_second: float) -> float:
    """Estimate the seconds that the moves take at this rate per broker: the time of the broker that receives
    the most bytes.
    """
    return max(traffic_of(moves).values(), default=0) / bytes_per_second
