"""Finds the newest records of a topic, by their timestamps. SHELL.

The end of each partition is read first: a window of offsets. A partition whose window lies wholly among the newest
records may have more of them. So the window before it is read, too, and so on. Windows grow, because a filter may
pass few records.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import attrs

from odradek.client.admin.admin_offsets import OffsetSpan
from odradek.console.reading.found_records import Found, Tick
from odradek.console.reading.scan import SCAN_BYTES_MAX, SCAN_SECONDS_MAX, Progress, Scan, Span

__all__ = ["NewestSearch"]

_GROWTH = 4
_WINDOW_MIN = 5
_MANY_PARTITIONS = 32
MakeScan: TypeAlias = "Callable[[Mapping[int, Span]], Scan]"


@attrs.define
class _Window:
    """The last window of a partition: its offsets, and the time of the oldest finding in it."""

    low: int
    high: int
    size: int
    oldest_ms: int | None = None


class NewestSearch:
    """A search for the newest records."""

    def __init__(
        self, make_scan: MakeScan, ranges: Mapping[int, OffsetSpan], spans: Mapping[int, Span], count: int
    ) -> None:
        """Prepare a search for `count` records, before the ends of `spans`."""
        self._make_scan = make_scan
        self._count = count
        self._starts = {index: each.start for index, each in ranges.items()}
        size = count
        if len(spans) > _MANY_PARTITIONS:
            size = max(_WINDOW_MIN, count * _MANY_PARTITIONS // len(spans))
        self._windows: dict[int, _Window] = {}
        self.failures: dict[int, str] = {}
        """The reasons why partitions could not be read."""
        for index, span in spans.items():
            if span.failure is not None:
                self.failures[index] = span.failure
            elif span.end is not None:
                self._windows[index] = _Window(max(span.end - size, self._starts[index]), span.end, size)
        self._newest: list[tuple[int, int, int, Found]] = []
        self.progress = Progress()
        self.reason = "end"
        """Why the search has ended: limit, end, budget, or failed."""

    @property
    def places(self) -> dict[int, int]:
        """The offset of each partition before which older records lie, for the next page."""
        before = {index: window.high for index, window in self._windows.items()}
        for _, partition, offset, _ in self._newest:
            before[partition] = min(before[partition], offset)
        return {index: offset for index, offset in before.items() if offset > self._starts[index]}

    def run(self) -> Iterator[Found | Tick]:
        """Yield ticks while windows are read, then the records, the newest first. Raises `KafkaError`, `ClientError`."""
        deadline = time.monotonic() + SCAN_SECONDS_MAX
        pending = {index: each for index, each in self._windows.items() if each.low < each.high}
        ends = {index: each.high for index, each in self._windows.items()}
        while pending:
            scan = self._make_scan({index: Span(each.low, each.high) for index, each in pending.items()})
            yield from self._read(scan, pending)
            pending = {index: each for index, each in pending.items() if self._may_have_more(index, each)}
            if not pending:
                break
            if time.monotonic() > deadline or self.progress.scanned_bytes > SCAN_BYTES_MAX:
                self.reason = "budget"
                break
            for index, each in pending.items():
                size = each.size * _GROWTH
                self._windows[index] = pending[index] = _Window(
                    max(each.low - size, self._starts[index]), each.low, size
                )
        for index, window in self._windows.items():
            # The next page begins before what was shown, or at the end if nothing was.
            window.high = ends[index]
        if self.failures:
            self.reason = "failed"
        elif len(self._newest) >= self._count:
            self.reason = "limit"
        for *_, found in sorted(self._newest, key=lambda each: each[:3], reverse=True):
            yield found

    def _read(self, scan: Scan, windows: Mapping[int, _Window]) -> Iterator[Tick]:
        scanned, scanned_bytes = self.progress.scanned, self.progress.scanned_bytes
        for item in scan.run(1 << 62):
            self.progress.scanned = scanned + scan.progress.scanned
            self.progress.scanned_bytes = scanned_bytes + scan.progress.scanned_bytes
            if isinstance(item, Tick):
                yield item
                continue
            window = windows[item.partition]
            if window.oldest_ms is None or item.time_ms < window.oldest_ms:
                window.oldest_ms = item.time_ms
            entry = (item.time_ms, item.partition, item.offset, item)
            if len(self._newest) < self._count:
                heapq.heappush(self._newest, entry)
            else:
                heapq.heappushpop(self._newest, entry)
            self.progress.found = len(self._newest)
        for index, span in scan.spans.items():
            if span.failure is not None:
                self.failures[index] = span.failure

    def _may_have_more(self, index: int, window: _Window) -> bool:
        """True if records before the window may belong to the newest."""
        if window.low <= self._starts[index] or index in self.failures:
            return False
        if len(self._newest) < self._count:
            return True
        return window.oldest_ms is not None and window.oldest_ms > self._newest[0][0]
