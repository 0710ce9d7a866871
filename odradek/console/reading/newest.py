"""Finds the newest records of a topic, by their timestamps. SHELL.

The end of each partition is read first: a window of offsets. A partition whose window lies wholly among the newest
records may have more of them. So the window before it is read, too, and so on. Windows grow, because a filter may
pass few records.

Clocks of producers differ, so times in a partition need not grow with its offsets. A page takes the end of each
partition without a gap, since the next page begins at one offset. So a record is as old as the oldest one behind it.

A few kilobytes of a hostile log may be gigabytes of records. So a page that would hold too many bytes has fewer records.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import inf
from typing import TypeAlias

import attrs

from odradek.client.admin.admin_offsets import OffsetSpan
from odradek.console.reading.found_records import Found, Tick
from odradek.console.reading.scan import SCAN_BYTES_MAX, SCAN_SECONDS_MAX, Progress, Scan, Span

__all__ = ["NewestSearch"]

HELD_BYTES_MAX = 32 << 20
"""The most bytes of records on a page; it has one record at least."""
_GROWTH = 4
_WINDOW_MIN = 5
_MANY_PARTITIONS = 32
MakeScan: TypeAlias = "Callable[[Mapping[int, Span]], Scan]"


@attrs.define
class _Window:
    """The last window of a partition: its offsets."""

    low: int
    high: int
    size: int


@attrs.define
class _Ending:
    """The newest findings of a partition without a gap: those of the window that is read, and those behind it."""

    read: deque[Found] = attrs.field(factory=deque)
    behind: deque[Found] = attrs.field(factory=deque)
    oldest_ms: float = inf
    """The time of the oldest finding that was seen."""
    is_cut: bool = False
    """True once older findings had to give way, so that none before them may be added."""
    is_closed: bool = False
    """True once findings behind the window that is read had to give way. Its other findings would leave a gap."""

    def add(self, item: Found) -> None:
        """Add the next finding of the window that is read. The ending must not be closed."""
        self.read.append(item)
        self.oldest_ms = _older(self.oldest_ms, item)

    def end_window(self) -> None:
        """Note that the window has been read."""
        self.behind.extendleft(reversed(self.read))
        self.read.clear()

    def ages(self) -> Iterator[tuple[float, int]]:
        """Yield the time that counts for each finding, and its bytes, from the last one on. The time never grows."""
        time_ms = inf
        for found in chain(reversed(self.behind), reversed(self.read)):
            time_ms = _older(time_ms, found)
            yield time_ms, found.held_bytes

    def keep(self, count: int) -> None:
        """Keep the last findings only."""
        for _ in range(len(self.read) + len(self.behind) - count):
            self.is_closed = self.is_closed or not self.read
            (self.read or self.behind).popleft()
            self.is_cut = True


def _older(time_ms: float, found: Found) -> float:
    # A damaged place may have no time.
    return time_ms if found.failure is not None and found.time_ms < 0 else min(time_ms, found.time_ms)


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
        self._endings = {index: _Ending() for index in self._windows}
        self._held = 0
        self._held_bytes = 0
        self._is_full = False
        """True once findings had to give way because they have too many bytes."""
        self._least_ms = -inf
        """The time that counts for the last of the newest findings, once there are enough."""
        self.progress = Progress()
        self.reason = "end"
        """Why the search has ended: limit, end, budget, or failed."""

    @property
    def places(self) -> dict[int, int]:
        """The offset of each partition before which older records lie, for the next page. Empty if there are none."""
        if self.reason == "end":
            return {}
        before = {}
        for index, window in self._windows.items():
            shown = self._endings[index].behind
            before[index] = shown[0].offset if shown else window.high
        return {index: offset for index, offset in before.items() if offset > self._starts[index]}

    def run(self) -> Iterator[Found | Tick]:
        """Yield ticks while windows are read, then the records, the newest first. Raises `KafkaError`, `ClientError`."""
        deadline = time.monotonic() + SCAN_SECONDS_MAX
        pending = {index: each for index, each in self._windows.items() if each.low < each.high}
        ends = {index: each.high for index, each in self._windows.items()}
        while pending:
            scan = self._make_scan({index: Span(each.low, each.high) for index, each in pending.items()})
            yield from self._read(scan)
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
        elif self._is_enough or (self.reason == "end" and any(map(self._has_older, self._windows))):
            self.reason = "limit"
        found = [each for ending in self._endings.values() for each in ending.behind]
        yield from sorted(found, key=lambda each: (each.time_ms, each.partition, each.offset), reverse=True)

    def _read(self, scan: Scan) -> Iterator[Tick]:
        scanned, scanned_bytes = self.progress.scanned, self.progress.scanned_bytes
        for item in scan.run(1 << 62):
            self.progress.scanned = scanned + scan.progress.scanned
            self.progress.scanned_bytes = scanned_bytes + scan.progress.scanned_bytes
            if isinstance(item, Tick):
                yield item
                continue
            if self._endings[item.partition].is_closed:
                continue
            self._endings[item.partition].add(item)
            self._held += 1
            self._held_bytes += item.held_bytes
            if self._held > 2 * self._count or self._held_bytes > 2 * HELD_BYTES_MAX:
                self._keep_newest()
            self.progress.found = min(self._held, self._count)
        for index in scan.spans:
            self._endings[index].end_window()
        self._keep_newest()
        for index, span in scan.spans.items():
            if span.failure is not None:
                self.failures[index] = span.failure

    def _keep_newest(self) -> None:
        """Keep only as many findings as are wanted, and as fit: of each partition the last ones, without a gap."""
        ages = [
            (time_ms, index, -number, size)
            for index, ending in self._endings.items()
            for number, (time_ms, size) in enumerate(ending.ages())
        ]
        ages.sort(reverse=True)
        kept: Counter[int] = Counter()
        self._held_bytes = 0
        for _, index, _, size in ages[: self._count]:
            if kept and self._held_bytes + size > HELD_BYTES_MAX:
                self._is_full = True
                break
            self._held_bytes += size
            kept[index] += 1
        for index, ending in self._endings.items():
            ending.keep(kept[index])
        self._held = kept.total()
        self._least_ms = ages[self._held - 1][0] if self._is_enough else -inf

    @property
    def _is_enough(self) -> bool:
        """True if older findings than those that are held may be left out."""
        return self._held >= self._count or self._is_full

    def _has_older(self, index: int) -> bool:
        """True if a partition was not read to its start, or if findings of it gave way. Fewer than are wanted may be left
        even so, because a page has no gap.
        """
        return self._endings[index].is_cut or self._windows[index].low > self._starts[index]

    def _may_have_more(self, index: int, window: _Window) -> bool:
        """True if records before the window may belong to the newest."""
        if window.low <= self._starts[index] or index in self.failures:
            return False
        ending = self._endings[index]
        if ending.is_cut:
            return False
        return not self._is_enough or self._least_ms < ending.oldest_ms < inf
