"""The simulated network for Fetch requests between brokers: they arrive late, or are lost. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from sim.alone.replication_broker import Broker, Fetching
from sim.alone.replication_controller import NODES

__all__ = ["Fetches"]


class Fetches:
    """Fetch requests and answers on their way. At times two brokers cannot reach each other."""

    def __init__(self, random: Random, nodes: Mapping[int, Broker]) -> None:
        self._random = random
        self._nodes = nodes
        self._under_way: list[Fetching] = []
        self._silent: tuple[int, int] | None = None

    def ask(self, node: Broker) -> None:
        """Let a follower send a Fetch to its leader, unless one is unanswered."""
        fetching = node.next_fetch()
        if fetching is not None:
            self._under_way.append(fetching)

    def deliver_one(self) -> None:
        """Deliver one Fetch to its leader, or one answer to its follower: mostly the oldest."""
        if self._under_way:
            at = self._random.choice((0, 0, self._random.randrange(len(self._under_way))))
            self._deliver(self._under_way[at])

    def deliver_all(self) -> None:
        """Deliver each Fetch that is on its way, or its answer if the leader has answered."""
        for fetching in list(self._under_way):
            if fetching in self._under_way:
                self._deliver(fetching)

    def _deliver(self, fetching: Fetching) -> None:
        here, there = sorted((fetching.follower, fetching.leader))
        if self._silent == (here, there):
            return
        node, leader = self._nodes[fetching.follower], self._nodes[fetching.leader]
        if fetching.answer is None:
            if not leader.lives:
                self._lose(fetching)
                return
            fetching.answer = leader.serve(fetching)
            if not self._is_awaited(node, fetching):
                # The follower no longer waits, but the leader has recorded the fetch.
                self._under_way.remove(fetching)
            return
        self._under_way.remove(fetching)
        if self._is_awaited(node, fetching):
            code, answer, session_id = fetching.answer
            node.take(fetching, answer, session_id, code)

    def _is_awaited(self, node: Broker, fetching: Fetching) -> bool:
        return node.lives and node.life == fetching.life and node.fetching is fetching

    def _lose(self, fetching: Fetching) -> None:
        self._under_way.remove(fetching)
        node = self._nodes[fetching.follower]
        if self._is_awaited(node, fetching):
            node.break_off()

    def lose_one(self) -> None:
        """Break the connection of a random follower. The follower's Fetch may still arrive."""
        if self._under_way:
            fetching = self._random.choice(self._under_way)
            node = self._nodes[fetching.follower]
            if self._is_awaited(node, fetching):
                node.break_off()
            if self._random.random() < 0.5 or fetching.answer is not None:
                self._under_way.remove(fetching)

    def lose_all_of(self, leader: int) -> None:
        """Lose all Fetches to this leader, since its process has ended."""
        for fetching in [each for each in self._under_way if each.leader == leader]:
            self._lose(fetching)

    def cut(self) -> None:
        """Cut two random brokers off from each other, or end such a cut."""
        pair = sorted(self._random.sample(NODES, 2))
        self._silent = self._random.choice((None, (pair[0], pair[1])))

    def mend(self) -> None:
        """Reconnect all brokers."""
        self._silent = None
