"""The cluster as it would be after the moves planned so far. PURE.

The steps of a plan use three classes. `Spread` has the racks and hosts of brokers. `BrokerLoads` has the
replicas of each broker. `PlannedCluster` has the replicas of each partition; a planned move changes them
together with the brokers' loads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from odradek.client.admin.moves.placement import Move, Placement, Site
from odradek.wire.topic_partition import TopicPartition

__all__ = ["BrokerLoads", "PlannedCluster", "Spread"]


class Spread:
    """The racks and hosts of the brokers. It counts how many racks and hosts a partition's replicas span."""

    def __init__(self, sites: Collection[Site]) -> None:
        # If only some brokers have a rack, racks are ignored.
        knows_racks = all(site.rack is not None for site in sites)
        self.racks = len({site.rack for site in sites}) if knows_racks else 1
        """The number of racks; 1 if some broker's rack is unknown."""
        self._rack_of: dict[int, object] = {
            site.node_id: site.rack if knows_racks else None for site in sites
        }
        self._host_of: dict[int, object] = {site.node_id: site.host for site in sites}

    def span(self, replicas: Iterable[int]) -> tuple[int, int]:
        """Count the racks and the hosts of these brokers. Each unknown rack or host counts as a separate one."""
        nodes = list(replicas)
        racks = {self._rack_of.get(node, ("unknown", node)) for node in nodes}
        hosts = {self._host_of.get(node, ("unknown", node)) for node in nodes}
        return len(racks), len(hosts)

    def is_narrowed(self, others: Sequence[int], giver: int, taker: int) -> bool:
        """True if a move from `giver` to `taker` makes the partition span fewer racks or hosts. `others` are
        the brokers of the partition's other replicas.
        """
        return any(
            places[giver] != places[taker] and _loses_a_place(places, others, giver, taker)
            for places in (self._rack_of, self._host_of)
        )


def _loses_a_place(places: dict[int, object], others: Sequence[int], giver: int, taker: int) -> bool:
    """True if the move makes the partition span fewer racks (or hosts): it loses a rack (or host) and gains
    none.
    """
    spanned = [places.get(node) for node in others]
    return places[giver] not in spanned and places[taker] in spanned


class BrokerLoads:
    """The load of each broker: its replicas sorted by size, their bytes, and their number by topic."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._size = dict.fromkeys(nodes, 0)
        self._held: dict[int, list[tuple[int, TopicPartition]]] = {node: [] for node in self._size}
        self._crowds: dict[int, Counter[str]] = {node: Counter() for node in self._size}

    def __contains__(self, node: int) -> bool:
        return node in self._size

    def size(self, node: int) -> int:
        """Return the bytes of a broker's replicas."""
        return self._size[node]

    def count(self, node: int) -> int:
        """Return the number of a broker's replicas."""
        return len(self._held[node])

    def held(self, node: int) -> Sequence[tuple[int, TopicPartition]]:
        """List a broker's replicas with their sizes, the smallest first."""
        return self._held[node]

    def of_topic(self, node: int, topic: str) -> int:
        """Return the number of a broker's replicas of one topic."""
        return self._crowds[node][topic]

    def mean(self) -> float:
        """Compute the mean number of bytes per broker."""
        return sum(self._size.values()) / max(1, len(self._size))

    def add(self, node: int, key: TopicPartition, size: int) -> None:
        """Add a replica of `size` bytes to a broker's load."""
        self._size[node] += size
        insort(self._held[node], (size, key))
        self._crowds[node][key[0]] += 1

    def remove(self, node: int, key: TopicPartition, size: int) -> None:
        """Remove a replica from a broker's load."""
        self._size[node] -= size
        held = self._held[node]
        del held[bisect_left(held, (size, key))]
        self._crowds[node][key[0]] -= 1


class PlannedCluster:
    """The replicas of each partition after the moves planned so far. Brokers and partitions are sorted."""

    def __init__(
        self, sites: Iterable[Site], partitions: Iterable[Placement], only: Collection[TopicPartition] | None
    ) -> None:
        self.sites = {site.node_id: site for site in sorted(sites, key=lambda site: site.node_id)}
        """The brokers that may get replicas."""
        self.spread = Spread(self.sites.values())
        self.partitions = {each.key: each for each in sorted(partitions, key=lambda each: each.key)}
        """All partitions as they are before the plan."""
        self.movable = [key for key in self.partitions if only is None or key in only]
        """The keys of the partitions that the plan may change."""
        self._fixed = self.partitions.keys() - set(self.movable)
        self._replicas = {key: list(each.replicas) for key, each in self.partitions.items()}
        self.loads = BrokerLoads(self.sites)
        for key, each in self.partitions.items():
            for node in each.replicas:
                if node in self.loads:
                    self.loads.add(node, key, each.size)

    def replicas(self, key: TopicPartition) -> Sequence[int]:
        """Return the brokers of a partition's replicas, the preferred leader first."""
        return self._replicas[key]

    def moves(self) -> list[Move]:
        """List the moves of the partitions whose replicas have changed."""
        return [
            Move(each.topic, each.partition, each.replicas, tuple(self._replicas[key]), each.size)
            for key, each in self.partitions.items()
            if tuple(self._replicas[key]) != each.replicas
        ]

    def may_move(self, key: TopicPartition, giver: int, taker: int) -> bool:
        """True if the plan may move this replica from `giver` to `taker`. `taker` must have no replica of the
        partition. The partition must span as many racks and hosts as before.
        """
        replicas = self._replicas[key]
        if taker in replicas or key in self._fixed:
            return False
        return not self.spread.is_narrowed([node for node in replicas if node != giver], giver, taker)

    def move(self, key: TopicPartition, giver: int, taker: int) -> None:
        """Move a replica from the broker `giver` to the broker `taker`."""
        replicas = self._replicas[key]
        place = replicas.index(giver)
        self.drop_replica(key, giver)
        self.add_replica(key, taker)
        if place:
            # The new replica takes the old one's place in the list. The first place is an exception, because
            # the leader should be a replica that has the data.
            replicas.insert(place, replicas.pop())

    def add_replica(self, key: TopicPartition, node: int) -> None:
        """Add a replica on this broker, at the end of the partition's list."""
        self._replicas[key].append(node)
        self.loads.add(node, key, self.partitions[key].size)

    def drop_replica(self, key: TopicPartition, node: int) -> None:
        """Remove the replica on this broker."""
        self._replicas[key].remove(node)
        if node in self.loads:
            self.loads.remove(node, key, self.partitions[key].size)

    def prefer(self, key: TopicPartition, leader: int) -> None:
        """Make the broker `leader` the preferred leader: swap it with the first broker of the partition's
        list.
        """
        replicas = self._replicas[key]
        place = replicas.index(leader)
        replicas[0], replicas[place] = replicas[place], replicas[0]
