"""The lag of groups of which a broker, or a coordinator, reports only a part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from odradek.client.admin import GroupListing, OffsetSpan, PartitionLag
from odradek.console.sessions.kept_values import KeptValues
from odradek.console.sessions.lag_history import LagHistory
from odradek.console.views import groups as groups_module
from odradek.console.views.groups import (
    GroupQuery,
    GroupsQuery,
    TopicGroupsQuery,
    group,
    groups,
    topic_groups,
)
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

ERROR = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)


class Client:
    """A client of one group `g` with offsets of topic `t`. Its answers lack what the test says."""

    def __init__(
        self, spans: Mapping[int, OffsetSpan | None], refused: int | None = None, timed: bool = True
    ) -> None:
        self._spans = {TopicPartition("t", index): span or ERROR for index, span in spans.items()}
        self._refused = refused
        self._timed = timed
        self.timeouts: list[float] = []

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing("g", "consumer", "Stable", "classic", 1)]

    def describe_groups(self, ids: list[str], timeout: float) -> list[SimpleNamespace]:
        self.timeouts.append(timeout)
        return [
            SimpleNamespace(
                group_id="g", error=None, members=[], group_type="classic", state="Stable", protocol="range",
                coordinator=1,
            )
        ]  # fmt: skip

    def list_group_offsets(self, asked: object, timeout: float) -> list[SimpleNamespace]:
        self.timeouts.append(timeout)
        offsets = {
            key: SimpleNamespace(offset=5, error=ERROR if key.partition == self._refused else None)
            for key in self._spans
        }
        return [SimpleNamespace(group_id="g", error=None, offsets=offsets)]

    def offset_spans(self, keys: object, timeout: float) -> Mapping[TopicPartition, object]:
        self.timeouts.append(timeout)
        return self._spans

    def describe_lag(
        self, committed: Mapping[TopicPartition, int], now_ms: int, timeout: float
    ) -> list[PartitionLag]:
        self.timeouts.append(timeout)
        return [self._lag(key) for key in committed]

    def describe_group_lag(self, group_id: str, timeout: float) -> list[PartitionLag]:
        self.timeouts.append(timeout)
        return [self._lag(key) for key in self._spans]

    def _lag(self, key: TopicPartition) -> PartitionLag:
        span = self._spans[key]
        if not isinstance(span, OffsetSpan):
            return PartitionLag(*key, 5, None, None, span)
        is_known = span.end <= 5 or (self._timed and key.partition == 0)
        return PartitionLag(*key, 5, span, (0 if span.end <= 5 else 1000) if is_known else None)


def views(client: Client) -> list[tuple[int | None, int, int | None]]:
    """Return lag, unknown partitions and time as each of the three views shows them."""
    session = SimpleNamespace(client=client, cache=KeptValues(), lags=LagHistory())
    (row,) = groups(session, GroupsQuery()).rows
    (reader,) = topic_groups(session, TopicGroupsQuery(name="t"))
    shown = [row, group(session, GroupQuery(id="g")), reader]
    return [(each.lag, each.unknown_partitions, each.behind_ms) for each in shown]


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (Client({0: OffsetSpan(0, 7), 1: OffsetSpan(0, 5)}), (2, 0, 1000)),
        (Client({0: OffsetSpan(0, 7), 1: None}), (None, 1, None)),
        (Client({0: OffsetSpan(0, 7), 1: OffsetSpan(0, 9)}), (6, 0, None)),
        (Client({0: OffsetSpan(0, 5), 1: OffsetSpan(0, 5)}), (0, 0, 0)),
    ],
)
def test_an_unknown_lag_is_no_lag_of_zero(
    client: Client, expected: tuple[int | None, int, int | None]
) -> None:
    """A sum that lacks a partition is null, and so is a time that lacks a partition."""
    assert views(client) == [expected] * 3


def test_an_offset_that_is_refused_is_unknown() -> None:
    """A committed offset that the coordinator refuses makes the lag of its group unknown."""
    shown = views(Client({0: OffsetSpan(0, 5), 1: OffsetSpan(0, 5)}, refused=1))
    assert [each[:2] for each in (shown[0], shown[2])] == [(None, 1), (None, 1)]


class FirstReader(Client):
    """A client of a group with a member that has committed no offset of partition 1 yet."""

    def describe_groups(self, ids: list[str], timeout: float) -> list[SimpleNamespace]:
        (described,) = super().describe_groups(ids, timeout)
        described.members = [SimpleNamespace(partitions=[TopicPartition("t", 0), TopicPartition("t", 1)])]
        return [described]

    def list_group_offsets(self, asked: object, timeout: float) -> list[SimpleNamespace]:
        (found,) = super().list_group_offsets(asked, timeout)
        found.offsets.pop(TopicPartition("t", 1))
        return [found]


@pytest.mark.parametrize(("end", "expected"), [(9, (None, 1)), (0, (2, 0))])
def test_a_partition_that_is_read_without_a_commit_is_unknown(
    end: int, expected: tuple[int | None, int]
) -> None:
    """The list counts the partitions of members, as the group's own page does. An empty one has no lag."""
    client = FirstReader({0: OffsetSpan(0, 7), 1: OffsetSpan(0, end)})
    (row,) = groups(SimpleNamespace(client=client, cache=KeptValues()), GroupsQuery()).rows
    assert (row.lag, row.unknown_partitions) == expected


def test_a_view_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions of a view share its seconds; the last one gets what the others have left."""
    clock = [100.0]
    monkeypatch.setattr(
        groups_module, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns)
    )
    client = Client({0: OffsetSpan(0, 7)})
    asked = client.offset_spans

    def slow(keys: object, timeout: float) -> Mapping[TopicPartition, object]:
        clock[0] += 6
        return asked(keys, timeout)

    monkeypatch.setattr(client, "offset_spans", slow)
    groups(SimpleNamespace(client=client, cache=KeptValues()), GroupsQuery())
    assert client.timeouts == [8.0, 8.0, 8.0, 2.0]
