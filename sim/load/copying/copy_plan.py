"""The settings of one copier process, drawn from a seed. PURE."""

from __future__ import annotations

from random import Random

import attrs

__all__ = ["CALM", "NAP_SECONDS", "TIMEOUT_MS_MAX", "CopyPlan", "is_assigned"]

TIMEOUTS_MS = (1_500, 5_000, 20_000)
TIMEOUT_MS_MAX = max(TIMEOUTS_MS)
"""The longest `transaction.timeout.ms` that is drawn."""
ASSIGNED_SHARE = 0.6
ENDS = ("close", "die", "die", "zombie", "zombie", "freeze", "nap", "nap")
SESSION_MS = 2_000
ECHO_SHARE = 0.1
NAP_SECONDS = (2.2, 6.0)
"""The shortest and the longest duration of a nap in seconds: longer than the session of a group member."""


def is_assigned(seed: int) -> bool:
    """True if each copier of a run has a fixed partition, as before KIP-447. False if the copiers share the
    partitions as a group.
    """
    return Random(f"{seed}/copiers' partitions").random() < ASSIGNED_SHARE


@attrs.frozen
class CopyPlan:
    """The settings of one copier process. With `is_explicit` the process adds partitions and offsets to a transaction
    by separate requests (`transaction.version` 1).
    """

    is_explicit: bool
    timeout_ms: int
    records_max: int
    """The largest number of records in a transaction."""
    linger_ms: int
    request_ms: int
    """The request timeout in milliseconds. A record has failed if there is no answer within twice that time."""
    abort_share: float
    """The probability that a transaction is aborted on purpose."""
    stall_share: float
    """The probability that a transaction pauses in the middle."""
    stall_seconds: float
    end: str
    """How the process ends. `close`: it closes. `die`: it is killed. `zombie`: the next process starts while this
    process runs on. `freeze`: the next process starts while this process is paused. `nap`: this process is paused,
    and runs on for as long again. Meanwhile no other process has its transactional id.
    """
    life_seconds: float
    session_ms: int = SESSION_MS
    """The `session.timeout.ms` of the process as a member of the group."""
    echo_share: float = 0.0
    """The probability that the previous transaction's EndTxn arrives again in the middle of a transaction."""

    @classmethod
    def draw(cls, random: Random) -> CopyPlan:
        """Draw the settings of a process."""
        drawn = cls(
            random.random() < 0.5,
            random.choice(TIMEOUTS_MS),
            random.choice((1, 3, 20)),
            random.choice((0, 0, 10)),
            random.choice((700, 5_000)),
            random.choice((0.0, 0.2, 0.5)),
            random.choice((0.0, 0.1, 0.3)),
            random.choice((0.1, 1.0, 3.0)),
            random.choice(ENDS),
            random.uniform(0.5, 5.0),
        )
        drawn = attrs.evolve(drawn, echo_share=ECHO_SHARE)
        if drawn.end != "nap":
            return drawn
        # With these settings most naps begin in the middle of a transaction that does not time out during the nap.
        return attrs.evolve(drawn, timeout_ms=TIMEOUT_MS_MAX, stall_share=0.5, stall_seconds=2.0)


CALM = CopyPlan(False, 10_000, 50, 0, 5_000, 0.0, 0.0, 0.0, "close", 0.0, session_ms=6_000)
"""The settings of each slot's last process, which copies the rest. Every broker allows their session timeout."""
