"""What a page does while somebody uses it: state in the address, keys, trouble, and data that change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser.fixture_server import FixtureServer, Hanging, Refused, serve
from tests.console.browser.recorded_answers import group_row, listed, overview, session, small_world, topics

pytestmark = pytest.mark.long

Visit = Callable[..., Page]


@pytest.fixture
def served() -> Iterator[FixtureServer]:
    with serve(small_world()) as server:
        yield server


def words(page: Page) -> dict[str, str]:
    """Return the words of the page's address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def first_cells(page: Page) -> list[str]:
    return page.locator("tbody tr > *:first-child").all_inner_texts()


def test_sorting_is_in_the_address(visit: Visit, served: FixtureServer) -> None:
    """A click on a heading sorts; the address keeps the order, and the way back undoes it."""
    page = visit(f"{served.url}/groups")
    page.get_by_role("link", name="Lag").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Lag"))
    assert words(page) == {"sort": "-lag"}
    assert first_cells(page) == ["slow", "billing", "audit"]
    page.get_by_role("link", name="Lag").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("Lag"))
    assert first_cells(page) == ["audit", "billing", "slow"]
    page.go_back()
    expect(page.locator("th[aria-sort=descending]")).to_be_visible()
    page.reload()
    expect(page.locator("th[aria-sort=descending]")).to_be_visible()
    assert first_cells(page) == ["slow", "billing", "audit"]


@pytest.mark.parametrize("address", ["/groups", "/groups/billing", "/topics/payments?tab=groups"])
def test_a_lag_that_is_not_known_is_no_zero(visit: Visit, served: FixtureServer, address: str) -> None:
    """A group of which partitions give no answer is shown as unknown, in records and in time."""
    unknown = {"lag": None, "unknown_partitions": 3, "behind_ms": None}
    for path in ("/api/groups", "/api/groups/billing", "/api/topics/payments/groups"):
        answer = served.world[path]
        shapes = answer["rows"] if path == "/api/groups" else answer
        for each in shapes if isinstance(shapes, list) else [shapes]:
            each.update(unknown)
    page = visit(f"{served.url}{address}")
    page.get_by_title("3 partitions without a committed offset, or without an answer").first.wait_for()
    assert page.locator("main").get_by_text("unknown", exact=True).count() >= 2


def test_a_search_asks_the_server_and_keeps_the_focus(visit: Visit, served: FixtureServer) -> None:
    """Typed letters stay in the field while answers come; they reach the address and the server."""
    page = visit(f"{served.url}/topics")
    page.keyboard.press("/")
    field = page.get_by_label("Search topics by name")
    expect(field).to_be_focused()
    field.press_sequentially("pay", delay=60)
    page.wait_for_url("**/topics?search=pay")
    expect(field).to_be_focused()
    expect(field).to_have_value("pay")
    served.world["/api/topics"] = listed([])
    page.get_by_text("No topic has such a name").wait_for()
    expect(field).to_be_focused()
    assert "/api/topics?search=pay&internal=0" in served.asked


def test_keys_lead_everywhere(visit: Visit, served: FixtureServer) -> None:
    """The pages can be used by keys alone: the skip link, links, "g" and a letter, "?" for the list of keys."""
    page = visit(served.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.get_by_role("link", name="payments").focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/payments")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_every_control_can_be_reached_and_shows_the_focus(visit: Visit, served: FixtureServer) -> None:
    """The key Tab reaches each link, button and field, and each shows an outline."""
    page = visit(f"{served.url}/groups")
    wanted = page.evaluate(
        "document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"]').length"
    )
    seen = 0
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        seen += 1
    assert seen == wanted


def test_an_open_row_stays_open_while_data_change(visit: Visit, served: FixtureServer) -> None:
    """A partition that is looked at stays open while new answers come, and is in the address."""
    page = visit(f"{served.url}/topics/payments")
    page.get_by_role("link", name="5", exact=True).click()
    detail = page.get_by_role("table", name="Replicas of partition 5")
    detail.wait_for()
    assert words(page) == {"partition": "5"}
    served.world["/api/topics/payments"] = {
        **small_world()["/api/topics/payments"],
        "records_per_second": 77.0,
    }  # type: ignore[dict-item]
    page.keyboard.press("r")
    page.get_by_text("77/s").wait_for()
    expect(detail).to_be_visible()


def test_what_the_user_may_not_see_is_said(visit: Visit, served: FixtureServer) -> None:
    """A refusal is shown in the words of the cluster, and no old data stay."""
    served.world["/api/groups"] = Refused(403, "you may not list groups")
    page = visit(f"{served.url}/groups")
    page.get_by_text("You may not see this").wait_for()
    page.get_by_text("You may not list groups.").wait_for()
    served.world["/api/groups"] = listed([group_row("billing", 1)])
    page.get_by_role("button", name="Ask again").click()
    page.get_by_role("link", name="billing").wait_for()


def test_a_missing_right_to_the_cluster_is_named(visit: Visit, served: FixtureServer) -> None:
    """The page names the right that a user lacks who may not describe the cluster."""
    served.world["/api/brokers"] = Refused(403, "quorum: refused", code="CLUSTER_AUTHORIZATION_FAILED")
    page = visit(f"{served.url}/brokers")
    page.get_by_text("You may not see this").wait_for()
    page.get_by_text("odradek acl add --user NAME --operation describe --cluster").wait_for()


def test_the_configuration_tells_times_and_sources(visit: Visit, served: FixtureServer) -> None:
    """A time has its unit, the default's as well. A value that all brokers have comes from them."""
    shared = next(
        each for each in served.world["/api/topics/payments/configs"] if each["name"] == "retention.ms"
    )
    page = visit(f"{served.url}/topics/payments?tab=configuration")
    row = page.get_by_role("row").filter(has_text="retention.ms")
    expect(row).to_contain_text("1 day")
    expect(row).to_contain_text("7 days")
    expect(row).to_contain_text("this topic")
    shared["source"] = "dynamic_default_broker_config"
    page.keyboard.press("r")
    expect(row).to_contain_text("all brokers")


def test_a_page_that_waits_says_so(visitor: Visit, served: FixtureServer) -> None:
    """While the first answer is awaited, the page says so; then the data come."""
    served.world["/api/groups"] = hanging = Hanging()
    page = visitor(f"{served.url}/groups")
    page.get_by_text("Asking the cluster").wait_for()
    served.world["/api/groups"] = listed([group_row("billing", 1)])
    hanging.release.set()
    page.reload()
    page.get_by_role("link", name="billing").wait_for()


def test_old_data_stay_while_the_cluster_is_silent(visit: Visit, served: FixtureServer) -> None:
    """If answers fail after the first, the old data stay under a notice of their age, until answers come again."""
    page = visit(f"{served.url}/groups")
    served.world["/api/groups"] = Refused(504, "the cluster did not answer in time")
    page.keyboard.press("r")
    page.get_by_text("The cluster did not answer in time.").wait_for()
    page.get_by_text("What you see is").wait_for()
    expect(page.get_by_role("link", name="billing")).to_be_visible()
    served.world["/api/groups"] = listed([group_row("new-one", 1)])
    page.get_by_role("link", name="new-one").wait_for()
    expect(page.get_by_text("What you see is")).to_be_hidden()


def test_the_cluster_page_follows_its_stream(visit: Visit, served: FixtureServer) -> None:
    """The page of the cluster follows its stream: trouble comes, the stream breaks, and it asks for a new one."""
    served.world["/api/overview"] = overview() | {"judgement": "ok", "troubles": []}
    page = visit(served.url)
    page.get_by_text("All is well").wait_for()
    served.world["/api/overview"] = overview()
    page.get_by_text("Broker 3 is down").wait_for()
    served.world["/api/overview"] = Refused(503, "the quorum does not answer just now")
    page.get_by_text("The quorum does not answer just now.").wait_for()
    expect(page.get_by_text("Broker 3 is down")).to_be_visible()
    served.world["/api/overview"] = overview() | {"judgement": "ok", "troubles": []}
    page.get_by_text("All is well").wait_for()


def test_a_page_that_is_left_asks_nothing_more(visit: Visit, served: FixtureServer) -> None:
    """The stream of a page ends when another page comes."""
    page = visit(served.url)
    page.get_by_role("link", name="Groups").click()
    assert served.streams_ended.acquire(timeout=20)


def test_a_page_that_stands_still_asks_nothing(visit: Visit, served: FixtureServer) -> None:
    """The key "p" stops the questions of a page, and lets them go on."""
    page = visit(f"{served.url}/groups")
    page.keyboard.press("p")
    page.keyboard.press("r")
    served.world["/api/groups"] = listed([group_row("later", 1)])
    expect(page.get_by_role("link", name="billing")).to_be_visible()
    page.keyboard.press("p")
    page.get_by_role("link", name="later").wait_for()


def test_a_lost_session_leads_to_the_login_and_back(visit: Visit, served: FixtureServer) -> None:
    """An answer 401 leads to the login; after it, the page that was wanted comes."""
    page = visit(f"{served.url}/groups?sort=-lag")
    served.world["/api/groups"] = Refused(401, "log in first")
    served.world["/api/session"] = session() | {
        "login_needed": True,
        "mechanisms": ["SCRAM-SHA-512", "OAUTHBEARER"],
    }
    page.keyboard.press("r")
    page.wait_for_url("**/login?next=**")
    page.get_by_label("User", exact=True).fill("alice")
    page.get_by_label("Password").fill("wrong")
    served.world["/api/login"] = Refused(401, "the cluster does not know this user with this password")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("The cluster does not know this user").wait_for()
    served.world |= {"/api/login": {}, "/api/groups": listed([group_row("billing", 1)])}
    served.world["/api/session"] = session() | {"user": "alice", "mechanisms": ["SCRAM-SHA-512"]}
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/groups?sort=-lag")
    page.get_by_role("link", name="billing").wait_for()
    expect(page.get_by_text("alice")).to_be_visible()
    sent = next(each for each in served.asked if each.startswith("/api/login"))
    assert '"mechanism":"SCRAM-SHA-512"' in sent


def test_a_certificate_logs_in_by_a_click(visit: Visit, served: FixtureServer) -> None:
    """The login page names the user of the connection's certificate. A refusal is shown, and passwords still work."""
    page = visit(f"{served.url}/groups")
    served.world["/api/session"] = session() | {
        "login_needed": True,
        "mechanisms": ["SCRAM-SHA-512"],
        "certificate_user": "dora",
    }
    served.world["/api/groups"] = Refused(401, "log in first")
    page.keyboard.press("r")
    page.wait_for_url("**/login?next=**")
    page.get_by_text("Your certificate stands for dora.").wait_for()
    served.world["/api/login"] = Refused(
        403, "the console's user lacks the right CREATE_TOKENS for User:dora"
    )
    page.get_by_role("button", name="Log in by certificate").click()
    page.get_by_text("The console's user lacks the right CREATE_TOKENS").wait_for()
    expect(page.get_by_label("Password")).to_be_visible()
    served.world |= {"/api/login": {}, "/api/groups": listed([group_row("billing", 1)])}
    served.world["/api/session"] = session() | {"user": "dora", "mechanisms": ["certificate"]}
    page.get_by_role("button", name="Log in by certificate").click()
    page.get_by_role("link", name="billing").wait_for()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    assert [each for each in served.asked if each.startswith("/api/login")] == [
        '/api/login {"certificate":true}'
    ] * 2


def test_missing_names_in_the_history_are_explained(visit: Visit, served: FixtureServer) -> None:
    """Below the changes, the page says why it does not know who has asked for some of them."""
    page = visit(f"{served.url}/history")
    page.get_by_text("It is not known who has asked for 1 event in epoch 3.").wait_for()


def test_newest_changes_that_are_not_known_are_explained(visit: Visit, served: FixtureServer) -> None:
    """The page of the cluster shows the newest changes, or the reason why it has none."""
    page = visit(f"{served.url}/")
    page.get_by_text("Topic payments has retention.ms=86400000.").wait_for()
    page.get_by_text("It uses the metadata of Apache Kafka 4.3.").wait_for()
    served.world["/api/overview"] = overview() | {
        "events": None,
        "events_unknown": "the controllers show their metadata log to no client",
    }
    page.get_by_text("The controllers show their metadata log to no client.").wait_for()


@pytest.mark.parametrize(
    "wanted", ["//evil.example/", "https://evil.example/", "javascript:alert(1)", "/\\evil.example/"]
)
def test_a_login_never_leads_elsewhere(visit: Visit, served: FixtureServer, wanted: str) -> None:
    """Whatever an address says, a login ends on a page of the console."""
    served.world["/api/login"] = {}
    page = visit(f"{served.url}/login")
    page.goto(f"{served.url}/login?next={wanted}")
    page.get_by_label("User", exact=True).fill("alice")
    page.get_by_label("Password").fill("right")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("Something is wrong").wait_for()
    assert page.url.startswith(f"{served.url}/")


def test_rights_are_explained(visit: Visit, served: FixtureServer) -> None:
    """The question "may X do Y" has its answer with the reason, and is in the address."""
    page = visit(f"{served.url}/access")
    page.get_by_label("User", exact=True).fill("User:alice")
    page.get_by_label("Operation").select_option("write")
    page.get_by_label("Name", exact=True).fill("payments")
    page.get_by_role("button", name="Ask").click()
    page.get_by_text("Yes.").wait_for()
    page.get_by_text("The rule for topics that begin with pay allows it.").wait_for()
    assert words(page)["principal"] == "User:alice"
    assert (
        "/api/access/check?principal=User%3Aalice&operation=write&resource=topic%3Apayments" in served.asked
    )
    page.reload()
    page.get_by_text("Yes.").wait_for()


def test_lists_of_many_pages_are_paged_by_the_server(visit: Visit, served: FixtureServer) -> None:
    """A list of the server with several pages has links to them; a page of the browser's own making is not sorted."""
    served.world["/api/topics"] = {"total": 250, "page": 1, "pages": 3, "rows": topics()}
    page = visit(f"{served.url}/topics")
    page.get_by_text("1 to 100 of 250").wait_for()
    page.get_by_role("link", name="Last").click()
    page.wait_for_url("**/topics?page=3")
    page.get_by_text("201 to 250 of 250").wait_for()
    assert "/api/topics?page=3&internal=0" in served.asked
    page.get_by_role("link", name="Size").click()
    page.wait_for_url("**/topics?sort=-bytes")
