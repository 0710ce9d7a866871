"""CPU work that takes virtual time, and processes without free file descriptors."""

from __future__ import annotations

import attrs
import pytest

from odradek.env.ports import ConnectionLost, Env, ResourcesShort
from sim.machine.weather import Weather
from sim.machine.world import World

SECONDS = 10.0
SLOW = Weather(wake_seconds=0.01)


async def _count(env: Env, every_seconds: float) -> int:
    """Wake repeatedly for `SECONDS`; return how often."""
    clock, count = env.clock, 0
    ends_at = clock.monotonic() + SECONDS
    while clock.monotonic() < ends_at:
        await clock.sleep_until(clock.monotonic() + every_seconds)
        count += 1
    return count


def _counts(weather: Weather, every_seconds: float, seed: int = 1) -> int:
    world = World(seed, weather)
    counts: list[int] = []

    async def node(env: Env) -> None:
        counts.append(await _count(env, every_seconds))

    async def main() -> None:
        await world.start("a", node).ended.wait()

    world.run(main)
    return counts[0]


def test_a_busy_process_gets_less_done() -> None:
    """If each wake costs 10 ms, a process wakes at most a hundred times a second."""
    assert _counts(Weather(), 0.001) >= 9_900
    assert _counts(SLOW, 0.001) <= 1_200


def test_an_idle_process_is_held_up_for_its_own_work_alone() -> None:
    """An idle process beside a busy process is not delayed by it. Its timers are late only by their own cost."""
    world = World(1, SLOW)
    counts: list[int] = []

    async def busy(env: Env) -> None:
        await _count(env, 0.001)

    async def idle(env: Env) -> None:
        counts.append(await _count(env, 1.0))

    async def main() -> None:
        others = [world.start("a", busy), world.start("b", idle)]
        for running in others:
            await running.ended.wait()

    world.run(main)
    assert counts[0] >= 9


def test_turns_that_last_are_drawn_from_the_seed() -> None:
    """The delays are drawn from the seed. The same seed gives the same delays, and another seed gives others."""
    turns = attrs.evolve(SLOW, wake_seconds=0.0001, long_turn_probability=0.05, long_turn_seconds=1.0)
    first, again, other = (_counts(turns, 0.01, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_process_that_is_stopped_stays_so_when_its_work_is_done() -> None:
    """A process that is stopped in the middle of its work stays stopped when the work is done."""
    world = World(1, SLOW)
    seen: list[float] = []

    async def node(env: Env) -> None:
        for _ in range(400):
            await env.clock.sleep_until(env.clock.monotonic() + 0.001)
            seen.append(world.now)

    async def main() -> None:
        running = world.start("a", node)
        await world.sleep(0.1)
        world.pause("a")
        stopped = len(seen)
        await world.sleep(5.0)
        assert len(seen) == stopped
        world.resume("a")
        await running.ended.wait()

    world.run(main)
    assert len(seen) == 400


def test_a_process_without_descriptors_opens_nothing_and_connects_to_nobody() -> None:
    """Without descriptors, opening a file or a connection fails until some are released. Open files keep working."""
    world = World(1, Weather())

    async def main() -> None:
        env = world.node_env("a")
        directory = env.open_dir("/data", create=True)
        file = directory.open("known", create=True)
        world.take_descriptors("a")
        with pytest.raises(ResourcesShort):
            directory.open("other", create=True)
        with pytest.raises(ConnectionLost, match="too many open files"):
            await env.network.connect("b", 1)
        assert file.append(b"x") == 0
        world.give_descriptors("a")
        directory.open("other", create=True).close()

    world.run(main)
