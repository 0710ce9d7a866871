"""A partition's leader asks a transaction's coordinator, and repeats the question while the transaction before
ends.
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
    """The desk of a leader that asks coordinators of transactions."""

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
    """Ask the coordinator about each partition.

    While the coordinator ends the transaction before this one, a leader that adds partitions asks again for a short
    time (`add.partitions.to.txn.retry.backoff.max.ms`). A repetition by the client would cost more. The marker of
    that end makes the guards void. `renew_guards` replaces void guards; if it returns True, the coordinator is
    asked with the new guards. Guards are renewed only where epochs grow with each transaction. Elsewhere the answer
    may be about another transaction of the same producer.
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
