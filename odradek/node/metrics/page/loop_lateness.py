"""Measures how late the event loop wakes tasks that are due, and counts what pages cost it. PORTED."""

from __future__ import annotations

from bisect import bisect_left

import attrs

from odradek.env.ports import Clock
from odradek.serving.api_table import LATENCY_BOUNDS_SECONDS

__all__ = ["LoopLateness", "PageCosts", "watch_loop"]

LATENESS_INTERVAL_SECONDS = 0.25


@attrs.define
class LoopLateness:
    """The lateness of the event loop: how late it wakes tasks that are due. It has a histogram over
    `LATENCY_BOUNDS_SECONDS`, and the sum of the seconds.
    """

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))
    seconds: float = 0.0


@attrs.define
class PageCosts:
    """The pages that this process has made, and the time that the event loop has spent on them."""

    count: int = 0
    seconds: float = 0.0


async def watch_loop(clock: Clock, lateness: LoopLateness) -> None:
    """Measure four times a second how late the event loop wakes a task that is due. Return only by
    cancellation.
    """
    while True:
        due = clock.monotonic() + LATENESS_INTERVAL_SECONDS
        await clock.sleep_until(due)
        late = max(0.0, clock.monotonic() - due)
        lateness.counts[bisect_left(LATENCY_BOUNDS_SECONDS, late)] += 1
        lateness.seconds += late
