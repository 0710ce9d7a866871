"""How ranges are split among tasks, how limits are shared, what filters do, and the contents of a checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="Spark is not installed (the extra spark)")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from odradek.spark.reading.filters import push
from odradek.spark.reading.offset_ranges import (
    STREAM_TASK_RECORDS,
    OffsetRange,
    gathered,
    rate_limited,
    split,
)
from odradek.spark.reading.read_errors import ReadError
from odradek.spark.reading.stream_offsets import StreamOffset

ID = bytes(16)


def range_of(start: int, end: int, partition: int = 0, topic: str = "flights") -> OffsetRange:
    return OffsetRange(topic, partition, start, end, ID)


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80)), max_size=6).map(
    lambda sizes: [range_of(start, start + size, place) for place, (start, size) in enumerate(sizes)]
)


class TestSplit:
    @settings(deadline=None)
    @given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 30))
    def test_every_offset_once_within_the_limits(
        self, ranges: list[OffsetRange], partitions_min: int | None, records_max: int | None
    ) -> None:
        """The parts cover each offset once, and have at most `maxRecordsPerPartition` records. There are at least
        `minPartitions` parts if there are enough offsets."""
        pieces = split(ranges, partitions_min, records_max)
        assert [(each.partition, at) for each in pieces for at in range(each.start, each.end)] == [
            (each.partition, at) for each in ranges for at in range(each.start, each.end)
        ]
        assert all(each.size > 0 for each in pieces)
        assert records_max is None or all(each.size <= records_max for each in pieces)
        assert len(pieces) >= min(partitions_min or 0, sum(each.size for each in ranges))

    def test_one_task_for_each_partition_without_limits(self) -> None:
        """As in the JVM connector, each partition with records gets one task."""
        ranges = [range_of(0, 10), range_of(5, 5, 1), range_of(3, 4, 2)]
        assert split(ranges) == [ranges[0], ranges[2]]

    def test_larger_partitions_get_more_parts(self) -> None:
        """With minPartitions=4 for 90 and 10 offsets, the larger partition gets three parts and the smaller one stays
        whole."""
        pieces = split([range_of(0, 90), range_of(0, 10, 1)], 4)
        assert [(each.partition, each.size) for each in pieces] == [(0, 30), (0, 30), (0, 30), (1, 10)]

    def test_a_huge_number_of_parts_is_bounded_by_the_offsets(self) -> None:
        """With a huge minPartitions, each part has one offset."""
        assert len(split([range_of(0, 7)], 10**9)) == 7


class TestGathered:
    @settings(deadline=None)
    @given(
        st.lists(st.sampled_from([1, 70, 2499, 2500, 2501, 4999, 5000, 5001, 9000]), max_size=9),
        st.none() | st.integers(1, 12),
    )
    def test_small_neighbours_share_a_task(self, sizes: list[int], tasks_min: int | None) -> None:
        """Adjacent small ranges share a task, in order and up to 5,000 records. No two adjacent tasks could be merged,
        unless minPartitions forbids it."""
        ranges = [range_of(0, size, place) for place, size in enumerate(sizes)]
        tasks = gathered(ranges, 5000, tasks_min)
        assert [each for task in tasks for each in task] == ranges
        sums = [sum(each.size for each in task) for task in tasks]
        assert all(len(task) == 1 or total <= 5000 for task, total in zip(tasks, sums, strict=True))
        least = min(tasks_min or 0, len(ranges))
        assert len(tasks) >= least
        if len(tasks) > max(least, 1):
            following = zip(sums, tasks[1:], strict=False)
            assert all(total + task[0].size > 5000 for total, task in following)

    def test_a_trickle_is_one_task(self) -> None:
        """Four partitions with a few records share one task. With minPartitions=4 there are four tasks."""
        ranges = [range_of(0, 80, place) for place in range(4)]
        assert gathered(ranges, 5000) == [tuple(ranges)]
        assert gathered(ranges, 160) == [tuple(ranges[:2]), tuple(ranges[2:])]
        assert gathered(ranges, 5000, 4) == [(each,) for each in ranges]
        assert gathered(ranges, 5000, None, 160) == [tuple(ranges[:2]), tuple(ranges[2:])]
        assert gathered(ranges, 5000, None, 100) == [(each,) for each in ranges]

    def test_a_stream_plans_an_old_batch_as_before(self) -> None:
        """A stream must plan an old batch with the same number of tasks, because the exactly-once sink has recorded it.
        So this constant must not change."""
        assert STREAM_TASK_RECORDS == 5000


class TestRateLimit:
    def test_shares_go_by_backlog(self) -> None:
        """maxOffsetsPerTrigger is shared in proportion to each partition's backlog."""
        starts = {("a", 0): 100, ("a", 1): 0, ("a", 2): 7}
        ends = {("a", 0): 400, ("a", 1): 100, ("a", 2): 7}
        assert rate_limited(starts, ends, 40) == {("a", 0): 130, ("a", 1): 10, ("a", 2): 7}

    def test_a_small_backlog_is_not_starved(self) -> None:
        """A partition with a backlog gets at least one record."""
        limited = rate_limited({("a", 0): 0, ("a", 1): 0}, {("a", 0): 1_000_000, ("a", 1): 3}, 10)
        assert limited == {("a", 0): 9, ("a", 1): 1}

    @settings(deadline=None)
    @given(
        st.dictionaries(st.tuples(st.just("a"), st.integers(0, 9)), st.integers(0, 10**12), min_size=1),
        st.integers(1, 10**6),
    )
    def test_progress_without_overshoot(self, backlogs: dict[tuple[str, int], int], limit: int) -> None:
        """If any partition has records, a batch reads some, and never beyond a partition's end. In total it exceeds the
        limit by at most one record per partition."""
        starts = dict.fromkeys(backlogs, 5)
        ends = {key: 5 + size for key, size in backlogs.items()}
        limited = rate_limited(starts, ends, limit)
        taken = {key: limited[key] - 5 for key in backlogs}
        assert all(0 <= taken[key] <= size for key, size in backlogs.items())
        assert (sum(taken.values()) > 0) == (sum(backlogs.values()) > 0)
        assert sum(taken.values()) <= limit + len(backlogs)


AT = datetime(2013, 1, 1, 12, tzinfo=UTC)
MS = 1_357_041_600_000


class TestFilters:
    @pytest.mark.parametrize(
        ("filters", "left", "wanted"),
        [
            ([EqualTo(("partition",), 2)], [], {(2, 0, 100)}),
            ([In(("partition",), (0, 3))], [], {(0, 0, 100), (3, 0, 100)}),
            ([GreaterThan(("partition",), 2)], [], {(3, 0, 100)}),
            (
                [LessThanOrEqual(("partition",), 0), GreaterThanOrEqual(("offset",), 90)],
                [],
                {(0, 90, 100)},
            ),
            (
                [EqualTo(("partition",), 1), GreaterThan(("offset",), 4), LessThan(("offset",), 7)],
                [],
                {(1, 5, 7)},
            ),
            ([EqualTo(("partition",), 1), EqualTo(("offset",), 50)], [], {(1, 50, 51)}),
            ([EqualTo(("topic",), "other")], [], set()),
            ([In(("topic",), ("flights", "other")), EqualTo(("partition",), 0)], [], {(0, 0, 100)}),
            ([IsNotNull(("partition",)), EqualTo(("partition",), 9)], [], set()),
        ],
    )
    def test_exact(
        self, filters: list[Filter], left: list[Filter], wanted: set[tuple[int, int, int]]
    ) -> None:
        """Filters on topic, partition and offset are applied exactly, so Spark does not need to repeat them."""
        pushed, remaining = push(filters)
        assert remaining == left
        ranges = [pushed.cut(range_of(0, 100, index)) for index in range(4) if pushed.wants("flights", index)]
        assert {(each.partition, each.start, each.end) for each in ranges if each.size} == wanted

    def test_several_offsets_are_bounded_and_looked_at_again(self) -> None:
        """A list of offsets bounds the range, but Spark must filter again for the offsets in between."""
        one = In(("offset",), (20, 10))
        pushed, left = push([one])
        assert left == [one]
        assert pushed.cut(range_of(0, 100)) == range_of(10, 21)

    def test_times_bound_the_start_and_are_looked_at_again(self) -> None:
        """A filter on time sets where to start. Spark must filter again, because later records may have earlier
        timestamps."""
        filters: list[Filter] = [GreaterThanOrEqual(("timestamp",), AT), LessThan(("timestamp",), AT)]
        pushed, left = push(filters)
        assert left == filters
        assert pushed.since == MS

    @pytest.mark.parametrize(
        "one",
        [
            EqualTo(("key",), b"k"),
            Not(EqualTo(("partition",), 1)),
            StringStartsWith(("topic",), "fl"),
            IsNotNull(("key",)),
            EqualTo(("partition",), "1"),
            EqualTo(("headers", "key"), "h"),
        ],
    )
    def test_the_rest_is_sparks(self, one: Filter) -> None:
        """A filter that cannot narrow the ranges is left to Spark, and all records are read."""
        pushed, left = push([one])
        assert left == [one]
        assert pushed.cut(range_of(0, 100)) == range_of(0, 100)
        assert pushed.wants("flights", 1)


class TestCheckpoint:
    @settings(deadline=None)
    @given(
        st.builds(
            StreamOffset,
            offsets=st.dictionaries(
                st.tuples(st.sampled_from(["a", "b.c"]), st.integers(0, 30)), st.integers(0, 2**63 - 1)
            ),
            topic_ids=st.dictionaries(st.sampled_from(["a", "b.c"]), st.binary(min_size=16, max_size=16)),
            epochs=st.dictionaries(st.tuples(st.just("a"), st.integers(0, 3)), st.integers(0, 9)),
            group=st.none() | st.text(max_size=5),
            is_initial=st.booleans(),
            begun=st.none() | st.just({("a", 0): 7}),
        )
    )
    def test_round_trip(self, offset: StreamOffset) -> None:
        """An offset is equal after a round trip through JSON."""
        again = StreamOffset.from_json(offset.to_json())
        assert again == offset
        assert again.to_json() == offset.to_json()

    def test_a_checkpoint_of_the_jvm_connector_is_read(self) -> None:
        """The JVM connector's checkpoint, which has only offsets by topic and partition, can be read."""
        assert StreamOffset.from_json({"flights": {"0": 23, "1": 5}}).offsets == {
            ("flights", 0): 23,
            ("flights", 1): 5,
        }

    def test_others_are_refused(self) -> None:
        """A checkpoint of another source is refused with a clear error."""
        with pytest.raises(ReadError, match="not of the format odradek"):
            StreamOffset.from_json({"logOffset": 4})
