"""CPU work that takes virtual time. Otherwise code of a simulation runs in no time. Some weathers have this.

Each wake of a process costs `Weather.wake_seconds`, and now and then a turn of its event loop lasts up to
`long_turn_seconds`. These costs are charged every `LOOK_SECONDS`: for so long the process's events are held back,
while its clock runs on. So everything that it does is late, and later with more work. No real time is measured: the
same seed gives the same delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from sim.machine.events import Agenda
from sim.machine.sim_env import SimEnv

LOOK_SECONDS = 0.03
BILL_SECONDS_MIN = 0.002
"""Smaller costs, in seconds, are charged at a later look."""

__all__ = ["Toil"]


class Toil:
    """Charges all processes for their CPU time. `envs` returns the present ones."""

    def __init__(self, agenda: Agenda, envs: Callable[[], Iterable[SimEnv]], random: Random) -> None:
        self._agenda = agenda
        self._envs = envs
        self._random = random
        self._paid: dict[SimEnv, int] = {}
        """By process: how many of its wakes were charged."""

    def begin(self) -> None:
        """Start to charge the processes; this repeats every `LOOK_SECONDS`."""
        self._agenda.at(self._agenda.now + LOOK_SECONDS, self.begin)
        paid: dict[SimEnv, int] = {}
        for env in self._envs():
            if env.alive:
                before = self._paid.get(env, 0)
                paid[env] = before if env.paused else self._bill(env, before)
        self._paid = paid

    def _bill(self, env: SimEnv, before: int) -> int:
        """Pause the process for its work since the last charge. Return how many wakes are charged now."""
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
