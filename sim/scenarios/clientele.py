"""The clients that a run has in addition to its simple producers and readers, by their names in
`RunOptions.workloads`. PORTED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from odradek.client.admin import NewTopic
from odradek.client.shells.aio import AsyncClient
from odradek.env.ports import Event
from sim.checks.groups.group_availability import GroupTerms
from sim.load import pipelining
from sim.load.asking import Asking
from sim.load.churning import Churning
from sim.load.consumers import crowd, herd
from sim.load.consumers.crowd import Crowd
from sim.load.consumers.herd import Herd
from sim.load.consuming import GroupReading, follow
from sim.load.copying import copiers
from sim.load.copying.copiers import Copying
from sim.load.joint import joint_plan
from sim.load.joint.joint_writing import JointWriting
from sim.load.keyed import keying
from sim.load.keyed.keying import Keying
from sim.load.pipelining import Pipelining
from sim.load.producers import varied
from sim.load.producers.producer_plan import topic_configs
from sim.load.producers.varied import VariedProducer
from sim.load.workload import Workload
from sim.machine.cluster_members import Cluster

FOLLOWER = "follower"
"""The machine of a consumer that reads from a nearby replica."""
MEMBERS = ("member-1", "member-2")
CHURNERS = ("churner-1", "churner-2")
PIPELINERS = ("pipeliner",)
ASKERS = ("asker",)
VARIED = ("varied-1", "varied-2")

__all__ = ["Clientele", "client_topics", "configs_of_clients"]


def client_topics(workloads: Sequence[str]) -> dict[str, int]:
    """Return the topics that exist only because of a workload, with their number of partitions."""
    topics = {}
    if "pipeline" in workloads:
        topics[pipelining.TOPIC] = pipelining.PARTITIONS
    if "varied" in workloads:
        topics[varied.TOPIC] = varied.PARTITIONS
    return topics


def configs_of_clients(topic: str, seed: int) -> dict[str, str]:
    """Draw the configuration that only the topic of this workload has."""
    if topic == pipelining.TOPIC:
        return pipelining.topic_configs(Random(f"{seed}/{topic}"))
    if topic == varied.TOPIC:
        return topic_configs(Random(f"{seed}/{topic}"))
    return {}


class Clientele:
    """The clients of one run. `whole` are the partitions whose records are never deleted."""

    def __init__(
        self,
        load: Workload,
        workloads: Sequence[str],
        replicas: int,
        settings: Mapping[str, str],
        whole: Sequence[tuple[str, int]],
        storm_kinds: Sequence[str],
    ) -> None:
        self._world = load.world
        self._load = load
        self._whole = whole
        self._follows = "follow" in workloads
        self._group = GroupReading(load) if "group" in workloads else None
        self._churners = CHURNERS if "churn" in workloads else ()
        self._pipeliners = PIPELINERS if "pipeline" in workloads else ()
        self._askers = ASKERS if "offsets" in workloads else ()
        self._churning: list[Churning] = []
        self._replicas = replicas
        self._varied = [VariedProducer(load, name) for name in VARIED if "varied" in workloads]
        session_ms = int(settings.get("group.min.session.timeout.ms", crowd.SESSION_MS_DEFAULT))
        self._keying = Keying(load, replicas, storm_kinds) if "keyed" in workloads else None
        self._copying = None
        if "copy" in workloads:
            self._copying = Copying(load, replicas)
        self._joint = [
            JointWriting(load, name, replicas, settings) for name in joint_plan.WORKLOADS if name in workloads
        ]
        self._herd = Herd(load) if "herd" in workloads else None
        self._crowds = [Crowd(load, group, session_ms) for group in crowd.GROUPS if "crowd" in workloads]

    def machines(self) -> tuple[str, ...]:
        """List the clients' machines, whose links the storm cuts and slows."""
        names: tuple[str, ...] = ("reader", FOLLOWER, *MEMBERS, *self._churners, *self._pipeliners)
        if self._varied:
            names += VARIED
        if self._keying is not None:
            names += (*keying.WRITERS, keying.READER)
        if self._copying is not None:
            names += copiers.machines()
        for joint in self._joint:
            names += joint.machines()
        if self._crowds:
            names += crowd.slots(self._world.seed)
        if self._herd is not None:
            names += herd.SLOTS
        return names

    def topics_apart(self, configs: Mapping[str, str]) -> list[NewTopic]:
        """Describe the topics of the workloads that keep their own history. `configs` is the configuration that all
        topics of the run have.
        """
        found = [] if self._keying is None else [self._keying.topic(configs)]
        found += [each.topic(configs) for each in self._joint]
        return found if self._copying is None else [*found, *self._copying.topics(configs)]

    def terms(self) -> list[GroupTerms]:
        """List the consumer groups for `GroupAvailability`."""
        found = [] if self._group is None else [self._group.terms(MEMBERS)]
        if self._herd is not None:
            found.append(self._herd.terms)
        return found + [each.terms for each in self._crowds]

    def start_readers(self) -> dict[str, Event]:
        """Start the clients that read to the end. Return an event for each name; it is set when the client has read
        everything.
        """
        spawn = self._world.spawn
        readers: dict[str, Event] = {}
        if self._follows:
            readers[FOLLOWER] = spawn(follow, self._load, FOLLOWER, "rack-2", self._whole)
        if self._group is not None:
            readers |= {name: spawn(self._group.member, name) for name in MEMBERS}
        if self._keying is not None:
            readers[keying.READER] = spawn(self._keying.read)
        if self._copying is not None:
            readers |= self._copying.start_copiers()
        for joint in self._joint:
            readers |= joint.start_writers()
        for each_crowd in self._crowds:
            readers |= each_crowd.start()
        if self._herd is not None:
            readers |= self._herd.start()
        return readers

    def start_workers(self) -> list[Event]:
        """Start all other clients. Return an event for each client; it is set when the client has ended after the
        workload.
        """
        load = self._load
        self._churning = [Churning(load, name, self._replicas) for name in self._churners]
        runs = [Pipelining(load, name).run for name in self._pipeliners]
        runs += [each.run for each in self._varied]
        runs += [Asking(load, name).run for name in self._askers]
        runs += [each.run for each in self._churning]
        keyed = [] if self._keying is None else self._keying.start_workers()
        copied = [] if self._copying is None else self._copying.start_workers()
        joint = [event for each in self._joint for event in each.start_workers()]
        return [*keyed, *copied, *joint, *(self._world.spawn(run) for run in runs)]

    def end_churning(self) -> None:
        """Stop the clients that create and delete topics, since the storm is over."""
        for churner in self._churning:
            churner.is_over = True

    async def find_ends(self, client: AsyncClient) -> None:
        """Record the final end offsets of the topics whose workloads keep their own history. Call it after the last
        record.
        """
        if self._keying is not None:
            await self._keying.find_ends(client)
        if self._copying is not None:
            await self._copying.find_ends(client)

    async def check(self, machine: str) -> None:
        """Check the records and commits of all workloads, from the machine `machine`. Raises `SafetyViolation`."""
        if self._group is not None:
            self._group.check()
            await self._group.check_commits(machine)
        for each_crowd in self._crowds:
            await each_crowd.check(machine)
        if self._herd is not None:
            await self._herd.check(machine)
        if self._keying is not None:
            await self._keying.check(machine)
        if self._copying is not None:
            await self._copying.check(machine)
        for joint in self._joint:
            await joint.check(machine)

    def check_disks(self, cluster: Cluster) -> None:
        """Check that the replicas agree on disk, for the topics whose workloads keep their own history. Raises
        `SafetyViolation`.
        """
        if self._keying is not None:
            self._keying.check_disks(cluster.replica_logs)
        if self._copying is not None:
            self._copying.check_disks(cluster.replica_logs)
        for joint in self._joint:
            joint.check_disks(cluster.replica_logs)

    def figures(self) -> dict[str, int]:
        """Count the clients of each kind, and their events, by name."""
        return {
            "producers": sum(each.lives for each in self._varied),
            "producer_deaths": sum(each.deaths for each in self._varied),
            "members": sum(each.lives for each in self._crowds),
            "rebalances": sum(each.promises.rebalances for each in self._crowds),
            "late_commits": sum(each.promises.refused_late for each in self._crowds),
            **({} if self._herd is None else self._herd.figures()),
            **({} if self._keying is None else self._keying.figures()),
            **({} if self._copying is None else self._copying.figures()),
            **{name: count for each in self._joint for name, count in each.figures().items()},
        }
