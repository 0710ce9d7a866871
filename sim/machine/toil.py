"""CPU work that takes virtual time, in some weathers. In all other weathers code runs without any advance of virtual
time.

Each wake of a process costs `Weather.wake_seconds`, and now and then a turn of its event loop lasts up to
`long_turn_seconds`. These costs are charged every `LOOK_SECONDS`. The process's events are held back for as long as
the costs, while its clock runs on. So everything that the process does is late; the more work, the later. Real time
plays no part, so the same seed gives the same delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from sim.machine.events import Agenda
from sim.machine.sim_env import SimEnv

LOOK_SECONDS = 0.03
BILL_SECONDS_MIN = 0.002
"""Costs below this, in seconds, are not charged yet: they are added to the next charge."""

__all__ = ["Toil"]


class Toil:
    """Charges all processes for their CPU time. `envs` returns the environments of the present processes."""

    def __init__(self, agenda: Agenda, envs: Callable[[], Iterable[SimEnv]], random: Random) -> None:
        self._agenda = agenda
        self._envs = envs
        self._random = random
        self._paid: dict[SimEnv, int] = {}
        """How many wakes of each process were charged."""

    def begin(self) -> None:
        """Charge all processes now, and again every `LOOK_SECONDS`."""
        self._agenda.at(self._agenda.now + LOOK_SECONDS, self.begin)
        paid: dict[SimEnv, int] = {}
        for env in self._envs():
            if env.alive:
                before = self._paid.get(env, 0)
                paid[env] = before if env.paused else self._bill(env, before)
        self._paid = paid

    def _bill(self, env: SimEnv, before: int) -> int:
        """Pause the process for its work since the last charge. Return how many of its wakes have been charged in
        total.
        """
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
