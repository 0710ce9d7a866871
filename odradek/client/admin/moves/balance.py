"""Which replicas should move where: plans that even the load of brokers, and that empty brokers. PURE.

Theory of operation
-------------------
The load of a broker is the bytes of its replicas. A plan is computed on a model of the cluster, replica by replica, in
this order:

1. **Leaving**: what is on brokers that leave goes to the others, the largest first, each to the lightest one allowed.
2. **Spread**: a partition with two replicas in a rack, although another rack is without, gets one of them moved.
3. **Bytes**: from a broker above the mean to one below it goes the largest replica that fits into both the excess and
   the lack. So each byte moves once at most, and to some use. Where none fits, the smallest goes that still makes the
   two more alike. It ends when all are within `tolerance` of the mean, or nothing allowed helps.
4. **Counts**: replicas even out in number by the smallest ones, as far as bytes stay within the tolerance.
5. **Leaders**: who comes first in a partition's list leads it. Swapping within a list costs no bytes; along chains of
   such swaps every broker comes to lead as many as the others.

Rules
-----
* A partition's replicas stay on different brokers, and a move never lets it span fewer racks or fewer hosts.
* Every step makes a sum of squares smaller, so planning ends; the same input gives the same plan.
* Replicas on brokers that are not in the list (dead ones) stay where they are, unless the broker leaves.

Deliberately absent: traffic, and disks within a broker (a broker places new replicas on its disks by itself).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs

__all__ = [
    "CannotPlan",
    "Move",
    "Placement",
    "Site",
    "balance",
    "drain",
    "resize",
    "seconds_of",
    "traffic_of",
]

Key: TypeAlias = tuple[str, int]
_SLACK_BYTES = 1 << 20
"""Differences below this are no reason to move anything."""


_ROUNDS_MAX = 8


class CannotPlan(ValueError):
    """There is no allowed place for some replica; the text says which."""


@attrs.frozen
class Site:
    """A broker that may hold replicas, and where it stands. `host` is whatever fails together below a rack."""

    node_id: int
    rack: str | None = None
    host: str = ""


@attrs.frozen
class Placement:
    """A partition, the brokers of its replicas (the preferred leader first), and the bytes of one replica."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size: int

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition


@attrs.frozen
class Move:
    """New replicas for a partition, the preferred leader first."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def adding(self) -> tuple[int, ...]:
        """Brokers that copy the partition."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        """Brokers that drop it."""
        return tuple(node for node in self.before if node not in self.after)

    @property
    def bytes(self) -> int:
        """What is copied in all."""
        return self.size * len(self.adding)


def balance(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    *,
    tolerance: float = 0.05,
    only: Collection[Key] | None = None,
) -> list[Move]:
    """The moves that even the load with the fewest bytes, in order of topics and partitions; `only` of these."""
    model = _Model(sites, partitions, tolerance, only)
    model.mend_spread()
    # Evening the counts may give bytes a new way to go; every round makes things better, few are ever needed.
    for _ in range(4):
        if not (model.even_bytes() | model.even_counts()):
            break
    model.even_leaders(model.movable)
    return model.moves()


def drain(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    leaving: Collection[int],
    *,
    tolerance: float = 0.05,
    only: Collection[Key] | None = None,
) -> list[Move]:
    """The moves that empty the brokers `leaving`; with `only`, of these partitions alone. `sites` may list these
    brokers.

    Raises `CannotPlan` when a partition has more replicas than there are brokers left.
    """
    remaining = [site for site in sites if site.node_id not in leaving]
    model = _Model(remaining, partitions, tolerance, only)
    moved = model.clear(leaving)
    model.even_leaders(moved)
    return model.moves()


def resize(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    replicas: int,
    *,
    tolerance: float = 0.05,
    only: Collection[Key] | None = None,
) -> list[Move]:
    """The moves that give every partition so many replicas; preferred leaders stay. Raises `CannotPlan`."""
    if not 0 < replicas <= len(sites):
        raise CannotPlan(f"{replicas} replicas need as many brokers, and there are {len(sites)}")
    model = _Model(sites, partitions, tolerance, only)
    model.resize(replicas)
    return model.moves()


def traffic_of(moves: Iterable[Move]) -> dict[int, int]:
    """The bytes that each broker has to take in, by broker id."""
    traffic: dict[int, int] = {}
    for move in moves:
        for node in move.adding:
            traffic[node] = traffic.get(node, 0) + move.size
    return dict(sorted(traffic.items()))


def seconds_of(moves: Iterable[Move], bytes_per_second: float) -> float:
    """How long the moves take when every broker takes in so much: as long as the one with the most to take."""
    return max(traffic_of(moves).values(), default=0) / bytes_per_second


class _Model:
    """The cluster as it would be after the steps planned so far."""

    def __init__(
        self,
        sites: Sequence[Site],
        partitions: Iterable[Placement],
        tolerance: float,
        only: Collection[Key] | None,
    ) -> None:
        self.sites = {site.node_id: site for site in sorted(sites, key=lambda site: site.node_id)}
        # A rack that only some brokers name says nothing about the others.
        self._knows_racks = all(site.rack is not None for site in sites)
        self._racks = len({site.rack for site in sites}) if self._knows_racks else 1
        self._rack_of: dict[int, object] = {
            node: site.rack if self._knows_racks else None for node, site in self.sites.items()
        }
        self._host_of: dict[int, object] = {node: site.host for node, site in self.sites.items()}
        self.partitions = {each.key: each for each in sorted(partitions, key=lambda each: each.key)}
        self.movable = [key for key in self.partitions if only is None or key in only]
        self._fixed = self.partitions.keys() - set(self.movable)
        self.replicas = {key: list(each.replicas) for key, each in self.partitions.items()}
        self._load = dict.fromkeys(self.sites, 0)
        self._held: dict[int, list[tuple[int, Key]]] = {node: [] for node in self.sites}
        for key, each in self.partitions.items():
            for node in each.replicas:
                if node in self.sites:
                    self._load[node] += each.size
                    self._held[node].append((each.size, key))
        self._crowds: dict[int, Counter[str]] = {}
        for node, held in self._held.items():
            held.sort()
            self._crowds[node] = Counter(topic for _, (topic, _) in held)
        self._blocked: set[tuple[int, int]] = set()
        """Pairs of brokers between which nothing could move."""
        self._mean = sum(self._load.values()) / max(1, len(self.sites))
        self._slack = max(self._mean * tolerance, _SLACK_BYTES)
        self._tolerance = tolerance

    def moves(self) -> list[Move]:
        """What has changed."""
        return [
            Move(each.topic, each.partition, each.replicas, tuple(self.replicas[key]), each.size)
            for key, each in self.partitions.items()
            if tuple(self.replicas[key]) != each.replicas
        ]

    # -- the steps ------------------------------------------------------------------------------------------------

    def clear(self, leaving: Collection[int]) -> list[Key]:
        """Move everything off these brokers. The partitions that were moved; raises `CannotPlan`."""
        affected = [
            key for key in self.movable if any(node in leaving for node in self.partitions[key].replicas)
        ]
        affected.sort(key=lambda key: (-self.partitions[key].size, key))
        for key in affected:
            for node in self.partitions[key].replicas:
                if node in leaving:
                    self._move(key, node, self._refuge(key, node, leaving))
        return affected

    def _refuge(self, key: Key, node: int, leaving: Collection[int]) -> int:
        others = [each for each in self.replicas[key] if each != node]
        staying = [each for each in others if each not in leaving]
        free = [each for each in self.sites if each not in others]
        if not free:
            topic, partition = key
            raise CannotPlan(
                f"{topic}-{partition} has {len(others) + 1} replicas, and only {len(self.sites)} brokers would remain"
            )

        return min(free, key=lambda candidate: self._rank(staying, candidate))

    def _rank(self, others: list[int], candidate: int) -> tuple[int, int, int, int, int]:
        """The lower, the better a place beside `others`."""
        racks, hosts = self._spread([*others, candidate])
        return -racks, -hosts, self._load[candidate], len(self._held[candidate]), candidate

    def resize(self, count: int) -> None:
        """Add replicas on the best places, drop them from the worst."""
        for key in self.movable:
            replicas = self.replicas[key]
            while len(replicas) < count:
                free = [node for node in self.sites if node not in replicas]
                if not free:
                    raise CannotPlan(f"{key[0]}-{key[1]}: no broker is left for another replica")
                self._put(key, min(free, key=lambda node: self._rank(replicas, node)))
            while len(replicas) > count:
                self._drop(key, max(replicas[1:], key=lambda node: self._dispensable(replicas, node)))

    def _dispensable(self, replicas: list[int], node: int) -> tuple[int, int, int, int]:
        """The higher, the less a partition loses with this replica."""
        racks, hosts = self._spread([each for each in replicas if each != node])
        return racks, hosts, self._load.get(node, 1 << 62), node

    def mend_spread(self) -> None:
        """Let every partition span as many racks as it can."""
        if not self._knows_racks or self._racks < 2:
            return
        for key in self.movable:
            while (step := self._mending(key)) is not None:
                self._move(key, *step)

    def _mending(self, key: Key) -> tuple[int, int] | None:
        """The brokers from which and to which a replica must go for the partition to span one more rack."""
        replicas = self.replicas[key]
        racks = [self.sites[node].rack for node in replicas if node in self.sites]
        if len(racks) < len(replicas) or len(set(racks)) >= min(len(replicas), self._racks):
            return None
        crowded = [node for node in replicas if racks.count(self.sites[node].rack) > 1]
        absent = [node for node, site in self.sites.items() if site.rack not in racks]
        return (
            max(crowded, key=lambda node: (self._load[node], node)),
            min(absent, key=lambda node: (self._load[node], len(self._held[node]), node)),
        )

    def even_bytes(self) -> bool:
        """Step 3; whether anything moved."""
        return self._repeat(self._byte_step)

    def even_counts(self) -> bool:
        """Step 4; whether anything moved."""
        return self._repeat(self._count_step)

    def _repeat(self, step: Callable[[], tuple[Key, int, int] | None]) -> bool:
        """Take steps while there are any; whether there was one."""
        moved = False
        for _ in range(_ROUNDS_MAX):
            # A pair without a way between them is asked again in the next round only: others' moves may open one.
            self._blocked.clear()
            found = step()
            if found is None:
                break
            moved = True
            while found is not None:
                self._move(*found)
                found = step()
        return moved

    def _byte_step(self) -> tuple[Key, int, int] | None:
        rising = sorted(self.sites, key=lambda node: (self._load[node], node))
        for giver in reversed(rising):
            for taker in rising:
                gap = self._load[giver] - self._load[taker]
                excess, lack = self._load[giver] - self._mean, self._mean - self._load[taker]
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

    def _fitting(self, giver: int, taker: int, wanted: float, gap: float) -> Key | None:
        """The largest replica of `giver` up to the bytes wanted, else the smallest that narrows the gap."""
        held = self._held[giver]
        middle = bisect_right(held, wanted, key=lambda entry: entry[0])
        for place in range(middle - 1, -1, -1):
            size, key = held[place]
            if size == 0:
                break
            if self._may_move(key, giver, taker):
                return key
        for place in range(middle, len(held)):
            size, key = held[place]
            if size >= gap - self._slack:
                break
            if self._may_move(key, giver, taker):
                return key
        return None

    def _count_step(self) -> tuple[Key, int, int] | None:
        rising = sorted(self.sites, key=lambda node: (len(self._held[node]), self._load[node], node))
        for giver in reversed(rising):
            for taker in rising:
                if len(self._held[giver]) - len(self._held[taker]) < 2:
                    break
                if (giver, taker) in self._blocked:
                    continue
                found = self._smallest(giver, taker)
                if found is not None:
                    return found, giver, taker
                self._blocked.add((giver, taker))
        return None

    def _smallest(self, giver: int, taker: int) -> Key | None:
        """The smallest replica that may go and lets bytes stay within the tolerance."""
        room = min(self._mean + self._slack - self._load[taker], self._load[giver] - self._mean + self._slack)
        held = self._held[giver]
        start = 0
        while start < len(held) and held[start][0] <= room:
            end = bisect_right(held, held[start][0], lo=start, key=lambda entry: entry[0])
            # Of equals, one of the topic of which there are most: topics spread, too.
            for key in self._by_crowd(giver, held[start:end]):
                if self._may_move(key, giver, taker):
                    return key
            start = end
        return None

    def _by_crowd(self, giver: int, entries: Sequence[tuple[int, Key]]) -> Iterator[Key]:
        by_topic: dict[str, list[Key]] = {}
        for _, key in entries:
            by_topic.setdefault(key[0], []).append(key)
        crowd = self._crowds[giver]
        for topic in sorted(by_topic, key=lambda topic: (-crowd[topic], topic)):
            yield from by_topic[topic]

    def even_leaders(self, keys: Sequence[Key]) -> None:
        """Step 5, over these partitions; the others' leaders count, but stay."""
        leads = dict.fromkeys(self.sites, 0)
        for replicas in self.replicas.values():
            if replicas and replicas[0] in leads:
                leads[replicas[0]] += 1
        # For each pair of brokers, the partitions that the one leads and the other could.
        between: dict[int, dict[int, dict[Key, None]]] = {node: {} for node in self.sites}
        for key in keys:
            self._offer(between, key)
        slack = max(1, int(sum(leads.values()) / max(1, len(leads)) * self._tolerance))
        while (chain := self._chain(between, leads, slack)) is not None:
            for leader, successor in pairwise(chain):
                key = next(iter(between[leader][successor]))
                self._withdraw(between, key)
                replicas = self.replicas[key]
                place = replicas.index(successor)
                replicas[0], replicas[place] = replicas[place], replicas[0]
                self._offer(between, key)
            leads[chain[0]] -= 1
            leads[chain[-1]] += 1

    def _chain(
        self, between: dict[int, dict[int, dict[Key, None]]], leads: dict[int, int], slack: int
    ) -> list[int] | None:
        """The shortest way to hand one leadership from a broker with many to one with few, over others."""
        for giver in sorted(leads, key=lambda node: (-leads[node], node)):
            came_from: dict[int, int | None] = {giver: None}
            queue = deque([giver])
            best: int | None = None
            while queue:
                node = queue.popleft()
                if leads[giver] - leads[node] > slack and (best is None or leads[node] < leads[best]):
                    best = node
                for successor, keys in between[node].items():
                    if keys and successor not in came_from:
                        came_from[successor] = node
                        queue.append(successor)
            if best is not None:
                chain = [best]
                while (before := came_from[chain[-1]]) is not None:
                    chain.append(before)
                return chain[::-1]
        return None

    def _offer(self, between: dict[int, dict[int, dict[Key, None]]], key: Key) -> None:
        leader, *others = self.replicas[key]
        if leader in between:
            for node in others:
                if node in self.sites:
                    between[leader].setdefault(node, {})[key] = None

    def _withdraw(self, between: dict[int, dict[int, dict[Key, None]]], key: Key) -> None:
        leader, *others = self.replicas[key]
        for node in others:
            if node in self.sites:
                del between[leader][node][key]

    # -- rules ----------------------------------------------------------------------------------------------------

    def _may_move(self, key: Key, giver: int, taker: int) -> bool:
        replicas = self.replicas[key]
        if taker in replicas or key in self._fixed:
            return False
        others = [node for node in replicas if node != giver]
        return not any(
            places[giver] != places[taker] and self._narrows(places, others, giver, taker)
            for places in (self._rack_of, self._host_of)
        )

    def _narrows(self, places: dict[int, object], others: list[int], giver: int, taker: int) -> bool:
        """Whether the partition would span fewer places: one is lost, and none is gained."""
        spanned = [places.get(node) for node in others]
        return places[giver] not in spanned and places[taker] in spanned

    def _spread(self, replicas: Sequence[int]) -> tuple[int, int]:
        """How many racks and how many hosts these brokers span; one that is not known stands alone."""
        racks = {self._rack_of.get(node, ("unknown", node)) for node in replicas}
        hosts = {self._host_of.get(node, ("unknown", node)) for node in replicas}
        return len(racks), len(hosts)

    def _move(self, key: Key, giver: int, taker: int) -> None:
        replicas = self.replicas[key]
        place = replicas.index(giver)
        self._drop(key, giver)
        self._put(key, taker)
        if place:
            # A newcomer takes the place of the one that goes, but never the first: those that have the data lead on.
            replicas.insert(place, replicas.pop())

    def _drop(self, key: Key, node: int) -> None:
        self.replicas[key].remove(node)
        if node in self._load:
            size = self.partitions[key].size
            self._load[node] -= size
            held = self._held[node]
            del held[bisect_left(held, (size, key))]
            self._crowds[node][key[0]] -= 1

    def _put(self, key: Key, node: int) -> None:
        self.replicas[key].append(node)
        size = self.partitions[key].size
        self._load[node] += size
        insort(self._held[node], (size, key))
        self._crowds[node][key[0]] += 1
