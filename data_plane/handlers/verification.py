"""Verification of a transaction's partitions by its coordinator, repeated while the coordinator ends the
previous transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.ports import TransactionVerifier, VerifiedPartition
from odradek.serving.steps import Steps, asked, until
from odradek.wire.errors import ErrorCode


class VerifyingDesk(Desk, Protocol):
    """The desk for handlers that verify transactions: it also has the `TransactionVerifier`."""

    @property
    def transaction_verifier(self) -> TransactionVerifier: ...


def verified(
    desk: VerifyingDesk,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[VerifiedPartition],
    *,
    adds: bool,
    renew_guards: Callable[[], bool],
) -> Steps[Mapping[VerifiedPartition, ErrorCode]]:
    """Ask the transaction's coordinator to verify the partitions, or with `adds` to add them. Returns an
    error code for each partition.

    While the coordinator ends the previous transaction, a leader that adds partitions repeats the request for
    a short time (`add.partitions.to.txn.retry.backoff.max.ms`). A retry by the client would cost more. The
    marker of the previous transaction invalidates the guards. `renew_guards` replaces invalid guards. If it
    returns True, the coordinator is asked again. Guards are renewed only with `adds`, because then the epoch
    grows with each transaction. Without `adds`, the answer could be about another transaction of the same
    producer.
    """
    clock, settings = desk.clock, desk.settings
    codes: Mapping[VerifiedPartition, ErrorCode]
    verify = partial(
        desk.transaction_verifier.verify, transactional_id, producer_id, producer_epoch, partitions, adds=adds
    )
    deadline = clock.monotonic() + settings.add_partitions_retry_backoff_ms_max / 1000
    while True:
        codes = yield asked(verify)
        retry_at = clock.monotonic() + settings.add_partitions_retry_backoff_ms / 1000
        if adds and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values():
            if retry_at > deadline:
                return codes
            yield until(retry_at)
        elif not (adds and renew_guards()):
            return codes
