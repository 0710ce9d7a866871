"""The fetches that wait until a partition has more records, each with a mark at which it wakes. PURE.

Each fetch has a mark. The mark is an offset that the high watermark, the last stable offset or the log end must
reach. Or it is a size that the log must reach. An append compares only the smallest mark of each kind, and
wakes only fetches whose mark is reached. So an append costs the same with one waiting fetch as with thousands.
A woken fetch has left the queue. If there are still too few bytes for it, it enters the queue again.

A truncated log needs a while to reach its former size again. So a fetch that waits for a size may wait until
its timeout.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from odradek.data_plane.log.partition_log import PartitionLog


class Until(IntEnum):
    """The kind of value that a fetch waits for.

    The marks of `HIGH_WATERMARK`, `LOG_END` and `STABLE` are (offset, 0). The fetch waits until the value has
    reached this offset. `STABLE` is the last stable offset. It moves only when the high watermark moves. An
    open transaction can keep it from moving.

    The mark of `SIZE` is (base offset of a segment, its size). The fetch waits for that size, or for a later
    segment.
    """

    HIGH_WATERMARK = 0
    LOG_END = 1
    SIZE = 2
    STABLE = 3


Mark: TypeAlias = tuple[int, int]
Ticket: TypeAlias = tuple[Mark, int, Until, Callable[[], None]]
"""A waiting fetch: (mark, serial number, kind, callback). Serial numbers keep the order of arrival among
equal marks.
"""


class WaitingFetches:
    """The fetches that wait for one partition."""

    __slots__ = ("_by_mark", "_serial")

    def __init__(self) -> None:
        self._by_mark: tuple[list[Ticket], list[Ticket], list[Ticket], list[Ticket]] = ([], [], [], [])
        """The tickets of each kind, sorted by mark."""
        self._serial = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_mark))

    def add(self, until: Until, mark: Mark, watcher: Callable[[], None]) -> Ticket:
        """Add a waiting fetch. `watcher` is called once: when the mark is reached, or when the partition has
        changed in another way.
        """
        self._serial += 1
        ticket = (mark, self._serial, until, watcher)
        insort(self._by_mark[until], ticket)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Remove a waiting fetch. The ticket of a fetch that was woken already is ignored.

        Tickets are compared by identity, because another ticket may have the same mark and number: a new
        queue counts from 0 again.
        """
        mark, serial, until, _ = ticket
        tickets = self._by_mark[until]
        at = bisect_left(tickets, (mark, serial))
        if at < len(tickets) and tickets[at] is ticket:
            del tickets[at]

    def take_reached(self, log: PartitionLog) -> list[Ticket]:
        """Remove and return the tickets whose marks this log has reached."""
        high, end, size, stable = self._by_mark
        reached: list[Ticket] = []
        if high and high[0][0][0] <= log.high_watermark:
            reached += _cut(high, (log.high_watermark, 0))
        if end and end[0][0][0] <= log.log_end_offset:
            reached += _cut(end, (log.log_end_offset, 0))
        if size:
            active = log.active
            place = (active.base_offset, active.size)
            if size[0][0] <= place:
                reached += _cut(size, place)
        # A reader of committed records never reads past the high watermark. So this comparison usually saves
        # the computation of the last stable offset.
        if stable and stable[0][0][0] <= log.high_watermark:
            reached += _cut(stable, (log.last_stable_offset, 0))
        return reached

    def take_all(self) -> list[Ticket]:
        """Remove and return all tickets, in any order."""
        taken = [ticket for tickets in self._by_mark for ticket in tickets]
        for tickets in self._by_mark:
            tickets.clear()
        return taken


def _cut(tickets: list[Ticket], mark: Mark) -> list[Ticket]:
    """Remove the tickets with marks up to `mark` from the sorted list, and return them."""
    at = bisect_left(tickets, ((mark[0], mark[1] + 1),))
    taken = tickets[:at]
    del tickets[:at]
    return taken
