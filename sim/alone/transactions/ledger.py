"""The transactions of simulated producers, with the outcomes that the producers learned, and a final check against
the partitions. PURE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

import attrs

from sim.alone.transactions.written_partition import Written
from sim.history import SafetyViolation

__all__ = ["Attempt", "Ledger", "Outcome"]


class Outcome(Enum):
    """The outcome of a transaction, as far as its producer knows it."""

    NONE = "nothing"
    TRIED = "a commit was asked for"
    COMMITTED = "committed"
    ABORTED = "aborted"


@attrs.define(eq=False)
class Attempt:
    """A transaction of one producer. `values` has the values that the partitions have acknowledged."""

    name: str
    outcome: Outcome = Outcome.NONE
    values: list[bytes] = attrs.Factory(list)
    sent: list[bytes] = attrs.Factory(list)
    """All values that were sent, acknowledged or not."""


class Ledger:
    """All transactions of a schedule."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    def begin(self, name: str) -> Attempt:
        attempt = Attempt(f"{name}.{len(self.attempts)}")
        self.attempts.append(attempt)
        return attempt

    def told(self, outcome: Outcome) -> int:
        """Count the transactions whose producer knows this outcome."""
        return sum(attempt.outcome is outcome for attempt in self.attempts)

    def check(self, partitions: Sequence[Written]) -> None:
        """Check that each transaction is in the partitions either completely or not at all, as its outcome demands.
        Raises `SafetyViolation`.
        """
        for each in partitions:
            if each.open:
                raise SafetyViolation(f"transactions of the producers {each.open} are still open at the end")
        count = Counter(value for each in partitions for value in each.committed)
        twice = [value for value, times in count.items() if times > 1]
        if twice:
            raise SafetyViolation(f"{twice[0]!r} is committed twice")
        for attempt in self.attempts:
            self._check(attempt, count)

    def _check(self, attempt: Attempt, count: Counter[bytes]) -> None:
        there = [value for value in attempt.sent if count[value]]
        missing = [value for value in attempt.values if not count[value]]
        if attempt.outcome is Outcome.COMMITTED and missing:
            raise SafetyViolation(f"{attempt.name} is committed, and {missing[0]!r} is not there")
        if attempt.outcome in (Outcome.NONE, Outcome.ABORTED) and there:
            raise SafetyViolation(f"{attempt.name}: {attempt.outcome.value}, and {there[0]!r} is there")
        if there and missing:
            raise SafetyViolation(f"{attempt.name} is torn: {there[0]!r} is there, {missing[0]!r} is not")
