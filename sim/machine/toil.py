"""CPU that takes virtual time: in a virtual world code runs in no time, unless the weather lets it cost.

Each wake of a process costs `Weather.wake_seconds`, and now and then a turn of its loop lasts `long_turn_seconds`. The
bill comes a few times in a tenth of a second: for so long nothing happens to the process, while its clock goes on. So
all that it does comes late, and more work makes it later. Nothing is measured: the same seed gives the same delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from sim.machine.events import Agenda
from sim.machine.sim_env import SimEnv

LOOK_SECONDS = 0.03
BILL_SECONDS_MIN = 0.002
"""A smaller bill waits for the next look."""

__all__ = ["Toil"]


class Toil:
    """The bills of all processes. `envs` returns the present ones."""

    def __init__(self, agenda: Agenda, envs: Callable[[], Iterable[SimEnv]], random: Random) -> None:
        self._agenda = agenda
        self._envs = envs
        self._random = random
        self._paid: dict[SimEnv, int] = {}
        """Wakes of each living process that have been paid."""

    def begin(self) -> None:
        """Look now, and again and again."""
        self._agenda.at(self._agenda.now + LOOK_SECONDS, self.begin)
        paid: dict[SimEnv, int] = {}
        for env in self._envs():
            if env.alive:
                before = self._paid.get(env, 0)
                paid[env] = before if env.paused else self._bill(env, before)
        self._paid = paid

    def _bill(self, env: SimEnv, before: int) -> int:
        """Hold the process up for its work since the last call; returns the number of wakes that are paid now."""
        weather = env.weather
        wakes = env.wakes
        seconds = (wakes - before) * weather.wake_seconds
        if wakes > before and self._random.random() < weather.long_turn_probability:
            seconds += self._random.uniform(0.0, weather.long_turn_seconds)
        if seconds < BILL_SECONDS_MIN:
            return before
        env.paused = True
        self._agenda.at(self._agenda.now + seconds, lambda: self._settle(env))
        return wakes

    def _settle(self, env: SimEnv) -> None:
        if env.alive and env.paused and not env.stopped:
            env.paused = False
            self._agenda.release(env)
