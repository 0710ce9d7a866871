"""The processes of a cluster as checks see them, and the shape of a check. PURE."""

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

__all__ = ["Check", "Hosted", "Processes", "partition_name"]


class Check(Protocol):
    """One subject that `sim.checks.watch` looks at. Both raise `SafetyViolation`."""

    def look(self, hosted: Sequence[Hosted]) -> None:
        """Check the living processes, which host these replicas now: only samples of costly parts."""

    def look_at_all(self, hosted: Sequence[Hosted]) -> None:
        """Look at everything once, at a quiet moment."""


@attrs.frozen(eq=False)
class Hosted:
    """A partition's replica in a living process."""

    member: Member
    node: Node
    key: TopicIdPartition
    partition: Partition


class Processes:
    """The living processes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._by_name = {member.name: member for member in cluster.members}

    def living(self) -> Iterator[tuple[Member, Node]]:
        """Return the machines whose process lives and has made its node."""
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
        """Return the machine whose living process holds this end of a connection; None for a client's."""
        member = self._by_name.get(conn.host_name)
        if member is None or member.node is None or not member.is_up():
            return None
        running = member.running
        return (member, member.node) if running is not None and running.env is conn.node else None

    def named(self, host: str) -> tuple[Member, Node] | None:
        """Return the living node on this machine."""
        member = self._by_name.get(host)
        if member is None or member.node is None or not member.is_up():
            return None
        return member, member.node


def partition_name(partition: Partition) -> str:
    """Write `topic-number`, for complaints."""
    return f"{partition.log.topic}-{partition.log.partition}"
