"""A lock for tasks of the event loop that take turns to change state, while worker threads may read this
state. PORTED.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from odradek.env.ports import Event

__all__ = ["Turns"]


class Turns:
    """A lock that lets one task in at a time (`async with turns:`). The order of waiting tasks is not
    guaranteed, so only few tasks should share it.
    """

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
