"""The placement of the replicas of new partitions on brokers.

Brokers are put in a ring. Neighbours are in different racks and, within a rack, on different hosts (a host
may run one node per disk). Partition p is led by the p-th broker of the ring, counted from a random start.
Its other replicas are taken from the ring in an order that shifts by one after each complete round of
leaders. So when a broker fails, its load is spread over all other brokers. Each replica is placed where the
partition has the fewest replicas so far: first by rack, then by host. Leaders are active brokers. Fenced
brokers get replicas only if there are too few active ones.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs

from odradek.metadata_quorum.image.metadata_image import BrokerImage


class TooFewBrokers(Exception):
    """Raised if there are too few brokers for the replication factor. The text is Kafka's."""


@attrs.frozen
class _Place:
    broker_id: int
    rack: str
    host: str
    active: bool


def place_replicas(
    brokers: list[BrokerImage], partition_count: int, replication_factor: int, random: Random
) -> list[list[int]]:
    """Choose the brokers for the replicas of each partition, the leader first. Raises `TooFewBrokers`.

    Several partitions may share one list, so the caller must not change it.
    """
    usable = [
        broker
        for broker in brokers
        if set(broker.log_dirs) != set(broker.cordoned_log_dirs) or not broker.log_dirs
    ]
    ring = _ring([_place(broker) for broker in usable])
    active = [place for place in ring if place.active]
    if not active:
        raise TooFewBrokers("All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > len(ring):
        raise TooFewBrokers(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(ring)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
    start = random.randrange(len(active))
    shift = random.randrange(len(ring))
    assignments = []
    placed: dict[tuple[int, int], list[int]] = {}
    for number in range(partition_count):
        rounds, at = divmod(start + number, len(active))
        turned = (shift + rounds) % max(1, len(ring) - 1)
        replicas = placed.get((at, turned))
        if replicas is None:
            replicas = placed[at, turned] = _replicas(ring, active[at], replication_factor, turned)
        assignments.append(replicas)
    return assignments


def _place(broker: BrokerImage) -> _Place:
    host = broker.listeners[0].host if broker.listeners else str(broker.broker_id)
    return _Place(broker.broker_id, broker.rack or "", host, broker.is_active)


def _ring(places: list[_Place]) -> list[_Place]:
    """Sort brokers so that neighbours are in different racks and on different hosts, as far as possible."""
    racks: dict[str, dict[str, list[_Place]]] = {}
    for place in sorted(places, key=lambda place: place.broker_id):
        racks.setdefault(place.rack, {}).setdefault(place.host, []).append(place)
    return _interleave([_interleave(list(hosts.values())) for hosts in racks.values()])


def _interleave(groups: list[list[_Place]]) -> list[_Place]:
    longest = max(map(len, groups), default=0)
    return [group[index] for index in range(longest) for group in groups if index < len(group)]


def _replicas(ring: list[_Place], leader: _Place, count: int, shift: int) -> list[int]:
    at = ring.index(leader)
    others = [ring[(at + step) % len(ring)] for step in range(1, len(ring))]
    others = others[shift:] + others[:shift]
    chosen = [leader]
    racks, hosts = Counter([leader.rack]), Counter([(leader.rack, leader.host)])
    while len(chosen) < count:
        best = min(
            others, key=lambda place: (not place.active, racks[place.rack], hosts[(place.rack, place.host)])
        )
        others.remove(best)
        chosen.append(best)
        racks[best.rack] += 1
        hosts[(best.rack, best.host)] += 1
    return [place.broker_id for place in chosen]
