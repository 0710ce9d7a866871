"""Plans moves between the disks of different brokers, in order to balance the used share of the brokers'
disks. PURE.

`balance.py` balances bytes, which is right if all hosts have equal space. In these plans a host with twice
the space gets twice the bytes. A replica moves from the fullest broker to the emptiest disk of another
broker, if the move narrows the gap between these two brokers.

Rules
* A replica moves at most once, only to a disk that accepts new replicas, and `ROOM_SHARE` of that disk stays free.
* Replicas of a partition stay on different brokers, and never span fewer racks or hosts than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from odradek.client.admin.moves.disk_plans import SLACK_BYTES, Disk, DiskReplica, Loads
from odradek.client.admin.moves.placement import Move, Placement, Site
from odradek.client.admin.moves.planned_cluster import Spread
from odradek.wire.topic_partition import TopicPartition

__all__ = ["HostMove", "plan_balance_over_hosts"]


@attrs.frozen
class HostMove:
    """A replica that moves from a disk of one broker to a disk of another."""

    source: int
    source_path: str
    target: int
    target_path: str
    move: Move
    """The same move as a change of the partition's replicas: the target broker replaces the source broker."""


class _Host:
    """The disks of one broker as they would be after the moves planned so far."""

    def __init__(self, disks: Sequence[Disk], knows_sizes: bool) -> None:
        self.loads = Loads(disks)
        self.held = {disk.path: list(disk.replicas) for disk in disks}
        self.bytes = sum(replica.size for disk in disks for replica in disk.replicas)
        self.scale = float(sum(disk.total_bytes for disk in disks)) if knows_sizes else 1.0
        """The bytes that correspond to a `share` of 1: the size of all disks, or 1 if sizes are unknown."""

    @property
    def share(self) -> float:
        """The used share of all the broker's disks together, from 0 to 1; their used bytes if sizes are
        unknown.
        """
        return self.bytes / self.scale

    def target_for(self, size: int) -> str | None:
        """Choose the emptiest disk that has room for `size` bytes; None if there is none."""
        loads = self.loads
        fitting = [disk.path for disk in loads.disks.values() if disk.takes and loads.room(disk.path) >= size]
        return min(fitting, key=lambda path: (loads.load(path), path), default=None)


def plan_balance_over_hosts(
    disks: Mapping[int, Sequence[Disk]],
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    tolerance: float = 0.05,
) -> list[HostMove]:
    """Plan moves until the used shares of these brokers differ by at most `tolerance`, relative to their
    mean. `disks` has the disks of each broker.

    `partitions` are the partitions that may move; partitions that are already moving must be left out.
    """
    knows_sizes = all(disk.total_bytes > 0 for each in disks.values() for disk in each)
    hosts = {node: _Host(each, knows_sizes) for node, each in disks.items() if each}
    spread = Spread([site for site in sites if site.node_id in hosts])
    movable = {each.key: each for each in partitions}
    moves: list[HostMove] = []
    while True:
        found = _step(hosts, spread, movable, tolerance)
        if found is None:
            return moves
        moves.append(found)
        key = TopicPartition(found.move.topic, found.move.partition)
        del movable[key]
        giver, taker = hosts[found.source], hosts[found.target]
        replica = next(each for each in giver.held[found.source_path] if (each.topic, each.partition) == key)
        giver.held[found.source_path].remove(replica)
        giver.loads.gained[found.source_path] -= replica.size
        giver.bytes -= replica.size
        taker.loads.gained[found.target_path] += replica.size
        taker.bytes += replica.size


def _step(
    hosts: Mapping[int, _Host],
    spread: Spread,
    movable: Mapping[TopicPartition, Placement],
    tolerance: float,
) -> HostMove | None:
    mean = sum(host.share for host in hosts.values()) / max(len(hosts), 1)
    rising = sorted(hosts, key=lambda node: (hosts[node].share, node))
    for source in reversed(rising):
        for target in rising:
            gap = hosts[source].share - hosts[target].share
            if gap <= mean * tolerance or gap * hosts[source].scale <= SLACK_BYTES:
                break
            found = _narrowing(hosts, spread, movable, source, target, gap)
            if found is not None:
                return found
    return None


def _narrowing(
    hosts: Mapping[int, _Host],
    spread: Spread,
    movable: Mapping[TopicPartition, Placement],
    source: int,
    target: int,
    gap: float,
) -> HostMove | None:
    """Choose the move from `source` to `target` that makes the gap between these brokers smallest. Return
    None if no move narrows the gap.
    """
    giver, taker = hosts[source], hosts[target]

    def left(size: int) -> float:
        return abs(gap - size / giver.scale - size / taker.scale)

    def is_allowed(replica: DiskReplica) -> bool:
        placed = movable.get(TopicPartition(replica.topic, replica.partition))
        if placed is None or source not in placed.replicas or target in placed.replicas:
            return False
        others = [node for node in placed.replicas if node != source]
        return not spread.is_narrowed(others, source, target)

    found = [
        (left(replica.size), -giver.loads.load(path), path, replica.topic, replica.partition, replica.size)
        for path, held in giver.held.items()
        for replica in held
        if replica.size > 0 and left(replica.size) < gap and is_allowed(replica)
    ]
    for _, _, path, topic, partition, size in sorted(found):
        to = taker.target_for(size)
        if to is not None:
            before = movable[TopicPartition(topic, partition)].replicas
            after = tuple(target if node == source else node for node in before)
            return HostMove(source, path, target, to, Move(topic, partition, before, after, size))
    return None
