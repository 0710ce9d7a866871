"""The in-sync replicas as their leader knows them: decided by the controller, or proposed to it (the maximal
set). PURE.

While a proposal is pending, either the committed or the proposed set may be in force. So the high watermark
depends on the *maximal* set. A record is committed only when every replica of both sets has it (KIP-497's
argument, Kafka's `PartitionState`). `min.insync.replicas` is compared with the committed set, because only this
set is known to have been in force.

    CommittedIsr --propose--> PendingExpandIsr | PendingShrinkIsr --answered--> CommittedIsr (larger or as before)
                                     |
                                     +---- newer metadata --------------------> CommittedIsr

If the outcome of a proposal is unknown (fenced, outdated), the proposal stays pending until newer metadata
decide it. A smaller set that the controller has accepted stays pending, too: see `Partition.isr_decided`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import attrs


@attrs.frozen(eq=False)
class CommittedIsr:
    """The set of in-sync replicas that the controller has decided."""

    isr: tuple[int, ...]

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.isr

    @property
    def is_pending(self) -> bool:
        return False


@lru_cache(maxsize=1024)
def committed_isr(isr: tuple[int, ...]) -> CommittedIsr:
    """Return the state for a set that the controller has decided. All partitions with the same set share one
    object, because thousands of partitions are in sync on the same brokers.
    """
    return CommittedIsr(isr)


@attrs.frozen(eq=False)
class PendingExpandIsr:
    """A proposal to add one replica to the ISR. The new replica already counts as in sync."""

    committed: CommittedIsr
    joining: int

    @property
    def isr(self) -> tuple[int, ...]:
        return self.committed.isr

    @property
    def proposed(self) -> tuple[int, ...]:
        return (*self.committed.isr, self.joining)

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.proposed

    @property
    def is_pending(self) -> bool:
        return True


@attrs.frozen(eq=False)
class PendingShrinkIsr:
    """A proposal to remove replicas from the ISR. They count as in sync until the controller has decided."""

    committed: CommittedIsr
    leaving: tuple[int, ...]

    @property
    def isr(self) -> tuple[int, ...]:
        return self.committed.isr

    @property
    def proposed(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.committed.isr if broker not in self.leaving)

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self.committed.isr

    @property
    def is_pending(self) -> bool:
        return True


def assert_isr(isr: Sequence[int], replicas: Sequence[int], leader: int) -> None:
    """Assert that the in-sync replicas and the leader (-1: none) are replicas of the partition, and that each
    occurs once.
    """
    for broker_id in isr:
        if broker_id not in replicas:
            raise AssertionError(
                f"the ISR is {tuple(isr)}, although broker {broker_id} is not among the replicas "
                f"{tuple(replicas)}"
            )
    if leader >= 0 and leader not in replicas:
        raise AssertionError(f"the leader {leader} is not among the replicas {tuple(replicas)}")
    if len(set(isr)) != len(isr):
        raise AssertionError(f"the ISR {tuple(isr)} names a broker twice")


PendingIsr: TypeAlias = PendingExpandIsr | PendingShrinkIsr
IsrState: TypeAlias = CommittedIsr | PendingIsr
