"""The brokers that a controller has found dead are dead. PURE.

A controller fences a broker before its session ends if the host of the broker refuses connections
(`odradek.metadata_quorum.process_watch`). `FoundDead` counts these decisions, and those that concern a living process.
The latter are permitted only if the network has just refused connections from this controller to this broker. They would be harmless even then, since fencing a living broker loses nothing.

A broker may also be fenced because two voices have not heard it. This proves no death, so it is only counted. How
seldom living brokers are concerned is found by a part alone (`sim/alone/silence_alone.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.history import SafetyViolation
from sim.machine.members import Member

if TYPE_CHECKING:
    from sim.machine.cluster_members import Cluster

JUST_SECONDS = 5.0
"""The time between a refusal and the decision, at most: the attempts to connect, and the wait for other suspicions and
for the commit.
"""

__all__ = ["FoundDead"]


class FoundDead:
    """The check of brokers that were found dead, on all controllers of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.right = self.wrong = 0
        """How many fenced processes had ended, and how many were alive."""
        self.found: set[tuple[int, int]] = set()
        """The (id, epoch) of each broker that was found dead or silent."""
        self.silent = self.silent_alive = 0
        """How many brokers were fenced because two voices had not heard them, and how many of these were alive."""

    def begin(self) -> None:
        """Check each broker that a controller finds dead from now on."""
        for member in self._cluster.members:
            member.on_found_dead = self.found_dead
            member.on_found_silent = self.found_silent

    def found_dead(self, controller: Member, broker_id: int, broker_epoch: int) -> None:
        """Count a broker that a controller has found dead, and fail the run if it was alive without a reason."""
        self.found.add((broker_id, broker_epoch))
        broker = self._broker(broker_id)
        if not self._is_alive(broker, broker_epoch):
            self.right += 1
            return
        self.wrong += 1
        world = self._cluster.world
        if not world.fabric.has_refused(controller.name, broker.name, world.now - JUST_SECONDS):
            world.refute(
                SafetyViolation(
                    f"{controller.name} has found the living {broker.name} dead, epoch {broker_epoch}"
                )
            )

    def found_silent(self, broker_id: int, broker_epoch: int) -> None:
        """Count a broker that two voices have not heard."""
        self.found.add((broker_id, broker_epoch))
        self.silent += 1
        self.silent_alive += self._is_alive(self._broker(broker_id), broker_epoch)

    def _broker(self, broker_id: int) -> Member:
        return next(each for each in self._cluster.members if each.config.node_id == broker_id)

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
