"""Guards of transactions that are being verified: proof that the coordinator was asked before the first append. PURE.

A producer may write to a partition without having added it to its transaction. Its records would hang there, as the
coordinator writes no marker for them. So the first append of a transaction waits until the coordinator knows the
partition (KIP-890, part 1):

1. `begin` makes a guard for the producer, or finds the one that is there. The leader asks the coordinator.
2. The append brings the guard along. It is refused unless the log still has this very guard for the producer.
3. Whatever transactional is appended voids the guard: the first records, or a marker that came in between. So a late
   answer of the coordinator never lets records in behind the marker that ended their transaction.

Later appends of the transaction need no guard, since the log knows that it is open: they bring `ONGOING`. Guards are
soft state: a new leader has none, and the producer's next append is verified again.
"""

from __future__ import annotations

GUARDS_MAX = 4_000
"""Guards of one log. Beyond it the oldest is void; its producer is verified again."""


class VerificationGuard:
    """One verification. Guards are compared by identity."""

    __slots__ = ("created_ms", "lowest_sequence", "producer_epoch", "supports_epoch_bump")

    def __init__(
        self, producer_epoch: int, lowest_sequence: int, supports_epoch_bump: bool, created_ms: int
    ) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        """The lowest sequence number of the batches that wait for this verification: the first append begins there."""
        self.supports_epoch_bump = supports_epoch_bump
        """True if the producer's epoch grows with each transaction (KIP-890, part 2)."""
        self.created_ms = created_ms


ONGOING = VerificationGuard(-1, -1, False, 0)
"""Brought along by an append of a transaction that was open already. It lets no transaction begin."""


class Verifications:
    """The guards of one log by producer id."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def begin(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
    ) -> VerificationGuard:
        """The producer's guard, for a batch that is about to wait for the coordinator's answer."""
        guard = self._guards.get(producer_id)
        if guard is None:
            if len(self._guards) >= GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = VerificationGuard(producer_epoch, base_sequence, supports_epoch_bump, now_ms)
            self._guards[producer_id] = guard
        elif producer_epoch > guard.producer_epoch:
            guard.producer_epoch, guard.lowest_sequence = producer_epoch, base_sequence
        elif producer_epoch == guard.producer_epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, base_sequence)
        return guard

    def find(self, producer_id: int) -> VerificationGuard | None:
        """The producer's guard, if one is valid."""
        return self._guards.get(producer_id)

    def void(self, producer_id: int) -> None:
        """End the producer's guard: something transactional was appended."""
        self._guards.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """End the guards that are older than this."""
        old = [
            producer_id
            for producer_id, guard in self._guards.items()
            if now_ms - guard.created_ms >= expiration_ms
        ]
        for producer_id in old:
            del self._guards[producer_id]
