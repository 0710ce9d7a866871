"""Plans of moves that balance the load of brokers, empty brokers, or change the number of replicas. PURE.

Theory of operation
-------------------
The load of a broker is the bytes of its replicas. A plan is computed on a model of the cluster
(`planned_cluster.py`), replica by replica, in this order:

1. **Leaving**: replicas on brokers that leave go to the remaining brokers: the largest first, each to the
   lightest broker allowed.
2. **Spread**: if a partition has two replicas in one rack and none in another rack, one of the two replicas
   moves there.
3. **Bytes**: replicas move from brokers above the mean to brokers below it. The excess of one broker and the
   lack of the other limit the size of a move. The largest replica within this limit moves. So each byte moves
   at most once. If no replica fits, the smallest replica moves that still narrows the gap between the two
   brokers. This step ends when all brokers are within `tolerance` of the mean, or no allowed move helps.
4. **Counts**: small replicas move so that brokers have similar numbers of replicas, as far as bytes stay
   within the tolerance.
5. **Leaders**: the first broker in a partition's list leads it. A swap within a list moves no bytes. By
   chains of such swaps, all brokers come to lead similar numbers of partitions.

Rules
-----
* A partition's replicas stay on different brokers. After a move, they never span fewer racks or fewer hosts than
  before.
* Every step makes a sum of squares smaller, so planning ends. The same input leads to the same plan.
* Replicas on brokers that are not in the list, such as dead brokers, move only if their broker leaves.

Deliberately absent: traffic, and disks within a broker (each broker chooses the disks for its new replicas).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from odradek.client.admin.moves.evening import Evening
from odradek.client.admin.moves.placement import CannotPlan, Move, Placement, Site
from odradek.client.admin.moves.placing import clear_brokers, resize_partitions, widen_partitions
from odradek.client.admin.moves.planned_cluster import PlannedCluster
from odradek.client.admin.moves.preferred_leaders import PreferredLeaders
from odradek.wire.topic_partition import TopicPartition

__all__ = ["balance", "drain", "resize"]


def balance(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    *,
    tolerance: float = 0.05,
    only: Collection[TopicPartition] | None = None,
) -> list[Move]:
    """Plan the moves that balance the brokers' bytes, with as few copied bytes as possible. Moves are sorted
    by topic and partition. With `only`, all other partitions stay where they are.
    """
    cluster = PlannedCluster(sites, partitions, only)
    widen_partitions(cluster)
    evening = Evening(cluster, tolerance)
    # Balancing the counts may allow new moves of bytes. Every round improves the plan, and few rounds are needed.
    for _ in range(4):
        if not (evening.even_bytes() | evening.even_counts()):
            break
    PreferredLeaders(cluster, cluster.movable, tolerance).even()
    return cluster.moves()


def drain(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    leaving: Collection[int],
    *,
    tolerance: float = 0.05,
    only: Collection[TopicPartition] | None = None,
) -> list[Move]:
    """Plan the moves that empty the brokers `leaving`. `sites` may include these brokers. With `only`, all
    other partitions stay where they are.

    Raises `CannotPlan` if a partition has more replicas than there are brokers left.
    """
    remaining = [site for site in sites if site.node_id not in leaving]
    cluster = PlannedCluster(remaining, partitions, only)
    moved = clear_brokers(cluster, leaving)
    PreferredLeaders(cluster, moved, tolerance).even()
    return cluster.moves()


def resize(
    sites: Sequence[Site],
    partitions: Iterable[Placement],
    replicas: int,
    *,
    only: Collection[TopicPartition] | None = None,
) -> list[Move]:
    """Plan the moves that give every partition this number of replicas; preferred leaders stay. With `only`,
    all other partitions stay as they are. Raises `CannotPlan`.
    """
    if not 0 < replicas <= len(sites):
        raise CannotPlan(f"{replicas} replicas need {replicas} brokers, and there are {len(sites)}")
    cluster = PlannedCluster(sites, partitions, only)
    resize_partitions(cluster, replicas)
    return cluster.moves()
