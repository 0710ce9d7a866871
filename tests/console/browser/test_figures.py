"""Figures as people read them: the functions of `code/format.js` and `views/json_text.js`, called in the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from tests.console.browser.fixture_server import serve
from tests.console.browser.recorded_answers import small_world

pytestmark = pytest.mark.long

CALLS = {
    "bytes(0)": "0 B", "bytes(999)": "999 B", "bytes(1000)": "0.977 KiB", "bytes(1536)": "1.5 KiB",
    "bytes(1048576)": "1 MiB", "bytes(2 ** 53)": "8 PiB", "bytes(null)": "–", "byteRate(1048576)": "1 MiB/s",
    "count(1234567)": "1,234,567", "count(0)": "0", "count(undefined)": "–", "counted(1, 'topic')": "1 topic",
    "counted(2, 'topic')": "2 topics", "short(0.3491)": "0.35", "short(9.53)": "9.5", "short(9999)": "9,999",
    "short(12345)": "12.3 k", "short(2.5e9)": "2.5 G", "rate(null)": "–", "rate(1500)": "1,500/s",
    "percent(0.5)": "50 %", "percent(0.051)": "5.1 %", "duration(0)": "0 s", "duration(320)": "320 ms",
    "duration(1500)": "1.5 s", "duration(59_999)": "1 min", "duration(61_000)": "1 min 1 s",
    "duration(3_600_000)": "1 h", "duration(3_661_000)": "1 h 1 min", "duration(90_000_000)": "1 d 1 h",
    "duration(null)": "–", "duration(-5000)": "−5 s", "sentence('broker 3 is down')": "Broker 3 is down.",
    "sentence('payments-3 is small')": "payments-3 is small.", "sentence('')": "", "sentence('Why?')": "Why?",
    "ago(Date.now() - 5000).textContent": "5 s ago", "ago(Date.now() - 95 * 60_000).textContent": "1 h 35 min ago",
    "ago(-1)": "–", "ago(Date.now()).textContent": "just now", "clock(null)": "–", "moment(NaN)": "NaN ms",
    "ago(1e300).textContent.startsWith('in ')": "true",
}  # fmt: skip
JSON_TEXTS = {
    '{"a":1}': '{\n  "a": 1\n}',
    "[]": "[]",
    '{"a":{},"b":[]}': '{\n  "a": {},\n  "b": []\n}',
    "[1.10,-2E+5,12345678901234567890]": "[\n  1.10,\n  -2E+5,\n  12345678901234567890\n]",
    '{"a":1,"a":2}': '{\n  "a": 1,\n  "a": 2\n}',
    '"x\\"y,{}[]:"': '"x\\"y,{}[]:"',
    '{"a":"\\u202e"}': '{\n  "a": "\\u202e"\n}',
}
NO_JSON = ["", "{", "hello", "{'a':1}", "NaN", "undefined", "[1,]", '{"a":1} x']


@pytest.fixture
def page(visit: Callable[..., Page]) -> Iterator[Page]:
    with serve(small_world()) as server:
        yield visit(f"{server.url}/groups")


def test_figures_are_written_for_people(page: Page) -> None:
    """Sizes, counts, rates, times and sentences read as a person would write them, at their edges, too."""
    code = "async (call) => { const m = await import('/code/format.js'); return String(new Function(...Object.keys(m), `return ${call}`)(...Object.values(m))); }"
    # The policy of the page forbids code from texts: a page without one calls the same module.
    page.context.route(
        "**/groups", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html")
    )
    page.goto(page.url)
    assert {call: page.evaluate(code, call) for call in CALLS} == CALLS


def test_json_is_laid_out_without_being_changed(page: Page) -> None:
    """JSON is laid out with all its digits and names; a text that is no JSON is left alone."""
    code = """async (text) => {
      const { laidOut } = await import('/views/json_text.js');
      return laidOut(text)?.map((node) => node.textContent ?? node).join('') ?? null;
    }"""
    assert {text: page.evaluate(code, text) for text in JSON_TEXTS} == JSON_TEXTS
    assert [page.evaluate(code, text) for text in NO_JSON] == [None] * len(NO_JSON)
