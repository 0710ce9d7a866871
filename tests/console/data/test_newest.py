"""The newest records of partitions whose timestamps are out of order: pages follow each other without a gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.admin.admin_offsets import OffsetSpan
from odradek.console.reading import newest as newest_module
from odradek.console.reading.found_records import Found
from odradek.console.reading.newest import HELD_BYTES_MAX, NewestSearch
from odradek.console.reading.scan import Progress, Span

Times = Mapping[int, list[int]]
"""The time of each record of a partition."""


def page(times: Times, before: Mapping[int, int], count: int, passed: int = 1, size: int = 0) -> NewestSearch:
    """Make a search before these offsets. A filter passes the offsets that are multiples of `passed`. Each record has
    `size` bytes.
    """

    def make_scan(spans: Mapping[int, Span]) -> SimpleNamespace:
        def run(_: int) -> Iterator[Found]:
            for index, span in spans.items():
                for offset in range(span.position, span.end or 0):
                    if offset % passed == 0:
                        yield Found(index, offset, offset + 1, times[index][offset], held_bytes=size)

        return SimpleNamespace(spans=spans, progress=Progress(), run=run)

    ranges = {index: OffsetSpan(0, len(each)) for index, each in times.items()}
    spans = {index: Span(0, before.get(index, 0)) for index in times}
    return NewestSearch(make_scan, ranges, spans, count)


def all_pages(times: Times, count: int, passed: int = 1, size: int = 0) -> list[list[tuple[int, int]]]:
    """Read page after page. Return the partition and the offset of each finding."""
    before = {index: len(each) for index, each in times.items()}
    pages = []
    while before:
        search = page(times, before, count, passed, size)
        pages.append([(each.partition, each.offset) for each in search.run() if isinstance(each, Found)])
        assert len(pages[-1]) <= count
        if before == search.places:
            break
        before = search.places
    return pages


def test_a_clock_that_runs_ahead_hides_no_record() -> None:
    """A record from the future among older ones does not push the page past those behind it."""
    times = {0: [1000 + offset for offset in range(100)], 1: [2000, 2001, 2002]}
    times[0][91] = 5000
    first, second, *_ = all_pages(times, 10)
    assert sorted(first) == [*((0, offset) for offset in range(93, 100)), (1, 0), (1, 1), (1, 2)]
    assert second == [(0, 91), *((0, offset) for offset in (92, 90, 89, 88, 87, 86, 85, 84, 83))]


@pytest.mark.parametrize(
    ("passed", "size"), [(1, 0), (3, 0), (1, HELD_BYTES_MAX // 3), (3, HELD_BYTES_MAX + 1)]
)
@given(
    st.dictionaries(st.integers(0, 40), st.lists(st.integers(0, 50), max_size=60), max_size=5),
    st.integers(1, 20),
)
def test_pages_have_each_record_once(passed: int, size: int, times: dict[int, list[int]], count: int) -> None:
    """Whatever the timestamps are, and however large the records, the pages together have each finding once."""
    found = [place for each in all_pages(times, count, passed, size) for place in each]
    wanted = [(index, at) for index, each in times.items() for at in range(0, len(each), passed)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(
    ("times", "count", "size"),
    [
        ({0: [1, 0, 0], 1: [1, 0, 0, 0]}, 2, HELD_BYTES_MAX + 1),
        ({1: [0] * 7, 0: [*[0] * 12, 1, 0, 0, 0]}, 3, 0),
    ],
)
def test_a_finding_that_gave_way_is_not_jumped_over(
    times: dict[int, list[int]], count: int, size: int
) -> None:
    """A newer finding gives way while older ones of its partition are read: these wait for the next page, too."""
    found = [place for each in all_pages(times, count, 3, size) for place in each]
    assert sorted(found) == sorted(
        (index, at) for index, each in times.items() for at in range(0, len(each), 3)
    )


def test_times_in_order_give_the_newest_of_all() -> None:
    """If times grow with offsets, a page has the newest records of all partitions."""
    times = {0: list(range(0, 300, 3)), 1: list(range(1, 150, 3)), 2: list(range(2, 30, 3))}
    (first, *_) = all_pages(times, 40)
    newest = sorted(((at, index, offset) for index, each in times.items() for offset, at in enumerate(each)))
    assert first == [(index, offset) for _, index, offset in newest[:-41:-1]]


def test_a_page_holds_bounded_bytes() -> None:
    """A page of huge records has fewer of them, says that there are more, and never holds many more bytes."""
    times = {0: list(range(100)), 1: list(range(100))}
    size = HELD_BYTES_MAX // 4
    search = page(times, {0: 100, 1: 100}, 50, size=size)
    held = []
    add = newest_module._Ending.add

    def add_and_count(ending: newest_module._Ending, item: Found) -> None:
        add(ending, item)
        held.append(sum(len(each.read) + len(each.behind) for each in search._endings.values()))

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(newest_module._Ending, "add", add_and_count)
        found = [(each.partition, each.offset) for each in search.run() if isinstance(each, Found)]
    assert found == [(1, 99), (0, 99), (1, 98), (0, 98)]
    assert search.reason == "limit"
    assert max(held) * size <= 2 * HELD_BYTES_MAX + size


def test_a_page_with_all_records_is_the_last() -> None:
    """Where all records were read, no older ones are offered, although the filter has left the first ones out."""
    search = page({0: [1, 2, 3, 4], 1: [5]}, {0: 4, 1: 1}, 10, passed=3)
    assert [each.offset for each in search.run() if isinstance(each, Found)] == [0, 3, 0]
    assert (search.reason, search.places) == ("end", {})
    search = page({0: [1, 2, 3, 4, 5]}, {0: 5}, 1, passed=4)
    assert [each.offset for each in search.run() if isinstance(each, Found)] == [4]
    assert (search.reason, search.places) == ("limit", {0: 4})
