"""A pass of the log cleaner without a node: its workers act at once, and its record loop runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.pass_run import PassRun, PassSettings
from odradek.data_plane.log.cleaning.plan import LogPlan, first_dirty_offset
from odradek.data_plane.log.cleaning.record_loop import RecordLoop
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import PassReport
from odradek.env.agreed_clock import AgreedClock
from testkit.by_hand import NOW_MS, ManualClock, finish

T = TypeVar("T")


class AtOnce:
    """Workers and a companion that do their work at once. `between` is called after each step of a worker."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.loop = RecordLoop()
        self._between = between

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        result = function(*args)
        self._between()
        return result

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.loop, method)(*args)


async def _no_throttle(size: int, is_over: Callable[[], bool]) -> None:
    assert size >= 0


def clean(
    log: PartitionLog,
    end_offset: int,
    *,
    between: Callable[[], None] = lambda: None,
    dedupe_bytes: int = 24 * 1000,
    io_buffer_bytes: int = 256,
    now_ms: int = NOW_MS,
    agreed_clock: AgreedClock | None = None,
    free_bytes: int = 1 << 40,
) -> PassReport | None:
    """Run a pass of the real cleaner below `end_offset`. Its reads are as small as possible."""
    at_once = AtOnce(between)
    plan = LogPlan(first_dirty_offset(view_of(log)), end_offset, 0, 0, 0)
    clock: Any = ManualClock(now_ms - NOW_MS)
    run = PassRun(
        log,
        plan,
        PassSettings(bytes(range(32)), dedupe_bytes, 0.9, io_buffer_bytes),
        at_once,
        at_once,
        clock,
        AgreedClock(clock) if agreed_clock is None else agreed_clock,
        _no_throttle,
        lambda: free_bytes,
    )
    return finish(run.run())
