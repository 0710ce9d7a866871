"""The interfaces that all parts of a broker use: the services of the broker, and ports between its parts.
PORTED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from odradek.data_plane.newest_image import NewestImage
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Clock, Log
from odradek.wire.errors import ErrorCode


class BrokerHost(Protocol):
    """The interface of the broker that all of its parts use."""

    @property
    def clock(self) -> Clock: ...

    @property
    def agreed_clock(self) -> AgreedClock:
        """The wall clock on which all nodes agree, for everything that expires."""

    @property
    def log(self) -> Log: ...

    @property
    def newest(self) -> NewestImage: ...


VerifiedPartition: TypeAlias = tuple[str, int]
"""A partition of a transaction: (topic name, partition number)."""


class TransactionVerifier(Protocol):
    """A port through which the leader of a partition sends questions to the coordinators of transactions
    (KIP-890).
    """

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        """Ask the coordinator whether each partition belongs to the producer's open transaction. Returns NONE
        for each partition that does, otherwise an error code.

        With `adds`, the coordinator adds the missing partitions (AddPartitionsToTxn without `verify_only`).
        Errors are the coordinator's own, untranslated. If the coordinator is not reached within
        `request.timeout.ms`, the error is NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE. Raises nothing.
        """
