"""Keeps the guards of transactions that are being verified. A guard proves that the coordinator was asked
before the transaction's first append. PURE.

A producer may write to a partition that it has not added to its transaction. The coordinator would write no
marker to that partition, so the records there would stay undecided. So the first append of a transaction
waits until the coordinator knows the partition (KIP-890, part 1):

1. `begin` makes a guard for the producer, or finds an existing one. The leader asks the coordinator.
2. The caller of the append passes the guard. The append is refused unless the log still has this very guard
   for the producer.
3. Each append of transactional records or of a marker voids the producer's guards. If the coordinator answers
   late, the transaction may have ended meanwhile. Then its marker has voided the guard, so the append is
   refused, and no records follow the marker.

Later appends of the transaction use the guard `ONGOING`, since the log knows that the transaction is open.
But a producer id is no secret, and a client may combine its own transactional id with another client's
producer id. So for each open transaction the log also keeps the transactional id that was verified. A batch
with another transactional id is verified like a first batch. The coordinator of that other id refuses it
(INVALID_PRODUCER_ID_MAPPING).

Guards are in memory only. A new leader has no guards, so it verifies the next append of each producer once
more. A verification never becomes false, because a producer id belongs to one transactional id permanently.
"""

from __future__ import annotations

from hashlib import blake2b

GUARDS_MAX = 4_000
"""The most guards of one log. If another guard is needed, all guards of one producer become void. This is the
producer that has had guards for the longest time. It must be verified again.
"""
_NAME_LENGTH_MAX = 64


def name_of(transactional_id: str) -> str:
    """Return a short name for a transactional id: the id itself, or the digest of a long id. (Clients choose
    the length.)
    """
    if len(transactional_id) <= _NAME_LENGTH_MAX:
        return transactional_id
    return blake2b(transactional_id.encode("utf-8", "surrogatepass")).hexdigest()


class VerificationGuard:
    """The guard of one verification. Guards are compared by identity."""

    __slots__ = ("created_ms", "lowest_sequence", "name", "producer_epoch", "supports_epoch_bump")

    def __init__(
        self, name: str, producer_epoch: int, lowest_sequence: int, supports_epoch_bump: bool, created_ms: int
    ) -> None:
        self.name = name
        """The short name (`name_of`) of the transactional id that the coordinator is asked about."""
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        """The lowest sequence number of the batches that wait for this verification. The first append must
        begin with it.
        """
        self.supports_epoch_bump = supports_epoch_bump
        """True if the producer's epoch increases with each transaction (KIP-890, part 2)."""
        self.created_ms = created_ms


ONGOING = VerificationGuard("", -1, -1, False, 0)
"""The guard of an append to a transaction that is already open. An append with this guard cannot begin a
transaction.
"""


class Verifications:
    """The guards of one log by producer id and transactional id, and the verified transactional ids of its
    open transactions.
    """

    __slots__ = ("_count", "_guards", "verified")

    def __init__(self) -> None:
        self._guards: dict[int, dict[str, VerificationGuard]] = {}
        """The guards: producer id -> short name of the transactional id -> guard. So a request with a wrong
        transactional id does not affect the guard of the right one.
        """
        self._count = 0
        self.verified: dict[int, str] = {}
        """The verified transactional id of each producer with an open transaction. Other code may read it;
        only the methods below change it.
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
        """Return the guard of a producer and its transactional id, for a batch that will wait for the
        coordinator. Makes a new guard if there is none.
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
        """True if this is the current guard object of the producer."""
        guards = self._guards.get(producer_id)
        return guards is not None and guard is not None and guards.get(guard.name) is guard

    def void(self, producer_id: int) -> None:
        """Remove all guards of a producer, because a transactional batch or a marker was appended."""
        guards = self._guards.pop(producer_id, None)
        if guards is not None:
            self._count -= len(guards)

    def refuse(self, producer_id: int, name: str) -> None:
        """Remove a guard, because the coordinator has answered that the producer id does not belong to this
        transactional id.
        """
        guards = self._guards.get(producer_id)
        if guards is not None and guards.pop(name, None) is not None:
            self._count -= 1
            if not guards:
                del self._guards[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove the guards that are older than `expiration_ms`."""
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
        """Remember the transactional id of this guard as verified for the producer's open transaction."""
        self.verified[producer_id] = guard.name

    def note_ended(self, producer_id: int) -> None:
        """Forget the verified transactional id of a transaction that has ended."""
        self.verified.pop(producer_id, None)

    def forget_verified(self) -> None:
        """Forget the verified ids of all transactions, because the log was truncated, perhaps below the start
        of some transactions.
        """
        self.verified.clear()
