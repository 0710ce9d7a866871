"""The pages over three real nodes: data on each, a node that dies and returns, and what one sees meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
from playwright.sync_api import Page, expect

from testkit.odradek_server import spawn_node
from testkit.processes import wait_until_serving
from tests.console.browser.chromium import faults_of, overflow_of
from tests.console.browser.running_console import console
from tests.console.browser.staged_cluster import StagedCluster, nodes, stage

pytestmark = pytest.mark.long

Visit = Callable[..., Page]
SECONDS_MS = 60_000


@attrs.frozen
class Stage:
    """A staged cluster, its directory, and the address of a console for it."""

    cluster: StagedCluster
    directory: Path
    url: str


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        cluster = stack.enter_context(nodes(directory))
        stack.enter_context(stage(cluster))
        yield Stage(cluster, directory, stack.enter_context(console(cluster.bootstrap)))


PAGES = {
    "/": r"3 brokers of 3 serve \d+ topics",
    "/brokers": "active controller",
    "/topics": "sensors.raw",
    "/topics?internal=1&search=__": "__consumer_offsets",
    "/topics/orders": "skew of leaders",
    "/topics/orders?partition=3": "node-",
    "/topics/orders?tab=configuration": "134217728",
    "/topics/orders?tab=groups": "billing",
    "/messages?topic=orders": "customer-",
    "/messages?topic=__consumer_offsets&begin=earliest": "offset",
    "/groups": "audit",
    "/groups/billing": "assigned by",
    "/groups/audit": "audit-1",
    "/moves": "Nothing moves",
    "/transactions": "forgetful-1",
    "/clients": "confluent-kafka-python",
    "/access": "User:mallory",
    "/access?tab=users": "SCRAM-SHA-512",
    "/access?tab=quotas": "40 MiB/s",
    "/history": "orders",
}


def test_each_page_shows_the_real_cluster(visit: Visit, staged: Stage) -> None:
    """Each page shows the real cluster. Axe finds no fault, and the page is as wide as its window."""
    page = visit(staged.url)
    for path, text in PAGES.items():
        page.goto(staged.url + path)
        page.locator("main").get_by_text(re.compile(text)).first.wait_for(timeout=SECONDS_MS)
        assert faults_of(page) == [], path
        assert overflow_of(page) <= 0, path


def test_a_group_that_falls_behind_is_charted(visit: Visit, staged: Stage) -> None:
    """The lag of a slow group is drawn, and grows."""
    page = visit(f"{staged.url}/groups/audit")
    page.locator(".chart canvas").wait_for(timeout=SECONDS_MS)
    page.get_by_text(re.compile("grows")).first.wait_for(timeout=SECONDS_MS)
    expect(page.locator(".chart")).to_have_attribute("aria-label", re.compile(r"Lag in records: orders \d"))


def test_messages_are_read_filtered_followed_and_downloaded(visit: Visit, staged: Stage) -> None:
    """Real records are found by a filter, shown as a whole, followed as they come, and downloaded."""
    page = visit(f"{staged.url}/messages?topic=orders&filter=Reykjav%C3%ADk&limit=20")
    page.get_by_text(re.compile("20 records found")).first.wait_for(timeout=SECONDS_MS)
    values = page.locator("tbody td.value").all_inner_texts()
    assert len(values) == 20
    assert all("Reykjavík" in value for value in values)
    page.get_by_role("button", name="Record").first.click()
    text = page.get_by_role("group", name="Value").inner_text()
    assert re.search(r'"id": 900719925474\d{4},\n  "town": "Reykjavík"', text)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the value").click()
    assert b"Reykjav" in Path(download.value.path()).read_bytes()
    page.get_by_role("button", name="Follow new ones").click()
    page.get_by_text("Following").wait_for()
    page.locator("tbody tr").nth(4).wait_for(timeout=SECONDS_MS)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()


def test_aborted_and_open_transactions_are_marked(visit: Visit, staged: Stage) -> None:
    """Records of aborted and of open transactions are shown as such; markers are shown when they are wanted."""
    page = visit(f"{staged.url}/messages?topic=payments&limit=1000&begin=earliest&markers=1")
    for mark in ("aborted", "open", "marker"):
        page.locator("tbody .badge", has_text=re.compile(f"^{mark}$")).first.wait_for(timeout=SECONDS_MS)


def test_a_topic_that_does_not_exist_is_said(visit: Visit, staged: Stage) -> None:
    """The pages of a topic and of a group that do not exist say so."""
    page = visit(f"{staged.url}/topics/nothing-of-this-name")
    page.get_by_text("This does not exist").wait_for(timeout=SECONDS_MS)


def test_a_node_dies_and_returns(visit: Visit, staged: Stage) -> None:
    """A node that is killed is a trouble within seconds, on each page; when it is back, all is well again."""
    cluster = visit(staged.url)
    brokers = visit(f"{staged.url}/brokers")
    topic = visit(f"{staged.url}/topics/orders")
    groups = visit(f"{staged.url}/groups/billing")
    os.kill(staged.cluster.pids[3], signal.SIGKILL)
    cluster.get_by_text("Something is wrong").wait_for(timeout=SECONDS_MS)
    cluster.get_by_text(re.compile(r"2 brokers of 3 serve")).wait_for(timeout=SECONDS_MS)
    brokers.locator("tbody tr.bad .badge.critical").first.wait_for(timeout=SECONDS_MS)
    topic.locator(".cell.behind, .cell.elr").first.wait_for(timeout=SECONDS_MS)
    topic.get_by_label("Which partitions").select_option("trouble")
    topic.locator("tbody tr.doubtful").first.wait_for(timeout=SECONDS_MS)
    groups.get_by_role("link", name="orders").first.wait_for(timeout=SECONDS_MS)
    for page in (cluster, brokers, topic, groups):
        assert faults_of(page) == []
    returned = spawn_node(
        "node 3",
        staged.directory / "node-3.properties",
        bootstrap=staged.cluster.bootstrap.split(",")[2],
        log_path=staged.directory / "returned.log",
        by_command=True,
    )
    try:
        wait_until_serving(returned)
        cluster.get_by_text("All is well").wait_for(timeout=2 * SECONDS_MS)
        topic.get_by_text("No partition is in trouble").wait_for(timeout=SECONDS_MS)
    finally:
        returned.stop()
