"""What clients hear while a broker dies: answers that wait for its successors, and its last mentions. PORTED.

A client whose leader has just died asks another broker at once who leads now. The controller notices the death within
some 50 ms (`odradek.metadata_quorum.process_watch`). But an answer before that still names the dead leader, and the
client may ask again only a second later. This broker has lost its own connection to that leader at the same
moment. So for a short time it holds back answers that name the leader (`misses`), until the metadata have
changed. The client may even be quicker: its question comes before this broker has received the end of its connection. So
the connection is looked at (`has_ended`).

Then the dead broker is fenced. A fenced broker is missing in answers, as with Kafka. librdkafka drops such a broker
together with the partitions that it still has there, even if the same answer names their new leader. It looks for lost
partitions only once a second. So a broker is mentioned a little longer than it leads (`is_mentioned`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from odradek.env.ports import Env, Event
from odradek.metadata_quorum.image.metadata_image import BrokerImage
from odradek.named_states import reached

__all__ = ["Departures"]

HELD_SECONDS_MAX = 0.25
"""The longest time for which an answer is held back. The controller usually notices a death within 50 ms."""
MENTIONED_SECONDS = 2.0
"""How long a fenced broker is still mentioned. librdkafka looks for partitions without a leader every second."""


class Departures:
    """The brokers that left lately, as one broker sees them. All times are monotonic seconds."""

    def __init__(
        self, env: Env, has_ended: Callable[[int], bool], followed: Callable[[], Collection[int]]
    ) -> None:
        """`has_ended` looks whether a leader has closed the connection on which this broker fetches from it.
        `followed` lists the leaders from which it fetches.
        """
        self._env = env
        self._has_ended = has_ended
        self._followed = followed
        self._lost_at: dict[int, float] = {}
        """When the connection to each leader ended that this broker still takes for alive."""
        self._fenced_at: dict[int, float] = {}
        self._waiting: list[Event] = []

    # -- what this broker notices

    def lost(self, leader_id: int) -> None:
        """Note that a leader has closed the connection on which this broker fetches from it."""
        self._lost_at[leader_id] = self._env.clock.monotonic()

    def found(self, leader_id: int) -> None:
        """Note that a leader answers."""
        if self._lost_at.pop(leader_id, None) is not None:
            self._wake()

    def follow(
        self, before: Mapping[int, BrokerImage], brokers: Mapping[int, BrokerImage], changed: Iterable[int]
    ) -> None:
        """Note which of the changed brokers are fenced now, and were not fenced before."""
        for broker_id in changed:
            old, new = before.get(broker_id), brokers.get(broker_id)
            if new is None or not new.fenced:
                self._fenced_at.pop(broker_id, None)
            elif old is not None and not old.fenced:
                self._fenced_at[broker_id] = self._env.clock.monotonic()
            if self._lost_at.pop(broker_id, None) is not None:
                self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    # -- what clients hear

    def misses(self, leaders: Collection[int] | None = None) -> bool:
        """Return whether the lead of one of these brokers is in doubt (None: of any that this broker follows). Then
        answers that name them are held back.
        """
        if leaders is None:
            leaders = self._followed()
        if self._lost_at:
            since = self._env.clock.monotonic() - HELD_SECONDS_MAX
            self._lost_at = {leader: at for leader, at in self._lost_at.items() if at > since}
        found = False
        for leader in leaders:
            if leader in self._lost_at:
                found = True
            elif self._has_ended(leader):
                reached("broker.death_noticed_by_question")
                self.lost(leader)
                found = True
        return found

    async def settled(self) -> None:
        """Wait until no broker is in doubt any more. The wait ends after `HELD_SECONDS_MAX` at the latest."""
        reached("broker.answer_held_for_successors")
        clock = self._env.clock
        with clock.timeout_at(clock.monotonic() + HELD_SECONDS_MAX):
            while self._lost_at:
                event = self._env.event()
                self._waiting.append(event)
                await event.wait()

    def is_mentioned(self, broker_id: int, broker: BrokerImage) -> bool:
        """Return whether answers about the cluster name this broker: it is not fenced, or was fenced just now."""
        if not broker.fenced:
            return True
        fenced_at = self._fenced_at.get(broker_id)
        return fenced_at is not None and self._env.clock.monotonic() - fenced_at < MENTIONED_SECONDS
