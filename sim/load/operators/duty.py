"""The base class of each operator: its client, its steps, and the acknowledged or possible values of what it
changes. PORTED.

An operator takes one step after another while the storm lasts. Any step may fail. Once the cluster is healed, `check`
verifies that acknowledged steps have taken effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Generic, TypeVar

import attrs

from odradek.client.errors import ClientError
from odradek.client.shells.aio import AsyncClient
from odradek.wire.errors import KafkaError
from sim.history import SafetyViolation
from sim.load.workload import Workload
from sim.machine.cluster_members import Cluster

CALL_SECONDS = 5.0
SETTLE_SECONDS_MAX = 60.0
"""How many seconds may pass from the end of all faults until every acknowledged change is visible everywhere."""
LOOK_AGAIN_SECONDS = 0.5
T = TypeVar("T")

__all__ = ["CALL_SECONDS", "Duty", "Possible", "Site"]


@attrs.define(eq=False)
class Site:
    """The environment of an operator: the cluster, the workload, and a client on its own machine."""

    cluster: Cluster
    load: Workload
    replicas: int
    name: str

    def client(self) -> AsyncClient:
        return self.load.client(self.name, CALL_SECONDS)

    def random(self) -> Random:
        return Random(f"{self.load.world.seed}/{self.name}")


class Possible(Generic[T]):
    """The possible values of a setting. There are several after a request that was never answered."""

    def __init__(self, first: T) -> None:
        self._now: list[T] = [first]
        self._unanswered: list[T] = []
        self._ever: list[T] = [first]

    def acknowledge(self, value: T) -> None:
        """Record an acknowledged value. The setting has this value, unless an unanswered request takes effect late."""
        self._now = [value]
        self._ever.append(value)

    def ask(self, value: T) -> None:
        """Record a requested value with unknown outcome: the setting may have this value from now on."""
        self._unanswered.append(value)
        self._ever.append(value)

    def revert(self) -> None:
        """Allow every value that the setting has had and every value that was ever requested."""
        self._now = list(self._ever)

    def allows(self, value: T) -> bool:
        return value in self._now or value in self._unanswered

    def __repr__(self) -> str:
        return " or ".join(map(repr, dict.fromkeys((*self._now, *self._unanswered))))


class Duty:
    """An operator. `step` takes one step, and may raise the errors of a cluster under faults."""

    calm_seconds_max = 3.0
    """The longest pause between two steps, in seconds."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cluster = site.cluster
        self.load = site.load
        self.world = site.load.world
        self.client = site.client()
        self.random = site.random()
        self.is_over = False
        """If set to True, `run` ends after the present step."""
        self.done = 0
        """How many steps were acknowledged."""

    async def setup(self) -> None:
        """Prepare the operator before the storm. Does nothing unless overridden."""

    async def step(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        """Check that acknowledged steps have taken effect, once the cluster is healed. Raises `SafetyViolation`."""

    async def run(self) -> None:
        """Take one step after another until `is_over`. Errors of steps are only recorded."""
        while not self.is_over:
            await self.world.sleep(self.random.uniform(0.0, self.calm_seconds_max) * self.site.load.pace)
            try:
                await self.step()
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, self.site.name, "operate", error)
            else:
                self.done += 1

    async def must_hold(self, look: Callable[[], Awaitable[str | None]]) -> None:
        """Repeat `look` until it returns None. Raises `SafetyViolation` with its last text after `SETTLE_SECONDS_MAX`."""
        deadline = self.world.now + SETTLE_SECONDS_MAX
        while True:
            try:
                wrong = await look()
            except (KafkaError, ClientError) as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong is None:
                return
            if self.world.now >= deadline:
                raise SafetyViolation(f"{self.site.name}: {wrong}")
            await self.world.sleep(LOOK_AGAIN_SECONDS)

    def close(self) -> None:
        self.client.close()
