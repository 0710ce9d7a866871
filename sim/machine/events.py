"""The events of a simulation by their virtual times; the order of equal times depends only on the seed."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

import attrs


class Owner(Protocol):
    """The owner of an event. While the owner is paused, its events are held back."""

    @property
    def paused(self) -> bool: ...


@attrs.define(eq=False)
class Timer:
    """An event that is due at a virtual time, unless it is cancelled."""

    owner: Owner | None
    action: Callable[[], None] | None

    def cancel(self) -> None:
        """Cancel the event, if it has not happened yet."""
        self.action = None


class Agenda:
    """All future events, by time. Events of equal time happen in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._entered = 0
        self._held: list[tuple[float, int, Timer]] = []

    def at(self, time: float, action: Callable[[], None], owner: Owner | None = None) -> Timer:
        """Add an event at a virtual time in seconds; a time that has passed means now."""
        timer = Timer(owner, action)
        self._entered += 1
        heappush(self._heap, (time if time > self.now else self.now, self._entered, timer))
        return timer

    def advance(self, limit: float) -> bool:
        """Advance to the next event that is due by `limit`, and execute it. Return False if no event is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= limit:
            entry = heappop(heap)
            time, _, timer = entry
            action = timer.action
            if action is None:
                continue
            if timer.owner is not None and timer.owner.paused:
                self._held.append(entry)
                continue
            if time > self.now:
                self.now = time
            timer.action = None
            action()
            return True
        return False

    def release(self, owner: Owner) -> None:
        """Schedule the events that were held back while `owner` was paused. These events are due at once, in their
        former order.
        """
        held, self._held = self._held, []
        for entry in held:
            if entry[2].owner is owner:
                heappush(self._heap, entry)
            else:
                self._held.append(entry)
