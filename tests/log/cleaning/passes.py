"""A pass of the cleaner without a node: workers that act at once, and the record loop in this process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import attrs

from odradek.data_plane.log.cleaning.log_views import view_of
from odradek.data_plane.log.cleaning.pass_run import PassRun, PassSettings
from odradek.data_plane.log.cleaning.plan import LogPlan, first_dirty_offset
from odradek.data_plane.log.cleaning.record_loop import RecordLoop
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.data_plane.log.parts.cleaning_state import PassReport
from odradek.env.agreed_clock import AgreedClock
from tests.log.support import NOW_MS

T = TypeVar("T")


class AtOnce:
    """Workers and a companion that do their work at once; `between` is called after each step of a worker."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.loop = RecordLoop()
        self._between = between

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        result = function(*args)
        self._between()
        return result

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.loop, method)(*args)


@attrs.define
class FixedClock:
    """A clock that stands still."""

    now_ms: int = NOW_MS

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return self.now_ms


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")


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
    """A pass of the real cleaner below `end_offset`, in reads as small as can be."""
    at_once = AtOnce(between)
    plan = LogPlan(first_dirty_offset(view_of(log)), end_offset, 0, 0, 0)
    clock: Any = FixedClock(now_ms)
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
