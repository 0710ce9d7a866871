"""Under-replicated partitions: the list of topics counts the same ones as the page of the cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from odradek.cli.health.picture import Partitions, Picture
from odradek.client.admin import ClusterDescription, Reassignment
from odradek.client.core.known_cluster import Partition, Topic
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.sessions.samples import Sample
from odradek.console.shapes.queries import NoQuery
from odradek.console.views.cluster import overview
from odradek.console.views.topics import TopicsQuery, topics
from odradek.wire.topic_partition import TopicPartition


def test_a_replica_that_a_move_adds_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that waits for a new replica alone is moved, not under-replicated, on both pages."""
    monkeypatch.setattr("odradek.console.views.topics._policies", lambda *_: {})
    monkeypatch.setattr("odradek.console.views.cluster.releases", lambda *_: {1: 0})
    listed = [
        Topic("behind", bytes(16), False, {0: Partition(0, 1, 0, (1, 2), (1,))}),
        Topic("moved", bytes(16), False, {0: Partition(0, 1, 0, (1, 2, 3), (1, 2))}),
        Topic("short", bytes(16), False, {0: Partition(0, 1, 0, (1, 2, 3), (1,))}),
    ]
    picture = Picture(
        ClusterDescription("c", 1, ()),
        listed,
        None,
        {TopicPartition("moved", 0): Reassignment((1, 2, 3), (3,), (1,))},
        Partitions(3, [], ["short-0"], ["behind-0", "moved-0"], ["moved-0"], {}, {}, {}),
        {},
        [],
        {},
        None,
    )
    session = SimpleNamespace(
        cache=KeptValues(),
        samples=SimpleNamespace(latest=lambda: (None, Sample(0.0, picture, {}, 0.0))),
        history=SimpleNamespace(recent=SimpleNamespace(get=lambda look, wait_seconds: None)),
    )
    rows = {row.name: row.under_replicated for row in topics(session, TopicsQuery()).rows}
    assert rows == {"behind": 1, "moved": 0, "short": 1}
    found = overview(session, NoQuery())
    assert found.under_replicated == 2
    (below, others) = (each.sentence for each in found.troubles if "fewer replicas" in each.sentence)
    assert below.startswith("1 partition has")
    assert others.startswith("1 more partition has")
    behind = topics(session, TopicsQuery(state="under_replicated"))
    assert [row.name for row in behind.rows] == ["behind", "short"]
