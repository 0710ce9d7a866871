"""The services that all parts of a broker use, and the parts' views of one another. PORTED."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from odradek.data_plane.newest_image import NewestImage
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import Clock, Log
from odradek.wire.errors import ErrorCode


class BrokerHost(Protocol):
    """The broker as all of its parts see it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def agreed_clock(self) -> AgreedClock:
        """The wall clock, for things that expire. Coordinators count ages from its latest time."""

    @property
    def log(self) -> Log: ...

    @property
    def newest(self) -> NewestImage: ...


VerifiedPartition: TypeAlias = tuple[str, int]
"""Topic name and partition."""


class TransactionVerifier(Protocol):
    """A port by which a partition's leader asks the coordinators of transactions (KIP-890)."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        """Ask the coordinator about each partition: NONE if it is a part of the producer's open transaction.

        With `adds`, the coordinator adds the missing ones (AddPartitionsToTxn without `verify_only`). Errors are the
        coordinator's own, untranslated. A coordinator that is not reached within `request.timeout.ms` is
        NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE. Raises nothing.
        """
