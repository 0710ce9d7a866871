"""Base class of schedules for one coordinator: a partition with three replicas, and a coordinator on each broker.
PURE.

The partition is simulated as in `sim.alone.replication_alone`. When a broker becomes the partition's leader, its
coordinator starts a shard and loads the log; other events happen meanwhile. When the broker stops leading, the shard
ends.
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
        """Start or end shards so that they match the partitions which this broker leads."""


class _Host(Protocol):
    """A coordinator with its simulated broker (`sim.alone.by_hand`). This protocol has the methods that the schedules
    of all kinds of coordinators use.
    """

    @property
    def coordinator(self) -> _Coordinator:
        """The product's coordinator, which is under test."""

    def work(self, random: Random) -> None:
        """Run one random task of the coordinator until its next pause."""

    def die(self) -> None:
        """End the broker's process and all its tasks."""


HostT = TypeVar("HostT", bound=_Host)


def draw_partition(random: Random, steps: int, weights: Mapping[str, tuple[float, ...]]) -> ReplicationPlan:
    """Draw the plan of a partition. Independently of the others, each kind of step is rare, common or absent (swarm
    testing).
    """
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
    """Base class for one run of a schedule. Each broker has a coordinator, which starts and ends with the broker's
    process.
    """

    def __init__(self, plan: ReplicationPlan, random: Random) -> None:
        self._hosts: dict[int, HostT] = {}
        super().__init__(plan, random)

    def run(self) -> Mapping[str, int]:
        """Run the schedule, and return counts of its events, each with a name."""
        try:
            return super().run()
        finally:
            for host in self._hosts.values():
                host.die()

    @abstractmethod
    def _new_host(self, node: Broker) -> HostT:
        """Make the coordinator's host for a broker whose process has just started."""

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
        """Remove the hosts of brokers whose processes have ended."""
        for node_id, node in self.nodes.items():
            if not node.lives and node_id in self._hosts:
                self._hosts.pop(node_id).die()

    def _work(self) -> None:
        """Step one task of a random broker's coordinator, such as the task that loads the log."""
        if self._hosts:
            self._work_at(self.random.choice(list(self._hosts.values())))

    def _work_at(self, host: HostT) -> None:
        host.work(self.random)

    def _replicate(self) -> None:
        """Let all replicas fetch up to the log end, so that all records are committed."""
        for node in self.nodes.values():
            self._apply_all(node)
            self._fetches.ask(node)
        self._fetches.deliver_all()
        self._decide()
        self._promises.look(self._living())
