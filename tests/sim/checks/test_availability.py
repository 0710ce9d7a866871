"""The check of availability finds parts of a cluster that could serve but do not. Runs have one fault in a quiet
cluster, or a bug that prevents a takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
import pytest

from odradek.metadata_quorum.image.metadata_image import PartitionImage
from sim.checks.fitness import NEVER, Fitness
from sim.history import SafetyViolation
from sim.machine.cluster_members import QUICK_SETTINGS, SETTINGS, Cluster, Shape
from sim.machine.members import Member
from sim.machine.weather import Weather
from sim.machine.world import Liveness, World
from sim.options import RunOptions
from sim.scenarios.cluster_scenario import ClusterScenario
from sim.storm.storm_plan import StormPlan
from tests.mutants.patching import patched

SETTLE_SECONDS = 3.0
FAULT_SECONDS = 14.0
"""Duration of the fault. It is longer than every limit with quick timeouts."""


class Passed(Exception):
    """Raised when the fault is over and the check has found nothing."""


class OneFault:
    """A quiet cluster with clients. One member dies and stays dead for a while."""

    controllers = 0
    settings: Mapping[str, str] = {}

    def __init__(self, victim: str, workloads: tuple[str, ...]) -> None:
        options = RunOptions.draw(1, "calm", nodes=3, controllers=self.controllers)
        settings = {**SETTINGS, **QUICK_SETTINGS, "group.min.session.timeout.ms": "1000", **self.settings}
        self._scenario = ClusterScenario.of(
            1,
            attrs.evolve(
                options,
                shape=Shape(controllers=self.controllers, settings=settings),
                storm=StormPlan(SETTLE_SECONDS, ()),
                weather=Weather(),
                workloads=workloads,
                duties=(),
            ),
        )
        self._find: Callable[[], Member] = getattr(self, f"_{victim}")

    def run(self, *, to_the_end: bool = True) -> None:
        """Run the scenario with the fault in place of the storm's end.

        Raises `Liveness`, or `Passed` if the fault ends first.
        """
        storm, world = self._scenario._storm.run, self._scenario.world

        async def with_fault() -> None:
            await storm()
            await self._befall(self._find())
            await world.sleep(FAULT_SECONDS)
            if not to_the_end:
                raise Passed

        vars(self._scenario._storm)["run"] = with_fault
        self._scenario.run()

    async def _befall(self, victim: Member) -> None:
        await victim.kill("all")

    @property
    def _cluster(self) -> Cluster:
        return self._scenario.cluster

    def _partition_of(self, topic: str) -> PartitionImage:
        metadata = next(iter(self._scenario.watch.processes.living()))[1].metadata
        assert metadata is not None
        partition = metadata.committed_image.partition(topic, 0)
        assert partition is not None
        return partition

    def _broker(self, node_id: int) -> Member:
        return next(each for each in self._cluster.brokers if each.config.node_id == node_id)

    def _leader_of(self, topic: str) -> Member:
        return self._broker(self._partition_of(topic).leader)

    def _leader(self) -> Member:
        return self._leader_of("replicated")

    def _coordinator(self) -> Member:
        return self._leader_of("__consumer_offsets")

    def _controller(self) -> Member:
        for member, node in self._scenario.watch.processes.living():
            if node.metadata is not None and node.metadata.is_active:
                return member
        raise AssertionError("no living controller is active")


class HungSuccessor(OneFault):
    """The leader dies, while the disk of its successor is already hanging. That disk hangs a second longer than the
    fault."""

    controllers = 3

    async def _befall(self, victim: Member) -> None:
        partition = self._partition_of("replicated")
        successor = next(each for each in partition.replicas if each != victim.config.node_id)
        self._scenario.world.hang(self._broker(successor).name, FAULT_SECONDS + 1.0)
        await super()._befall(victim)


class UnseenLossOfPower(OneFault):
    """The quorum's leader loses power and restarts between two rounds of the check. Its followers are not notified."""

    settings: Mapping[str, str] = {"controller.quorum.fetch.timeout.ms": "6000"}

    async def _befall(self, victim: Member) -> None:
        await victim.kill("synced")
        victim.launch()


class UnwatchedDeath(OneFault):
    """A member dies, and no controller looks whether its host refuses connections. So its session must end."""

    settings: Mapping[str, str] = {"odradek.broker.suspicion.ms": "0"}


PLANTED = {
    "never fenced": (
        "leader",
        "odradek.metadata_quorum.controller.broker_sessions:BrokerSessions.expired",
        "if not broker.fenced and",
        "if broker_id < 0 and",
        r"has no leader that serves since .* \(dead\)",
    ),
    "follower never stands": (
        "controller",
        "odradek.metadata_quorum.raft.election:on_time",
        "                if core.may_stand:\n                    ask_for_pre_votes(core)\n",
        "                if core.may_stand:\n                    role.fetch_deadline = core.now + 1.0\n",
        r"the quorum has no leader since .* \(dead\)",
    ),
    "image without effect": (
        "leader",
        "odradek.data_plane.hosted_partitions:HostedPartitions.apply_topic",
        "            if partition.image is not image:\n",
        "            if partition.image is not image and (index or image.leader_epoch < 1):\n",
        r"-0 (has no leader that serves since|goes by PartitionImage)",
    ),
    "load without end": (
        "coordinator",
        "odradek.data_plane.coordination.shard:Shard.load",
        "        if self._stopped:\n            reached(",
        "        if self._stopped or self.leader_epoch > 0:\n            reached(",
        r"the coordinator of __consumer_offsets-\d does not answer for its groups",
    ),
    "sync without effect": (
        "leader",
        "odradek.data_plane.groups.membership:Membership.sync",
        "group = self.find(turn, request.group_id) if request.group_id else None\n",
        "group = self.find(turn, request.group_id)\n        if group and group.generation > 1:\n            return\n",
        r"the group crowd-\d is (not stable|in the phase)",
    ),
}


OF_GROUPS = ("load without end", "sync without effect")
"""Bugs that only a run with consumer groups can show."""


@pytest.mark.parametrize("name", PLANTED)
def test_who_could_serve_and_does_not_is_told(name: str) -> None:
    """If a bug prevents the takeover from a dead member, the run ends at once with the verdict `liveness`."""
    victim, function, old, new, complaint = PLANTED[name]
    workloads = ("produce", "crowd") if name in OF_GROUPS else ("produce",)
    with patched(function, old, new), pytest.raises((Liveness, SafetyViolation), match=complaint):
        (UnwatchedDeath if name == "never fenced" else OneFault)(victim, workloads).run()


@pytest.mark.parametrize("victim", ["leader", "controller"])
def test_who_takes_over_in_time_is_not_told(victim: str) -> None:
    """Without a bug, the same faults pass."""
    with pytest.raises(Passed):
        OneFault(victim, ("produce",)).run(to_the_end=False)


def test_a_leader_that_is_named_late_has_the_time_of_its_own_disk() -> None:
    """A new leader with a hanging disk gets the full time for its own disk, although the old leader's fault is over
    (seed 90415)."""
    with pytest.raises(Passed):
        HungSuccessor("leader", ("produce",)).run(to_the_end=False)


def test_a_loss_of_power_between_two_looks_is_no_mere_death() -> None:
    """A node loses power and returns between two rounds of the check. No connection breaks, so followers may wait for a
    fetch timeout (seeds 90270 and 90376)."""
    function, old = "odradek.metadata_quorum.raft.core_state:CoreState._first_role", "to_notify=others"
    with patched(function, old, "to_notify=[]"), pytest.raises(Passed):
        UnseenLossOfPower("controller", ("produce",)).run(to_the_end=False)


def _in_world(scenario: Callable[[World, Cluster, Fitness], Awaitable[None]]) -> None:
    world = World(1, Weather())
    cluster = Cluster(world, Shape(settings=SETTINGS))

    async def main() -> None:
        cluster.format()
        for member in cluster.members:
            member.launch()
        await world.sleep(1.0)
        fitness = Fitness(world, cluster.members)
        fitness.look()
        await scenario(world, cluster, fitness)

    world.run(main)


def test_the_time_begins_anew_with_each_fault_that_begins_or_ends() -> None:
    """A machine counts as unfit while it is frozen, hung, slow or full, and a link while it is cut. The time limit
    restarts with each change."""

    async def scenario(world: World, cluster: Cluster, fitness: Fitness) -> None:
        node, other = "node-1", "node-2"
        disk = world.machine(node).disk

        def fill(capacity_bytes: int | None) -> None:
            disk.capacity_bytes = capacity_bytes

        faults: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (lambda: world.pause(node), lambda: world.resume(node)),
            (lambda: world.slow_down(node, 5.0), lambda: world.slow_down(node, 1.0)),
            (lambda: fill(disk.used_bytes), lambda: fill(None)),
            (lambda: world.hang(node, 1.0), lambda: None),
        ]
        for begin, end in faults:
            begin()
            fitness.look()
            assert fitness.since(node) == NEVER
            await world.sleep(2.0)
            end()
            fitness.look()
            assert fitness.since(node) == world.now
            assert fitness.since(other) < world.now
        links: list[tuple[Callable[[], object], Callable[[], object], bool]] = [
            (lambda: world.cut(node, other), lambda: world.heal(node, other), True),
            (lambda: world.slow(node, other, 1.0), lambda: world.slow(node, other, 0.0), False),
        ]
        for begin, end, is_cut in links:
            begin()
            fitness.look()
            assert fitness.link_since(other, node) == NEVER
            assert fitness.is_cut(node, other) is is_cut
            await world.sleep(1.0)
            end()
            fitness.look()
            assert fitness.link_since(node, other) == world.now
        await world.sleep(1.0)
        world.fabric.sever(node, other)
        fitness.look()
        assert fitness.link_since(node, other) == world.now
        assert fitness.together_since(["node-1", "node-3"]) < world.now

    _in_world(scenario)


def test_a_dead_process_is_unfit_and_its_next_one_fit_from_its_start() -> None:
    """A dead process and a machine without power are distinguished. A new process counts as fit from its launch."""

    async def scenario(world: World, cluster: Cluster, fitness: Fitness) -> None:
        member = cluster.members[0]
        for keep, wrong in (("all", "dead"), ("synced", "without power")):
            world.crash(member.name, "all" if keep == "all" else "synced")
            await world.sleep(1.0)
            fitness.look()
            assert (fitness.wrong_with(member.name), fitness.since(member.name)) == (wrong, NEVER)
            member.launch()
            fitness.look()
            assert (fitness.wrong_with(member.name), fitness.since(member.name)) == ("", world.now)

    _in_world(scenario)
