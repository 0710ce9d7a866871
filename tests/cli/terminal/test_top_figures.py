"""The figures of `odradek top` when a part of the cluster gave no answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from odradek.cli.health.picture import Partitions
from odradek.cli.terminal.top import sampling
from odradek.cli.terminal.top.sampling import Sample
from odradek.cli.terminal.top.views import table_of, total_rate
from odradek.client.admin import BrokerLogDirs, ClusterDescription, LogDirDescription, LogDirReplica
from odradek.client.core.known_cluster import Broker, Partition, Topic
from odradek.client.errors import RequestTimedOut
from odradek.wire.topic_partition import TopicPartition

BROKERS = tuple(Broker(node, f"node{node}", 9092, None) for node in (1, 2))
TOPIC = Topic("t", bytes(16), False, {index: Partition(index, 1, 0, (1, 2), (1, 2), ()) for index in (0, 1)})
SILENCE = RequestTimedOut("no answer")


def sample(
    at: float, sizes: Mapping[int, Mapping[int, int] | None], ends: Mapping[int, int], **more: Any
) -> Sample:
    """Make a sample of two brokers: sizes of replicas by broker (None: it gave no answer), and ends by partition."""
    log_dirs = []
    for node, replicas in sizes.items():
        if replicas is None:
            log_dirs.append(BrokerLogDirs(node, (), SILENCE))
        else:
            found = tuple(LogDirReplica("t", index, size, 0, False) for index, size in replicas.items())
            log_dirs.append(BrokerLogDirs(node, (LogDirDescription("/d", -1, -1, found),)))
    partitions = Partitions(2, [], [], more.pop("behind", []), more.pop("arriving", []), {}, {}, {})
    cluster = ClusterDescription("c", 1, BROKERS, frozenset())
    picture: Any = SimpleNamespace(
        cluster=cluster, topics=[TOPIC], partitions=partitions, silent={}, log_dirs=log_dirs, troubles={}
    )
    keys = {TopicPartition("t", index): end for index, end in ends.items()}
    values: dict[str, Any] = {"groups": [], "committed": {}, "clients": [], "missing": ""} | more
    return Sample(at, picture, keys, **values)


def columns(view: str, before: Sample | None, now: Sample) -> list[dict[str, Any]]:
    table = table_of(view, before, now)
    return [dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows]


def test_growth_is_that_of_replicas_in_both_samples() -> None:
    """A broker that answers again, and a replica that is new, are no growth."""
    before = sample(0, {1: {0: 100}, 2: None}, {0: 10})
    now = sample(2, {1: {0: 120, 1: 5_000}, 2: {0: 9_000}}, {0: 30, 1: 7_000})
    (topic,) = columns("topics", before, now)
    assert (topic["RECORDS"], topic["LOGS"], topic["GROWTH"]) == (10, 14_120, 10)
    assert [(row["LOGS"], row["GROWTH"]) for row in columns("brokers", before, now)] == [
        (5_120, 10),
        (9_000, None),
    ]


def test_what_is_not_known_is_no_zero() -> None:
    """A topic whose ends are missing has no rate. Neither has the cluster. A broker without replicas has logs of 0 bytes."""
    before, now = sample(0, {1: {}, 2: None}, {}), sample(2, {1: {}, 2: None}, {0: 30})
    (topic,) = columns("topics", before, now)
    assert (topic["RECORDS"], topic["GROWTH"]) == (None, None)
    assert total_rate(before, now) is None
    assert [row["LOGS"] for row in columns("brokers", before, now)] == [0, None]


def test_a_move_is_no_trouble() -> None:
    """A partition that lacks only replicas which a move adds is not counted as troubled."""
    now = sample(0, {}, {}, behind=["t-0", "t-1"], arriving=["t-1"])
    (topic,) = columns("topics", None, now)
    assert topic["TROUBLED"] == 1


def test_lag_grows_by_partitions_in_both_samples() -> None:
    """A partition whose end was missing before does not make the lag grow at once."""
    group = SimpleNamespace(group_id="g", state="Stable", group_type="classic", coordinator=1)
    committed = {"g": {TopicPartition("t", index): 5 for index in (0, 1)}}
    before = sample(0, {}, {0: 10}, groups=[group], committed=committed)
    now = sample(2, {}, {0: 14, 1: 1_005}, groups=[group], committed=committed)
    (row,) = columns("groups", before, now)
    assert (row["LAG"], row["LAG GROWS"]) == (1_009, 2)


def test_each_part_of_a_sample_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of partitions that are missing do not take groups and clients away."""
    group = SimpleNamespace(group_id="g", state="Stable", group_type="classic", coordinator=1)
    admin = Mock()
    admin.offset_spans.side_effect = SILENCE
    admin.list_groups.return_value = [group]
    admin.list_group_offsets.side_effect = SILENCE
    admin.describe_clients.return_value = ["clients"]
    monkeypatch.setattr(sampling, "look_at_cluster", lambda *_: sample(0, {}, {}).picture)
    found = sampling.take_sample(Mock(admin=admin), 1)
    assert (found.ends, found.groups, found.clients) == ({}, [group], ["clients"])
    assert found.missing == "no answer"
