"""A barrier that delays reads until this broker has proof that it still led the partition when the read began. PORTED.

A deposed leader may still believe that it leads. Its writes fail, but its reads would return old state. So a
read waits until each other in-sync replica has fetched twice, in one fetch session, since the read began. A
replica sends its second fetch only after it has the answer to the first. So the replica still followed this
leader after the read began. Only in-sync replicas can be elected, so no later leader existed when the read
began. (Raft's ReadIndex uses the same argument; see section 6.4 of Ongaro's dissertation.)

Two fetches of different sessions prove nothing. A leader that was paused may read both from its sockets,
although they were sent long ago. If a follower has no session, its second fetch is accepted as proof.
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
"""A function that is called with True if this broker was still the leader when the read began, otherwise with
False.
"""


class ReadBarrier:
    """The pending reads of one partition, during one term of its leadership."""

    def __init__(self, broker: CoordinatorHost, partition: Partition) -> None:
        self._broker = broker
        self._partition = partition
        self._next: list[Done] = []
        self._round: list[Done] = []
        self._leader_epoch = partition.leader_epoch
        self._missing: dict[int, tuple[object] | None] = {}
        """The in-sync replicas from which the current reads still need a fetch. The value holds the session
        of the replica's first fetch, or is None before that fetch.
        """

    def __len__(self) -> int:
        return len(self._round) + len(self._next)

    def add(self, done: Done) -> None:
        """Add a read. `done` is called when it is known whether this broker was still the leader when the read
        began. If there are no other in-sync replicas, `done` is called at once.
        """
        self._next.append(done)
        if not self._round:
            self._begin()

    def forget(self, done: Done) -> None:
        """Drop a pending read that has waited too long."""
        for waiting in (self._round, self._next):
            if done in waiting:
                waiting.remove(done)
        if not self._round:
            self._begin()

    def end(self) -> None:
        """End the barrier, because this broker no longer leads the partition.

        Each pending read gets False.
        """
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
        """Record a follower's fetch, or (if `replica` is None) a change of the in-sync set. The pending reads
        are checked at the end of this turn, because the answer to the fetch must be built first.
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
            # The leadership of these reads is over, so `end` will answer them with False.
            return
        in_sync = set(partition.others_in_sync())
        self._missing = {each: first for each, first in self._missing.items() if each in in_sync}
        if self._missing:
            reached("coordination.followers_called_back")
            partition.followers.call_back(self._missing)
            return
        self._pass()
        self._begin()

    def _pass(self) -> None:
        done, self._round = self._round, []
        for each in done:
            each(True)
