"""The trend of a group's lag: two measurements show how fast it changes and when it will reach zero."""

from __future__ import annotations

from collections.abc import Callable

from odradek import Consumer, Producer
from odradek.cli.commands.group import lag_text
from odradek.cli.streams.lag_trend import LagTrend, trend_of, trend_text
from odradek.client.admin import OffsetSpan, PartitionLag
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition
from tests.cli.running import odradek_here
from tests.node_process import RunningNode

RECORDS = 30


def at(partition: int, committed: int | None, end: int) -> PartitionLag:
    """Make the measurement of one partition."""
    return PartitionLag("t", partition, committed, OffsetSpan(0, end), None)


def test_what_is_unknown_of_a_lag_is_said() -> None:
    """The lag of a partition without a leader is unknown. The sum says so, and is not taken for the whole. The lag of
    an empty partition is zero, also without an offset."""
    lost = PartitionLag("t", 2, 10, None, None, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
    assert lag_text([at(0, 90, 100)]) == ("10 records", True)
    assert lag_text([at(0, 100, 100)]) == ("0 records", False)
    assert lag_text([at(0, 100, 100), at(1, None, 0)]) == ("0 records", False)
    assert lag_text([at(0, 100, 100), at(1, None, 5), lost]) == (
        "0 records; no offset is committed for 1 partition; the end of 1 partition is unknown (LEADER_NOT_AVAILABLE)",
        True,
    )


def test_a_lag_that_falls_is_zero_when_its_slowest_partition_is() -> None:
    """The group catches up when its slowest partition does. Here this partition has 90 records left and is read at one
    record per second."""
    before = [at(0, 0, 100), at(1, 0, 100), at(2, None, 7)]
    after = [at(0, 50, 110), at(1, 10, 100), at(2, 3, 7)]
    found = trend_of(before, after, 10_000)
    assert found == LagTrend(10_000, 60, 10, 150, 90_000)
    assert trend_text(found) == "falls; 6 records/s read, 1 record/s written; zero in 1m 30s at this pace"


def test_a_lag_that_does_not_fall_has_no_end() -> None:
    """If one partition is not read, the lag stays above zero, however fast the others are read."""
    found = trend_of([at(0, 0, 100), at(1, 0, 5)], [at(0, 100, 100), at(1, 0, 5)], 1_000)
    assert found == LagTrend(1_000, 100, 0, 5, None)
    assert trend_text(found) == (
        "falls; 100 records/s read, 0 records/s written; at this pace the lag of some partition never becomes zero"
    )
    growing = trend_of([at(0, 5, 10)], [at(0, 5, 13)], 2_000)
    assert trend_text(growing).startswith("grows; 0 records/s read, 1.5 records/s written")


def test_no_lag_and_no_commit_are_no_trend() -> None:
    """A group that has read everything has no lag. Without commits, the trend is unknown."""
    assert trend_text(trend_of([at(0, 5, 5)], [at(0, 5, 5)], 1_000)).startswith("no lag; ")
    assert trend_of([at(0, None, 5)], [at(0, None, 5)], 1_000) is None
    assert trend_text(None).startswith("unknown: no partition has a committed offset and an end in both")


def test_a_group_is_watched(node: RunningNode, fresh_topic: Callable[[str], str]) -> None:
    """`group describe --trend` measures twice and reports the lag in records and in time, with its trend."""
    topic = fresh_topic("watched")
    odradek_here("topic", "create", topic, "--partitions", "1", bootstrap=node.bootstrap)
    with Producer(bootstrap_servers=node.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number).encode())
        producer.flush()
    with Consumer(bootstrap_servers=node.bootstrap, group_id=topic) as consumer:
        consumer.commit({TopicPartition(topic, 0): 10})
    words = ("group", "describe", topic, "--trend", "50ms")
    (found,) = odradek_here(*words, "--json", bootstrap=node.bootstrap).json()["groups"]
    assert (found["lag"], found["behind_ms"] >= 0) == (RECORDS - 10, True)
    assert found["trend"]["measured_ms"] >= 50
    assert (found["trend"]["read_per_second"], found["trend"]["zero_in_ms"]) == (0, None)
    shown = odradek_here(*words, bootstrap=node.bootstrap)
    assert "trend        stays; 0 records/s read, 0 records/s written" in shown.out
    refused = odradek_here("group", "describe", topic, "--trend", "0s", bootstrap=node.bootstrap)
    assert (refused.code, "too short" in refused.err) == (2, True)
