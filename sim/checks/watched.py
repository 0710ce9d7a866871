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

__all__ = ["Check", "Hosted", "Processes", "Replicas", "moved_of", "partition_name"]

LOOKS_PER_ROUND = 20
"""After this number of looks, one look treats all replicas as moved."""


class Check(Protocol):
    """One subject that `sim.checks.watch` looks at. Both methods raise `SafetyViolation`."""

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


class Replicas(list[Hosted]):
    """All replicas that living brokers host. A check of a replica's state looks at those that have `moved`."""

    __slots__ = ("moved", "moved_keys")

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[Hosted] = []
        """New replicas, and those whose state, or whose broker's image, has changed since the last look."""
        self.moved_keys: set[TopicIdPartition] = set()
        """Their partitions, and partitions of which a replica is gone."""

    def note_moved(self, each: Hosted) -> None:
        self.moved.append(each)
        self.moved_keys.add(each.key)


def moved_of(hosted: Sequence[Hosted]) -> Sequence[Hosted]:
    """List the replicas that have changed since the last look, or all if the changed ones are unknown."""
    return hosted.moved if isinstance(hosted, Replicas) else hosted


class Processes:
    """The living processes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._by_name = {member.name: member for member in cluster.members}
        self._known: dict[Partition, tuple[Hosted, _State]] = {}
        """The replicas of the last look, each with its state then."""
        self._nodes: dict[str, tuple[object, ...]] = {}
        """The last state of each broker that its replicas share."""
        self._looks = 0

    def look(self, *, anyway: bool = False) -> Replicas:
        """Find all replicas, and those that have moved since the last look; `anyway`: take all for moved."""
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


_State = tuple[object, ...]


def _state(partition: Partition) -> _State:
    """List all of a replica's state that a look depends on."""
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
    """Write `topic-number`, for complaints."""
    return f"{partition.log.topic}-{partition.log.partition}"
