"""The port through which a partition reaches its broker: the cluster's state, and requests that leave the process. PURE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from odradek.data_plane.replication.remote_replica import UNKNOWN_BROKER_EPOCH

P_contra = TypeVar("P_contra", contravariant=True)
"""The class of partitions, which itself imports this module."""


class PartitionCluster(Protocol[P_contra]):
    """The part of its broker that a partition uses."""

    @property
    def lag_ms_max(self) -> int:
        """`replica.lag.time.max.ms`."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds."""

    def is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        """True if a fetch with this epoch shows that the broker may be in sync.

        True if the metadata knows the broker with this epoch, and the broker is neither fenced nor leaving. Besides,
        the replica's directory must be online.
        """

    def is_troubled(self, directory: bytes) -> bool:
        """True if the directory's broker reports that it takes no records now."""

    def registered_epoch(self, broker_id: int) -> int:
        """Return the epoch of this broker's registration; -1 for an unregistered one."""

    def is_alive(self, broker_id: int) -> bool:
        """True if this broker is registered and not fenced."""

    def alter_isr(self, partition: P_contra) -> None:
        """Send the proposal in `partition.isr_state` to the controller."""

    def suspect(self, partition: P_contra, offset: int) -> None:
        """Have the bytes of this log at this offset checked: they may differ from the written ones."""

    def sync(self, partition: P_contra, ended: Callable[[], None]) -> None:
        """Flush this log, and call `ended` when the recovery point has moved. After a failure, call it a while later."""


class _Nobody:
    """The cluster of a partition that has no followers."""

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
        """Ignore a proposal: there is no controller to ask."""

    def suspect(self, partition: object, offset: int) -> None:
        """Ignore a suspicion: there is no other replica."""

    def sync(self, partition: object, ended: Callable[[], None]) -> None:
        """Do nothing: no worker is there that could flush."""


NOBODY = _Nobody()
