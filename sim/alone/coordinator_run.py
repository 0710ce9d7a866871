"""The shared part of schedules that test a coordinator alone: a partition of three replicas, and a host on each
broker. PURE.

The partition is that of `sim.alone.replication_alone`. Each broker has a coordinator, whose shard begins and ends as
leadership comes and goes. It loads its log while other events go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from random import Random
from typing import Generic, Protocol, TypeVar

from sim.alone.replication_alone import PartitionRun, ReplicationPlan
from sim.alone.replication_broker import Broker

__all__ = ["CoordinatorRun", "draw_partition"]


class _Coordinator(Protocol):
    def follow_leadership(self) -> None:
        """Begin or end shards as this broker leads their partitions."""


class _Host(Protocol):
    """The surroundings of a broker for its coordinator (`sim.alone.by_hand`)."""

    @property
    def coordinator(self) -> _Coordinator:
        """Return the real coordinator, which is under test."""

    def work(self, random: Random) -> None:
        """Let a task go on to its next wait."""

    def die(self) -> None:
        """End the process."""


HostT = TypeVar("HostT", bound=_Host)


def draw_partition(random: Random, steps: int, weights: Mapping[str, tuple[float, ...]]) -> ReplicationPlan:
    """Draw a plan in which each kind of step is rare, common or absent, independently (swarm testing)."""
    drawn = {name: random.choice(choices) for name, choices in weights.items()}
    return ReplicationPlan(
        steps,
        random.choice((1, 2, 2)),
        drawn,
        random.choice((1000, 3000, 1 << 20)),
        random.choice((0, 4096)),
        random.random() < 0.5,
    )


class CoordinatorRun(PartitionRun, ABC, Generic[HostT]):
    """One schedule: brokers, with coordinators that begin and end with them."""

    def __init__(self, plan: ReplicationPlan, random: Random) -> None:
        self._hosts: dict[int, HostT] = {}
        super().__init__(plan, random)

    def run(self) -> Mapping[str, int]:
        """Run the schedule; returns its figures."""
        try:
            return super().run()
        finally:
            for host in self._hosts.values():
                host.die()

    @abstractmethod
    def _new_host(self, node: Broker) -> HostT:
        """Make the host of a broker that begins a life."""

    def _born(self, node: Broker) -> None:
        self._hosts[node.node_id] = self._new_host(node)

    def _apply(self, node: Broker) -> None:
        super()._apply(node)
        self._hosts[node.node_id].coordinator.follow_leadership()

    def _kill(self, *, power: bool) -> None:
        super()._kill(power=power)
        self._bury()

    def _stop(self) -> None:
        super()._stop()
        self._bury()

    def _bury(self) -> None:
        """Remove the coordinators of dead brokers."""
        for node_id, node in self.nodes.items():
            if not node.lives and node_id in self._hosts:
                self._hosts.pop(node_id).die()

    def _work(self) -> None:
        """Step one task of a coordinator: the load of its log, for one."""
        if self._hosts:
            self._work_at(self.random.choice(list(self._hosts.values())))

    def _work_at(self, host: HostT) -> None:
        host.work(self.random)

    def _replicate(self) -> None:
        """Let all replicas fetch all that is written, so that it is committed."""
        for node in self.nodes.values():
            self._apply_all(node)
            self._fetches.ask(node)
        self._fetches.deliver_all()
        self._decide()
        self._promises.look(self._living())
