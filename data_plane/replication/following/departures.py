"""What clients hear while a broker dies: answers that wait for its successors, and its last mentions. PORTED.

A client whose leader has just died asks another broker at once who leads now. The controller notices the death within
some 50 ms (`odradek.metadata_quorum.process_watch`). But an answer before that still names the dead leader, and the
client may ask again only a second later. This broker has lost its own connection to that leader at the same
moment. So the leader is in doubt for a short time. Answers that name it wait until the metadata have changed, or
it answers this broker again (`wait_for_successors`). The client may even be quicker: its question comes before this
broker has received the end of its connection. So the connection is looked at.

Then the dead broker is fenced. A fenced broker is missing in answers, as with Kafka. librdkafka drops a missing broker, and
with it the partitions that it led, even if the same answer names their new leader. It looks for lost partitions only
once a second. So a broker that has stopped in order, or whose connection had ended, is mentioned a little longer than it
leads (`is_mentioned`). Its host refuses connections at once. A host that is silent is never mentioned longer, because
clients would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from odradek.env.ports import Env
from odradek.metadata_quorum.image.metadata_image import BrokerImage
from odradek.named_states import reached

__all__ = ["Departures"]

DOUBT_SECONDS_MAX = 0.75
"""The longest time for which a leader is in doubt. The controller usually notices a death within 50 ms. If it died with
the leader, another one is elected first, which takes half a second.
"""
MENTIONED_SECONDS = 2.0
"""How long a broker is still mentioned after it was fenced. librdkafka looks for partitions without a leader every
second.
"""
LOOK_SECONDS_MIN = 0.001
"""The shortest time between two looks at the connections to all leaders. A look at one costs some 3 us."""
NEVER = float("-inf")


class Departures:
    """The brokers that left lately, as one broker sees them. All times are monotonic seconds."""

    def __init__(
        self, env: Env, has_ended: Callable[[int], bool], followed: Callable[[], Collection[int]]
    ) -> None:
        """`has_ended` is true if a leader has closed the connection on which this broker fetches from it. `followed`
        lists the leaders from which it fetches.
        """
        self._env = env
        self._has_ended = has_ended
        self._followed = followed
        self._lost_at: dict[int, float] = {}
        """When each leader's connection ended. A leader stays here until it answers, or its registration changes. So
        each loss makes answers wait only once.
        """
        self._fenced_at: dict[int, float] = {}
        self._looked_at = NEVER
        self._changed = env.event()
        """Set, and replaced, when a leader is no longer in doubt."""

    # -- what this broker notices

    def connection_lost(self, leader_id: int) -> None:
        """Note that a leader has closed the connection on which this broker fetches from it."""
        self._lost_at.setdefault(leader_id, self._env.clock.monotonic())

    def answered(self, leader_id: int) -> None:
        """Note that a leader answers this broker."""
        if self._lost_at and self._lost_at.pop(leader_id, None) is not None:
            self._wake()

    def metadata_changed(
        self, before: Mapping[int, BrokerImage], brokers: Mapping[int, BrokerImage], changed: Iterable[int]
    ) -> None:
        """Note which of the changed brokers are fenced now, and were not fenced before. This must be called before
        fetchers close their connections.
        """
        for broker_id in changed:
            old, new = before.get(broker_id), brokers.get(broker_id)
            if new is None or not new.fenced:
                self._fenced_at.pop(broker_id, None)
            elif (
                old is not None
                and not old.fenced
                and (old.in_controlled_shutdown or self.is_lost(broker_id) or self._has_ended(broker_id))
            ):
                self._fenced_at[broker_id] = self._env.clock.monotonic()
            if self._lost_at.pop(broker_id, None) is not None:
                self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, self._env.event()
        changed.set()

    def is_lost(self, leader_id: int) -> bool:
        """True if this leader's connection has ended, and it has answered nothing since. Then its answer is urgent."""
        return leader_id in self._lost_at

    # -- what clients hear

    def doubtful(self, leaders: Collection[int] | None = None) -> set[int]:
        """Look at the connections to these leaders (None: to all that this broker follows). Return the leaders that
        are in doubt.
        """
        now = self._env.clock.monotonic()
        if leaders is None:
            if now - self._looked_at >= LOOK_SECONDS_MIN:
                self._looked_at = now
                leaders = self._followed()
            else:
                leaders = list(self._lost_at)
        found = set()
        for leader in leaders:
            lost_at = self._lost_at.get(leader)
            if lost_at is None and self._has_ended(leader):
                reached("broker.death_noticed_by_question")
                lost_at = self._lost_at[leader] = now
            if lost_at is not None and now - lost_at < DOUBT_SECONDS_MAX:
                found.add(leader)
        return found

    async def wait_for_successors(self, leaders: Collection[int]) -> None:
        """Wait until none of these leaders is in doubt. The wait ends `DOUBT_SECONDS_MAX` after the last loss."""
        reached("broker.answer_held_for_successors")
        clock = self._env.clock
        while lost_at := [self._lost_at[each] for each in leaders if each in self._lost_at]:
            until = max(lost_at) + DOUBT_SECONDS_MAX
            if clock.monotonic() >= until:
                return
            with clock.timeout_at(until):
                await self._changed.wait()

    def is_mentioned(self, broker_id: int, broker: BrokerImage) -> bool:
        """True if answers about the cluster name this broker: it is not fenced, or it died just now."""
        if not broker.fenced:
            return True
        fenced_at = self._fenced_at.get(broker_id, NEVER)
        return self._env.clock.monotonic() - fenced_at < MENTIONED_SECONDS
