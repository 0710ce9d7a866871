"""The parts of each operator: a client, randomness of its own, and the promises made to it. PORTED.

An operator does one thing after the other while the storm lasts. Any action may fail. An acknowledged action is a
promise, and `check` verifies it when the cluster is healed.
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
"""How long after the healing something promised may take to be seen everywhere."""
LOOK_AGAIN_SECONDS = 0.5
T = TypeVar("T")

__all__ = ["CALL_SECONDS", "Duty", "Possible", "Site"]


@attrs.define(eq=False)
class Site:
    """An operator's tools: the cluster, the load, and a client on a machine of its own."""

    cluster: Cluster
    load: Workload
    replicas: int
    name: str

    def client(self) -> AsyncClient:
        return self.load.client(self.name, CALL_SECONDS)

    def random(self) -> Random:
        return Random(f"{self.load.world.seed}/{self.name}")


class Possible(Generic[T]):
    """The values that something may have, after requests of which some were never answered."""

    def __init__(self, first: T) -> None:
        self._now: list[T] = [first]
        self._unanswered: list[T] = []
        self._ever: list[T] = [first]

    def acknowledge(self, value: T) -> None:
        """Set the acknowledged value, unless a request without an answer acts late."""
        self._now = [value]
        self._ever.append(value)

    def ask(self, value: T) -> None:
        """Add a value that may hold from now on: the outcome of the request is unknown."""
        self._unanswered.append(value)
        self._ever.append(value)

    def revert(self) -> None:
        """Allow all earlier values, and all that were requested."""
        self._now = list(self._ever)

    def allows(self, value: T) -> bool:
        return value in self._now or value in self._unanswered

    def __repr__(self) -> str:
        return " or ".join(map(repr, dict.fromkeys((*self._now, *self._unanswered))))


class Duty:
    """One operator. `step` does one thing and may raise the errors of a cluster in a storm."""

    calm_seconds_max = 3.0
    """The longest pause between two steps."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cluster = site.cluster
        self.load = site.load
        self.world = site.load.world
        self.client = site.client()
        self.random = site.random()
        self.is_over = False
        """If True, `run` ends after the step under way."""
        self.done = 0
        """Steps that were acknowledged."""

    async def setup(self) -> None:
        """Prepare before the storm."""

    async def step(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        """Check the healed cluster against its promises. Raises `SafetyViolation`."""

    async def run(self) -> None:
        """Perform one action after the other until the storm is over."""
        while not self.is_over:
            await self.world.sleep(self.random.uniform(0.0, self.calm_seconds_max) * self.site.load.pace)
            try:
                await self.step()
            except (KafkaError, ClientError) as error:
                self.world.trace.record(self.world.now, self.site.name, "operate", error)
            else:
                self.done += 1

    async def must_hold(self, look: Callable[[], Awaitable[str | None]]) -> None:
        """Wait until `look` finds nothing wrong. Raises `SafetyViolation` with the last fault that it found."""
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
