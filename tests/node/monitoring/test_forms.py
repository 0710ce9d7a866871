"""The forms of the page: OpenMetrics, gzip; and the two answers about the health of a node."""

from __future__ import annotations

import gzip
import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from odradek.node.metrics.metrics_text import MetricsText
from odradek.node.metrics.page.page_forms import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    accepts_gzip,
    compressed,
    prefers_openmetrics,
)
from odradek.node.metrics.page.readiness import LAG_RECORDS_MAX, unready_reason
from odradek.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.machine.world import World
from testkit.lone_node import create_topic, produce, request
from tests.node.monitoring.prometheus_tools import promtool
from tests.node.requests.test_bad_batches import good_batch
from tests.node.test_metrics import Connect, http, play_measured

PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""The header of Prometheus 2.42."""


async def fetched(world: World, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Fetch a path. Return the status, the headers of the answer, and its body."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
    head, _, body = (await http(world, "\r\n".join([*lines, "", ""]).encode())).partition(b"\r\n\r\n")
    status, *rest = head.decode().split("\r\n")
    answered = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in rest)}
    assert int(answered["content-length"]) == len(body)
    return int(status.split()[1]), answered, body


def test_openmetrics_has_the_figures_of_the_text() -> None:
    """The official parser reads the page of a node as OpenMetrics. It has the same samples as the text."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, good_batch(1, timestamp_ms=1))
        unknown = MetadataRequest([MetadataRequestTopic(name="a")], allow_auto_topic_creation=False)
        await request(client, unknown, 9)
        _, headers, body = await fetched(world, Accept=PROMETHEUS_ACCEPTS)
        assert headers["content-type"] == OPENMETRICS_TYPE
        assert body.endswith(b"\n# EOF\n")
        read = list(text_string_to_metric_families(body.decode()))
        _, headers, body = await fetched(world, Accept="text/plain")
        assert headers["content-type"] == TEXT_TYPE
        plain = list(text_families(body.decode()))
        assert [(each.name, each.type, each.documentation) for each in read] == [
            (each.name, each.type, each.documentation) for each in plain
        ]
        names = [
            [(sample.name, sample.labels) for each in page for sample in each.samples]
            for page in (read, plain)
        ]
        assert names[0] == names[1]

    play_measured(script)


def test_openmetrics_escapes_what_the_text_leaves() -> None:
    """A quote in HELP is escaped in OpenMetrics alone. A parser reads both back."""
    for is_openmetrics, read in ((False, text_families), (True, text_string_to_metric_families)):
        page = MetricsText(is_openmetrics=is_openmetrics)
        page.counter("a_total", 'Says "yes".')
        page.sample(1, path='x"\\\n')
        (family,) = read(page.render().decode())
        assert (family.name, family.documentation) == ("a", 'Says "yes".')
        assert [(sample.name, sample.labels["path"]) for sample in family.samples] == [("a_total", 'x"\\\n')]


@pytest.mark.parametrize(
    ("accept", "is_preferred"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROMETHEUS_ACCEPTS, True),
        ("application/openmetrics-text", True),
        ('application/openmetrics-text; version="1.0.0"; charset=utf-8', True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text; q=0", False),
        ("text/plain, application/openmetrics-text; q=0.9", False),
        ("text/plain; q=0.9, APPLICATION/OPENMETRICS-TEXT", True),
        ("application/openmetrics-text; q=wild", False),
        (";;,,=;q", False),
    ],
)
def test_who_gets_openmetrics(accept: str, is_preferred: bool) -> None:
    """OpenMetrics is for readers that name its version 1.0.0, and weigh nothing else higher."""
    assert prefers_openmetrics(accept) is is_preferred


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.2", True),
        ("*", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("br", False),
        ("gzip;q=x", False),
    ],
)
def test_who_gets_gzip(header: str, accepts: bool) -> None:
    """A page is compressed for readers that name gzip, or everything, with a weight above 0."""
    assert accepts_gzip(header) is accepts


def test_a_compressed_page() -> None:
    """A page by gzip has the bytes of the plain page, and is far smaller. The same page has the same bytes."""

    async def script(world: World, connect: Connect) -> None:
        _, headers, packed = await fetched(world, Accept_Encoding="gzip")
        assert headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in headers["vary"]
        text = gzip.decompress(packed).decode()
        assert text.startswith("# HELP odradek_info ")
        assert len(packed) * 4 < len(text)
        assert compressed(text.encode()) == packed
        _, headers, plain = await fetched(world)
        assert "content-encoding" not in headers
        assert plain.startswith(b"# HELP odradek_info ")

    play_measured(script)


def test_promtool_reads_a_page_with_each_topic() -> None:
    """The page of a node with traffic has no remark of promtool, except about its former names."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, good_batch(1, timestamp_ms=1))
        _, _, body = await fetched(world)
        _, remarks = promtool(("check", "metrics"), body.decode())
        former = re.findall(r"(?m)^# HELP (\w+) Former name", body.decode())
        assert {line.split()[0] for line in remarks.splitlines()} <= set(former)

    play_measured(script)


def test_a_node_says_that_it_lives_and_serves() -> None:
    """A node that serves answers 200 to /healthz and to /ready, also to HEAD. A query after the path changes nothing."""

    async def script(world: World, connect: Connect) -> None:
        assert [(await fetched(world, path))[::2] for path in ("/healthz", "/ready", "/ready?verbose")] == [
            (200, b"ok\n"),
            (200, b"ready\n"),
            (200, b"ready\n"),
        ]
        assert (await http(world, b"HEAD /ready HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await fetched(world, "/healthz/x"))[0] == 404

    play_measured(script)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"is_starting": True}, "the node is starting"),
        ({"lag": LAG_RECORDS_MAX}, None),
        ({"lag": LAG_RECORDS_MAX + 1}, "101 committed metadata records are not applied yet"),
        ({"fenced": True}, "the broker is fenced"),
        ({"epoch": 8}, "the broker is fenced"),
        ({"removed": True}, "the broker is fenced"),
        ({"stopping": True}, "the broker is stopping"),
        ({"fenced": True, "controller": True}, None),
    ],
)
def test_when_a_node_is_ready(changed: dict[str, Any], reason: str | None) -> None:
    """A node is ready if it has started and applied the metadata, and if its broker is neither fenced nor stopping."""
    registration = SimpleNamespace(
        fenced=changed.get("fenced", False),
        in_controlled_shutdown=changed.get("stopping", False),
        epoch=changed.get("epoch", 7),
    )
    lifecycle: Any = SimpleNamespace(
        registration=None if changed.get("removed") else registration, broker_epoch=7
    )
    metadata: Any = SimpleNamespace(lag_records=changed.get("lag", 0))
    found = unready_reason(
        metadata,
        None if changed.get("controller") else lifecycle,
        is_starting=changed.get("is_starting", False),
    )
    assert found == reason
