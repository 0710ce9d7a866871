"""A leader's knowledge of its in-sync replicas: decided by the controller, or proposed. PURE.

While a proposal is under way, either the committed or the proposed set may be in force. So the *maximal* one counts
for the high watermark. A record is committed only when it is on every replica of both sets (KIP-497's argument,
Kafka's `PartitionState`). `min.insync.replicas` is compared with the committed set, which certainly was in force.

    CommittedIsr --propose--> PendingExpandIsr | PendingShrinkIsr --answered--> CommittedIsr (larger or as before)
                                     |
                                     +---- newer metadata --------------------> CommittedIsr

A proposal with an unknown outcome (fenced, outdated) stays pending until metadata decides it. A smaller set that
the controller has accepted stays pending, too: see `Partition.isr_decided`.
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
    """Make a decided set. Partitions share equal sets: thousands are in sync on the same brokers."""
    return CommittedIsr(isr)


@attrs.frozen(eq=False)
class PendingExpandIsr:
    """An ISR change under way that adds one replica. The new replica already counts as in sync."""

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
    """Assert that the in-sync replicas and the leader (-1: none) are among the replicas, and that each is named
    once.
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
