"""Reads that must not come from a coordinator whose successor serves already. PORTED.

A deposed leader may not know it yet. Its writes fail, but what it would read is old. So a read waits until each other
in-sync replica has fetched twice in one session since the read began. It sent the second of these fetches after the answer
to the first, so after the read began, and it still followed this leader. Only in-sync replicas can be elected. So no
successor had begun before the read. (The same argument as Raft's reads by an index, section 6.4 of Ongaro's dissertation.)

Two fetches of two sessions prove nothing: a leader that was paused may find both in its sockets. A follower without a
session is believed on its second fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from odradek.data_plane.coordination.shard import CoordinatorHost
from odradek.data_plane.replication.partition import Partition
from odradek.data_plane.replication.remote_replica import RemoteReplica
from odradek.named_states import reached

__all__ = ["ReadBarrier"]

Done: TypeAlias = Callable[[bool], None]
"""Called with whether the leader was still the leader when the read began."""


class ReadBarrier:
    """The reads of one leadership of a partition."""

    def __init__(self, broker: CoordinatorHost, partition: Partition) -> None:
        self._broker = broker
        self._partition = partition
        self._next: list[Done] = []
        self._round: list[Done] = []
        self._leader_epoch = partition.leader_epoch
        self._missing: dict[int, tuple[object] | None] = {}
        """In-sync replicas that must still fetch for the round, each with the session of its first fetch, if it has
        come.
        """

    def __len__(self) -> int:
        return len(self._round) + len(self._next)

    def add(self, done: Done) -> None:
        """Call `done` when the answer is known; at once where no other replica is in sync."""
        self._next.append(done)
        if not self._round:
            self._begin()

    def forget(self, done: Done) -> None:
        """Drop a pending read, which has waited too long."""
        for waiting in (self._round, self._next):
            if done in waiting:
                waiting.remove(done)
        if not self._round:
            self._begin()

    def end(self) -> None:
        """End the barrier, since the leadership is gone."""
        waiting, self._round, self._next = [*self._round, *self._next], [], []
        self._partition.hear_fetches(None)
        for done in waiting:
            done(False)

    def _begin(self) -> None:
        partition = self._partition
        while self._next:
            self._round, self._next = self._next, []
            self._missing = dict.fromkeys(partition.others_in_sync())
            if self._missing:
                partition.hear_fetches(self._note)
                self._broker.woken.append(self._go_on)
                return
            self._pass()
        partition.hear_fetches(None)

    def _note(self, replica: RemoteReplica | None) -> None:
        """Note a follower's fetch, or a change of the in-sync set. The reads go on after this turn, because the
        answer to the fetch is still being made.
        """
        if replica is not None and replica.broker_id in self._missing:
            first = self._missing[replica.broker_id]
            if first is not None and first[0] is replica.cursor:
                del self._missing[replica.broker_id]
            else:
                self._missing[replica.broker_id] = (replica.cursor,)
        self._broker.woken.append(self._go_on)

    def _go_on(self) -> None:
        partition = self._partition
        if not self._round or not partition.is_leader or partition.leader_epoch != self._leader_epoch:
            reached("coordination.barrier_of_past_leadership")
            # The reads of a past leadership are answered by `end`.
            return
        in_sync = set(partition.others_in_sync())
        self._missing = {each: first for each, first in self._missing.items() if each in in_sync}
        if self._missing:
            reached("coordination.followers_called_back")
            partition.call_followers_back(self._missing)
            return
        self._pass()
        self._begin()

    def _pass(self) -> None:
        done, self._round = self._round, []
        for each in done:
            each(True)
