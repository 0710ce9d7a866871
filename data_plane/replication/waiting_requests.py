"""The requests that wait for one partition: for acknowledgements, for a sync, for its high watermark, or for
more records. PURE.

Each queue is made when its first request comes, because most partitions have none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Protocol

from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.replication.waiting_fetches import Mark, Ticket, Until, WaitingFetches
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError


class AckWaiter(Protocol):
    """A request that waits until all in-sync replicas have its record (acks=all)."""

    last_offset: int

    def acknowledged(self, code: ErrorCode) -> None:
        """Called when the high watermark has passed `last_offset`. `code` is NONE or
        NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """

    def leadership_lost(self) -> None:
        """Called when this broker has lost the leadership. The next leader may have the appended record, or
        not.
        """


class WaitingRequests:
    """The requests that wait for one partition of this broker, by the event that they wait for."""

    __slots__ = ("fetches", "for_acks", "for_sync", "watchers")

    def __init__(self) -> None:
        self.watchers: list[Callable[[], None]] | None = None
        self.fetches: WaitingFetches | None = None
        self.for_acks: deque[AckWaiter] | None = None
        self.for_sync: list[Callable[[KafkaError | None], None]] | None = None
        """The callbacks that wait for the next flush of the log; None while no flush runs."""

    # -- the high watermark and the leadership --------------------------------------------------------------------

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever the high watermark or the leadership changes, until `unwatch`."""
        if self.watchers is None:
            self.watchers = [watcher]
        else:
            self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Remove the watcher. An unknown watcher is ignored, because it may have been woken and removed
        meanwhile.
        """
        if self.watchers is not None and watcher in self.watchers:
            self.watchers.remove(watcher)
            if not self.watchers:
                self.watchers = None

    def call_watchers(self) -> None:
        """Call all watchers, in the order of their arrival. A watcher may unwatch itself or others meanwhile."""
        if self.watchers is not None:
            for watcher in list(self.watchers):
                watcher()

    # -- fetches --------------------------------------------------------------------------------------------------

    def watch_for_fetch(self, until: Until, mark: Mark, watcher: Callable[[], None]) -> Ticket:
        """Add a waiting fetch. `watcher` is called once: when the log has reached the mark, or when the
        leadership or the configuration changes.
        """
        if self.fetches is None:
            self.fetches = WaitingFetches()
        return self.fetches.add(until, mark, watcher)

    def unwatch_for_fetch(self, ticket: Ticket) -> None:
        """Remove a waiting fetch. The ticket of a fetch that was woken already is ignored."""
        if self.fetches is not None:
            self.fetches.remove(ticket)
            if not self.fetches:
                self.fetches = None

    def call_reached_fetches(self, log: PartitionLog) -> None:
        """Wake the fetches whose mark this log has reached."""
        if self.fetches is not None:
            for ticket in self.fetches.take_reached(log):
                ticket[3]()

    def call_all_fetches(self) -> None:
        """Wake all waiting fetches, because the partition has changed for a reason other than new records."""
        if self.fetches is not None:
            for ticket in self.fetches.take_all():
                ticket[3]()

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def wait_for_acks(self, waiter: AckWaiter) -> None:
        """Add a request that waits until all in-sync replicas have its record.

        The queue is in the order of the records' offsets. A repeated batch waits for the record of the first one, so
        its place is before requests for later records.
        """
        waiting = self.for_acks
        if waiting is None:
            self.for_acks = deque((waiter,))
        elif waiting and waiter.last_offset < waiting[-1].last_offset:
            reached("replication.repeated_batch_waits")
            waiting.insert(bisect_right(waiting, waiter.last_offset, key=_last_offset), waiter)
        else:
            waiting.append(waiter)

    def forget_acks(self, waiter: AckWaiter) -> None:
        """Remove the request, which no longer waits. An unknown request is ignored."""
        if self.for_acks is not None and waiter in self.for_acks:
            self.for_acks.remove(waiter)

    def acknowledge(self, high_watermark: int, code: ErrorCode) -> None:
        """Complete all requests whose record is below the high watermark, with this code."""
        waiting = self.for_acks
        done = []
        while waiting and waiting[0].last_offset < high_watermark:
            done.append(waiting.popleft())
        # Complete the newest first. A connection sends answers in order of the requests. So the oldest answer
        # should come last, because all answers are then sent together.
        for waiter in reversed(done):
            waiter.acknowledged(code)

    def lose_leadership(self) -> None:
        """Call `leadership_lost` on all requests that wait for acknowledgements."""
        waiting, self.for_acks = self.for_acks, None
        for waiter in waiting or ():
            waiter.leadership_lost()

    # -- a sync ---------------------------------------------------------------------------------------------------

    def wait_for_sync(self, done: Callable[[KafkaError | None], None]) -> bool:
        """Add a callback that waits for the next flush of this log. Returns True if no flush runs, so that
        the caller must start one.
        """
        if self.for_sync is None:
            self.for_sync = [done]
            return True
        self.for_sync.append(done)
        return False

    def take_sync_waiters(self) -> list[Callable[[KafkaError | None], None]]:
        """Remove and return the callbacks that the flush beginning now will cover. An empty result means that
        no flush is needed.
        """
        waiters = self.for_sync
        self.for_sync = [] if waiters else None
        return waiters or []


def _last_offset(waiter: AckWaiter) -> int:
    return waiter.last_offset
