"""Reads that must not come from a coordinator whose successor serves already (PORTED).

A deposed leader may not know it yet. Its writes fail, but what it would read is old. So a read waits until each other
in-sync replica has fetched twice since the read began. The second of these fetches was sent after the read began, and by
a replica that still followed this leader. Only in-sync replicas can be elected. So no successor had begun before the read.
(The same argument as Raft's reads by an index, section 6.4 of Ongaro's dissertation.)

Followers whose fetch waits here are answered at once, so that a read takes two round trips. Reads that come meanwhile go
together in the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from data_plane.coordination.shard import CoordinatorHost
from data_plane.replication.partition import Partition

__all__ = ["ReadBarrier"]

Done: TypeAlias = Callable[[bool], None]
"""Called with whether the leader was still the leader when the read began."""
FETCHES = 2


class ReadBarrier:
    """The reads of one leadership of a partition."""

    def __init__(self, broker: CoordinatorHost, partition: Partition) -> None:
        self._broker = broker
        self._partition = partition
        self._next: list[Done] = []
        self._round: list[Done] = []
        self._missing: dict[int, int] = {}
        """The number of fetches that each in-sync replica still owes to the round."""

    def __len__(self) -> int:
        return len(self._round) + len(self._next)

    def add(self, done: Done) -> None:
        """Tell `done` when it is known; at once where no other replica is in sync."""
        self._next.append(done)
        if not self._round:
            self._begin()

    def forget(self, done: Done) -> None:
        """Wait no more for this read, which has waited too long."""
        for waiting in (self._round, self._next):
            if done in waiting:
                waiting.remove(done)
        if not self._round:
            self._begin()

    def end(self) -> None:
        """The leadership is gone."""
        waiting, self._round, self._next = [*self._round, *self._next], [], []
        self._partition.hear_fetches(None)
        for done in waiting:
            done(False)

    def _begin(self) -> None:
        partition = self._partition
        while self._next:
            self._round, self._next = self._next, []
            self._missing = dict.fromkeys(partition.others_in_sync(), FETCHES)
            if self._missing:
                partition.hear_fetches(self._note)
                self._broker.woken.append(self._go_on)
                return
            self._pass()
        partition.hear_fetches(None)

    def _note(self, broker_id: int) -> None:
        """A follower has fetched, or another set is in sync. The rest comes after this turn, as an answer is being made."""
        if broker_id in self._missing:
            self._missing[broker_id] -= 1
        self._broker.woken.append(self._go_on)

    def _go_on(self) -> None:
        if not self._round:
            return
        in_sync = set(self._partition.others_in_sync())
        self._missing = {
            each: count for each, count in self._missing.items() if count > 0 and each in in_sync
        }
        if self._missing:
            self._partition.call_followers_back(self._missing)
            return
        self._pass()
        self._begin()

    def _pass(self) -> None:
        done, self._round = self._round, []
        for each in done:
            each(True)
