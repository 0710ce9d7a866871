"""Controllers over a simulated network: elections, commits, deaths, cuts. The drivers at work, not only the core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sim.weather import Weather
from sim.world import World
from tests.quorum.controllers import Controllers, calm_world, host_of, register
from wire.errors import ErrorCode

Script = Callable[[World, Controllers], Awaitable[None]]


def play(script: Script, world: World | None = None, **options: Any) -> None:
    """Start all nodes and run the script."""
    world = world or calm_world()
    controllers = Controllers(world, **options)

    async def main() -> None:
        controllers.start_all()
        await script(world, controllers)

    world.run(main)


def logs_are_equal(controllers: Controllers, node_ids: tuple[int, ...] = (1, 2, 3)) -> None:
    """The logs on all disks, batch by batch."""
    first, *others = (controllers.log_of(each) for each in node_ids)
    assert first
    assert all(each == first for each in others)


@pytest.mark.parametrize("static", [False, True])
def test_three_voters_elect_a_leader_and_commit(static: bool) -> None:
    """One of them leads; what it decides is on every disk, in the same batches. Voters in the log or in the file."""

    async def script(world: World, controllers: Controllers) -> None:
        assert (await controllers.ask(register(100))).error_code == 0
        await controllers.agree()
        assert all(100 in each.service.committed_image.brokers for each in controllers.members.values())
        assert sum(each.is_active for each in controllers.members.values()) == 1
        logs_are_equal(controllers)

    play(script, static=static)


def test_an_observer_finds_the_leader_by_the_bootstrap_servers() -> None:
    """A node that is no voter follows the same log; it does not know the voters at first."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        observer = await controllers.until(lambda: controllers.members.get(4))
        await observer.service.caught_up()
        assert 100 in observer.service.committed_image.brokers
        assert observer.service.submit(register(101)).response.error_code == ErrorCode.NOT_CONTROLLER
        await controllers.ask(register(102))
        await controllers.agree()
        logs_are_equal(controllers, (1, 4))

    play(script, observers=(4,))


def test_a_new_leader_takes_over_when_the_old_one_dies() -> None:
    """Its peers see the broken connection and vote at once; what was committed is there, the old one follows."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = (await controllers.leader()).node_id
        died_at = world.now
        controllers.crash(old)
        new = await controllers.leader()
        assert world.now - died_at < 1.0
        assert new.node_id != old
        assert 100 in new.service.committed_image.brokers
        await controllers.ask(register(101))
        controllers.start(old)
        await controllers.until(lambda: old in controllers.members)
        await controllers.agree()
        logs_are_equal(controllers)

    play(script)


def test_a_leader_that_is_cut_off_resigns_and_its_decisions_are_taken_back() -> None:
    """Check quorum (thesis, 6.2): it answers nobody, hears of the new epoch when the cut heals, and cuts its log."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != old.node_id]
        for each in others:
            world.partition(host_of(old.node_id), host_of(each))
        answers: list[Any] = []
        old.service.submit(register(666)).on_release(answers.append)
        await controllers.until(lambda: not old.is_active)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]
        new = await controllers.leader()
        assert new is not old
        await controllers.ask(register(101))
        for each in others:
            world.heal(host_of(old.node_id), host_of(each))
        await controllers.agree()
        assert 666 not in old.service.committed_image.brokers
        assert "metadata.truncated" in old.journal.events
        logs_are_equal(controllers)

    play(script)


def test_a_minority_decides_nothing() -> None:
    """With two of three voters dead no answer is given; with one of them back all goes on."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        leader = await controllers.leader()
        others = [each for each in (1, 2, 3) if each != leader.node_id]
        for each in others:
            controllers.crash(each)
        answers: list[Any] = []
        leader.service.submit(register(101)).on_release(answers.append)
        await controllers.until(lambda: not leader.is_active)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_CONTROLLER]
        await world.sleep(10.0)
        assert controllers.active() is None
        controllers.start(others[0])
        await controllers.ask(register(102))

    play(script)


def test_a_clean_stop_hands_over() -> None:
    """EndQuorumEpoch names whom to elect: the next leader is there at once."""

    async def script(world: World, controllers: Controllers) -> None:
        await controllers.ask(register(100))
        old = (await controllers.leader()).node_id
        stopped_at = world.now
        await controllers.stop(old)
        new = await controllers.leader()
        assert new.node_id != old
        assert world.now - stopped_at < 0.2

    play(script)


def test_followers_that_lag_fetch_many_batches_at_once() -> None:
    """Hundreds of batches in a few answers, each synced before the next is asked for."""

    async def script(world: World, controllers: Controllers) -> None:
        leader = await controllers.leader()
        behind = next(each for each in (1, 2, 3) if each != leader.node_id)
        controllers.crash(behind)
        for number in range(200):
            await controllers.ask(register(1000 + number))
        controllers.start(behind)
        await controllers.until(lambda: behind in controllers.members)
        await controllers.agree()
        logs_are_equal(controllers)

    play(script)


@pytest.mark.parametrize("seed", range(8))
def test_crashes_power_cuts_and_bad_weather_lose_no_answer(seed: int) -> None:
    """Whatever was answered holds for ever after; in the end all logs are the same."""
    world = World(seed, Weather.draw(World(seed)._stream("weather")))

    async def script(world: World, controllers: Controllers) -> None:
        told: list[int] = []
        for number in range(12):
            if number % 3 == 2:
                victim = world.random.choice(controllers.node_ids)
                machine = world.machine(host_of(victim))
                if machine.env is not None and machine.env.alive:
                    controllers.crash(victim, world.random.choice(["all", "synced", "random"]))
                    world.spawn(lambda victim=victim: restart(world, controllers, victim))
            answer = await controllers.ask(register(100 + number), 120.0)
            if answer.error_code == 0:
                told.append(100 + number)
        controllers.start_all()
        await controllers.until(lambda: len(controllers.members) == 3)
        await controllers.agree(60.0)
        assert len(told) > 6
        for member in controllers.members.values():
            assert set(told) <= set(member.service.committed_image.brokers)
        logs_are_equal(controllers)

    play(script, world)


async def restart(world: World, controllers: Controllers, node_id: int) -> None:
    await world.sleep(world.random.random() * 3)
    controllers.start_all()
