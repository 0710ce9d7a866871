"""One life of a member of a group, on a machine of its own. PORTED."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Protocol

from odradek.env.ports import Env, TaskGroup
from sim.machine.world import World

__all__ = ["AWAY_SECONDS_MAX", "live_out"]

AWAY_SECONDS_MAX = 2.0
"""The longest time between two lives on one machine."""
CLOSE_SECONDS = 20.0


class Life(Protocol):
    """A process that is a member until it is stopped."""

    is_over: bool
    """If True, the member closes, and the process ends."""

    async def main(self, env: Env, tasks: TaskGroup, settings: Mapping[str, str]) -> None: ...


async def live_out(
    world: World,
    slot: str,
    life: Life,
    settings: Mapping[str, str],
    *,
    end: str,
    life_seconds: float,
    draw_stall: Callable[[], float],
    random: Random,
) -> None:
    """Run a member on a machine for some seconds, and then let it `close`, `die` or `stall`.

    A member that stalls is frozen for as many seconds as `draw_stall` returns. Then it goes on as if nothing had happened, and closes.
    """
    running = world.start_program(slot, partial(life.main, settings=settings))
    await world.wait(running.ended, life_seconds)
    if end == "stall":
        seconds = draw_stall()
        world.pause(slot)
        await world.wait(running.ended, seconds)
        world.resume(slot)
        await world.wait(running.ended, life_seconds)
    if end != "die":
        life.is_over = True
        await world.wait(running.ended, CLOSE_SECONDS)
    if not running.ended.is_set():
        world.crash(slot, random.choice(("all", "random")))
        await running.ended.wait()
