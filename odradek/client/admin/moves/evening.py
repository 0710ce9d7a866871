"""Steps 3 and 4 of a balancing plan (`balance.py`), which balance the brokers' bytes and numbers of replicas. PURE."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from odradek.client.admin.moves.planned_cluster import PlannedCluster
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Evening"]

_SLACK_BYTES = 1 << 20
"""A plan ignores differences between brokers that are smaller than this number of bytes."""
_ROUNDS_MAX = 8


class Evening:
    """Moves replicas, one at a time, from brokers with a high load to brokers with a low load, while a move helps."""

    def __init__(self, cluster: PlannedCluster, tolerance: float) -> None:
        self._cluster = cluster
        self._loads = cluster.loads
        self._mean = cluster.loads.mean()
        """The mean of the brokers' bytes. Moves between brokers do not change it."""
        self._slack = max(self._mean * tolerance, _SLACK_BYTES)
        self._blocked: set[tuple[int, int]] = set()
        """The (source, target) pairs of brokers for which no move is allowed in this round."""

    def even_bytes(self) -> bool:
        """Balance the bytes of brokers (step 3 of `balance.py`). Return True if any replica moved."""
        return self._repeat(self._byte_step)

    def even_counts(self) -> bool:
        """Balance the number of replicas of brokers (step 4 of `balance.py`). Return True if any replica moved."""
        return self._repeat(self._count_step)

    def _repeat(self, step: Callable[[], tuple[TopicPartition, int, int] | None]) -> bool:
        """Call `step` again and again, and make each move that it returns, until it returns None. Return True
        if any replica moved.
        """
        moved = False
        for _ in range(_ROUNDS_MAX):
            # In the last round no move was found for the blocked pairs of brokers. Try these pairs again,
            # because moves between other brokers may have made a move possible.
            self._blocked.clear()
            found = step()
            if found is None:
                break
            moved = True
            while found is not None:
                self._cluster.move(*found)
                found = step()
        return moved

    def _byte_step(self) -> tuple[TopicPartition, int, int] | None:
        size = self._loads.size
        rising = sorted(self._cluster.sites, key=lambda node: (size(node), node))
        for giver in reversed(rising):
            for taker in rising:
                gap = size(giver) - size(taker)
                excess, lack = size(giver) - self._mean, self._mean - size(taker)
                if gap <= self._slack or max(excess, lack) <= self._slack:
                    break
                if (giver, taker) in self._blocked:
                    continue
                wanted = min(excess, lack) if min(excess, lack) > 0 else gap / 2
                found = self._fitting(giver, taker, wanted, gap)
                if found is not None:
                    return found, giver, taker
                self._blocked.add((giver, taker))
        return None

    def _fitting(self, giver: int, taker: int, wanted: float, gap: float) -> TopicPartition | None:
        """Choose the largest replica of the broker `giver` with at most `wanted` bytes. If there is no such replica,
        choose the smallest replica whose move narrows the gap to `taker`.
        """
        held = self._loads.held(giver)
        middle = bisect_right(held, wanted, key=lambda entry: entry[0])
        for place in range(middle - 1, -1, -1):
            size, key = held[place]
            if size == 0:
                break
            if self._cluster.may_move(key, giver, taker):
                return key
        for place in range(middle, len(held)):
            size, key = held[place]
            if size >= gap - self._slack:
                break
            if self._cluster.may_move(key, giver, taker):
                return key
        return None

    def _count_step(self) -> tuple[TopicPartition, int, int] | None:
        size, count = self._loads.size, self._loads.count
        rising = sorted(self._cluster.sites, key=lambda node: (count(node), size(node), node))
        for giver in reversed(rising):
            for taker in rising:
                if count(giver) - count(taker) < 2:
                    break
                if (giver, taker) in self._blocked:
                    continue
                found = self._smallest(giver, taker)
                if found is not None:
                    return found, giver, taker
                self._blocked.add((giver, taker))
        return None

    def _smallest(self, giver: int, taker: int) -> TopicPartition | None:
        """Choose the smallest replica that may move from `giver` to `taker`. Both brokers must stay within
        the tolerance for bytes. Return None if there is no such replica.
        """
        room = min(
            self._mean + self._slack - self._loads.size(taker),
            self._loads.size(giver) - self._mean + self._slack,
        )
        held = self._loads.held(giver)
        start = 0
        while start < len(held) and held[start][0] <= room:
            end = bisect_right(held, held[start][0], lo=start, key=lambda entry: entry[0])
            # Among equal replicas, choose one from the topic with the most replicas on this broker, so that
            # each topic is spread over the brokers, too.
            for key in self._by_crowd(giver, held[start:end]):
                if self._cluster.may_move(key, giver, taker):
                    return key
            start = end
        return None

    def _by_crowd(
        self, giver: int, entries: Sequence[tuple[int, TopicPartition]]
    ) -> Iterator[TopicPartition]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for _, key in entries:
            by_topic.setdefault(key[0], []).append(key)
        for topic in sorted(by_topic, key=lambda topic: (-self._loads.of_topic(giver, topic), topic)):
            yield from by_topic[topic]
