"""Each page with data, without any, in the dark, and at each width: over recorded answers, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from tests.console.browser.chromium import faults_of, overflow_of
from tests.console.browser.fixture_server import FixtureServer, serve
from tests.console.browser.recorded_answers import empty_world, record, small_world

pytestmark = pytest.mark.long

Visit = Callable[..., Page]

SHOWN = {
    "/": "Broker 3 is down",
    "/brokers": "broker2.example.net:9092",
    "/topics": "clicks.raw.v1",
    "/topics/payments": "eligible to lead",
    "/topics/payments?tab=configuration": "retention.ms",
    "/topics/payments?tab=groups": "billing",
    "/messages?topic=payments": "customer-41",
    "/groups": "billing",
    "/groups/billing": "billing-1",
    "/moves": "orders",
    "/transactions": "billing-1",
    "/clients": "librdkafka",
    "/access": "User:mallory",
    "/access?tab=users": "SCRAM-SHA-256",
    "/access?tab=quotas": "1 MiB/s",
    "/history": "payments has retention.ms",
    "/login": "Password",
}
"""A text that each page shows over the answers of `small_world`."""
EMPTY = {
    "/": "All is well",
    "/topics": "There is no topic yet",
    "/messages": "Which messages?",
    "/groups": "There is no group yet",
    "/moves": "Nothing moves",
    "/transactions": "There is no open transaction",
    "/clients": "No client is known",
    "/access": "There is no rule",
    "/access?tab=users": "There is no user",
    "/access?tab=quotas": "There is no quota",
    "/history": "Nothing happened",
}
"""What each page says where there is nothing."""


@pytest.fixture(scope="module")
def small() -> Iterator[FixtureServer]:
    with serve(small_world()) as server:
        server.records = [record(number % 12, number) for number in range(60)]
        yield server


@pytest.fixture(scope="module")
def empty() -> Iterator[FixtureServer]:
    with serve(empty_world()) as server:
        yield server


@pytest.mark.parametrize("path", SHOWN)
def test_a_page_shows_its_data(visit: Visit, small: FixtureServer, path: str) -> None:
    """Each page shows its data, and has no fault that axe finds, in light and in dark colours."""
    page = visit(small.url + path)
    page.get_by_text(SHOWN[path]).first.wait_for()
    assert faults_of(page) == []
    page.emulate_media(color_scheme="dark")
    assert faults_of(page) == []


@pytest.mark.parametrize("width", [360, 800, 1280, 1920])
def test_no_page_is_wider_than_its_window(visit: Visit, small: FixtureServer, width: int) -> None:
    """No page is wider than its window: wide tables scroll in their own boxes."""
    page = visit(small.url, width=width)
    for path, text in SHOWN.items():
        page.goto(small.url + path)
        page.get_by_text(text).first.wait_for()
        assert overflow_of(page) <= 0, path


@pytest.mark.parametrize("path", EMPTY)
def test_a_page_without_data_says_so(visit: Visit, empty: FixtureServer, path: str) -> None:
    """Where there is nothing, a page says so, and what would be there."""
    page = visit(empty.url + path)
    page.get_by_text(EMPTY[path]).first.wait_for()
    assert faults_of(page) == []


def test_an_address_without_a_page_says_so(visitor: Visit, small: FixtureServer) -> None:
    """An address that no page has leads back to the cluster."""
    page = visitor(f"{small.url}/no/such/page")
    page.get_by_role("link", name="To the cluster").click()
    page.get_by_text("Something is wrong").wait_for()


def test_the_frame_leads_to_each_page(visit: Visit, small: FixtureServer) -> None:
    """The links of the frame lead to each page without loading the document again; the title says where one is."""
    page = visit(small.url)
    page.evaluate("window.stays = true")
    for name in (
        "Brokers",
        "Topics",
        "Messages",
        "Groups",
        "Moves",
        "Transactions",
        "Clients",
        "Access",
        "History",
    ):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        page.wait_for_function("name => document.title.startsWith(name)", arg=name)
        assert page.locator("nav [aria-current=page]").first.inner_text() == name
    assert page.evaluate("window.stays")


def test_the_theme_is_chosen_and_kept(visit: Visit, small: FixtureServer) -> None:
    """The switch of the theme wins over the system's setting, and is kept."""
    page = visit(small.url, dark=False)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) != light
    page.reload()
    page.get_by_role("button", name="Dark", pressed=True).wait_for()
    assert page.evaluate(ground) != light
    page.get_by_role("button", name="Auto").click()
    assert page.evaluate(ground) == light
