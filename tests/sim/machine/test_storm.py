"""Rules that keep storms within the fault model, tested on idle nodes."""

from __future__ import annotations

from typing import Any

import pytest

from sim.load.operators import Operator
from sim.machine.cluster_members import Cluster, Shape
from sim.machine.world import World
from sim.storm.registry import ALL_TROUBLES
from sim.storm.storm import Storm
from sim.storm.storm_plan import KINDS, MORE_KINDS, StormPlan
from sim.storm.troubles import TROUBLES


class QuietCluster(Cluster):
    """A cluster without load. `wrong` is the trouble that it reports. Each broker has a replica of every partition."""

    wrong: str | None = None

    def __init__(self, world: World, shape: Shape) -> None:
        super().__init__(world, shape)
        self.replica_sets = frozenset({frozenset(member.name for member in self.brokers)})

    async def trouble(self) -> str | None:
        return self.wrong


def storm(
    seed: int, *kinds: str, seconds: float = 60.0, power: bool = True, nodes: int = 3
) -> tuple[Storm, QuietCluster]:
    """Make a storm over brokers and separate controllers."""
    cluster = QuietCluster(World(seed), Shape(nodes, controllers=3))
    made = Storm(
        cluster,
        StormPlan(seconds, kinds, power),
        ("client",),
        Operator(cluster, [("t", 0)], 3),
        ALL_TROUBLES,
    )
    return made, cluster


def run(made: Storm, cluster: QuietCluster) -> None:
    """Run idle nodes through the storm."""

    async def main() -> None:
        for member in cluster.members:
            member.launch()
        await made.run()

    cluster.world.run(main)


@pytest.fixture(autouse=True)
def idle_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the nodes by processes that only wait to be stopped."""

    async def idle(config: Any, env: Any, *, started: Any, stop: Any, **_: Any) -> None:
        started({})
        await stop.wait()

    monkeypatch.setattr("sim.machine.members.run_node", idle)


def test_a_storm_undoes_what_it_did() -> None:
    """After a storm, all cut links, slow links and pauses are gone."""
    made, cluster = storm(1, "links", "slow", "pauses")
    run(made, cluster)
    fabric = cluster.world.fabric
    assert {word.split()[0] for word in made.counts} == {"links", "slow", "pause"}
    assert fabric.cuts() == []
    assert all(not cluster.world.node_env(member.name).paused for member in cluster.members)


def test_every_further_trouble_befalls_somebody_and_ends() -> None:
    """Further kinds of trouble all occur and end: narrow, closed and forgetful links, slow machines, changed
    configurations."""
    made, cluster = storm(1, *TROUBLES, seconds=120.0)
    run(made, cluster)
    words = {word.split()[0] for word in made.counts}
    assert words == {"narrow", "closed", "forgotten", "slow", "configuration"}
    fabric, names = cluster.world.fabric, [member.name for member in cluster.members]
    for source in (*names, "client"):
        for target in names:
            assert fabric.closed(source, target) is None
    assert all(cluster.world.machine(name).work_factor == 1.0 for name in names)
    clocks = [cluster.world.node_env(name).clock for name in names]
    assert any(clock.wall_drift for clock in clocks)
    assert all(abs(clock.rate - 1.0) <= 0.001 for clock in clocks)


def test_disks_are_damaged_on_one_machine_and_only_while_all_is_well() -> None:
    """Disks are damaged only on one machine at a time, and only while all replicas are in sync."""
    made, cluster = storm(2, "rot", "dying", "hang", "deaths", seconds=200.0)
    run(made, cluster)
    words = {word.split()[0] for word in made.counts}
    assert {"rot", "dying", "hang", "wipe"} <= words
    assert made.atlas.is_clear
    for member in cluster.members:
        assert cluster.world.machine(member.name).disk.dead_paths == {}
        assert not member.disk_is_bad
    made, cluster = storm(2, "rot", "dying", "deaths", seconds=200.0)
    cluster.wrong = "a replica is behind"
    run(made, cluster)
    assert made.atlas.made == 0
    assert not any(word.startswith(("rot", "dying")) and "node" in word for word in made.counts)


def test_a_drifting_clock_never_jumps() -> None:
    """When a wall clock begins to drift, or stops drifting, its time does not jump."""
    world = World(1)

    async def main() -> None:
        clock = world.node_env("node-1").clock
        await world.sleep(10.0)
        before = clock.wall_ms()
        world.set_clocks("node-1", rate=clock.rate, drift=0.05)
        assert clock.wall_ms() == before
        await world.sleep(10.0)
        assert clock.wall_ms() == pytest.approx(before + 10_500 * clock.rate, abs=2)
        world.set_clocks("node-1", rate=clock.rate, drift=0.0)
        later = clock.wall_ms()
        await world.sleep(10.0)
        assert clock.wall_ms() == pytest.approx(later + 10_000 * clock.rate, abs=2)

    world.run(main)


def test_at_most_one_page_cache_is_lost_until_all_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the cluster is whole again, at most one page cache is lost, and each partition keeps a living replica."""
    losses: list[tuple[str, ...]] = []
    for seed in range(6):
        made, cluster = storm(seed, "deaths", "deaths", "deaths", seconds=200.0)
        crash = cluster.world.crash

        def watched(
            name: str, keep: str = "all", made: Storm = made, crash: Any = crash, **options: Any
        ) -> None:
            if name.startswith("node") and made.lost_power is not None:
                losses.append(made.died_since)
            crash(name, keep, **options)

        monkeypatch.setattr(cluster.world, "crash", watched)
        run(made, cluster)
    assert losses
    assert all(len(died) < 3 for died in losses)


def test_each_partition_of_a_broker_without_power_keeps_a_replica() -> None:
    """If a broker of a partition lost its page cache, one of the partition's brokers stays up. Brokers of other
    partitions may all die."""
    made, cluster = storm(0, "deaths", nodes=5)
    one, two, three, four, five = cluster.brokers
    cluster.replica_sets = frozenset(
        {frozenset((one.name, two.name, three.name)), frozenset((four.name, five.name))}
    )

    async def main() -> None:
        assert await made.may_lose_power(one)
        made.note_loss(one)
        assert all(made.may_die(member) for member in cluster.brokers)
        made.note_death(two)
        assert not made.may_die(three), "the last replica with all acknowledged records must stay"
        made.note_death(four)
        assert made.may_die(five)
        assert not made.may_lose_disks_too(five), "the last replica must not lose its disk"
        cluster.replica_sets |= {frozenset((three.name,))}
        assert not await made.may_lose_power(three), "its only replica must not lose power"

    cluster.world.run(main)


def test_no_power_fails_while_the_cluster_is_not_whole() -> None:
    """While the cluster is not whole, only controllers lose power, because they sync everything before they acknowledge
    it."""
    made, cluster = storm(3, "deaths", "deaths", seconds=300.0)
    cluster.wrong = "a replica is behind"
    run(made, cluster)
    powers = [what for what in made.counts if what.startswith("power")]
    assert powers
    assert all("controller" in what for what in powers)


def test_plans_are_swarms() -> None:
    """Each kind of trouble is drawn in some runs and absent in others."""
    plans = [StormPlan.draw(World(seed).random) for seed in range(40)]
    plans = [plan.with_more(World(seed).random) for seed, plan in enumerate(plans)]
    for kind in (*dict.fromkeys(KINDS), *MORE_KINDS):
        assert 0 < sum(kind in plan.kinds for plan in plans) < 40
    assert {plan.power for plan in plans} == {True, False}
    assert {plan.seconds for plan in [StormPlan.draw(World(1).random, 5.0)]} == {5.0}


def test_two_may_kill_one_process_at_one_moment() -> None:
    """Two kinds of trouble may kill one process at the same time. The second one waits until the process has ended."""
    world = World(5)
    cluster = Cluster(world, Shape(3, 0))
    member = cluster.members[0]

    async def main() -> None:
        cluster.format()
        member.launch()
        await world.sleep(0.1)
        world.crash(member.name, "all")
        assert member.is_up(), "the process counts as up until its tasks have ended"
        await member.kill("all")
        assert not member.is_up()

    world.run(main)
