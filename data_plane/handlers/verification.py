"""The question of a partition's leader to a transaction's coordinator, repeated while the transaction before ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.ports import TransactionVerifier, VerifiedPartition
from odradek.wire.errors import ErrorCode


class VerifyingDesk(Desk, Protocol):
    """The desk of a leader that asks coordinators of transactions."""

    @property
    def transaction_verifier(self) -> TransactionVerifier: ...


async def verified(
    desk: VerifyingDesk,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[VerifiedPartition],
    *,
    adds: bool,
    renew_guards: Callable[[], bool],
) -> Mapping[VerifiedPartition, ErrorCode]:
    """The coordinator's answer for each partition.

    While the coordinator ends the transaction before this one, a leader that adds partitions asks again for a short
    time (`add.partitions.to.txn.retry.backoff.max.ms`). To have the client send its request again costs more. The
    marker of that end voids the guards. `renew_guards` is true if it found a void one: then the coordinator is asked
    with the new ones. Guards are renewed only where epochs grow with each transaction. Elsewhere the answer may be about
    another transaction of the same producer.
    """
    clock, settings = desk.clock, desk.settings
    deadline = clock.monotonic() + settings.add_partitions_retry_backoff_ms_max / 1000
    while True:
        codes = await desk.transaction_verifier.verify(
            transactional_id, producer_id, producer_epoch, partitions, adds=adds
        )
        retry_at = clock.monotonic() + settings.add_partitions_retry_backoff_ms / 1000
        if adds and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values():
            if retry_at > deadline:
                return codes
            await clock.sleep_until(retry_at)
        elif not (adds and renew_guards()):
            return codes
