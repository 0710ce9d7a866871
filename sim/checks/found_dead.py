"""The brokers that a controller has found dead are dead. PURE.

A controller fences a broker before its session ends if the host of the broker refuses connections
(`odradek.metadata_quorum.process_watch`). `FoundDead` counts these decisions, and those that concern a living process.
The latter are permitted only if the network has refused connections from this controller to this broker at some time
of the run. They would be harmless even then, since fencing a living broker loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.history import SafetyViolation
from sim.machine.members import Member

if TYPE_CHECKING:
    from sim.machine.cluster_members import Cluster

__all__ = ["FoundDead"]


class FoundDead:
    """The check of brokers that were found dead, on all controllers of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.right = self.wrong = 0
        """How many fenced processes had ended, and how many were alive."""

    def begin(self) -> None:
        """Check each broker that a controller finds dead from now on."""
        for member in self._cluster.members:
            member.on_found_dead = self.found_dead

    def found_dead(self, controller: Member, broker_id: int, broker_epoch: int) -> None:
        """Count a broker that a controller has found dead, and fail the run if it was alive without a reason."""
        broker = next(each for each in self._cluster.members if each.config.node_id == broker_id)
        if not self._is_alive(broker, broker_epoch):
            self.right += 1
            return
        self.wrong += 1
        if not self._cluster.world.fabric.has_refused(controller.name, broker.name):
            self._cluster.world.refute(
                SafetyViolation(
                    f"{controller.name} has found the living {broker.name} dead, epoch {broker_epoch}"
                )
            )

    @staticmethod
    def _is_alive(member: Member, broker_epoch: int) -> bool:
        """True if the process with this broker epoch lives, and was not asked to stop."""
        broker = None if member.node is None else member.node.broker
        return (
            broker is not None
            and member.is_up()
            and not member.is_stopping
            and broker.replication.broker_epoch == broker_epoch
        )
