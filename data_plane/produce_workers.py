"""Worker threads that check clients' batches, separate from the threads for disks and loading. All requests
share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from odradek.env.ports import Workers
from odradek.serving.node_env import NodeEnv
from odradek.wire.batches.compression import Inflated

T = TypeVar("T")

SMALL_THREADS = 2


class CountedWorkers:
    """Worker threads that count the calls that wait or run."""

    __slots__ = ("_workers", "in_progress")

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.in_progress = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.in_progress += 1
        try:
            return await self._workers.run(function, *args)
        finally:
            self.in_progress -= 1


class ProduceWorkers:
    """Two pools of workers for clients' batches. `small` does work that needs little memory; `large` does the
    rest as long work, one at a time and with pauses.
    """

    __slots__ = ("inflated", "large", "small")

    def __init__(self, env: NodeEnv) -> None:
        self.small = CountedWorkers(env.new_workers(SMALL_THREADS))
        self.large = env.long_work.beside(env.new_workers(1))
        self.inflated = Inflated()
        """Counts the bytes that workers have produced by decompression."""

    def statistics(self) -> dict[str, int]:
        return {
            "inflated_bytes": self.inflated.bytes_made,
            "small_in_progress": self.small.in_progress,
            "large_in_progress": self.large.in_progress,
        }
