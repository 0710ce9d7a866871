"""The life of a group member's process, for `crowd.py` and `herd.py`: started on its machine, then closed,
killed or paused. PORTED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Protocol

from odradek.env.ports import Env, TaskGroup
from sim.machine.world import World

__all__ = ["AWAY_SECONDS_MAX", "live_out"]

AWAY_SECONDS_MAX = 2.0
"""The longest time in seconds between two member processes on one machine."""
CLOSE_SECONDS = 20.0


class Life(Protocol):
    """A group member's process, which runs until it is stopped."""

    is_over: bool
    """If set to True, the member closes and the process ends."""

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
    """Run a member on the machine `slot` for `life_seconds`. Then let it close, crash or pause, as `end` says
    ("close", "die", "stall").

    A pause lasts for as many seconds as `draw_stall` returns. After the pause the member runs on for a while, and
    closes.
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
