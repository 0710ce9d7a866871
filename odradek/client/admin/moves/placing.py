"""Steps of a plan that move replicas off leaving brokers, change their number or spread them over racks; the
choice of a broker. PURE. Racks decide first, then hosts, then the load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from odradek.client.admin.moves.placement import CannotPlan
from odradek.client.admin.moves.planned_cluster import PlannedCluster
from odradek.wire.topic_partition import TopicPartition

__all__ = ["clear_brokers", "resize_partitions", "widen_partitions"]


def clear_brokers(cluster: PlannedCluster, leaving: Collection[int]) -> list[TopicPartition]:
    """Move all replicas off the brokers `leaving`. Return the partitions that were moved. Raises
    `CannotPlan`.
    """
    partitions = cluster.partitions
    affected = [key for key in cluster.movable if any(node in leaving for node in partitions[key].replicas)]
    affected.sort(key=lambda key: (-partitions[key].size, key))
    for key in affected:
        for node in partitions[key].replicas:
            if node in leaving:
                cluster.move(key, node, _refuge(cluster, key, node, leaving))
    return affected


def _refuge(cluster: PlannedCluster, key: TopicPartition, node: int, leaving: Collection[int]) -> int:
    """Choose the best new broker for a replica that must leave the broker `node`."""
    others = [each for each in cluster.replicas(key) if each != node]
    staying = [each for each in others if each not in leaving]
    free = [each for each in cluster.sites if each not in others]
    if not free:
        topic, partition = key
        raise CannotPlan(
            f"{topic}-{partition} has {len(others) + 1} replicas, and only {len(cluster.sites)} brokers would remain"
        )
    return min(free, key=lambda candidate: _rank(cluster, staying, candidate))


def _rank(cluster: PlannedCluster, others: Iterable[int], candidate: int) -> tuple[int, int, int, int, int]:
    """Rank a broker as the place of a new replica, given the brokers of the partition's other replicas. A
    lower rank is better.
    """
    racks, hosts = cluster.spread.span([*others, candidate])
    return -racks, -hosts, cluster.loads.size(candidate), cluster.loads.count(candidate), candidate


def resize_partitions(cluster: PlannedCluster, count: int) -> None:
    """Give each partition `count` replicas: add replicas on the best brokers, or drop the least useful replicas. Raises
    `CannotPlan`.
    """
    for key in cluster.movable:
        replicas = cluster.replicas(key)
        while len(replicas) < count:
            free = [node for node in cluster.sites if node not in replicas]
            if not free:
                raise CannotPlan(f"{key[0]}-{key[1]}: no broker is left that could get another replica")
            cluster.add_replica(key, min(free, key=lambda node: _rank(cluster, replicas, node)))
        while len(replicas) > count:
            cluster.drop_replica(
                key, max(replicas[1:], key=lambda node: _dispensable(cluster, replicas, node))
            )


def _dispensable(cluster: PlannedCluster, replicas: Iterable[int], node: int) -> tuple[int, int, int, int]:
    """Rank the replica on broker `node` as a candidate for removal. The replica with the highest rank is removed first,
    because the partition loses the least with it. Of otherwise equal replicas, a replica on a dead broker ranks
    highest.
    """
    racks, hosts = cluster.spread.span(each for each in replicas if each != node)
    return racks, hosts, cluster.loads.size(node) if node in cluster.loads else 1 << 62, node


def widen_partitions(cluster: PlannedCluster) -> None:
    """Move replicas until every partition has replicas in as many racks as possible."""
    if cluster.spread.racks < 2:
        return
    for key in cluster.movable:
        while (step := _widening(cluster, key)) is not None:
            cluster.move(key, *step)


def _widening(cluster: PlannedCluster, key: TopicPartition) -> tuple[int, int] | None:
    """Find a move that lets the partition span one more rack. Return (source broker, target broker), or None
    if there is no such move.
    """
    replicas, sites, loads = cluster.replicas(key), cluster.sites, cluster.loads
    racks = [sites[node].rack for node in replicas if node in sites]
    if len(racks) < len(replicas) or len(set(racks)) >= min(len(replicas), cluster.spread.racks):
        return None
    crowded = [node for node in replicas if racks.count(sites[node].rack) > 1]
    absent = [node for node, site in sites.items() if site.rack not in racks]
    return (
        max(crowded, key=lambda node: (loads.size(node), node)),
        min(absent, key=lambda node: (loads.size(node), loads.count(node), node)),
    )
