"""Check of availability: no avoidable outage of a quorum leader, partition leader or coordinator lasts too long. PURE.

An outage is avoidable if some node could serve: that node is up, and reaches the nodes that it needs.
`sim.checks.fitness` has the state of machines and links. The duration of an outage counts from its start. The count
restarts at each fault that begins or ends at a node that could serve, or on a link between two of these nodes. When the
duration exceeds the bound (`sim.checks.bounds`), the verdict is `liveness`.

* **Quorum.** If a majority of the voters is fit, and so are all links between these voters, then one voter leads and
  reaches a majority.
* **Partition.** Suppose that the quorum's leader is fit, did not change, and has links to a majority. Suppose also that
  an in-sync replica is fit, with a link to that leader. If there is no in-sync replica, a member of the ELR may take
  its place. Then the broker that the metadata name as the leader leads in the epoch of the metadata. This broker is not
  paused, and reaches the quorum's leader.
* **Coordinator.** If the leader of a partition of `__consumer_offsets` is fit, then it has loaded the log.

Two cases are left out. A broker that an operator has unregistered does not serve, as in Kafka. A quorum leader
whose disk hangs is not fit: whether it decides or resigns depends on the disks of the other voters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from odradek.metadata_quorum.raft.roles import Leader
from odradek.metadata_quorum.raft.voters import ReplicaKey
from odradek.node.node import Node
from odradek.wire.coordinator_partition import coordinator_partition
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.bounds import FULL, HANGS
from sim.checks.fitness import NEVER, Fitness
from sim.checks.groups.group_availability import GroupAvailability
from sim.checks.outages import Outage, Outages, Server
from sim.checks.watched import Processes
from sim.machine.members import Member
from sim.machine.sim_env import SimEnv
from sim.machine.world import Liveness

LOOK_SECONDS = 0.25

__all__ = ["Availability"]


@attrs.frozen(eq=False)
class _Controller:
    """The quorum's leader that reaches a majority of the voters."""

    member: Member
    node: Node
    epoch: int
    since: float
    env: SimEnv


class Availability:
    """The check that no leader or coordinator is missing for too long. It is repeated every `LOOK_SECONDS`."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._world = processes.world
        self._members = {member.config.node_id: member for member in processes.cluster.members}
        self.fitness = Fitness(processes.world, processes.cluster.members)
        self._outages = Outages(processes.world, processes.cluster.members, self.fitness)
        self.longest = self._outages.longest
        self._quorum: Outage | None = None
        self._voters: dict[tuple[tuple[int, bytes], ...], None] = {}
        """The voter sets that living nodes have in force. There is only one, unless an operator has just changed the
        voters.
        """
        self._voters_since = 0.0
        self._controller: _Controller | None = None
        self._last_controller: _Controller | None = None
        self._unserved: dict[TopicIdPartition, Outage] = {}
        self._servers: dict[TopicIdPartition, Server] = {}
        self._loading: dict[TopicIdPartition, Outage] = {}
        self._offsets_topic: TopicImage | None = None
        self.brokers: Sequence[str] = [member.name for member in processes.cluster.brokers]
        self.groups = GroupAvailability(self, self.fitness, self._outages)

    def begin(self) -> None:
        """Start the check, which is repeated until the run ends."""
        self._look_later()

    def _look_later(self) -> None:
        self._world.agenda.at(self._world.now + LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look_later()
        try:
            self.look()
        except Liveness as error:
            self._world.refute(error)

    def look(self) -> None:
        """Check for outages that last too long. Raises `Liveness`."""
        self.fitness.look()
        living = {
            member.config.node_id: (member, node)
            for member, node in self._processes.living()
            if node.metadata is not None and node.metadata.quorum.is_open
        }
        self._look_at_quorum(living)
        image = self._newest_image(living)
        if image is not None:
            self._look_at_partitions(image, living)
            self._offsets_topic = image.topics.get(OFFSETS_TOPIC)
            self.groups.look()

    # --- the quorum

    def _look_at_quorum(self, living: Mapping[int, tuple[Member, Node]]) -> None:
        now = self._world.now
        voters = dict.fromkeys(
            tuple(
                (each.key.node_id, each.key.directory_id) for each in node.metadata.quorum.core.voters.voters
            )
            for _, node in living.values()
            if node.metadata is not None and node.metadata.quorum.core.voters.voters
        )
        if voters != self._voters:
            self._voters, self._voters_since = voters, now
        found = self._find_controller(living)
        if found is None:
            self._controller = None
            if self._quorum is None:
                self._quorum = Outage(now, self._why_without_leader())
            self._judge_quorum(self._quorum, living)
            return
        self._quorum = None
        member, node, epoch = found
        known = self._controller
        if known is None or known.node is not node or known.epoch != epoch:
            assert member.running is not None
            known = _Controller(member, node, epoch, now, member.running.env)
            self._controller = self._last_controller = known

    def _find_controller(self, living: Mapping[int, tuple[Member, Node]]) -> tuple[Member, Node, int] | None:
        """Return (member, node, epoch) of the leader of the newest epoch; None if it is paused or reaches no majority."""
        newest: tuple[Member, Node, int] | None = None
        for member, node in living.values():
            assert node.metadata is not None
            role = node.metadata.quorum.core.role
            if isinstance(role, Leader) and (newest is None or role.epoch > newest[2]):
                newest = (member, node, role.epoch)
        if newest is None or self.fitness.wrong_with(newest[0].name) == "paused":
            return None
        member, node, _ = newest
        assert node.metadata is not None
        core = node.metadata.quorum.core
        reached = sum(
            each.key.node_id in living
            and self.fitness.wrong_with(living[each.key.node_id][0].name) != "paused"
            and not self.fitness.is_cut(member.name, living[each.key.node_id][0].name)
            for each in core.voters.voters
        )
        return newest if reached >= core.voters.majority else None

    def _why_without_leader(self) -> str:
        last = self._last_controller
        if last is None:
            return "other"
        if last.env.lost_power:
            # The power loss remains the reason even after a restart. The restarted broker reports the loss at once,
            # unless it stops again or a link is cut first.
            return "without power"
        return self._why(last.member, last.node, has_lost_reach=True)

    def _why(self, member: Member, node: Node, *, has_lost_reach: bool) -> str:
        """Return the name of the fault that has ended the service of this process."""
        wrong = self.fitness.wrong_with(member.name)
        if wrong in ("dead", "without power", "paused", "stopping"):
            return wrong
        if member.node is not node:
            return "dead"
        return "cut off" if has_lost_reach and self._is_cut_off(member) else "other"

    def _is_cut_off(self, member: Member) -> bool:
        return any(
            self.fitness.is_cut(member.name, each.name)
            for each in self._members.values()
            if each is not member
        )

    def _judge_quorum(self, outage: Outage, living: Mapping[int, tuple[Member, Node]]) -> None:
        since = self._voters_since
        names: Sequence[str] = ()
        for voters in self._voters:
            able = []
            for node_id, directory_id in voters:
                if node_id in living:
                    member, node = living[node_id]
                    assert node.metadata is not None
                    if ReplicaKey(node_id, directory_id).matches(node.metadata.quorum.settings.me):
                        able.append(member.name)
            best, names = self._largest_group(able, len(voters) // 2 + 1)
            since = max(since, best)
        if not self._voters or since == NEVER:
            return
        self._outages.judge(
            "quorum", outage, since, "the quorum has no leader", f"{', '.join(names)} could elect one"
        )

    def _largest_group(self, names: Sequence[str], majority: int) -> tuple[float, Sequence[str]]:
        """Find the majority of these voters that has been fit and connected for the longest time. Return (the virtual
        time at which this state began, the voters' names).
        """
        fit = [name for name in names if self.fitness.since(name) != NEVER]
        groups = ((self.fitness.together_since(each), each) for each in combinations(fit, majority))
        return min(groups, default=(NEVER, ()))

    # --- partitions

    def _newest_image(self, living: Mapping[int, tuple[Member, Node]]) -> MetadataImage | None:
        """Return the newest committed metadata image of all living processes; None if no process lives."""
        newest: MetadataImage | None = None
        for _, node in living.values():
            assert node.metadata is not None
            image = node.metadata.committed_image
            if newest is None or image.offset > newest.offset:
                newest = image
        return newest

    def _controller_since(self, living: Mapping[int, tuple[Member, Node]]) -> float:
        """Return the virtual time since which the present quorum leader, and its links to a majority of the voters,
        have been fit. Return `NEVER` without such a leader.
        """
        controller = self._controller
        if controller is None or controller.node.metadata is None:
            return NEVER
        voters = controller.node.metadata.quorum.core.voters
        name = controller.member.name
        links = sorted(
            max(
                self.fitness.since(living[each.key.node_id][0].name),
                self.fitness.link_since(name, living[each.key.node_id][0].name),
            )
            for each in voters.voters
            if each.key.node_id in living
        )
        if len(links) < voters.majority:
            return NEVER
        return max(controller.since, self.fitness.since(name), links[voters.majority - 1], self._voters_since)

    def _look_at_partitions(self, image: MetadataImage, living: Mapping[int, tuple[Member, Node]]) -> None:
        now = self._world.now
        controller_since: float | None = None
        there: dict[TopicIdPartition, None] = {}
        for topic_id, topic in image.topics_by_id.items():
            for index, partition in topic.partitions.items():
                key = TopicIdPartition(topic_id, index)
                there[key] = None
                broker = self._serving(key, partition, image, living)
                if broker is not None:
                    self._unserved.pop(key, None)
                    member = self._members[partition.leader]
                    server = self._servers.get(key)
                    if (
                        server is None
                        or server.broker is not broker
                        or server.image.leader_epoch != partition.leader_epoch
                    ):
                        self._servers[key] = Server(key, member, broker, partition, now)
                    if image.brokers[partition.leader].fenced:
                        # A fenced leader has restarted, and serves no clients until the controller unfences it. So
                        # its load of the log is not awaited yet.
                        self._loading.pop(key, None)
                    elif topic.name == OFFSETS_TOPIC:
                        self._look_at_coordinator(key)
                    continue
                outage = self._unserved.get(key)
                if outage is None or self._is_led_by_a_bad_disk(outage, partition, living):
                    why = self._why_unserved(key, partition, living)
                    outage = self._unserved[key] = Outage(now, why)
                self._servers.pop(key, None)
                self._loading.pop(key, None)
                if controller_since is None:
                    controller_since = self._controller_since(living)
                self._judge_partition(
                    f"{topic.name}-{index}", partition, outage, controller_since, image, living
                )
        for key in [key for key in self._unserved if key not in there]:
            del self._unserved[key]

    def _serving(
        self,
        key: TopicIdPartition,
        partition: PartitionImage,
        image: MetadataImage,
        living: Mapping[int, tuple[Member, Node]],
    ) -> Broker | None:
        """Return the broker that is a partition's leader according to the metadata. Return None if this broker does not
        lead, is paused or cannot reach the quorum's leader.

        After a restart the broker counts only once it is registered. A broker with new disks can register only after
        its former session has expired.
        """
        found = living.get(partition.leader)
        if found is None:
            return None
        member, node = found
        broker = node.broker
        hosted = None if broker is None else broker.topics_by_id.get(key.topic_id)
        replica = None if hosted is None else hosted.partitions.get(key.partition)
        if replica is None or not replica.is_leader or replica.leader_epoch != partition.leader_epoch:
            return None
        registered = image.brokers.get(partition.leader)
        if broker is None or registered is None or registered.epoch != broker.replication.broker_epoch:
            return None
        if self.fitness.wrong_with(member.name) == "paused":
            return None
        controller = self._controller
        if controller is not None and self.fitness.is_cut(member.name, controller.member.name):
            return None
        return broker

    def _is_led_by_a_bad_disk(
        self, outage: Outage, partition: PartitionImage, living: Mapping[int, tuple[Member, Node]]
    ) -> bool:
        """True if the leader's disk hangs or is full by now, although the outage is recorded with another reason. The
        broker may report the disk late, so the reason must be updated.
        """
        if partition.leader not in living:
            return False
        wrong = self.fitness.wrong_with(living[partition.leader][0].name)
        return wrong in (HANGS, FULL) and wrong != outage.why

    def _why_unserved(
        self, key: TopicIdPartition, partition: PartitionImage, living: Mapping[int, tuple[Member, Node]]
    ) -> str:
        if partition.leader in living:
            wrong = self.fitness.wrong_with(living[partition.leader][0].name)
            if wrong in (HANGS, FULL):
                return wrong
        server = self._servers.get(key)
        if server is None:
            return "other"
        member = server.member
        node = member.node
        if node is None or node.broker is not server.broker or not member.is_up():
            wrong = self.fitness.wrong_with(member.name)
            return wrong if wrong == "without power" else "dead"
        return self._why(member, node, has_lost_reach=True)

    def _judge_partition(
        self,
        name: str,
        partition: PartitionImage,
        outage: Outage,
        controller_since: float,
        image: MetadataImage,
        living: Mapping[int, tuple[Member, Node]],
    ) -> None:
        now, before = self._world.now, outage.able
        outage.able = {each: before.get(each, now) for each in partition.isr or partition.elr}
        controller = self._controller
        if controller is None or controller_since == NEVER:
            return
        fitness, leader = self.fitness, controller.member.name
        since, best = min(
            (
                (max(since, fitness.since(name), fitness.link_since(name, leader)), name)
                for since, name in self._able(outage, image, living)
            ),
            default=(NEVER, ""),
        )
        since = max(since, controller_since, self._leader_since(partition))
        if since != NEVER:
            self._outages.judge(
                "partition",
                outage,
                since,
                f"{name} has no leader that serves",
                f"{best} could lead it, and {controller.member.name} leads the quorum",
            )

    def _leader_since(self, partition: PartitionImage) -> float:
        """Return the virtual time since which the leader that the metadata name has been in its present state, such
        as dead. Return `NEVER` if this leader is slow, since it may still serve.
        """
        member = self._members.get(partition.leader)
        if member is None:
            return 0.0
        return NEVER if self.fitness.wrong_with(member.name) == "slow" else self.fitness.changed(member.name)

    def _able(
        self, outage: Outage, image: MetadataImage, living: Mapping[int, tuple[Member, Node]]
    ) -> Iterator[tuple[float, str]]:
        """Yield (virtual time since which it may be elected, machine name) for each broker that may be elected."""
        for broker_id, since in outage.able.items():
            found = living.get(broker_id)
            if found is None:
                continue
            member, node = found
            broker = node.broker
            if broker_id not in image.brokers and broker is not None and broker.replication.broker_epoch >= 0:
                continue  # An operator has unregistered this broker.
            yield since, member.name

    # --- coordinators

    def _look_at_coordinator(self, key: TopicIdPartition) -> None:
        server = self._servers[key]
        shard = server.broker.groups.shards.get(key.partition)
        if shard is not None and not shard.is_loading:
            self._loading.pop(key, None)
            return
        outage = self._loading.setdefault(key, Outage(self._world.now, "loading"))
        since = max(server.since, self.fitness.since(server.member.name))
        if since != NEVER:
            what = f"the coordinator of {OFFSETS_TOPIC}-{key.partition} does not answer for its groups"
            self._outages.judge("coordinator", outage, since, what, f"{server.member.name} leads it")

    def coordinator_of(self, group: str) -> Server | None:
        """Return the process that leads the `__consumer_offsets` partition of a group, or None."""
        topic = self._offsets_topic
        if topic is None:
            return None
        return self._servers.get(
            TopicIdPartition(topic.topic_id, coordinator_partition(group, len(topic.partitions)))
        )

    def in_sync_since(self, server: Server) -> float:
        """Return the virtual time since which all in-sync replicas of a coordinator's partition, and their links to
        its leader, have been fit.
        """
        topic = self._offsets_topic
        partition = None if topic is None else topic.partitions.get(server.key.partition)
        if partition is None:
            return NEVER
        name, fitness = server.member.name, self.fitness
        latest = fitness.since(name)
        for each in partition.isr:
            other = self._members[each].name
            latest = max(latest, fitness.since(other), fitness.link_since(name, other))
        return latest
