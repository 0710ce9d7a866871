"""Elections after losses of power. The replica with all records must lead, in whichever order the brokers return.

docs/internals/replication.md has the argument. The model of brokers and disks is in `power_world.py`.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from odradek.metadata_quorum.controller.controller_settings import ControllerSettings
from odradek.metadata_quorum.features import SUPPORTED_FEATURES, THIS_RELEASE, Release
from odradek.metadata_quorum.image.metadata_image import NO_LEADER, RECOVERED, RECOVERING
from odradek.wire.messages.elect_leaders import ElectLeadersRequest
from tests.quorum.controller.power_world import NODES, PowerWorld
from tests.schedule import seeds

ORDERS = tuple(permutations(NODES))
OTHER_RELEASE = Release(SUPPORTED_FEATURES)
"""A release whose nodes report no ends of logs, like Apache Kafka's."""


def write(world: PowerWorld, records: int = 10) -> None:
    """Acknowledge some records before any of them is synced."""
    for _ in range(records):
        world.produce()
        for node_id in NODES:
            world.fetch(node_id)
    assert len(world.acknowledged) == world.records


@pytest.mark.parametrize("release", [THIS_RELEASE, OTHER_RELEASE], ids=["reports", "silent"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("clean", NODES)
def test_the_replica_that_stopped_cleanly_leads(clean: int, order: tuple[int, ...], release: Release) -> None:
    """Two brokers lose power, and the third stops cleanly.

    The third has all records and leads, after any order of return and any pauses.
    """
    for pauses in ((0, 0), (0, 12_000), (12_000, 0), (4_000, 6_000), (9_500, 9_500)):
        for leads_first in permutations(NODES):
            world = PowerWorld(Random(3), assignment=leads_first, release=release)
            write(world)
            for node_id in NODES:
                if node_id == clean:
                    world.stop(node_id)
                else:
                    world.lose_power(node_id)
            world.fail_over()
            for node_id, pause_ms in zip(order, (*pauses, 0), strict=True):
                world.tick(500)
                world.start(node_id)
                world.beat(node_id)
                world.tick(pause_ms)
                for living in world.living():
                    world.beat(living.node_id)
            assert world.partition.leader == clean, (pauses, leads_first)
            assert world.partition.leader_recovery_state == RECOVERED
            assert not world.unclean
            world.heal()
            assert world.nodes[clean].log[: world.records] == world.acknowledged


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("best", NODES)
def test_when_all_lose_power_the_longest_log_leads(best: int, order: tuple[int, ...]) -> None:
    """All brokers lose power, and each disk keeps a different part of the acknowledged records.

    The longest log leads, after all are back.
    """
    for min_isr in (1, 2, 3):
        for leads_first in permutations(NODES):
            world = PowerWorld(Random(3), assignment=leads_first, min_isr=min_isr)
            write(world)
            for node_id in NODES:
                node = world.nodes[node_id]
                node.synced = 8 if node_id == best else 3 + node_id % 2
                del node.log[node.synced :]
                world.lose_power(node_id)
            world.fail_over()
            for node_id in order:
                assert world.partition.leader == NO_LEADER or world.partition.leader not in world.living()
                world.start(node_id)
                world.beat(node_id)
            wait(world, 1000)
            assert world.partition.leader == best, (min_isr, leads_first)
            assert world.partition.leader_recovery_state == RECOVERING
            world.heal()
            assert len(world.acknowledged) == 8


@pytest.mark.parametrize("beats", ORDERS, ids=str)
@pytest.mark.parametrize("starts", ORDERS, ids=str)
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_broker_that_has_registered_is_waited_for(
    fails_over: bool, starts: tuple[int, ...], beats: tuple[int, ...]
) -> None:
    """All brokers lose power and register, before any is unfenced. The longest log leads, however late it reports.

    The first broker to register left an ISR that was still large enough, so it is missing in the last known ELR. The
    controller waits for it all the same, and so does a new controller.
    """
    for best in NODES:
        world = PowerWorld(Random(3))
        write(world)
        for node_id in NODES:
            kept = 8 if node_id == best else 2 + node_id
            del world.nodes[node_id].log[kept:]
            world.nodes[node_id].synced = kept
            world.lose_power(node_id)
        world.fail_over()
        for node_id in starts:
            world.start(node_id)
        if fails_over:
            for node_id in beats[:2]:
                world.beat(node_id)
            world.fail_over()
        for node_id in (*beats, *beats):
            world.beat(node_id)
        assert world.partition.leader == best


def stricken(order: tuple[int, ...], settings: ControllerSettings = ControllerSettings()) -> PowerWorld:  # noqa: B008
    """Make a world in which all brokers have lost power, and those of `order` are back. Higher ids have longer logs."""
    world = PowerWorld(Random(3), settings=settings)
    write(world)
    for node_id in NODES:
        del world.nodes[node_id].log[2 + node_id :]
        world.nodes[node_id].synced = 2 + node_id
        world.lose_power(node_id)
    world.fail_over()
    for node_id in order:
        world.start(node_id)
        world.beat(node_id)
    beat_all(world)
    return world


def beat_all(world: PowerWorld) -> None:
    """Send a heartbeat of each living broker."""
    for node in world.living():
        world.beat(node.node_id)


def wait(world: PowerWorld, milliseconds: int) -> None:
    """Let time pass, in which living brokers send heartbeats."""
    for _ in range(milliseconds // 1000):
        world.tick(1000)
        beat_all(world)


def test_a_broker_that_never_returns_is_waited_for_no_longer_than_the_bound() -> None:
    """A broker does not return. After `unclean.recovery.timeout.ms` the longest log of the returned brokers leads."""
    world = stricken((1, 2, 3), ControllerSettings(unclean_recovery_timeout_ms=60_000))
    assert world.partition.leader == 3
    world = stricken((1, 2), ControllerSettings(unclean_recovery_timeout_ms=60_000))
    wait(world, 9_000)  # broker 3 still has a session at the new controller
    world.start(3)
    world.kill(3)
    wait(world, 20_000)
    assert world.partition.leader == NO_LEADER
    wait(world, 60_000)
    assert world.partition.leader == 2


def test_a_new_controller_hears_everything_again() -> None:
    """Reports of logs are soft state. A new controller waits until all brokers have reported again."""
    world = stricken((3, 2))
    world.start(1)
    world.fail_over()
    assert world.partition.leader == NO_LEADER
    for node_id in (1, 2):
        world.beat(node_id)
        assert world.partition.leader == NO_LEADER
    world.beat(3)
    assert world.partition.leader == 3


def test_a_report_of_a_former_registration_is_void() -> None:
    """A broker loses power again after its report.

    The old report is dropped, and the broker reports its shorter log.
    """
    world = stricken((3, 2))
    node = world.nodes[3]
    node.synced = 1
    del node.log[1:]
    world.lose_power(3)
    world.start(3)
    world.start(1)
    world.beat(1)
    assert world.partition.leader == NO_LEADER
    world.beat(3)
    beat_all(world)
    assert world.partition.leader == 2


def test_without_the_manager_the_last_leader_leads() -> None:
    """With `unclean.recovery.manager.enabled=false`, the last known leader leads as soon as it returns, as in Kafka."""
    for settings in (ControllerSettings(unclean_recovery_manager_enabled=False),):
        world = stricken((1, 2, 3), settings)
        (before, after), *_ = world.unclean
        assert before.last_known_elr == (after.leader,)
        assert world.partition.leader == after.leader


def test_a_node_that_reports_nothing_joins_while_the_last_leader_is_away() -> None:
    """The last leader was eligible and is away.

    Nodes that report no logs return, and the last leader leads when it is back, as in Kafka.
    """
    world = PowerWorld(Random(3), min_isr=1, assignment=(3, 1, 2))
    write(world)
    for node_id in (1, 2):
        world.kill(node_id)
    wait(world, 12_000)
    world.lose_power(3)
    world.tick(12_000)
    assert (world.partition.isr, world.partition.elr, world.partition.last_known_elr) == ((), (3,), ())
    world.release = OTHER_RELEASE
    for node_id in (1, 3):
        world.start(node_id)
        beat_all(world)
    assert world.partition.leader == 3


@pytest.mark.parametrize("seed", seeds(30))
def test_no_partition_waits_for_ever_while_releases_are_mixed(seed: int) -> None:
    """Nodes switch between releases in a random history.

    Clean leaders have all acknowledged records, and in the end there is a leader.
    """
    random = Random(seed)
    world = PowerWorld(random, min_isr=random.choice((1, 2, 3)), assignment=random.sample(NODES, 3))
    write(world, 3)
    world.is_mixed = True
    for _ in range(200):
        world.release = random.choice((THIS_RELEASE, THIS_RELEASE, OTHER_RELEASE))
        step(world, random)
    world.heal()


def test_an_operator_who_wants_a_leader_at_once_gets_one() -> None:
    """An unclean election by an operator waits for no broker. It elects the longest log that has been reported."""
    world = stricken((1, 2))
    wait(world, 12_000)
    world.start(3)
    world.kill(3)
    wait(world, 12_000)
    assert world.partition.leader == NO_LEADER
    assert not world.ask(ElectLeadersRequest(1, None)).error_code
    assert world.partition.leader == 2


@pytest.mark.parametrize("seed", seeds(40))
def test_no_history_loses_more_than_it_must(seed: int) -> None:
    """After random power losses, kills, stops and failovers, a cleanly elected leader has all acknowledged records.

    After an unclean election, the leader has the longest log of the returned replicas that were last in sync.
    """
    random = Random(seed)
    world = PowerWorld(random, min_isr=random.choice((1, 2, 2, 3)), assignment=random.sample(NODES, 3))
    write(world, 3)
    for _ in range(200):
        step(world, random)
    before = len(world.unclean)
    world.heal()
    assert len(world.unclean) <= before + 1


def step(world: PowerWorld, random: Random) -> None:
    """Do a random step."""
    node_id = random.choice(NODES)
    lives = world.nodes[node_id].lives
    kind = random.choices(
        ("produce", "fetch", "beat", "see", "propose", "tick", "sync", "die", "start", "fail_over"),
        (10, 14, 14, 4, 6, 6, 2, 2, 6, 0.5),
    )[0]
    if kind in ("produce", "propose", "fail_over"):
        getattr(world, kind)()
    elif kind == "tick":
        world.tick(random.choice((500, 1000, 4000, 10_000)))
    elif kind == "start":
        if not lives:
            world.start(node_id)
    elif lives and kind == "die":
        how = random.choice(("power", "power", "kill", "stop", "announced", "all"))
        if how == "all":
            for node in world.living():
                world.lose_power(node.node_id)
        elif how == "power":
            world.lose_power(node_id)
        elif how == "kill":
            world.kill(node_id)
        else:
            world.stop(node_id, announced=how == "announced")
    elif lives:
        getattr(world, kind)(node_id)
