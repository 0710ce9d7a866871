"""Turns, one after the other, for changes of state that workers read beside the loop. PORTED."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from odradek.env.ports import Event

__all__ = ["Turns"]


class Turns:
    """`async with turns:` for a single task at a time. The longest wait is not surely the next: use it among few."""

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._over: Event | None = None

    async def __aenter__(self) -> None:
        while self._over is not None:
            await self._over.wait()
        self._over = self._new_event()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        over, self._over = self._over, None
        assert over is not None
        over.set()
