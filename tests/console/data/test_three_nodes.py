"""The views of three nodes: a node that dies and returns, partitions that move with a throttle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jepsen_tests.real_cluster import Cluster
from odradek import Admin, Producer
from odradek.client.admin import NewTopic
from odradek.client.admin.moves.moving import throttle_moves
from odradek.client.admin.moves.placement import Move
from odradek.client.shells.blocking import Client
from odradek.console.settings import ConsoleSettings
from tests.cluster.exactly_once import three_nodes
from tests.console.application.console_here import Browser, console_for, in_path

pytestmark = pytest.mark.long
"""It starts three nodes."""

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, with a topic of two replicas and one without copies, each with ten megabytes."""
    with three_nodes(tmp_path_factory.mktemp("console")) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic("single", assignments={0: [1], 1: [2], 2: [3]}),
                    NewTopic("moved", assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"}),
                ]
            )
        with Producer(bootstrap_servers=running.bootstrap, max_request_size=2 << 20) as producer:
            for number in range(30):
                producer.send("single", b"%d" % number, partition=number % 3)
            for _ in range(20):
                producer.send("moved", b"x" * 500_000, partition=0).result(60)
        yield running


@pytest.fixture
def browser(cluster: Cluster) -> Iterator[Browser]:
    """A browser at a console of the cluster."""
    with console_for(ConsoleSettings(bootstrap=cluster.bootstrap)) as console:
        yield console.browser()


def until(browser: Browser, target: str, is_right: Callable[[Any], bool]) -> Any:
    """Ask until the answer is right."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        status, found = browser.get(target)
        if status == 200 and is_right(found):
            return found
        assert time.monotonic() < deadline, found
        threading.Event().wait(0.3)


def test_a_move_is_shown_with_bytes_throttle_and_time_left(cluster: Cluster, browser: Browser) -> None:
    """A throttled move shows how much is copied; at its end, the list is empty."""
    move = Move("moved", 0, (1, 2), (2, 3), 10_000_000)
    with Client(cluster.bootstrap, timeout_ms=20_000) as client:
        client.metadata()
        client.run(throttle_moves(client.core, [move], 1_000_000))
        ((_, error),) = client.admin.alter_partition_reassignments({("moved", 0): (2, 3)}).items()
        assert error is None
        try:
            found = until(
                browser,
                "/api/moves",
                lambda each: each["total"] == 1 and each["moves"][0]["bytes_per_second"],
            )
            (row,) = found["moves"]
            assert (row["topic"], row["partition"], row["from"], row["to"]) == ("moved", 0, [1], [3])
            assert row["replicas"] == [2, 3]
            assert 0 < row["bytes_done"] < row["bytes_total"]
            assert row["bytes_total"] > 10_000_000
            assert row["throttle_bytes_per_second"] == 1_000_000
            assert row["eta_ms"] > 0
            (drain,) = found["drains"]
            assert (drain["broker"], drain["moving"]) == (1, 1)
            assert drain["bytes_left"] > 0
            partition = browser.ok(in_path("topics", "moved"))["partitions"][0]
            assert (partition["adding"], partition["removing"]) == ([3], [1])
        finally:
            client.admin.unthrottle([1, 2, 3], ["moved"])
    until(browser, "/api/moves", lambda each: each["total"] == 0 and each["drains"] == [])
    until(browser, in_path("topics", "moved"), lambda each: set(each["partitions"][0]["isr"]) == {2, 3})


def test_views_go_on_while_a_node_is_dead(cluster: Cluster, browser: Browser) -> None:
    """A dead node costs its own partitions alone: lists, one topic and a search name the missing parts."""
    cluster.kill(3)
    try:
        found = until(
            browser,
            "/api/topics?state=offline",
            lambda each: [row["name"] for row in each["rows"]] == ["single"],
        )
        assert found["rows"][0]["offline"] == 1
        under = until(browser, "/api/topics?state=under_replicated", lambda each: each["total"] >= 3)
        assert "moved" in {row["name"] for row in under["rows"]}
        described = until(
            browser, in_path("topics", "single"), lambda each: each["partitions"][2]["leader"] is None
        )
        assert [each["error"] is None for each in described["partitions"]] == [True, True, False]
        assert described["partitions"][0]["log_end_offset"] == 10
        events = list(browser.events("/api/messages?topic=single&from=earliest&limit=100"))
        values = [value["value"]["text"] for name, value in events if name == "record"]
        assert len(values) == 20
        name, end = events[-1]
        assert (name, end["reason"]) == ("end", "failed")
        assert [each["partition"] for each in end["failed"]] == [2]
        newest = list(browser.events("/api/messages?topic=single&from=newest:5"))
        assert len([name for name, _ in newest if name == "record"]) == 5
        for path in ("groups", "moves", "transactions", "clients", "access", "history"):
            until(browser, f"/api/{path}", bool)
        rows = until(
            browser,
            "/api/history?kind=offline",
            lambda each: any("single-2" in row["what"] for row in each["rows"]),
        )["rows"]
        assert rows[0]["before"].startswith("leader 3")
        assert rows[0]["after"].startswith("leader none")
    finally:
        cluster.start(3)
        cluster.wait_until_whole()
    until(browser, "/api/topics?state=offline", lambda each: each["total"] == 0)
    events = list(browser.events("/api/messages?topic=single&from=earliest&limit=100"))
    assert len([name for name, _ in events if name == "record"]) == 30


def test_a_search_survives_a_change_of_the_leader(cluster: Cluster, browser: Browser) -> None:
    """A tail goes on when the partition's leader dies, and shows records that are written afterwards."""
    texts: list[str] = []
    is_open = threading.Event()

    def follow() -> None:
        for name, value in browser.events("/api/messages?topic=moved&from=latest&tail=1"):
            is_open.set()
            if name == "record":
                texts.append(value["value"]["text"])
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert is_open.wait(PATIENCE_SECONDS)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        leader = admin.describe_topics(["moved"])[0].partitions[0].leader
    cluster.kill(leader)
    try:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("moved", b"after the death", partition=0).result(PATIENCE_SECONDS)
        thread.join(PATIENCE_SECONDS)
        assert texts == ["after the death"]
    finally:
        cluster.start(leader)
        cluster.wait_until_whole()
