"""The process of a broker ends, or seems to have ended: only a proof fences the broker before its session ends."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from odradek.metadata_quorum.controller.brokers.broker_registration import FenceDeadBrokers
from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from odradek.metadata_quorum.image.metadata_image import BrokerImage, ListenerImage, MetadataImage
from odradek.metadata_quorum.process_watch import ProcessWatch
from sim.machine.members import TraceLog
from sim.machine.weather import Weather
from sim.machine.world import World
from tests.cluster.disks.test_troubled_disks import START_SECONDS, Troubled

LONG_SESSION = {"broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "30000"}
NOTICED_SECONDS_MAX = 1.0
"""Far below the session timeout, and below the interval of the heartbeats."""
EARLY = "broker.heartbeat_for_a_fenced_broker"
SHORT_PAUSE_SECONDS = 1.5
SILENT_SECONDS_MAX = 3.5
"""`odradek.broker.suspicion.ms`, and half a second for the second voice and the decision."""
PAUSE_SECONDS = 10.0
"""Longer than `odradek.broker.suspicion.ms`, and shorter than the session timeout."""


def decided(case: Troubled) -> DecisionFigures:
    """Return the figures of the only controller."""
    node = case.cluster.controllers[0].node
    assert node is not None
    return node.metadata.decided


async def acquainted(case: Troubled) -> None:
    """Write one record, and give the controller time to connect to all brokers."""
    assert await case.write() == 0
    await case.world.sleep(2.0)


def test_a_killed_leader_is_replaced_before_its_session_ends() -> None:
    """When a leader is killed, another replica leads within a second, and all acknowledged records are there."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        before, early = case.world.now, case.world.states[EARLY]
        await case.member(1).kill("all")
        while case.seen_by(2).leader == 1:
            assert case.world.now < before + NOTICED_SECONDS_MAX
            await case.world.sleep(0.01)
        assert decided(case).fenced_at_death == 1
        await case.until(lambda: len(case.acknowledged) > 3)
        # Both living brokers were heard at once, so that the dead one may leave ISRs.
        assert case.world.states[EARLY] == early + 2

    Troubled(settings=LONG_SESSION).play(script)


def test_a_killed_leader_that_is_back_at_once_is_not_fenced_again() -> None:
    """A killed broker starts again at once. The suspicion of its first process does not concern the second."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        await case.member(1).kill("all")
        case.member(1).launch()
        await case.whole(START_SECONDS)
        fenced = decided(case).fenced_at_death
        await case.world.sleep(PAUSE_SECONDS)
        assert decided(case).fenced_at_death == fenced <= 1
        assert not case.broker(2).image.brokers[1].fenced

    Troubled(settings=LONG_SESSION).play(script)


def test_a_broker_that_only_the_controller_misses_stays() -> None:
    """The link between a broker and the controller is cut. The other brokers hear it, so it stays until its session
    ends."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        world, name = case.world, case.member(3).name
        controller = case.cluster.controllers[0].name
        world.cut(name, controller)
        await world.sleep(PAUSE_SECONDS)
        world.heal(name, controller)
        assert not case.broker(2).image.brokers[3].fenced
        assert decided(case).fenced_at_death == decided(case).fenced_by_silence == 0
        await case.whole(START_SECONDS)

    Troubled(settings=LONG_SESSION).play(script)


@pytest.mark.parametrize("how", ["paused", "cut off"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_broker_that_nobody_hears_is_fenced_before_its_session_ends(how: str, number: int) -> None:
    """A leader (1) or a follower (3) is paused, or its host is cut off from all others. The controller and another
    broker miss it, so it is fenced within `SILENT_SECONDS_MAX`. It comes back when they hear it again."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        world, name = case.world, case.member(number).name
        others = [each.name for each in case.cluster.members if each.name != name]
        before = world.now
        if how == "paused":
            world.pause(name)
        else:
            for other in others:
                world.cut(name, other)
        while not case.broker(2).image.brokers[number].fenced:
            assert world.now < before + SILENT_SECONDS_MAX
            await world.sleep(0.01)
        assert decided(case).fenced_by_silence == 1
        if how == "paused":
            world.resume(name)
        else:
            for other in others:
                world.heal(name, other)
        await case.whole(START_SECONDS)

    Troubled(settings=LONG_SESSION).play(script)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_short_pause_fences_nobody(number: int) -> None:
    """A broker is paused for 1.5 seconds. It misses heartbeats and fetches, and stays."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        for tenths in range(10):
            case.world.pause(case.member(number).name)
            await case.world.sleep(SHORT_PAUSE_SECONDS)
            case.world.resume(case.member(number).name)
            await case.world.sleep(1.0 + tenths / 10)
        assert decided(case).fenced_by_silence == decided(case).fenced_by_timeout == 0

    Troubled(settings=LONG_SESSION).play(script)


def test_a_network_that_refuses_controllers_proves_nothing() -> None:
    """A firewall refuses connections from the controller to a new incarnation. When the heartbeats stop, the broker is
    not taken for dead."""

    async def script(case: Troubled) -> None:
        world, name = case.world, case.member(3).name
        controller = case.cluster.controllers[0].name
        world.fabric.close_link(controller, name, "refuses")
        await case.member(3).kill("all")
        case.member(3).launch()
        await case.whole(START_SECONDS)
        fenced = decided(case).fenced_at_death
        world.pause(name)
        await world.sleep(PAUSE_SECONDS)
        world.resume(name)
        assert decided(case).fenced_at_death == fenced
        world.fabric.close_link(controller, name, None)

    Troubled(settings=LONG_SESSION).play(script)


class Stub:
    """The part of a metadata service that a watch uses, with one broker and two listeners."""

    is_active = True

    def __init__(self) -> None:
        self.decided = DecisionFigures()
        listeners = (ListenerImage("INNER", "broker", 9092, 0), ListenerImage("OUTER", "elsewhere", 9092, 0))
        broker = BrokerImage(1, 7, b"i" * 16, listeners, (), None, False, False, ())
        self.committed_image = attrs.evolve(MetadataImage(), brokers={1: broker})
        self.fenced: list[FenceDeadBrokers] = []

    def silent_brokers(self, since_ms: int) -> list[BrokerImage]:
        return []

    def fence_dead(self, request: FenceDeadBrokers, told: Callable[[list[int] | None], None]) -> None:
        self.fenced.append(request)
        told([each.broker_id for each in request.brokers])


def test_only_addresses_that_have_accepted_are_asked() -> None:
    """A broker also advertises an address at which another host refuses. While the way to the broker is cut, that
    refusal proves nothing. When the process ends, the refusal of its own host is enough."""
    world, stub = World(3, Weather()), Stub()

    async def main() -> None:
        env = world.node_env("controller")
        world.node_env("elsewhere")
        listener = world.node_env("broker").network.listen("", 9092)
        log = TraceLog(world, "controller")
        watch = ProcessWatch(env, env.network, stub, log, node_id=101, suspicion_ms=3000)
        world.tasks.start_soon(watch.run, world.tasks)
        await world.sleep(1.0)
        world.partition("controller", "broker")
        watch.suspect_all()
        await world.sleep(3.0)
        assert not stub.fenced
        world.heal("controller", "broker")
        listener.close()
        watch.suspect_all()
        await world.sleep(3.0)
        assert [each.brokers[0].broker_epoch for each in stub.fenced] == [7]

    world.run(main, virtual_seconds_max=60.0)
