"""Workers of one log directory, with an eye on what does not come back. PORTED.

A device that hangs blocks the thread that asks it, for as long as it likes. So each directory of several has threads
of its own, which is all that a hung device can use up, and `oldest` tells how long its oldest call has waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from odradek.env.ports import Clock, Workers

T = TypeVar("T")


class WatchedWorkers:
    """`odradek.env.ports.Workers` that remembers what is running."""

    __slots__ = ("_clock", "_running", "_serial", "_workers")

    def __init__(self, workers: Callable[[], Workers], clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._serial = 0
        self._running: dict[int, tuple[float, str]] = {}

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run a call that should come back soon: one file synced, one small file written."""
        self._serial += 1
        serial = self._serial
        name = getattr(function, "__qualname__", "a call")
        self._running[serial] = (self._clock.monotonic(), name)
        try:
            return await self._workers().run(function, *args)
        finally:
            del self._running[serial]

    async def run_long(self, function: Callable[..., T], *args: object) -> T:
        """Run a call that may take minutes on a sound device: loading logs, removing a large one."""
        return await self._workers().run(function, *args)

    def oldest(self) -> tuple[float, str] | None:
        """Seconds that the oldest call has waited, and its name."""
        for started, name in self._running.values():
            return self._clock.monotonic() - started, name
        return None
