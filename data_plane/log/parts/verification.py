"""Guards of transactions that are being verified: proof that the coordinator was asked before the first append. PURE.

A producer may write to a partition without having added it to its transaction. Its records would stay undecided, as
the coordinator writes no marker for them. So the first append of a transaction waits until the coordinator knows
the partition (KIP-890, part 1):

1. `begin` makes a guard for the producer, or finds an existing one. The leader asks the coordinator.
2. The append presents the guard. It is refused unless the log still has this very guard for the producer.
3. Each transactional append voids the guard: the first records, or a marker that came in between. So after a late
   answer of the coordinator no records follow the marker that ended their transaction.

Later appends of the transaction need no guard, since the log knows that it is open: they use `ONGOING`. But a
producer id is no secret, and a client may name a transactional id of its own beside another's producer id. So the log
also keeps the transactional id for which its open transaction was verified. A batch with another id is verified like
a first batch, and the coordinator of that id refuses it (INVALID_PRODUCER_ID_MAPPING).

All of this is soft state. A new leader has none, and each producer's next append is verified again, once. A producer
id belongs to one transactional id for ever, so a verification stays true.
"""

from __future__ import annotations

from hashlib import blake2b

GUARDS_MAX = 4_000
"""The most guards of one log. Beyond it, the guards of the oldest producer become void, and that producer must be
verified again.
"""
_NAME_LENGTH_MAX = 64


def name_of(transactional_id: str) -> str:
    """Shorten a transactional id for logs: return the id itself, or the digest of a long id. Clients choose the
    length.
    """
    if len(transactional_id) <= _NAME_LENGTH_MAX:
        return transactional_id
    return blake2b(transactional_id.encode("utf-8", "surrogatepass")).hexdigest()


class VerificationGuard:
    """One verification. Guards are compared by identity."""

    __slots__ = ("created_ms", "lowest_sequence", "name", "producer_epoch", "supports_epoch_bump")

    def __init__(
        self, name: str, producer_epoch: int, lowest_sequence: int, supports_epoch_bump: bool, created_ms: int
    ) -> None:
        self.name = name
        """The transactional id that the coordinator is asked about (`name_of`)."""
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        """The lowest sequence number of the batches that wait for this verification: the first append begins there."""
        self.supports_epoch_bump = supports_epoch_bump
        """True if the producer's epoch grows with each transaction (KIP-890, part 2)."""
        self.created_ms = created_ms


ONGOING = VerificationGuard("", -1, -1, False, 0)
"""The guard of an append to a transaction that is already open. It cannot begin a transaction."""


class Verifications:
    """The guards of one log by producer id and transactional id, and the verified ids of its open transactions."""

    __slots__ = ("_count", "_guards", "verified")

    def __init__(self) -> None:
        self._guards: dict[int, dict[str, VerificationGuard]] = {}
        """Each transactional id has its own guard, so that a wrong id has no effect on the right one's."""
        self._count = 0
        self.verified: dict[int, str] = {}
        """The verified transactional id of each producer with an open transaction. Others may read it; only the
        methods below change it.
        """

    def __len__(self) -> int:
        return self._count

    def begin(
        self,
        producer_id: int,
        name: str,
        producer_epoch: int,
        base_sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
    ) -> VerificationGuard:
        """Get the guard of a producer and its transactional id, for a batch that is about to wait for the
        coordinator.
        """
        guard = self._guards.get(producer_id, {}).get(name)
        if guard is None:
            if self._count >= GUARDS_MAX:
                self.void(next(iter(self._guards)))
            guard = VerificationGuard(name, producer_epoch, base_sequence, supports_epoch_bump, now_ms)
            self._guards.setdefault(producer_id, {})[name] = guard
            self._count += 1
        elif producer_epoch > guard.producer_epoch:
            guard.producer_epoch, guard.lowest_sequence = producer_epoch, base_sequence
        elif producer_epoch == guard.producer_epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, base_sequence)
        return guard

    def is_valid(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """True if this guard object is the producer's present guard."""
        guards = self._guards.get(producer_id)
        return guards is not None and guard is not None and guards.get(guard.name) is guard

    def void(self, producer_id: int) -> None:
        """End the producer's guards, because a transactional batch or a marker was appended."""
        guards = self._guards.pop(producer_id, None)
        if guards is not None:
            self._count -= len(guards)

    def refuse(self, producer_id: int, name: str) -> None:
        """End a guard, because the coordinator has answered that the producer id does not belong to this
        transactional id.
        """
        guards = self._guards.get(producer_id)
        if guards is not None and guards.pop(name, None) is not None:
            self._count -= 1
            if not guards:
                del self._guards[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """End the guards that are older than this."""
        old = [
            (producer_id, name)
            for producer_id, guards in self._guards.items()
            for name, guard in guards.items()
            if now_ms - guard.created_ms >= expiration_ms
        ]
        for producer_id, name in old:
            self.refuse(producer_id, name)

    # --- open transactions

    def note_verified(self, producer_id: int, guard: VerificationGuard) -> None:
        """Note that the producer's open transaction has a batch that was verified with this guard."""
        self.verified[producer_id] = guard.name

    def note_ended(self, producer_id: int) -> None:
        """Forget the verified id of a transaction that has ended."""
        self.verified.pop(producer_id, None)

    def forget_verified(self) -> None:
        """Forget the verified ids of all transactions: the log was cut, maybe before the start of some
        transactions.
        """
        self.verified.clear()
