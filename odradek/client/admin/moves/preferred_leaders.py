"""The plan step that balances how many partitions each broker leads. It copies no data. PURE."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from odradek.client.admin.moves.planned_cluster import PlannedCluster
from odradek.wire.topic_partition import TopicPartition

__all__ = ["PreferredLeaders"]


class PreferredLeaders:
    """The number of partitions that each broker leads, and the possible changes. A change moves a partition's
    leadership from one broker of a pair to the other.
    """

    def __init__(self, cluster: PlannedCluster, keys: Iterable[TopicPartition], tolerance: float) -> None:
        self._cluster = cluster
        self._leads = leads = dict.fromkeys(cluster.sites, 0)
        for partition in cluster.partitions:
            replicas = cluster.replicas(partition)
            if replicas and replicas[0] in leads:
                leads[replicas[0]] += 1
        self._slack = max(1, int(sum(leads.values()) / max(1, len(leads)) * tolerance))
        self._between: dict[int, dict[int, dict[TopicPartition, None]]] = {node: {} for node in cluster.sites}
        """`[a][b]` has the partitions of `keys` that broker `a` leads and broker `b` could lead."""
        for key in keys:
            self._offer(key)

    def even(self) -> None:
        """Balance how many partitions each broker leads (step 5 of `balance.py`). Only the leaders of the
        partitions `keys` change, but the leaders of all partitions are counted.
        """
        while (chain := self._chain()) is not None:
            for leader, successor in pairwise(chain):
                key = next(iter(self._between[leader][successor]))
                self._withdraw(key)
                self._cluster.prefer(key, successor)
                self._offer(key)
            self._leads[chain[0]] -= 1
            self._leads[chain[-1]] += 1

    def _chain(self) -> list[int] | None:
        """Find the shortest chain of leadership changes from a broker that leads many partitions to a broker
        that leads few. Return None if there is no such chain.
        """
        leads = self._leads
        for giver in sorted(leads, key=lambda node: (-leads[node], node)):
            came_from: dict[int, int | None] = {giver: None}
            queue = deque([giver])
            best: int | None = None
            while queue:
                node = queue.popleft()
                if leads[giver] - leads[node] > self._slack and (best is None or leads[node] < leads[best]):
                    best = node
                for successor, keys in self._between[node].items():
                    if keys and successor not in came_from:
                        came_from[successor] = node
                        queue.append(successor)
            if best is not None:
                chain = [best]
                while (before := came_from[chain[-1]]) is not None:
                    chain.append(before)
                return chain[::-1]
        return None

    def _offer(self, key: TopicPartition) -> None:
        """Add a partition to `_between`: one entry for each broker that could lead the partition instead of
        its present leader.
        """
        leader, *others = self._cluster.replicas(key)
        if leader in self._between:
            for node in others:
                if node in self._cluster.sites:
                    self._between[leader].setdefault(node, {})[key] = None

    def _withdraw(self, key: TopicPartition) -> None:
        """Remove a partition from the entries of `_between`: the reverse of `_offer`."""
        leader, *others = self._cluster.replicas(key)
        for node in others:
            if node in self._cluster.sites:
                del self._between[leader][node][key]
