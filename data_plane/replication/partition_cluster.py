"""The port through which a partition reaches its broker: the cluster's state, and requests that leave the process. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

UNKNOWN_BROKER_EPOCH = -1

P_contra = TypeVar("P_contra", contravariant=True)
"""The type of a partition. It is a type variable, because the module of `Partition` imports this module."""


class BrokerStates(Protocol):
    """The interface of the broker through which a leader judges its followers."""

    @property
    def lag_ms_max(self) -> int:
        """The value of `replica.lag.time.max.ms`."""

    def now_ms(self) -> int:
        """Return the time in milliseconds of the monotonic clock."""

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        """True if a fetch with this broker epoch shows that the broker's replica may join the ISR.

        In the metadata, the broker must have this epoch, and be neither fenced nor shutting down. The
        replica's directory must be online.
        """

    def is_troubled(self, directory: bytes) -> bool:
        """True if this directory's broker reports that the directory takes no records now."""

    def is_alive(self, broker_id: int) -> bool:
        """True if the broker with this id is registered and not fenced."""


class PartitionCluster(BrokerStates, Protocol[P_contra]):
    """The interface of the broker that a partition uses."""

    def registered_epoch(self, broker_id: int) -> int:
        """Return the broker epoch with which the broker of this id is registered; -1 if it is not registered."""

    def alter_isr(self, partition: P_contra) -> None:
        """Send the proposal in `partition.isr_state` to the controller."""

    def suspect(self, partition: P_contra, offset: int) -> None:
        """Request a check of the bytes at this offset of the partition's log, because they may differ from the
        bytes that were written.
        """

    def sync(self, partition: P_contra, ended: Callable[[], None]) -> None:
        """Flush the partition's log, and call `ended` when its recovery point has moved. After a failure,
        `ended` is called a while later.
        """


class _Nobody:
    """A `PartitionCluster` without other brokers, for a partition that has no followers."""

    lag_ms_max = 0

    def now_ms(self) -> int:
        return 0

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        return False

    def is_troubled(self, directory: bytes) -> bool:
        return False

    def registered_epoch(self, broker_id: int) -> int:
        return UNKNOWN_BROKER_EPOCH

    def is_alive(self, broker_id: int) -> bool:
        return False

    def alter_isr(self, partition: object) -> None:
        """Ignore a proposal, because there is no controller to decide it."""

    def suspect(self, partition: object, offset: int) -> None:
        """Ignore the request for a check, because there is no other replica to copy from."""

    def sync(self, partition: object, ended: Callable[[], None]) -> None:
        """Do nothing, because there is no worker that could flush."""


NOBODY = _Nobody()
