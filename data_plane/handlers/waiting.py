"""The answer of a delayed request, within a task."""

from __future__ import annotations

from typing import Any

from odradek.data_plane.handlers.desk import Desk
from odradek.env.ports import Event
from odradek.serving.contract import Delayed


class _Waiter:
    def __init__(self, done: Event) -> None:
        self._done = done

    def complete(self, response: object) -> None:
        self._done.set()


async def response_of(delayed: Delayed, desk: Desk) -> Any:
    """Wait for the response. Followers may have to fetch first what was appended for it."""
    if delayed.response is None:
        done = desk.env.event()
        delayed.answer = _Waiter(done)
        desk.run_woken()
        await done.wait()
    return delayed.response
