"""The state of a cluster's machines and links: which of them are fit, and for how long. PURE.

The state is read from the simulated machines, disks and links, without the product's code. Whenever a fault of a
machine or link begins or ends, the time since which the machine or link is fit starts again.

These are unfit:

* a machine whose process is dead, paused or asked to stop. The machine is fit again once a new process is launched;
* a machine that is slow, until the work that it started while it was slow is done;
* a machine whose disk hangs, is full, has died or reports errors;
* a link that is cut, slow, narrow or closed, in either direction. The silent loss of connections counts as a fault
  that begins and ends at the same moment, since the product detects the loss by timeouts.

A machine with a wrong clock is fit, since nothing may depend on clocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from sim.checks.bounds import FULL, HANGS
from sim.machine.members import Member

if TYPE_CHECKING:
    from sim.machine.world import World

FAULTS_KEPT = 12
NEVER = math.inf

__all__ = ["NEVER", "Fitness"]


@attrs.define(eq=False)
class _Machine:
    """The state of a machine at the last call of `look`. `wrong` names its fault; "" means that the machine has none."""

    env: object = None
    wrong: str = "not started"
    changed: float = 0.0


class Fitness:
    """Which machines and links are fit, and the times since which they are fit. `look` updates the state."""

    def __init__(self, world: World, members: Sequence[Member]) -> None:
        self._world = world
        self._members = members
        self._machines = {member.name: _Machine() for member in members}
        self._wrong: dict[tuple[str, str], bool] = {}
        """For each pair of hosts whose link is unfit: True if the link is cut in at least one direction."""
        self._changed: dict[tuple[str, str], float] = {}
        self._severed: dict[tuple[str, str], float] = {}
        self.faults: deque[str] = deque(maxlen=FAULTS_KEPT)
        """The last faults that began or ended, in words."""

    def look(self) -> None:
        """Update the state of all machines and links."""
        now = self._world.now
        for member in self._members:
            running = member.running
            env = None if running is None else running.env
            wrong = self._wrong_with(member)
            known = self._machines[member.name]
            if known.env is not env or known.wrong != wrong:
                self._machines[member.name] = _Machine(env, wrong, now)
                self.faults.append(f"{member.name} {wrong or 'is fit'} at {now:.2f} s")
        self._look_at_links(now)

    def _look_at_links(self, now: float) -> None:
        fabric = self._world.fabric
        wrong: dict[tuple[str, str], bool] = {}
        for (source, target), is_cut in fabric.wrong():
            pair = _pair(source, target)
            wrong[pair] = wrong.get(pair, False) or is_cut
        if wrong != self._wrong:
            for pair in {**self._wrong, **wrong}:
                if wrong.get(pair) != self._wrong.get(pair):
                    self._changed[pair] = now
                    self._note_link(
                        pair, {None: "is fit", True: "cut", False: "slow or closed"}[wrong.get(pair)]
                    )
            self._wrong = wrong
        if fabric.severed != self._severed:
            for (here, there), at in fabric.severed.items():
                if self._severed.get((here, there)) != at:
                    self._changed[_pair(here, there)] = at
                    self._note_link((here, there), "forgotten")
            self._severed = dict(fabric.severed)

    def _note_link(self, pair: tuple[str, str], what: str) -> None:
        if pair[0] in self._machines and pair[1] in self._machines:
            self.faults.append(f"{pair[0]} to {pair[1]} {what} at {self._world.now:.2f} s")

    def _wrong_with(self, member: Member) -> str:
        running = member.running
        if running is None or running.ended.is_set() or not running.env.alive:
            return "dead" if self._world.machine(member.name).host.up else "without power"
        env = running.env
        if env.stopped:
            return "paused"
        if member.is_stopping:
            return "stopping"
        machine = self._world.machine(member.name)
        if not env.has_descriptors:
            return "without descriptors"
        if env.hangs_until > self._world.now:
            return HANGS
        if machine.disk.capacity_bytes is not None:
            return FULL
        if member.disk_is_bad or machine.disk.dead_paths:
            return "with a bad disk"
        return "slow" if env.work_factor != 1.0 or env.slow_until > self._world.now else ""

    # --- machines

    def wrong_with(self, name: str) -> str:
        """Return the fault of a machine in a word; "" if it has none."""
        return self._machines[name].wrong

    def changed(self, name: str) -> float:
        """Return the virtual time at which a fault of this machine last began or ended."""
        return self._machines[name].changed

    def since(self, name: str) -> float:
        """Return the virtual time since which this machine has been fit; `NEVER` if it is unfit."""
        machine = self._machines[name]
        return NEVER if machine.wrong else machine.changed

    # --- links

    def is_cut(self, one: str, other: str) -> bool:
        """True if the link between the two machines is cut in at least one direction."""
        return self._wrong.get(_pair(one, other), False)

    def link_changed(self, one: str, other: str) -> float:
        """Return the virtual time at which a fault of this link last began or ended."""
        return self._changed.get(_pair(one, other), 0.0)

    def link_since(self, one: str, other: str) -> float:
        """Return the virtual time since which this link has been fit; `NEVER` if it is unfit."""
        if one == other:
            return 0.0
        pair = _pair(one, other)
        return NEVER if pair in self._wrong else self._changed.get(pair, 0.0)

    def together_since(self, names: Sequence[str]) -> float:
        """Return the virtual time since which all these machines and the links between them have been fit."""
        latest = max(self.since(name) for name in names)
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                latest = max(latest, self.link_since(one, other))
        return latest


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
