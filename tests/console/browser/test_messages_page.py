"""The page of messages: searches that run and stop, records that arrive, and a record as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.browser.fixture_server import FixtureServer, Refused, serve
from tests.console.browser.recorded_answers import decoded, record, small_world

pytestmark = pytest.mark.long

Visit = Callable[..., Page]


@pytest.fixture
def served() -> Iterator[FixtureServer]:
    with serve(small_world()) as server:
        server.records = [record(number % 12, number) for number in range(60)]
        yield server


def said(page: Page, text: str, *, exact: bool = False) -> Locator:
    """Find a text in the page itself. (Its newest sentence is repeated for screen readers.)"""
    return page.locator("main").get_by_text(text, exact=exact)


def asked(server: FixtureServer, address: str) -> dict[str, str]:
    """Return the words of the newest question at an address."""
    newest = [each for each in server.asked if each.startswith(f"{address}?")][-1]
    return {name: values[0] for name, values in parse_qs(urlsplit(newest).query).items()}


def test_nothing_is_read_before_somebody_asks(visit: Visit, served: FixtureServer) -> None:
    """The page reads only when it knows a topic, since a scan costs the brokers work."""
    page = visit(f"{served.url}/messages")
    said(page, "Nothing is read before that.").wait_for()
    assert not any(each.startswith("/api/messages") for each in served.asked)


def test_a_search_is_in_the_address(visit: Visit, served: FixtureServer) -> None:
    """All that is chosen is in the address, and is asked of the server; the same address asks it again."""
    page = visit(f"{served.url}/messages")
    page.get_by_label("Topic", exact=True).fill("payments")
    page.get_by_label("Partition", exact=True).fill("3")
    page.get_by_label("Read", exact=True).select_option("offset")
    page.get_by_label("Offset", exact=True).fill("17")
    page.get_by_label("At most").select_option("500")
    page.get_by_label("Show values as").select_option("hex")
    page.get_by_label("Only values that match").fill("price.*9")
    page.get_by_label("Only the key").fill("customer-1")
    page.get_by_label("Only the header").fill("trace=a1")
    page.get_by_role("button", name="Read").click()
    said(page, "60 records found").wait_for()
    wanted = {
        "topic": "payments", "partition": "3", "from": "offset:17", "limit": "500", "value_format": "hex",
        "filter": "price.*9", "key": "customer-1", "header": "trace=a1", "markers": "0",
    }  # fmt: skip
    assert asked(served, "/api/messages") == wanted
    page.reload()
    said(page, "60 records found").wait_for()
    assert asked(served, "/api/messages") == wanted
    link = page.get_by_role("link", name="Download as JSON lines").get_attribute("href")
    assert link is not None
    assert parse_qs(urlsplit(link).query)["from"] == ["offset:17"]


def test_a_time_is_sent_as_milliseconds(visit: Visit, served: FixtureServer) -> None:
    """A time in the browser's zone becomes milliseconds since 1970."""
    page = visit(f"{served.url}/messages?topic=payments")
    page.get_by_label("Read", exact=True).select_option("time")
    page.get_by_label("Time", exact=True).fill("2026-03-01T12:30:00")
    page.get_by_role("button", name="Read").click()
    page.wait_for_url("**begin=time**")
    expected = page.evaluate("new Date('2026-03-01T12:30:00').getTime()")
    said(page, "60 records found").wait_for()
    assert asked(served, "/api/messages")["from"] == f"time:{expected}"


def test_a_record_is_shown_as_a_whole(visit: Visit, served: FixtureServer) -> None:
    """A record opens by its button: JSON is laid out, a large number keeps its digits, headers and times are there."""
    page = visit(f"{served.url}/messages?topic=payments")
    opener = page.get_by_role("button", name="Record 3 of partition 3")
    opener.focus()
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(opener).to_be_focused()
    value = page.get_by_role("group", name="Value")
    assert (
        '"id": 12345678901234567890,\n  "price": 9.90,\n  "to": "café",\n  "tags": [\n' in value.inner_text()
    )
    said(page, "aborted: readers of committed records never see it").wait_for()
    said(page, "a1b2").wait_for()
    download = page.get_by_role("link", name="Download the value").get_attribute("href")
    assert download == "/api/download?topic=payments&partition=3&offset=3&part=value"
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "false")


def test_a_cut_record_is_loaded_when_it_is_wanted(visit: Visit, served: FixtureServer) -> None:
    """A value of which only the beginning came can be loaded as a whole."""
    served.records = [record(0, 41, value=decoded('{"a":', "json", is_cut=True))]
    served.world["/api/message"] = record(0, 41, value=decoded('{"a":"all of it"}', "json"))
    page = visit(f"{served.url}/messages?topic=payments")
    page.get_by_role("button", name="Record 41").click()
    said(page, "cut", exact=True).wait_for()
    page.get_by_role("button", name="Load all of it").click()
    said(page, '"all of it"').wait_for()
    assert asked(served, "/api/message") == {"topic": "payments", "partition": "0", "offset": "41"}


def test_what_cannot_be_read_says_why(visit: Visit, served: FixtureServer) -> None:
    """Tombstones, empty values, bytes that do not fit their schema, and damaged places are shown as such."""
    served.records = [
        record(0, 1, value=decoded(None)),
        record(0, 2, value=decoded("")),
        record(0, 3, value=decoded("00 01 ff", "hex", error="the bytes end before the value")),
        record(0, 4, error="the batch is damaged", next_offset=9),
    ]
    page = visit(f"{served.url}/messages?topic=payments")
    for number in range(1, 5):
        page.get_by_role("button", name=f"Record {number} ").click()
    said(page, "null: it deletes its key").wait_for()
    page.get_by_role("group", name="Value").get_by_text("empty").wait_for()
    said(page, "the bytes end before the value").wait_for()
    said(page, "The batch is damaged. Reading goes on at offset 9.").wait_for()


def test_a_tail_has_scanned_what_it_shows(visit: Visit, served: FixtureServer) -> None:
    """Records of a tail arrive before the progress that counts them: no more are found than were scanned."""
    served.arriving = [record(0, number) for number in range(5)]
    served.tail_scanned = 3
    page = visit(f"{served.url}/messages?topic=payments&tail=1")
    said(page, "5 records found, 5 scanned").wait_for()


def test_a_search_can_be_stopped(visit: Visit, served: FixtureServer) -> None:
    """The button "Stop" ends the request at once, and with it the work of the server."""
    served.arriving = [record(0, number) for number in range(5)]
    page = visit(f"{served.url}/messages?topic=payments")
    page.get_by_role("button", name="Follow new ones").click()
    said(page, "Following").wait_for()
    said(page, "5 records found").wait_for()
    assert asked(served, "/api/messages")["tail"] == "1"
    assert page.locator("tbody tr td:nth-child(3)").all_inner_texts() == ["4", "3", "2", "1", "0"]
    page.get_by_role("button", name="Stop").click()
    said(page, "Stopped.").wait_for()
    assert served.streams_ended.acquire(timeout=20)
    expect(said(page, "5 records found")).to_be_visible()


def test_a_tail_that_ended_is_read_on(visit: Visit, served: FixtureServer) -> None:
    """After a tail, reading goes on from its place, although the form says "Newest"."""
    served.tail_next = "at:0:7"
    page = visit(f"{served.url}/messages?topic=payments&tail=1")
    page.get_by_role("button", name="Read on").click()
    said(page, "60 records found").wait_for()
    words = asked(served, "/api/messages")
    assert (words["from"], "before" in words, "tail" in words) == ("at:0:7", False, False)


def test_another_page_ends_the_search(visit: Visit, served: FixtureServer) -> None:
    """A search ends when its page is left."""
    page = visit(f"{served.url}/messages?topic=payments&tail=1")
    said(page, "Following").wait_for()
    page.get_by_role("link", name="Groups").click()
    assert served.streams_ended.acquire(timeout=20)


def test_a_refused_search_says_why(visit: Visit, served: FixtureServer) -> None:
    """The page says in the server's words why it refuses a filter or a topic."""
    served.world["/api/messages"] = Refused(400, "the filter is not a regular expression of RE2: missing )")
    page = visit(f"{served.url}/messages?topic=payments&filter=(")
    said(page, "The filter is not a regular expression of RE2: missing ).").wait_for()
    served.world.pop("/api/messages")
    page.get_by_role("button", name="Ask again").click()
    said(page, "60 records found").wait_for()


def test_what_is_typed_stays_while_records_arrive(visit: Visit, served: FixtureServer) -> None:
    """Fields keep typed letters while records arrive, with the focus or without it."""
    page = visit(f"{served.url}/messages?topic=payments&tail=1")
    page.get_by_label("Only values that match").fill("first")
    page.get_by_label("Only the key").fill("second")
    page.get_by_label("At most").select_option("20")
    page.get_by_label("Topic", exact=True).press("End")
    for _ in range(3):
        with page.expect_request(re.compile("/api/topics")):
            page.get_by_label("Topic", exact=True).press_sequentially("x")
    expect(page.get_by_label("Only values that match")).to_have_value("first")
    expect(page.get_by_label("Only the key")).to_have_value("second")
    expect(page.get_by_label("At most")).to_have_value("20")
    expect(page.get_by_label("Topic", exact=True)).to_have_value("paymentsxxx")
