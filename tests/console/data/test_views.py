"""The views of topics, groups, transactions, clients, rights and the history, over HTTP against a real node."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek import Admin, Consumer, Producer
from odradek.client.admin import (
    AlterConfig,
    ConfigResource,
    NewTopic,
    QuotaAlteration,
    ResourceType,
    ScramUpsertion,
)
from odradek.console.settings import ConsoleSettings
from odradek.security.acls.rules import Acl
from tests.console.application.console_here import Browser, console_for, in_path
from tests.node_process import RunningNode

PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def browser(node: RunningNode) -> Iterator[Browser]:
    """A browser at a console of the node."""
    with console_for(ConsoleSettings(bootstrap=node.bootstrap)) as console:
        yield console.browser()


@pytest.fixture(scope="module")
def admin(node: RunningNode) -> Iterator[Admin]:
    """A client of the node."""
    with Admin(bootstrap_servers=node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(admin: Admin, fresh_topic: Callable[[str], str]) -> str:
    """A topic of three partitions, with thirty records."""
    name = fresh_topic("Viewed")
    admin.create_topics([NewTopic(name, 3, 1, {"retention.ms": "-1", "segment.bytes": "1048576"})])
    with Producer(
        bootstrap_servers=",".join(f"{h}:{p}" for h, p in admin.settings.bootstrap_servers)
    ) as producer:
        for number in range(30):
            producer.send(name, b"%d" % number, partition=number % 3)
    return name


def until(browser: Browser, target: str, is_right: Callable[[Any], bool]) -> Any:
    """Ask until the answer is right; its views are kept for some seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = browser.ok(target)
    while not is_right(found):
        assert time.monotonic() < deadline, found
        threading.Event().wait(0.2)
        found = browser.ok(target)
    return found


def test_topics_are_searched_sorted_and_paged(browser: Browser, topic: str) -> None:
    """The list finds a topic by a part of its name in any case, with size, policy and state."""
    found = until(browser, f"/api/topics?search={topic.upper()}", lambda each: each["total"] == 1)
    (row,) = found["rows"]
    assert (row["name"], row["partitions"], row["cleanup_policy"]) == (topic, 3, "delete")
    assert (row["offline"], row["under_replicated"], row["moving"]) == (0, 0, 0)
    until(browser, f"/api/topics?search={topic}", lambda each: each["rows"][0]["bytes"] > 0)
    until(
        browser, f"/api/topics?search={topic}", lambda each: each["rows"][0]["records_per_second"] is not None
    )
    assert browser.ok(f"/api/topics?search={topic}&state=offline") == {
        "total": 0,
        "page": 1,
        "pages": 1,
        "rows": [],
    }
    assert browser.ok(f"/api/topics?search={topic}&page=2")["rows"] == []
    names = [each["name"] for each in browser.ok("/api/topics?sort=-name")["rows"]]
    assert names == sorted(names, reverse=True)
    sizes = [each["bytes"] for each in browser.ok("/api/topics?sort=-bytes")["rows"]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_topic_has_its_map(browser: Browser, topic: str) -> None:
    """One topic is described by partition, with offsets, disk and skew; an unknown one is a 404."""
    found = until(browser, in_path("topics", topic), lambda each: each["skew"]["bytes"] is not None)
    assert [each["log_end_offset"] for each in found["partitions"]] == [10, 10, 10]
    assert all(each["leader"] == each["replicas"][0] == each["isr"][0] for each in found["partitions"])
    assert found["skew"] == {"leaders": 1.0, "bytes": 1.0, "away_from_preferred": 0}
    status, error = browser.get(in_path("topics", "no-such-topic"))
    assert (status, error["code"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")
    status, error = browser.get(in_path("topics", "no such topic"))
    assert (status, error["code"]) == (400, "INVALID_QUERY")


def test_a_topic_has_its_configuration(browser: Browser, topic: str) -> None:
    """Each key has its value, its source, and the value that it would have otherwise."""
    rows = {each["name"]: each for each in browser.ok(in_path("topics", topic, "configs"))}
    changed = rows["segment.bytes"]
    assert (changed["value"], changed["is_default"], changed["source"]) == ("1048576", False, "topic_config")
    assert changed["default"] == "1073741824"
    assert rows["cleanup.policy"]["is_default"]
    assert rows["cleanup.policy"]["documentation"]
    assert rows["retention.ms"]["value"] == "-1"
    assert rows["retention.ms"]["default"] == "604800000", "brokers have it in hours"


def test_a_group_has_its_lag_members_and_trend(browser: Browser, node: RunningNode, topic: str) -> None:
    """A group is listed and described with its lag in records and in time, and with the time until it is zero."""
    group = f"{topic}-group"
    settings = {"bootstrap_servers": node.bootstrap, "group_id": group, "client_id": "reader"}
    with Consumer(auto_offset_reset="earliest", enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([topic])
        read = 0
        while read < 30:
            read += len(consumer.poll(1))
        consumer.commit({(topic, 0): 4, (topic, 1): 10, (topic, 2): 0})
        (row,) = until(browser, f"/api/groups?search={group}", lambda each: each["rows"][0]["lag"] == 16)[
            "rows"
        ]
        assert (row["members"], row["topics"], row["type"]) == (1, 1, "classic")
        assert row["behind_ms"] > 0
        found = browser.ok(in_path("groups", group))
        assert (found["state"], found["lag"], found["member_count"]) == ("Stable", 16, 1)
        assert [each["lag"] for each in found["offsets"]] == [6, 0, 10]
        assert found["offsets"][1]["behind_ms"] == 0
        assert found["offsets"][1]["zero_in_ms"] == 0
        (member,) = found["members"]
        assert (member["client_id"], member["assignment"]) == (
            "reader",
            [{"topic": topic, "partitions": [0, 1, 2]}],
        )
        assert found["offsets"][0]["member_id"] == member["member_id"]
        consumer.commit({(topic, 0): 8, (topic, 2): 10})
        later = until(
            browser, in_path("groups", group), lambda each: each["trend"] is not None and each["lag"] == 2
        )
        assert later["trend"]["read_per_second"] > 0
        assert later["offsets"][0]["trend_per_second"] < 0
        assert later["offsets"][0]["zero_in_ms"] > 0
        (reader,) = until(browser, in_path("topics", topic, "groups"), bool)
        assert (reader["id"], reader["partitions"]) == (group, 3)
        rows = until(browser, "/api/clients?search=reader", lambda each: each["total"] > 0)["rows"]
        assert any(group in each["groups"] for each in rows)
    status, error = browser.get(in_path("groups", "no such group"))
    assert (status, error["code"]) == (404, "GROUP_ID_NOT_FOUND")


def test_open_and_hanging_transactions_are_shown_with_those_who_wait(
    browser: Browser, node: RunningNode, admin: Admin, topic: str
) -> None:
    """An open transaction names the partition that it holds up, and the groups that have read up to it."""
    admin.alter_group_offsets(f"{topic}-waits", {(topic, 0): 10})
    name = f"{topic}-txn"
    with Producer(bootstrap_servers=node.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result(10)
        found = until(browser, f"/api/transactions?search={name}", lambda each: each["total"] == 1)
        (row,) = found["rows"]
        assert (row["state"], row["prospect"], row["is_hanging"]) == ("Ongoing", "open", False)
        assert row["age_ms"] >= 0
        assert row["holds_up"] == [
            {
                "topic": topic,
                "partition": 0,
                "last_stable_offset": 10,
                "records_behind": 1,
                "groups": [f"{topic}-waits"],
            }
        ]
        producer.commit_transaction()
    until(browser, f"/api/transactions?search={name}", lambda each: each["total"] == 0)
    (idle,) = until(browser, f"/api/transactions?search={name}&all=1", lambda each: each["total"] == 1)[
        "rows"
    ]
    assert (idle["state"], idle["prospect"]) == ("CompleteCommit", "none")


def test_nothing_moves_on_a_single_node(browser: Browser, topic: str) -> None:
    """Without moves, the view is empty lists."""
    found = browser.ok("/api/moves")
    assert (found["total"], found["disk_moves"], found["drains"], found["retirements"]) == (0, [], [], [])


def test_rights_quotas_and_users_are_listed(browser: Browser, admin: Admin, topic: str) -> None:
    """Users and quotas are listed. Without an authorizer, everybody may do everything."""
    admin.alter_client_quotas([QuotaAlteration((("user", topic),), {"producer_byte_rate": 1000.0})])
    admin.alter_user_scram_credentials([ScramUpsertion(topic, "SCRAM-SHA-256", 4096, b"salt" * 4, b"x" * 32)])
    found = until(browser, f"/api/access?search={topic}", lambda each: each["user_count"] == 1)
    assert found["quotas"][0] == {
        "user": topic,
        "client_id": None,
        "ip": None,
        "key": "producer_byte_rate",
        "value": 1000.0,
    }
    assert found["users"][0]["credentials"] == [{"mechanism": "SCRAM-SHA-256", "iterations": 4096}]
    assert found["has_authorizer"] is False
    check = browser.ok(f"/api/access/check?principal=ann&operation=read&resource=topic:{topic}")
    assert check["allowed"]
    check = browser.ok("/api/access/check?principal=ann&operation=create&resource=group:a")
    assert not check["allowed"]
    assert "has no operation create" in check["why"]


@pytest.mark.parametrize(
    "words",
    [
        "principal=ann&operation=read&resource=topic",
        "principal=ann&operation=fly&resource=topic:a",
        "principal=&operation=read&resource=topic:a",
        "principal=ann&operation=read&resource=planet:a",
    ],
)
def test_a_wrong_question_about_rights_is_refused(browser: Browser, words: str) -> None:
    """A question that makes no sense is a 400 with a sentence."""
    status, error = browser.get(f"/api/access/check?{words}")
    assert status == 400
    assert error["sentence"]


def test_the_history_has_values_before_and_after(browser: Browser, admin: Admin, topic: str) -> None:
    """A change of a configuration is shown with both values, newest first; pages and filters cut the list."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin.incremental_alter_configs({resource: [AlterConfig("retention.ms", "5000")]})
    found = until(
        browser,
        f"/api/history?topic={topic}&kind=config",
        lambda each: any(row["after"] == "5000" for row in each["rows"]),
    )
    newest = found["rows"][0]
    assert (newest["before"], newest["after"]) == ("-1", "5000")
    assert newest["what"] == f"topic {topic} has retention.ms=5000"
    kinds = {row["kind"] for row in browser.ok(f"/api/history?topic={topic}")["rows"]}
    assert kinds == {"config", "partitions", "topic"}
    later = newest["time_ms"] + 1
    assert browser.ok(f"/api/history?topic={topic}&since_ms={later}")["rows"] == []
    assert browser.ok("/api/history?page=1000")["rows"] == []


def test_messages_over_http(browser: Browser, topic: str) -> None:
    """A search is a stream of events that ends; one record and its bytes have addresses."""
    events = list(browser.events(f"/api/messages?topic={topic}&from=earliest&partition=1&limit=4"))
    records = [value for name, value in events if name == "record"]
    assert [each["value"]["text"] for each in records] == ["1", "4", "7", "10"]
    assert events[-1][0] == "end"
    assert events[-1][1] == {"reason": "limit", "next": "at:1:4", "failed": []}
    record = browser.ok(f"/api/message?topic={topic}&partition=1&offset=2")
    assert record["value"]["text"] == "7"
    assert browser.get(f"/api/download?topic={topic}&partition=1&offset=2&part=value")[1] == "7"
    lines = str(browser.get(f"/api/download?topic={topic}&filter=^2")[1]).splitlines()
    assert sorted(json.loads(line)["value"] for line in lines) == sorted(
        ["2", *(str(n) for n in range(20, 30))]
    )


@pytest.mark.parametrize(
    "target", ["/api/messages?topic=none-such", "/api/messages?topic=__consumer_offsets&filter=("]
)
def test_a_search_that_cannot_begin_ends_with_a_trouble(browser: Browser, target: str) -> None:
    """A stream that cannot begin has one event with the status and a sentence."""
    ((name, value),) = list(browser.events(target))
    assert name == "trouble"
    assert value["status"] in (400, 404)


def test_an_abandoned_tail_ends(browser: Browser, topic: str) -> None:
    """A reader that goes away ends the search: more readers than there are streams can follow one another."""
    for _ in range(20):
        stream = browser.events(f"/api/messages?topic={topic}&from=latest&tail=1")
        name, _ = next(stream)
        assert name == "progress"
        stream.close()


def test_rules_have_all_their_parts() -> None:
    """The view of a rule has a field for each part of a rule."""
    from odradek.cli.access.judging import acl_document
    from odradek.console.views.access import Rule

    assert Rule(**acl_document(Acl(2, "a", 3, "User:b", "*", 3, 3))).operation == "read"
