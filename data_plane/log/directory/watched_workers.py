"""The worker threads of one log directory, which record for how long their calls have been running. PORTED.

A device that hangs blocks each thread that calls it, for any length of time. So if there are several
directories, each has its own threads. A hung device then uses up only the threads of its directory. `oldest`
returns for how long the oldest call has been running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from odradek.env.ports import Clock, Workers

T = TypeVar("T")


class WatchedWorkers:
    """Worker threads (`odradek.env.ports.Workers`) that record their running calls."""

    __slots__ = ("_clock", "_running", "_serial", "_workers")

    def __init__(self, workers: Callable[[], Workers], clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._serial = 0
        self._running: dict[int, tuple[float, str]] = {}

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run a short call in a worker, such as syncing one file or writing one small file."""
        self._serial += 1
        serial = self._serial
        name = getattr(function, "__qualname__", "a call")
        self._running[serial] = (self._clock.monotonic(), name)
        try:
            return await self._workers().run(function, *args)
        finally:
            del self._running[serial]

    async def run_long(self, function: Callable[..., T], *args: object) -> T:
        """Run a long call in a worker, such as loading logs or removing a large log. It may take minutes on a
        sound device.
        """
        return await self._workers().run(function, *args)

    def oldest(self) -> tuple[float, str] | None:
        """Return the age in seconds, and the name, of the oldest running call; None if none is running."""
        for started, name in self._running.values():
            return self._clock.monotonic() - started, name
        return None
