"""The living processes of a cluster with their replicas, in the form that checks use, and the interface of a check.
PURE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from odradek.data_plane.replication.partition import Partition
from odradek.node.node import Node
from odradek.wire.topic_partition import TopicIdPartition
from sim.machine.members import Member

if TYPE_CHECKING:
    from sim.machine.cluster_members import Cluster
    from sim.machine.network import SimConn

__all__ = ["Check", "Hosted", "Processes", "Replicas", "moved_of", "partition_name"]

LOOKS_PER_ROUND = 20
"""Each call of `look` whose number is a multiple of this treats all replicas as changed."""


class Check(Protocol):
    """The check of one subject, called by `sim.checks.watch`. Both methods raise `SafetyViolation`."""

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the living processes. `hosted` has all their replicas; costly parts are only sampled."""

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Check everything completely, once all faults have ended."""


@attrs.frozen(eq=False)
class Hosted:
    """A partition's replica in a living process."""

    member: Member
    node: Node
    key: TopicIdPartition
    partition: Partition


class Replicas(list[Hosted]):
    """All replicas that living brokers host. A check that depends only on a replica's state needs only the replicas in
    `moved`.
    """

    __slots__ = ("moved", "moved_keys")

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[Hosted] = []
        """New replicas, and replicas of which the state or the broker's image has changed since the last call of
        `Processes.look`.
        """
        self.moved_keys: set[TopicIdPartition] = set()
        """The partitions of `moved`, and partitions of which a replica is gone."""

    def note_moved(self, each: Hosted) -> None:
        self.moved.append(each)
        self.moved_keys.add(each.key)


def moved_of(hosted: Sequence[Hosted]) -> Sequence[Hosted]:
    """Return the replicas that have changed since the last call of `Processes.look`; all replicas if the changes are
    unknown.
    """
    return hosted.moved if isinstance(hosted, Replicas) else hosted


class Processes:
    """The living processes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._by_name = {member.name: member for member in cluster.members}
        self._known: dict[Partition, tuple[Hosted, _State]] = {}
        """For each partition object, the replica, and the state that it had at the last call of `look`."""
        self._nodes: dict[str, tuple[object, ...]] = {}
        """For each machine, the part of the broker's last seen state that concerns all its replicas."""
        self._looks = 0

    def look(self, *, anyway: bool = False) -> Replicas:
        """List all replicas, and in `moved` the replicas that have changed since the last call. With `anyway` all
        replicas count as changed.
        """
        self._looks += 1
        anyway = anyway or self._looks % LOOKS_PER_ROUND == 0
        found = Replicas()
        known, present = self._known, {}
        for member, node in self.living():
            broker = node.broker
            if broker is None:
                continue
            shared = (node, broker.image, broker.replication.broker_epoch, member.serves())
            may_stand = not anyway and self._nodes.get(member.name) == shared
            self._nodes[member.name] = shared
            for topic_id, hosted in broker.topics_by_id.items():
                for index, partition in hosted.partitions.items():
                    state = _state(partition)
                    before = known.get(partition)
                    if before is not None and before[0].node is node:
                        each = before[0]
                        has_moved = not may_stand or before[1] != state
                    else:
                        each = Hosted(member, node, TopicIdPartition(topic_id, index), partition)
                        has_moved = True
                    present[partition] = (each, state)
                    found.append(each)
                    if has_moved:
                        found.note_moved(each)
        found.moved_keys.update(known[gone][0].key for gone in known.keys() - present.keys())
        self._known = present
        return found

    def living(self) -> Iterator[tuple[Member, Node]]:
        """Yield (machine, node) for each machine whose process lives and has created its node."""
        for member in self.cluster.members:
            if member.node is not None and member.is_up():
                yield member, member.node

    def hosted(self) -> Iterator[Hosted]:
        """Yield the replicas that living brokers host."""
        for member, node in self.living():
            if node.broker is not None:
                for topic_id, hosted in node.broker.topics_by_id.items():
                    for index, partition in hosted.partitions.items():
                        yield Hosted(member, node, TopicIdPartition(topic_id, index), partition)

    def at(self, conn: SimConn) -> tuple[Member, Node] | None:
        """Return (machine, node) of the living process that holds this end of a connection; None for a client's end."""
        member = self._by_name.get(conn.host_name)
        if member is None or member.node is None or not member.is_up():
            return None
        running = member.running
        return (member, member.node) if running is not None and running.env is conn.node else None

    def named(self, host: str) -> tuple[Member, Node] | None:
        """Return (machine, node) for the living node on this machine; None if there is none."""
        member = self._by_name.get(host)
        if member is None or member.node is None or not member.is_up():
            return None
        return member, member.node


_State = tuple[object, ...]


def _state(partition: Partition) -> _State:
    """Collect all parts of a replica's state on which checks depend."""
    log = partition.log
    home, durability = log.home, log.durability
    return (
        log,
        log.high_watermark,
        log.log_end_offset,
        log.log_start_offset,
        durability.recovery_point,
        durability.truncations,
        home.offline,
        home.is_closed,
        log.producers.state is None,
        partition.is_leader,
        partition.knows_high_watermark,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.image,
        partition.isr_state,
    )


def partition_name(partition: Partition) -> str:
    """Return `topic-partition` for error texts."""
    return f"{partition.log.topic}-{partition.log.partition}"
