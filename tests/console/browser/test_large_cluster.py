"""Ten thousand topics, a topic of ten thousand partitions, and many records: pages stay small and quick to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser.chromium import faults_of
from tests.console.browser.fixture_server import FixtureServer, serve
from tests.console.browser.recorded_answers import large_world, record

pytestmark = pytest.mark.long

Visit = Callable[..., Page]
ELEMENTS_MAX = 6_000


@pytest.fixture(scope="module")
def served() -> Iterator[FixtureServer]:
    with serve(large_world()) as server:
        yield server


def elements_of(page: Page) -> int:
    found = page.evaluate("document.querySelectorAll('*').length")
    assert isinstance(found, int)
    return found


def test_ten_thousand_topics_are_paged(visit: Visit, served: FixtureServer) -> None:
    """A list of 10,000 topics has pages, and few elements."""
    page = visit(f"{served.url}/topics")
    page.get_by_text("1 to 100 of 10,000").wait_for()
    assert elements_of(page) < ELEMENTS_MAX


def test_ten_thousand_partitions_are_paged(visit: Visit, served: FixtureServer) -> None:
    """The map of 10,000 partitions has pages; a partition is found by its number."""
    page = visit(f"{served.url}/topics/wide")
    page.get_by_text("1 to 200 of 10,000").first.wait_for()
    assert elements_of(page) < ELEMENTS_MAX
    assert faults_of(page) == []
    page.get_by_label("Partition", exact=True).fill("9999")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/wide?partition=9999")
    expect(page.get_by_label("Partition", exact=True)).to_have_value("9999")
    assert "/api/topics/wide?page=50" in served.asked


def test_many_records_stay_bounded(visit: Visit, served: FixtureServer) -> None:
    """A page that follows a busy topic keeps the newest 2,000 records."""
    served.arriving = [record(0, number) for number in range(2_500)]
    page = visit(f"{served.url}/messages?topic=wide&tail=1")
    page.get_by_text("2,000 records found").wait_for()
    page.get_by_role("button", name="Record 2499 ").wait_for()
    assert page.locator("tbody tr").count() <= 2_000
