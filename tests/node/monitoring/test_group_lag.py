"""The lag of groups on the page: in records, in seconds, bounded, and with ends that other brokers report."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.node.metrics.groups.end_history import MOMENTS_MAX, EndHistory
from odradek.node.metrics.groups.group_lag import OFFSETS_MAX, PAIRS_MAX, SORTED_MAX, GroupLag, Lag
from odradek.node.metrics.groups.group_metrics import lag_metrics
from odradek.node.metrics.hosted_figures import at_once
from odradek.node.metrics.metrics_text import MetricsText
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from sim.machine.world import World
from testkit.lone_node import create_topic, play, produce, request
from testkit.virtual import Client
from tests.node.requests.test_bad_batches import good_batch
from tests.node.test_metrics import LISTENER, Connect, samples

SETTINGS = {
    "odradek_metrics_listener": LISTENER,
    "offsets_topic_replication_factor": "1",
    "offsets_topic_num_partitions": "2",
}
PAIR = "{group=g,topic=t}"


async def commit(world: World, client: Client, offset: int) -> None:
    """Commit an offset of partition t-0 for the group g, once its coordinator has loaded."""
    while True:
        found = await request(client, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        assert isinstance(found, FindCoordinatorResponse)
        if not found.coordinators[0].error_code:
            topic = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(0, offset)])
            answer = await request(client, OffsetCommitRequest("g", -1, "", None, topics=[topic]), 8)
            assert isinstance(answer, OffsetCommitResponse)
            code = answer.topics[0].partitions[0].error_code
            if not code:
                return
            assert code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
        await world.sleep(0.1)


def test_a_group_that_lags() -> None:
    """A group lags by the records after its offset, and by the age of the first of them. A commit of the end ends both."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await commit(world, client, 0)
        found = await samples(world)
        assert found[f"odradek_group_lag_records{PAIR}"] == found[f"odradek_group_lag_seconds{PAIR}"] == 0
        for _ in range(3):
            await produce(client, good_batch(1, timestamp_ms=1))
        await samples(world)
        await world.sleep(30)
        found = await samples(world)
        assert found[f"odradek_group_lag_records{PAIR}"] == found["odradek_group_lag_records_max{}"] == 3
        assert 30 <= found[f"odradek_group_lag_seconds{PAIR}"] < 32
        assert found[f"odradek_group_lag_seconds{PAIR}"] == found["odradek_group_lag_seconds_max{}"]
        await commit(world, client, 3)
        found = await samples(world)
        assert found[f"odradek_group_lag_records{PAIR}"] == found[f"odradek_group_lag_seconds{PAIR}"] == 0
        assert found["odradek_group_lags_unlisted{}"] == found["odradek_group_lag_unknown_partitions{}"] == 0

    play(script, odradek_metrics_names="true", **SETTINGS)


def test_groups_are_not_named_on_a_public_page() -> None:
    """Where names are off, no group is named, and the highest lag is shown."""

    async def script(world: World, connect: Connect) -> None:
        client = await connect()
        await create_topic(client)
        await produce(client, good_batch(1, timestamp_ms=1))
        await commit(world, client, 0)
        found = await samples(world)
        assert not [name for name in found if "group=" in name]
        assert found["odradek_group_lag_records_max{}"] == 1

    play(script, **SETTINGS)


# -- with partitions that are not here -------------------------------------------------------------------------------

Ends = Mapping[tuple[str, int], int | None]
"""Ends by partition: a number if the partition is hosted here, None if it is on other brokers."""


def lag_of(groups: Mapping[str, Mapping[tuple[str, int], int]], ends: Ends, shards: int = 1) -> GroupLag:
    """Make the lag of a broker that coordinates these groups, each of them in so many shards."""

    def hosted(topic: str, index: int) -> Any:
        end = ends.get((topic, index))
        return None if end is None else SimpleNamespace(log=SimpleNamespace(high_watermark=end))

    offsets = {
        group: {key: SimpleNamespace(offset=offset) for key, offset in committed.items()}
        for group, committed in groups.items()
    }
    loaded = {number: SimpleNamespace(state=SimpleNamespace(offsets=offsets)) for number in range(shards)}
    loading = {shards: SimpleNamespace(state=None)}
    broker: Any = SimpleNamespace(
        groups=SimpleNamespace(shards=loaded | loading),
        hosted=SimpleNamespace(partition=hosted),
        image=SimpleNamespace(partition=lambda *key: SimpleNamespace(leader=2) if key in ends else None),
    )
    return GroupLag(broker)


def test_the_ends_of_partitions_on_other_brokers() -> None:
    """The end of a partition that is not here is unknown until its leader reports it. Those of deleted topics are left out."""
    lag = lag_of({"g": {("t", 0): 5, ("far", 0): 5, ("gone", 0): 5}}, {("t", 0): 7, ("far", 0): None})
    found = at_once(lag.count(1.0))
    assert (found.pairs, found.partitions_unknown) == ({("g", "t"): Lag(2)}, 1)
    assert list(lag.missing) == [("far", 0)]
    lag.reported = {("far", 0): 9, ("gone", 0): 9}
    found = at_once(lag.count(2.0))
    assert found.partitions_unknown == 0
    assert found.pairs["g", "far"].records == 4
    assert list(lag.reported) == [("far", 0)], "the end of a deleted topic is remembered"


def test_the_number_of_series_is_bounded() -> None:
    """At most PAIRS_MAX pairs are listed, by the names of groups. The groups that are left out are counted."""
    groups = {f"g{number:04}": {("t", 0): 1} for number in reversed(range(PAIRS_MAX + 7))}
    found = at_once(lag_of(groups, {("t", 0): 3}).count(1.0))
    assert list(found.pairs) == [(name, "t") for name in sorted(groups)[:PAIRS_MAX]]
    assert found.groups_left_out == 7


def test_the_highest_lag_is_that_of_all_groups() -> None:
    """A group that is not listed counts for the highest lag."""
    groups = {f"g{number:04}": {("t", 0): 90} for number in range(PAIRS_MAX)} | {"last": {("t", 0): 1}}
    found = at_once(lag_of(groups, {("t", 0): 100}).count(1.0))
    assert ("last", "t") not in found.pairs
    assert (found.records_max, found.groups_left_out) == (99, 1)
    page = MetricsText()
    lag_metrics(page, found, has_names=False)
    assert "odradek_group_lag_records_max 99\n" in page.render().decode()


def test_a_group_in_two_shards() -> None:
    """A group has offsets in two shards after its offsets topic has got more partitions. It is listed once."""
    found = at_once(lag_of({"g": {("t", 0): 1}}, {("t", 0): 3}, shards=2).count(1.0))
    assert found.pairs == {("g", "t"): Lag(2)}


def test_the_work_of_a_page_is_bounded() -> None:
    """At most OFFSETS_MAX offsets are looked at. A group that does not fit is left out, and smaller ones still are listed."""
    ends = {("t", index): 3 for index in range(OFFSETS_MAX + 1)}
    groups: dict[str, dict[tuple[str, int], int]] = {"large": dict.fromkeys(ends, 1), "small": {("t", 0): 1}}
    found = at_once(lag_of(groups, ends).count(1.0))
    assert (list(found.pairs), found.groups_left_out) == ([("small", "t")], 1)
    many = {f"g{number}": {("t", 0): 1} for number in range(SORTED_MAX + 1)}
    assert len(at_once(lag_of(many, ends).count(1.0)).pairs) == PAIRS_MAX


# -- seconds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "moment"), [(0, 10.0), (9, 10.0), (10, 20.0), (15, 25.0), (20, 40.0), (29, 49.0), (30, None)]
)
def test_when_a_record_was_written(offset: int, moment: float | None) -> None:
    """Between two ends, offsets are taken to have grown evenly. An end that stands still is kept with both of its moments."""
    history = EndHistory()
    for now, end in ((10.0, 10), (20.0, 10), (30.0, 20), (40.0, 20), (50.0, 30)):
        history.note(now, end)
    assert history.written_at(offset) == moment


def test_a_topic_made_anew_begins_a_new_history() -> None:
    """An end below the last one forgets what was seen before."""
    history = EndHistory()
    history.note(1.0, 100)
    history.note(2.0, 3)
    history.note(3.0, 5)
    assert history.written_at(3) == 2.0
    assert history.written_at(90) is None


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 50)), min_size=1, max_size=200), st.data())
def test_an_estimate_lies_between_what_was_seen(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """However many moments were dropped, an estimate lies in the past, and the newest record is the youngest."""
    history, now, end = EndHistory(), 0, 0
    seen: list[tuple[int, int]] = []
    for seconds, records in steps:
        now, end = now + seconds, end + records
        history.note(float(now), end)
        seen.append((now, end))
    assert len(history) <= MOMENTS_MAX
    offset = data.draw(st.integers(0, end))
    found = history.written_at(offset)
    if offset == end:
        assert found is None
        return
    assert found is not None
    newest = history.written_at(end - 1)
    assert newest is not None
    assert found <= newest <= now
