"""How long other brokers have exchanged nothing with this broker. PURE.

If the controller hears no heartbeats of a broker, it looks for a second voice. This is another broker whose own
exchange with the suspect has been silent as long. If there is one, the controller fences the suspect before its session
ends (`odradek.metadata_quorum.process_watch`). `PeerSilence` is the memory of such a voice. Two kinds of exchange are
awaited all the time:

* answers to this broker's own fetches, from the leaders that it follows. Only a leader that was
  asked owes an answer. Nobody asks it while all its partitions back off, or are throttled;
* fetches by followers in the ISRs of partitions that this broker leads.

A peer is silent when no awaited message has come for `odradek.broker.suspicion.ms`. This broker reports
only peers from which it has heard before. A pause of this process is no silence of the others: `look` recognises it.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PeerSilence"]

NEVER = float("inf")
FETCH_WAITS_MIN = 2
"""A fetch that finds nothing is answered after `replica.fetch.wait.max.ms`. No shorter silence than this number of
such waits means anything.
"""
MARGIN_SECONDS = 0.002
"""A look at the very moment at which the silence is long enough might find it too short, by rounding."""
PAUSES_PER_SUSPICION = 2
"""A divisor of `odradek.broker.suspicion.ms`. If nobody has looked for more than this share of it (1/2), this process
was paused.
"""


class PeerSilence:
    """The last exchanges of one broker with each other broker. All times are monotonic seconds."""

    def __init__(
        self, suspicion_ms: int, fetch_wait_ms_max: int, awaits_fetches_of: Callable[[int], bool]
    ) -> None:
        """Take `odradek.broker.suspicion.ms` (0: no broker is ever silent) and `replica.fetch.wait.max.ms`.
        `awaits_fetches_of` is true for a broker that is in the ISR of a partition that this broker leads.
        """
        self.suspicion_ms = suspicion_ms
        seconds = max(suspicion_ms, FETCH_WAITS_MIN * fetch_wait_ms_max) / 1000
        self._seconds = seconds if suspicion_ms else NEVER
        self._pause_seconds = self._seconds / PAUSES_PER_SUSPICION
        self._awaits_fetches_of = awaits_fetches_of
        self._exchanged: dict[int, float] = {}
        """For each broker, when its last answer or its last fetch came."""
        self._asked: dict[int, float] = {}
        """For each leader that owes an answer, when it was first asked in vain."""
        self._looked_at: float | None = None

    def asked(self, leader_id: int, now: float) -> None:
        """Note that this broker asks a leader, or tries to."""
        self._asked.setdefault(leader_id, now)

    def heard(self, broker_id: int, now: float) -> None:
        """Note an answer of a leader, or a fetch by a follower."""
        self._exchanged[broker_id] = now
        self._asked.pop(broker_id, None)

    def rests(self, leader_id: int) -> None:
        """Note that this broker asks a leader for nothing at present."""
        self._asked.pop(leader_id, None)

    def look(self, now: float) -> None:
        """Look whether this process was paused: then messages of others could not be heard. Call this often."""
        if self._looked_at is not None:
            slept = now - self._looked_at
            if slept > self._pause_seconds:
                for times in (self._exchanged, self._asked):
                    for broker_id in times:
                        times[broker_id] = min(now, times[broker_id] + slept)
        self._looked_at = now

    def silent(self, now: float) -> dict[int, float]:
        """Return the seconds of silence of each broker that has been silent for long enough, by its id."""
        found = {}
        for broker_id, exchanged_at in sorted(self._exchanged.items()):
            if now - exchanged_at < self._seconds:
                continue
            asked_at = self._asked.get(broker_id, now)
            if now - asked_at >= self._seconds or self._awaits_fetches_of(broker_id):
                found[broker_id] = now - exchanged_at
            elif broker_id not in self._asked:
                del self._exchanged[broker_id]
        return found

    def next_at(self, now: float) -> float:
        """Return when the next broker may become silent; infinite if none can."""
        due = (
            max(exchanged_at, self._asked.get(broker_id, exchanged_at)) + self._seconds
            for broker_id, exchanged_at in self._exchanged.items()
        )
        return min((each for each in due if each > now), default=NEVER) + MARGIN_SECONDS
