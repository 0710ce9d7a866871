"""The events of the virtual world and their times, in an order that only the seed decides."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

import attrs


class Owner(Protocol):
    """The owner of an event. While an owner is paused its events are held back."""

    @property
    def paused(self) -> bool: ...


@attrs.define(eq=False)
class Timer:
    """An event that is due at a virtual time, unless it is cancelled."""

    owner: Owner | None
    action: Callable[[], None] | None

    def cancel(self) -> None:
        """Forget the event, if it has not happened."""
        self.action = None


class Agenda:
    """Events by time; equal times in the order in which they were entered."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._entered = 0
        self._held: list[tuple[float, int, Timer]] = []

    def at(self, time: float, action: Callable[[], None], owner: Owner | None = None) -> Timer:
        """Enter an event; a time that has passed means now."""
        timer = Timer(owner, action)
        self._entered += 1
        heappush(self._heap, (time if time > self.now else self.now, self._entered, timer))
        return timer

    def advance(self, limit: float) -> bool:
        """Go to the next event, if it is due by `limit`, and let it happen. Return False if there is none."""
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
        """Let the events that were held back while `owner` was paused happen now, in their order."""
        held, self._held = self._held, []
        for entry in held:
            if entry[2].owner is owner:
                heappush(self._heap, entry)
            else:
                self._held.append(entry)
