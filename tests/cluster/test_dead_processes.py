"""The process of a broker ends, or seems to have ended: only a proof fences the broker before its session ends."""

from __future__ import annotations

import pytest

from odradek.metadata_quorum.controller.decision_figures import DecisionFigures
from tests.cluster.disks.test_troubled_disks import START_SECONDS, Troubled

LONG_SESSION = {"broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "30000"}
NOTICED_SECONDS_MAX = 1.0
"""Far below the session timeout, and below the interval of the heartbeats."""
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
        before = case.world.now
        await case.member(1).kill("all")
        while case.seen_by(2).leader == 1:
            assert case.world.now < before + NOTICED_SECONDS_MAX
            await case.world.sleep(0.01)
        assert decided(case).fenced_at_death == 1
        await case.until(lambda: len(case.acknowledged) > 3)

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


@pytest.mark.parametrize("how", ["paused", "unreachable"])
def test_a_living_broker_is_suspected_and_stays(how: str) -> None:
    """A broker sends no heartbeats for a while, because it is paused or because its link is cut. Its host refuses
    nothing, so the broker stays."""

    async def script(case: Troubled) -> None:
        await acquainted(case)
        world, name = case.world, case.member(3).name
        controller = case.cluster.controllers[0].name
        if how == "paused":
            world.pause(name)
        else:
            world.cut(name, controller)
        await world.sleep(PAUSE_SECONDS)
        if how == "paused":
            world.resume(name)
        else:
            world.heal(name, controller)
        assert not case.broker(2).image.brokers[3].fenced
        assert decided(case).fenced_at_death == 0
        await case.whole(START_SECONDS)

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
