"""A scenario with a cluster whose voters twice lose their metadata disks, and with an operator who recovers the
quorum each time. PORTED.

The seed draws shape, weather and workload. Each of the two rounds has these steps:

1. A storm: crashes of processes, cut links, pauses, and an operator who moves partitions, creates and deletes
   topics.
2. Some nodes are killed, so that their copies of the metadata log become stale. The others continue: ISRs shrink,
   leaders change, moves finish, topics are created and deleted, and clients write with acks=all.
3. All other nodes are killed at once. After the loss of metadata disks, the remaining voters are less than a majority.
   Often these are the disks with the newest copies, sometimes all disks. One voter may also lose its data disks, if
   other in-sync replicas remain.
4. The operator recovers the quorum from the other disks (`sim.load.operators.quorum_recovery`), sometimes without a
   node that returns later. All nodes are started.
5. Voters may return with the metadata disks that they had before, all at once. They must stop, since the quorum was
   recovered without these disks.
6. The node that was absent may have a topic that the recovered metadata lack. Then it must refuse to start, and the
   operator recovers the quorum again from all nodes.

Afterwards each acknowledged record must exist once (`sim.history`), and no offset, epoch or id may be used twice.
The scenario knows the newest metadata from the disks that it destroys. By the fault model of a recovery, the lost
part of the log has no unclean election. So page caches survive, and nodes lose their records only if another
in-sync replica has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

import attrs

from odradek.client.admin import NewTopic
from odradek.client.admin.admin_partitions import alter_partition_reassignments, list_partition_reassignments
from odradek.client.admin.admin_quorum import describe_quorum
from odradek.client.errors import ClientError
from odradek.env.ports import Event
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.metadata_quorum.raft.voters import VoterSet
from odradek.metadata_quorum.recovery.choice import Named, choose
from odradek.metadata_quorum.recovery.copies import MetadataCopy, greatest
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition
from sim.checks.watch import Watch
from sim.history import History, SafetyViolation
from sim.load.operators import Operator
from sim.load.operators.quorum_recovery import QuorumRecovery, Recovered, majority_is_lost
from sim.load.workload import Workload
from sim.machine.cluster_members import QUICK_SETTINGS, SETTINGS, Cluster, Shape
from sim.machine.members import Member
from sim.machine.platter import Folder
from sim.machine.weather import Weather
from sim.machine.world import Liveness, World
from sim.scenarios.cluster_scenario import HEAL_SECONDS_MAX, START_SECONDS_MAX
from sim.storm.registry import ALL_TROUBLES
from sim.storm.storm import Storm
from sim.storm.storm_plan import StormPlan

TOPIC = "replicated"
PARTITIONS = 3
ROUNDS = 2
METADATA = "/metadata"
STORM_KINDS = ("deaths", "links", "pauses", "operator", "operator")
STORM_SECONDS = (1.0, 8.0)
STALE_SECONDS = (0.0, 6.0)
"""The shortest and the longest time in seconds for which the cluster continues without the nodes whose copies become
stale.
"""
LATE_SECONDS = (5.0, 5.0, 20.0)
"""Choices for the longest time in seconds between the starts of two nodes after the recovery."""
MOVE_SECONDS_MAX = 10.0
LOOK_AGAIN_SECONDS = 0.5
REST_SECONDS = 3.0
END_SECONDS_MAX = 120.0
VIRTUAL_SECONDS_MAX = 3600.0
LEFT_BEHIND = "recovered without this node"
UNREAD_TOPICS = "while this node's disks could not be read"

__all__ = ["RecoveryScenario"]


@attrs.frozen
class Lost:
    """The disks that a round has destroyed, and the metadata before the destruction."""

    image: MetadataImage
    """The newest metadata that any disk had."""
    epoch: int
    offset: int
    voters: VoterSet
    disks: Mapping[str, Folder]
    """The destroyed metadata disks, by machine."""
    left: Mapping[int, MetadataCopy]
    """The remaining copies of the metadata, by node id."""


class RecoveryScenario:
    """One run of this scenario; the seed draws everything."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"{seed}/recovery")
        self.shape = _shape(self._random)
        weather = Weather() if self._random.random() < 0.5 else None
        self.world = World(seed, weather)
        self.cluster = Cluster(self.world, self.shape)
        self.history = History((TOPIC, *(f"late-{number}" for number in range(ROUNDS))))
        self._loads = [self._load({TOPIC: PARTITIONS})]
        self._operator = QuorumRecovery(self.cluster, self._random)
        self._watch = Watch(self.cluster)
        self.counts: dict[str, int] = {}

    def _load(self, topics: Mapping[str, int]) -> Workload:
        load = Workload(self.world, self.history, topics, self.cluster.bootstrap)
        load.delivery_seconds = self._random.choice((60.0, 300.0))
        return load

    def run(self) -> Mapping[str, int]:
        """Run to the end, and return counts by name. Raises `SafetyViolation`, `Liveness`, and the errors of nodes."""
        return self.world.run(self._main, virtual_seconds_max=VIRTUAL_SECONDS_MAX)

    async def _main(self) -> Mapping[str, int]:
        cluster, load = self.cluster, self._loads[0]
        cluster.format()
        self._watch.begin()
        self._watch.answers.begin_decisions(self._watch.tap)
        for member in cluster.members:
            member.launch()
        await self._must_be_whole("after the first start", START_SECONDS_MAX)
        admin = load.client("admin")
        await load.create_topics(admin, [self._topic(TOPIC, PARTITIONS)], load.request_seconds)
        cluster.topics.append(TOPIC)
        await self._must_be_whole("after the topic was created", START_SECONDS_MAX)
        readers = ["reader"] if self._random.random() < 0.5 else []
        workers = load.start((), ["client-0", "client-1"], readers)
        for number in range(ROUNDS):
            await self._storm(number)
            workers += await self._go_stale(number)
            lost = self._destroy()
            await self._recover(lost)
        for each in self._loads:
            each.is_over = True
        for worker in workers:
            await self.world.wait(worker, END_SECONDS_MAX * 4)
            if not worker.is_set():
                raise Liveness(f"seed {self.world.seed}: a client does not end")
        acknowledged = {told.partition.topic for told in self.history.acknowledged}
        everything = {TOPIC: PARTITIONS, **dict.fromkeys(sorted(acknowledged - {TOPIC}), 1)}
        summary = await self._load(everything).check(admin)
        self.history.check_anomalies()
        admin.close()
        self._watch.look_at_all()
        return {**summary, **self.counts, "broken off": self._operator.broken_off}

    def _topic(self, name: str, partitions: int) -> NewTopic:
        return NewTopic(
            name, partitions, self.shape.replicas, {"min.insync.replicas": str(self.shape.in_sync_min)}
        )

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.world.trace.record(self.world.now, "recovery", "log", what)

    async def _must_be_whole(self, when: str, seconds: float) -> None:
        """Wait until the cluster is whole. Until the next storm no connection is too slow for the workload."""
        self.world.fabric.weather = self.world.weather.settled()
        wrong = await self.cluster.wait_until_whole(seconds)
        if wrong is not None:
            raise Liveness(f"seed {self.world.seed}: {seconds} s {when} the cluster is not whole: {wrong}")

    # --- before the loss

    async def _storm(self, number: int) -> None:
        self._operator.end_settling()
        self.world.fabric.weather = self.world.weather
        kinds = tuple(each for each in STORM_KINDS if self._random.random() < 0.6)
        plan = StormPlan(self._random.uniform(*STORM_SECONDS), kinds, power=False)
        operator = Operator(self.cluster, self._loads[0].partitions, self.shape.replicas, (), self.history)
        clients = ("client-0", "client-1", "reader")
        storm = Storm(self.cluster, plan, clients, operator, ALL_TROUBLES, self._loads[0].partitions)
        self._count(f"storm {number}")
        await storm.run()
        for member in self.cluster.members:
            if not member.is_up():
                member.launch()
        # Wait in some rounds until the cluster is whole. In the other rounds the effects of the storm remain.
        if self._random.random() < 0.6:
            await self._must_be_whole("after a storm", HEAL_SECONDS_MAX)

    async def _go_stale(self, number: int) -> list[Event]:
        """Kill some nodes, while a majority of the voters continues for a while; then kill all others at once."""
        members, voters = self.cluster.members, await self._voter_ids()
        dying = self._random.sample(members, self._random.randint(0, len(members) - 1)) if voters else []
        voting = [each for each in dying if each.config.node_id in voters]
        for each in voting[(len(voters) - 1) // 2 :]:
            dying.remove(each)
        for member in dying:
            self._count("stale")
            await member.kill("all")
        workers: list[Event] = []
        load = self._load({f"late-{number}": 1})
        if self._random.random() < 0.7:
            client = load.client(f"maker-{number}")
            try:
                await load.create_topics(client, [self._topic(f"late-{number}", 1)], REST_SECONDS)
                self._count("late topic")
            except (KafkaError, ClientError):
                self._count("late topic refused")
            else:
                self._loads.append(load)
                workers = load.start((), [f"late-client-{number}"], ())
            client.close()
        operator = Operator(self.cluster, self._loads[0].partitions, self.shape.replicas, (), self.history)
        if self._random.random() < 0.6:
            await self._move_replicas()
        ends = self.world.now + self._random.uniform(*STALE_SECONDS)
        while self.world.now < ends:
            await operator.work(self._random)
            await self.world.sleep(self._random.uniform(0.0, 1.0))
        for member in members:
            await member.kill("all")
        self._watch.end()
        return workers

    async def _voter_ids(self) -> frozenset[int]:
        """Return the ids of the nodes that vote now: a recovery may have left fewer voters. Empty if none answers."""
        client = self.cluster.observer
        try:
            quorum = await client.run(describe_quorum(client.core, timeout=REST_SECONDS))
        except (KafkaError, ClientError):
            return frozenset()
        return frozenset(voter.node_id for voter in quorum.voters)

    async def _move_replicas(self) -> None:
        """Move the replicas of a partition to other running brokers, and wait for a while until the reassignment ends."""
        client = self.cluster.observer
        up = [each.config.node_id for each in self.cluster.brokers if each.is_up()]
        if len(up) < self.shape.replicas:
            return
        key = TopicPartition(TOPIC, self._random.randrange(PARTITIONS))
        target = self._random.sample(up, self.shape.replicas)
        ends = self.world.now + MOVE_SECONDS_MAX
        try:
            move = alter_partition_reassignments(client.core, {key: target}, timeout=REST_SECONDS)
            if (await client.run(move))[key] is not None:
                return self._count("move refused")
            while self.world.now < ends:
                looking = list_partition_reassignments(client.core, [key], timeout=REST_SECONDS)
                if not await client.run(looking):
                    return self._count("move ended")
                await self.world.sleep(LOOK_AGAIN_SECONDS)
        except (KafkaError, ClientError):
            self._count("move unanswered")

    # --- the loss

    def _destroy(self) -> Lost:
        """Replace metadata disks by empty disks, so that no majority of voters is left. Return the destroyed disks,
        and the metadata before the destruction.
        """
        cluster, world, random = self.cluster, self.world, self._random
        nodes = self._operator.read(cluster.members)
        truth = choose(nodes, Named())
        best = greatest(truth.copies)
        voters = truth.voter_sets[-1]
        newest = {each.node_id for each in truth.copies if each.end == best.end}
        ids = list(voters.node_ids)
        sets = [
            each
            for count in range(1, len(ids) + 1)
            for each in combinations(ids, count)
            if majority_is_lost(voters, each)
        ]
        # In 60 % of the cases destroy all disks on which voters have the newest copy.
        aimed = [each for each in sets if newest & {*ids} <= {*each}]
        chosen = random.choice(aimed if random.random() < 0.6 else sets)
        names = {each.config.node_id: each.name for each in cluster.members}
        disks = {names[each]: world.machine(names[each]).disk.exchange(METADATA, Folder()) for each in chosen}
        self._count(f"destroyed {len(chosen)} of {len(ids)}")
        self._destroy_records(random.choice(chosen), best.image)
        epoch = max(best.end.epoch, *(each.quorum_epoch for each in nodes))
        left = {
            each.node_id: each
            for each in truth.copies
            if each.node_id is not None and each.node_id not in chosen
        }
        return Lost(best.image, epoch, best.end.offset, voters, disks, left)

    def _destroy_records(self, node_id: int, image: MetadataImage) -> None:
        """Replace the node's data disks, too, with some probability. This requires that other in-sync replicas
        remain.
        """
        member = next(each for each in self.cluster.members if each.config.node_id == node_id)
        partitions = [each for topic in image.topics.values() for each in topic.partitions.values()]
        has_others = all(
            {*each.isr, *each.elr} - {node_id} for each in partitions if node_id in each.replicas
        )
        if self._random.random() < 0.4 and has_others and member in self.cluster.brokers:
            self._count("records destroyed")
            for path in member.config.log_dirs:
                self.world.machine(member.name).disk.replace(path)

    # --- the recovery

    async def _recover(self, lost: Lost) -> None:
        cluster, world = self.cluster, self.world
        absent = self._choose_absent(lost)
        present = [each for each in cluster.members if each not in absent]
        recovered = self._operator.recover(present, absent)
        self._count("rebuilt" if recovered.is_rebuilt else "recovered")
        self._check_numbers(lost, recovered)
        self._check_contents(lost, recovered, present)
        await self._launch(present, recovered)
        for member in absent:
            await world.sleep(self._random.uniform(0.0, 20.0))
            self._check_awaited(member)
            recovered = await self._return_left_out(member, lost, recovered)
        await self._must_be_whole("after a recovery", HEAL_SECONDS_MAX)
        self._check_brokers(recovered)
        if self._random.random() < 0.5 and {*lost.voters.node_ids} - self._ids(lost.disks):
            await self._old_voters_return(lost)
        await world.sleep(REST_SECONDS)

    async def _launch(self, members: Sequence[Member], recovered: Recovered) -> None:
        """Start the nodes of a recovered quorum, one after the other."""
        self._watch = Watch(self.cluster)
        self._watch.begin()
        self._watch.answers.begin_decisions(self._watch.tap)
        self.world.spawn(self._operator.settle, recovered)
        for member in self._random.sample(list(members), len(members)):
            # Check before each launch: a partition with a replica on a node must have no leader before that node is
            # back, however late.
            self._check_awaited(member)
            member.launch()
            if self._random.random() < 0.4:
                await self.world.sleep(self._random.uniform(0.0, self._random.choice(LATE_SECONDS)))

    def _ids(self, names: Mapping[str, Folder]) -> set[int]:
        return {each.config.node_id for each in self.cluster.members if each.name in names}

    def _choose_absent(self, lost: Lost) -> Sequence[Member]:
        """Choose one node that is absent during the recovery, or none. An absent node has kept its metadata disk, and
        another node has a copy of the metadata, too.
        """
        may_be = [
            each
            for each in self.cluster.brokers
            if each.name not in lost.disks
            and (self.shape.dynamic_voters or each not in self.cluster.controllers)
        ]
        controllers = list(self.cluster.controllers)
        if len(may_be) < 2 or self._random.random() < 0.6:
            return ()
        member = self._random.choice(may_be)
        if all(each is member for each in controllers):
            return ()
        self._count("absent")
        return (member,)

    async def _return_left_out(self, member: Member, lost: Lost, recovered: Recovered) -> Recovered:
        """Start a node that was left out of the recovery, with its old metadata: it must stop. Then set the old
        metadata aside, and start the node again. If it has partitions that the recovered metadata lack, it must stop
        again, and the operator recovers the quorum from all nodes. Return the last recovery.
        """
        await self._must_end([member], LEFT_BEHIND)
        self._operator.begin_anew(member)
        held = {
            (each.topic_id, each.partition)
            for node in self._operator.read([member])
            for each in node.replicas
        }
        known = {
            (topic.topic_id, number)
            for topic in recovered.image.topics.values()
            for number in topic.partitions
        }
        if held <= known:
            member.launch()
            return recovered
        await self._must_end([member], UNREAD_TOPICS)
        self._watch.end()
        members = self.cluster.members
        for each in members:
            await each.kill("all")
        again = self._operator.recover(members, ())
        self._count("recovered again")
        self._check_numbers(lost, again)
        await self._launch(members, again)
        return again

    async def _must_end(self, members: Sequence[Member], words: str) -> None:
        """Start nodes, and wait until each has ended with an error that has these words. Raises `SafetyViolation`."""
        for member in members:
            member.may_be_damaged = True
            member.launch()
        for member in members:
            running = member.running
            assert running is not None
            await self.world.wait(running.ended, HEAL_SECONDS_MAX)
            if not running.ended.is_set():
                raise SafetyViolation(f"{member.name} must end: {words}")
            if not member.failures or words not in member.failures[-1]:
                raise SafetyViolation(
                    f"{member.name} has ended without an error about the recovery: {member.failures[-1:]}"
                )
            member.may_be_damaged = False

    async def _old_voters_return(self, lost: Lost) -> None:
        """Start the nodes with their old metadata disks, all at once: they must stop. Then start these nodes with
        their new disks again.
        """
        self._count("old voters")
        self._watch.end()
        members = [each for each in self.cluster.members if each.name in lost.disks]
        for member in members:
            await member.kill("all")
        new = {
            each.name: self.world.machine(each.name).disk.exchange(METADATA, lost.disks[each.name])
            for each in members
        }
        await self._must_end(members, LEFT_BEHIND)
        for member in members:
            self.world.machine(member.name).disk.exchange(METADATA, new[member.name])
        self._watch = Watch(self.cluster)
        self._watch.begin()
        for member in members:
            member.launch()
        await self._must_be_whole("after old voters", HEAL_SECONDS_MAX)

    # -- offsets, epochs and ids

    def _check_numbers(self, lost: Lost, recovered: Recovered) -> None:
        """Check that the new log continues above all offsets, epochs and ids of the newest metadata. Raises
        `SafetyViolation`.
        """
        image, plan = recovered.image, recovered.plan
        before = lost.image
        pairs = [
            ("the offset", lost.offset, plan.end.offset),
            ("the epoch", lost.epoch, plan.end.epoch),
            ("the next producer id", before.next_producer_id, image.next_producer_id),
            *(("a broker epoch", each.epoch, plan.end.offset) for each in before.brokers.values()),
        ]
        for topic in before.topics.values():
            now = image.topics_by_id.get(topic.topic_id)
            for number, each in topic.partitions.items() if now is not None else ():
                partition = now.partitions.get(number)
                if partition is not None:
                    name = f"{topic.name}-{number}"
                    pairs.append((f"the leader epoch of {name}", each.leader_epoch, partition.leader_epoch))
                    pairs.append(
                        (f"the partition epoch of {name}", each.partition_epoch, partition.partition_epoch)
                    )
        for what, old, new in pairs:
            if new <= old and not (what == "the next producer id" and old == new == 0):
                raise SafetyViolation(f"{what} is given twice: {old} before, {new} now")

    def _check_contents(self, lost: Lost, recovered: Recovered, present: Sequence[Member]) -> None:
        """Check that the newest remaining copy was chosen. Check that no records are deleted because their topic is
        unknown to that copy. Raises `SafetyViolation`.
        """
        ids = {each.config.node_id for each in present}
        left = [each for node_id, each in lost.left.items() if node_id in ids and each.end.offset]
        known: Mapping[str, object] = {}
        if left:
            best = max(left, key=lambda each: (each.end.epoch, each.end.offset))
            self._count("newest copy" if best.end.offset == lost.offset else "stale copy")
            known = best.image.topics
            self._count_lost_changes(lost.image, best.image)
            if recovered.chosen_end != best.end:
                raise SafetyViolation(
                    f"a copy up to {recovered.chosen_end} counts, and one up to {best.end} is left"
                )
            for name in best.image.topics:
                if name not in recovered.image.topics:
                    raise SafetyViolation(f"topic {name} of the greatest copy is gone")
        for name in recovered.image.topics:
            if name not in known:
                self._count("topic of directories")
                if recovered.image.topic_configs(name).get("retention.ms") != "-1":
                    raise SafetyViolation(f"topic {name} has no configuration, and does not keep everything")

    def _count_lost_changes(self, truth: MetadataImage, copy: MetadataImage) -> None:
        """Count the kinds of changes that the chosen copy lacks, compared with the newest metadata."""
        for topic_id, topic in truth.topics_by_id.items():
            known = copy.topics_by_id.get(topic_id)
            if known is None:
                self._count("lost creation")
                continue
            for number, now in topic.partitions.items():
                before = known.partitions.get(number)
                if before is None:
                    continue
                kinds = (
                    ("lost ISR shrink", bool({*before.isr} - {*now.isr})),
                    ("lost leader change", before.leader_epoch < now.leader_epoch),
                    ("lost reassignment", {*before.replicas} != {*now.replicas}),
                )
                for kind, is_lost in kinds:
                    if is_lost:
                        self._count(kind)
        for topic_id in copy.topics_by_id:
            if topic_id not in truth.topics_by_id:
                self._count("lost deletion")

    def _check_awaited(self, absent: Member) -> None:
        """Check that no partition with a replica on this absent node has a leader yet. Raises `SafetyViolation`."""
        held = {
            (each.topic_id, each.partition)
            for node in self._operator.read([absent])
            for each in node.replicas
        }
        for member in self.cluster.members:
            metadata = None if member.node is None or not member.is_up() else member.node.metadata
            topics = {} if metadata is None else metadata.committed_image.topics
            for topic in topics.values():
                for number, partition in topic.partitions.items():
                    if partition.leader >= 0 and (topic.topic_id, number) in held:
                        raise SafetyViolation(f"{topic.name}-{number} is led before {absent.name} is back")

    def _check_brokers(self, recovered: Recovered) -> None:
        for member in self.cluster.brokers:
            metadata = None if member.node is None else member.node.metadata
            if metadata is None:
                continue
            for broker in metadata.committed_image.brokers.values():
                if broker.epoch < recovered.plan.end.offset and not broker.fenced:
                    raise SafetyViolation(f"broker {broker.broker_id} has the epoch {broker.epoch} again")


def _shape(random: Random) -> Shape:
    """Draw the shape of a cluster in which the metadata have a separate disk."""
    replicas = random.choice((2, 3, 3))
    settings = {
        **SETTINGS,
        **QUICK_SETTINGS,
        "metadata.log.dir": METADATA,
        "metadata.log.max.record.bytes.between.snapshots": random.choice(("500", "5000", "20971520")),
        # This timeout is meant for other unclean recoveries. It must have no effect after a recovery of the quorum.
        "unclean.recovery.timeout.ms": random.choice(("500", "300000")),
    }
    shape = Shape(
        nodes=random.choice((3, 4, 4)),
        controllers=random.choice((0, 0, 3)),
        log_dirs=random.choice((1, 2)),
        dynamic_voters=random.random() < 0.7,
        settings=settings,
        voters=3,
    )
    return shape.replicated(replicas, random.choice((1, 2)) if replicas == 2 else 2)
