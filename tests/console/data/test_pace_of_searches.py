"""Searches together fetch at most so many bytes per second, so that brokers keep their time for others."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from odradek.console.reading import scan as scan_module
from odradek.console.reading.found_records import Tick
from odradek.console.reading.pace import BURST_BYTES, BYTES_PER_SECOND, Pace
from odradek.console.reading.scan import Scan, Span
from odradek.console.reading.shown_records import ShownRecord
from tests.console.data.test_hostile_logs import Log, batch, search

__all__ = ["search"]

RATE = BYTES_PER_SECOND


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_small_search_needs_no_rest() -> None:
    """After a while without searches, a burst is free. What goes beyond it takes its time."""
    clock = Clock()
    pace = Pace(RATE, clock)
    assert pace.rest_seconds(BURST_BYTES) == 0
    assert pace.rest_seconds(RATE) == pytest.approx(1.0)
    clock.now += 10
    assert pace.rest_seconds(BURST_BYTES) == 0


def test_searches_share_the_pace() -> None:
    """Ten searches at once fetch no more than one: each rests for all of them."""
    clock = Clock()
    pace = Pace(RATE, clock)
    fetched, rests = 0, [0.0] * 10
    while clock.now < 1060:
        place = min(range(10), key=lambda each: rests[each])
        clock.now = max(clock.now, rests[place])
        fetched += 8 << 20
        rests[place] = clock.now + pace.rest_seconds(8 << 20)
    assert fetched <= 60 * RATE + BURST_BYTES + 10 * (8 << 20)
    assert fetched >= 55 * RATE


def test_threads_lose_no_bytes() -> None:
    """Bytes of several threads at one moment all count."""
    pace = Pace(RATE, Clock())
    threads = [
        threading.Thread(target=lambda: [pace.rest_seconds(1 << 20) for _ in range(100)]) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert pace.rest_seconds(0) == pytest.approx((400 * (1 << 20) - BURST_BYTES) / RATE)


def test_a_scan_rests_between_rounds_and_can_be_dropped_meanwhile(
    search: Callable[..., tuple[list[ShownRecord], Scan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that is too fast pauses. It yields ticks meanwhile, so that its reader may leave."""
    slept: list[float] = []
    now = Clock()

    class Time:
        monotonic = staticmethod(now)

        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now.now += seconds

    monkeypatch.setattr(scan_module, "time", Time)
    log = Log(*(batch(number, b"x" * 1000) for number in range(20)))
    size = sum(map(len, log.batches))
    scan = Scan(log, "t", {0: Span(0, log.end)}, None, pace=Pace(size, now))  # type: ignore[arg-type] # a stand-in
    items = list(scan.run(100))
    assert sum(slept) == pytest.approx(1.0 - BURST_BYTES / RATE)
    assert max(slept) <= 0.2
    assert sum(isinstance(item, Tick) for item in items) > len(slept)
    assert scan.reason == "end"
