"""Turns: of each owner, a limited number of works at once; the others wait in their order. PORTED."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from odradek.console.shapes.view_errors import ViewError
from odradek.env.ports import Event

__all__ = ["Turns"]

WAITING_MAX = 32


class Turns:
    """The turns of all owners. Only the event loop uses them."""

    def __init__(self, at_once_max: int, new_event: Callable[[], Event]) -> None:
        self._at_once_max = at_once_max
        self._new_event = new_event
        self._running: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[Event]] = {}

    @asynccontextmanager
    async def of(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and have it during the block. Raises `ViewError` if too many of this owner wait."""
        await self._take(owner)
        try:
            yield
        finally:
            self._give(owner)

    async def _take(self, owner: Hashable) -> None:
        if self._running.get(owner, 0) < self._at_once_max:
            self._running[owner] = self._running.get(owner, 0) + 1
            return
        waiting = self._waiting.setdefault(owner, deque())
        if len(waiting) >= WAITING_MAX:
            raise ViewError(503, "TOO_BUSY", "too many of your views wait already: try again in a moment")
        event = self._new_event()
        waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._give(owner)
            else:
                waiting.remove(event)
            raise

    def _give(self, owner: Hashable) -> None:
        """End a turn. The first who waits has it."""
        waiting = self._waiting.get(owner)
        if waiting:
            waiting.popleft().set()
            return
        self._waiting.pop(owner, None)
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
