"""Names, keys, values, headers and client ids that others choose: they never run, load, reorder or break the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice

import pytest
from playwright.sync_api import Page

from tests.console.browser.chromium import faults_of, overflow_of
from tests.console.browser.fixture_server import FixtureServer, serve
from tests.console.browser.recorded_answers import Answer, decoded, record, small_world

pytestmark = pytest.mark.long

Visit = Callable[..., Page]

TEXTS = {
    "script": "<script>window.broken = 1</script>",
    "image": "<img src=x onerror='window.broken=1'>",
    "svg": '"><svg onload=window.broken=1>',
    "link": "javascript:window.broken=1",
    "template": "{{constructor.constructor('window.broken=1')()}}${window.broken=1}",
    "entities": "&lt;b&gt;&#x202e;&amp;",
    "bidi": "user\u202egpj.exe\u2066\u2069\u200f",
    "zero width": "pay\u200bments\u2060\ufeff\U000e0041",
    "controls": "a\x00b\x1b[31mc\td\r\ne\x7f\x85",
    "marks": "z" + "\u0335\u0489" * 300,
    "surrogate": "half \ud800 of one",
    "long": "w" * 3_000,
    "prototype": "__proto__",
    "path": "../../../etc/passwd?x=1#y%2e%2e",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e \u0639\u0631\u0628\u064a",
}
KEPT = frozenset(
    {
        "severity", "kind", "link", "judgement", "state", "prospect", "type", "format", "permission", "pattern_type",
        "timestamp_type", "roles", "cluster_id", "source", "key", "value", "operation", "resource_type",
    }
)  # fmt: skip
"""Fields whose texts the console chooses itself, and those that are objects."""
PAGES = [
    "/", "/brokers", "/topics", "/topics/payments?partition=3", "/topics/payments?tab=configuration",
    "/topics/payments?tab=groups", "/messages?topic=payments", "/groups", "/groups/billing", "/moves", "/transactions",
    "/clients", "/access", "/access?tab=users", "/access?tab=quotas", "/history",
]  # fmt: skip


TURNS = 3


def poisoned(answer: Answer, texts: Iterator[str], name: str = "") -> Answer:
    """Return an answer in which others have chosen each text that they can choose: the next of `texts`."""
    if isinstance(answer, str):
        return answer if name in KEPT else next(texts)
    if isinstance(answer, Mapping):
        return {key: poisoned(value, texts, key) for key, value in answer.items()}
    if isinstance(answer, Sequence):
        return [poisoned(each, texts, name) for each in answer]
    return answer


@pytest.fixture(scope="module")
def served() -> Iterator[FixtureServer]:
    with serve(small_world()) as server:
        yield server


def test_a_hostile_text_is_only_a_text(visit: Visit, served: FixtureServer, whole_matrix: bool) -> None:
    """Each text stays a text in every place at once: it is never run, loaded or parsed, and a page keeps its width."""
    if not whole_matrix:
        pytest.skip("each text in every place: make test-console")
    for text in TEXTS.values():
        look_at_all_pages(visit, served, [text])


@pytest.mark.parametrize("turn", range(TURNS))
def test_hostile_texts_are_only_texts(visit: Visit, served: FixtureServer, turn: int) -> None:
    """Hostile texts stay texts in all places. In each turn, a place has another one of them."""
    texts = list(TEXTS.values())
    first = turn * len(texts) // TURNS
    look_at_all_pages(visit, served, texts[first:] + texts[:first])


def look_at_all_pages(visit: Visit, served: FixtureServer, some: Sequence[str]) -> None:
    """Serve these texts wherever others can choose one, visit all pages, and check that they are whole."""
    texts = cycle(some)
    for address, answer in small_world().items():
        served.world[address] = poisoned(answer, texts)
    served.world["/api/session"] = small_world()["/api/session"]
    served.records = []
    for text in islice(texts, len(some)):
        for told in (decoded(text), decoded(text, "json", error=text)):
            offset = 1 + len(served.records)
            headers = [{"name": text, "value": decoded(text)}]
            served.records.append(record(0, offset, key=decoded(text), value=told, headers=headers))
    page = visit(served.url)
    for path in PAGES:
        page.goto(served.url + path)
        page.wait_for_selector("main:not([aria-busy]) > *:not(.loading)")
        if path.startswith("/messages"):
            page.get_by_role("button", name="Record").nth(1).wait_for()
            for opener in page.get_by_role("button", name="Record").all():
                opener.click()
            page.get_by_role("group", name="Value").first.wait_for()
        assert page.evaluate("window.broken") is None, path
        assert page.locator("main script, main img, main iframe, main object, main [onload]").count() == 0, (
            path
        )
        assert overflow_of(page) <= 0, path
        drawn = page.locator("main").inner_text()
        assert not any(character in drawn for character in "\u202e\u2066\u200b\u2060\ufeff\x00\x1b"), path
    assert faults_of(page) == []


def test_unseen_characters_are_named(visit: Visit, served: FixtureServer) -> None:
    """A character that would reorder or hide its neighbours stands as its number."""
    served.world |= small_world()
    served.world["/api/clients"] = poisoned(small_world()["/api/clients"], cycle([TEXTS["bidi"]]))
    page = visit(f"{served.url}/clients")
    assert page.locator("tbody th").first.inner_text() == "userU+202Egpj.exeU+2066U+2069U+200F"


@pytest.mark.parametrize(
    "name", ["a/b", "a?b=c", "a#b", "a%2fb", "100%", "<b>", "\u202e", "a b+c", "\U0001f600", "'\"", "\\"]
)
def test_a_link_to_a_group_leads_to_this_group(visit: Visit, served: FixtureServer, name: str) -> None:
    """A link to a group with any name asks for exactly this group."""
    served.world |= small_world()
    served.world["/api/groups"] = poisoned(small_world()["/api/groups"], cycle([name]))
    served.world[f"/api/groups/{name}"] = small_world()["/api/groups/billing"]
    page = visit(f"{served.url}/groups")
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Members").wait_for()
    page.reload()
    page.get_by_role("heading", name="Members").wait_for()


def test_deep_and_unseen_texts_stay_small(visit: Visit, served: FixtureServer) -> None:
    """Deep JSON is not laid out, since its indentation would fill the memory. Of very many unseen characters, most
    stand as one sign. A time that is no date leaves the page whole."""
    served.world |= small_world()
    page = visit(f"{served.url}/messages?topic=payments&begin=time&at=99999999999999999")
    page.get_by_label("Time").wait_for()
    assert page.evaluate(
        """async () => {
            const { laidOut } = await import("/views/json_text.js");
            const { shown } = await import("/code/dom.js");
            return [
                laidOut("[".repeat(1000) + "]".repeat(1000)),
                laidOut("[[1]]").length > 3,
                shown("\\u202e".repeat(100000)).childNodes.length < 3000,
            ];
        }"""
    ) == [None, True, True]


@pytest.mark.parametrize(
    "wanted", ["/.//evil.example/x", "//evil.example/x", "https://evil.example/", "http://[", "/nowhere", "/%2e//evil.example"]
)  # fmt: skip
def test_no_address_leads_away_after_the_login(visit: Visit, served: FixtureServer, wanted: str) -> None:
    """Whatever stands in `next`, the page after a login is one of this console."""
    served.world |= small_world()
    page = visit(served.url)
    found = page.evaluate(
        """async (wanted) => {
            const { nextOf } = await import("/views/login.js");
            return nextOf({ get: () => wanted });
        }""",
        wanted,
    )
    assert found in ("/", f"{served.url}/")
