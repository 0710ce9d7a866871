"""The part of a broker that all its parts use, and what its parts see of others. PORTED."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from data_plane.newest_image import NewestImage
from odradek.env.ports import Clock, Log
from wire.errors import ErrorCode
from wire.messages.write_txn_markers import WritableTxnMarker


class BrokerHost(Protocol):
    """The broker as all of its parts see it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def log(self) -> Log: ...

    @property
    def newest(self) -> NewestImage: ...


VerifiedPartition: TypeAlias = tuple[str, int]
"""Topic name and partition."""


class TransactionVerifier(Protocol):
    """The way of a partition's leader to the coordinators of transactions (KIP-890)."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        """The coordinator's answer for each partition: NONE if it is a part of the producer's open transaction.

        With `adds`, the coordinator adds the missing ones (AddPartitionsToTxn without `verify_only`). Errors are the
        coordinator's own, untranslated. A coordinator that is not reached within `request.timeout.ms` is
        NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE. Raises nothing.
        """


class NoTransactions:
    """The verifier of a broker that has no coordinator of transactions: it refuses for good."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[VerifiedPartition],
        *,
        adds: bool,
    ) -> Mapping[VerifiedPartition, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


class PendingOffsets(Protocol):
    """The offsets that transactions have committed to groups, pending until their markers come (KIP-98)."""

    def complete_transaction(
        self, partition: int, marker: WritableTxnMarker, done: Callable[[ErrorCode], None]
    ) -> None:
        """Append the marker to this partition of `__consumer_offsets`, which is led here, and settle what is pending.

        `done` is called once, also within this call. NONE: the marker is committed, and the offsets are as it says.
        """
