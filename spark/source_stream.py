"""The reader of a streaming query: its start, the end of each batch, and its reports to Spark. SHELL.

Theory of operation
-------------------
One instance stays in a Python process next to the driver as long as the query runs, and returns offsets. Another
instance is pickled to the executors and only reads. A query waits until the process next to the driver has started.
So each step imports modules only when it needs them.

* **Start.** `latest` means the end of the log when the query starts. Spark requests the initial offset more than once
  and never stores it. So the end of the first batch always differs from the start, even if the log is empty. Then
  Spark at once stores a first batch in the checkpoint, perhaps an empty batch, and the start with it
  (`stream_offsets`).
* **A batch.** `latestOffset` gets the start of the next batch. It returns the end of the batch: the end of the logs,
  or less because of `maxOffsetsPerTrigger` and `minOffsetsPerTrigger`. If there is nothing new, `latestOffset` waits
  briefly for an answer of the leaders (`news`). Otherwise Spark would call it a hundred times per second.
* **Loss.** The position is compared with the logs. Records are lost if the topic has another id, if a partition is
  gone, or if a log ends below the position. The same is true if the last read leader epoch ends below the position
  (KIP-320). If retention has deleted records, the executors detect it, and report the offsets.
* **jvmOffsets.** With this option the checkpoint has only offsets, so that the JVM connector can continue from it.
  Ids and epochs are known only while the process runs. The first batch is empty, and its end is the start.
* **Commit.** Offsets that Spark has committed are also committed to a consumer group, so that tools show the query's
  lag. The query never reads the offsets in the group, because the checkpoint has its position.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.partition_offsets import LATEST
from odradek.client.errors import ClientError
from odradek.spark.plain_errors import plain_errors
from odradek.spark.reading.cluster_view import ClusterView, Known
from odradek.spark.reading.offset_ranges import (
    STREAM_TASK_RECORDS,
    OffsetRange,
    gathered,
    rate_limited,
    split,
)
from odradek.spark.reading.range_partition import RangePartition
from odradek.spark.reading.read_errors import DataLoss, ReadError
from odradek.spark.reading.stream_offsets import StreamOffset
from odradek.spark.source_options import SourceOptions
from odradek.wire.errors import KafkaError
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.core.operation import Task
    from odradek.spark.reading.news import News

__all__ = ["OdradekStreamReader"]

_LOGGER = logging.getLogger("odradek.spark")
_NEWS_WAIT_MS = 100
"""How long `latestOffset` waits for new records, in milliseconds. If a query has several sources, this wait delays the
others.
"""
_METADATA_SECONDS = 1.0
_LAG_SECONDS = 1.0


@attrs.frozen
class _Seen:
    """The state of the cluster's logs at one time."""

    offsets: dict[TopicPartition, int]
    """The end offset of each partition."""
    epochs: dict[TopicPartition, int]
    topic_ids: dict[str, bytes]


class OdradekStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._view = ClusterView(options)
        self._known: dict[TopicPartition, Known] = {}
        self._known_at: float | None = None
        self._initial: dict[str, Any] | None = None
        self._target: _Seen | None = None
        """The ends of the logs up to which a query with the trigger AvailableNow reads; None for other triggers."""
        self._seen: _Seen | None = None
        self._planned: dict[TopicPartition, int] = {}
        self._checked_epochs: dict[TopicPartition, int] = {}
        self._triggered_at: float | None = None
        self._news: News | None = None
        self._commit: tuple[str, Task[Any]] | None = None
        self._published: dict[TopicPartition, int] | None = None
        self._unwritten: list[StreamOffset] = []
        """The last two end positions, newest first; used only with `jvmOffsets`. They have the facts that are
        not in the checkpoint.
        """
        self._lag: tuple[float, float] = (0.0, 0.0)
        """The last computed lag in seconds, and the monotonic time at which it was computed."""

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        OdradekStreamReader.__init__(self, state["options"])

    # Called on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task as Arrow batches."""
        from odradek.spark.reading.fetching import read_ranges

        assert isinstance(partition, RangePartition)
        with plain_errors():
            yield from read_ranges(partition.ranges, self.options)

    # The start of the query

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position that `startingOffsets` means. Every call returns the same position."""
        if self._initial is None:
            self._initial = self._view.patiently(self._find_initial)
        return self._initial

    def _find_initial(self) -> dict[str, Any]:
        self._known = known = self._view.partitions()
        self._known_at = time.monotonic()
        starts = self._view.resolve(self.options.starting, known, is_start=True)
        ids, epochs = self._identities(starts)
        return StreamOffset(starts, ids, epochs, self._group(), is_initial=True).to_json()

    # The end of the next batch

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the read limit of the options. Spark has no limit with both a minimum and a maximum, so the minimum
        is applied in `_delays`.
        """
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.offsets_per_trigger_min is not None:
            return ReadMinRows(self.options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the present ends of the logs as the target. A later run reads the records after that."""
        self._target = self._view.patiently(lambda: self._look(()))

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch that begins at `start`. If there are too few new records, return `start` itself.

        Raises:
            DataLoss: records are missing, whether read or unread.
        """
        begun = self._read_offset(start)
        if begun.is_initial and self.options.jvm_offsets:
            # With `jvmOffsets` the first batch is empty, so its end is equal to the query's start.
            return self._written(attrs.evolve(begun, is_initial=False))
        if not begun.is_initial:
            # Spark's call shows that the batch that ended at this position is done. Spark itself reports the commit
            # of this batch only before the next batch.
            self._publish(begun)
            if self._target is not None:
                # Spark does not always report the end of a query. So this may be the last call.
                self._finish_commit()
        end = self._plan(begun, limit)
        if end is None and self._target is None and self._seen is not None:
            self._wait_for_news(self._seen.offsets)
            if self._commit is not None and self._commit[1].done:
                self._finish_commit()
            end = self._plan(begun, limit)
        if end is not None:
            return self._written(end)
        has_more = any(name.startswith("@") for name in start)
        return self._written(begun) if self.options.jvm_offsets and has_more else start

    def _read_offset(self, written: dict[str, Any]) -> StreamOffset:
        """Parse a position from Spark. With `jvmOffsets`, add the facts that are not in the checkpoint. They are
        known only for the last two positions.
        """
        position = StreamOffset.from_json(written)
        for each in self._unwritten:
            if each.offsets == position.offsets and not position.topic_ids and not position.is_initial:
                return each
        return position

    def _written(self, end: StreamOffset) -> dict[str, Any]:
        """Return the position as JSON for the checkpoint. With `jvmOffsets` it has only offsets, so that the JVM
        connector can read it.
        """
        if not self.options.jvm_offsets:
            return end.to_json()
        self._unwritten = [end, *self._unwritten[:1]]
        return StreamOffset(end.offsets).to_json()

    def _group(self, known: str | None = None) -> str | None:
        """Return the group to which offsets are committed; None for no group.

        A generated name must be stored in the checkpoint, which `jvmOffsets` does not allow. So with `jvmOffsets`
        there is a group only if the option `kafka.group.id` names it.
        """
        group = self.options.group_id or known
        if group is None and not self.options.jvm_offsets:
            group = f"{self.options.group_id_prefix}-{uuid.uuid4()}"
        return group

    def _plan(self, begun: StreamOffset, limit: ReadLimit) -> StreamOffset | None:
        """Compute the end of the next batch; None if there is nothing (or too little) to read."""
        expected = begun.offsets.keys()
        if self._target is not None and not expected <= self._target.offsets.keys():
            self._target = self._view.patiently(lambda: self._look(expected))
        self._seen = seen = self._target or self._view.patiently(lambda: self._look(expected))
        starts = self._starts(begun, seen, limit)
        ends = self._limited(starts, seen.offsets, limit)
        self._planned = ends
        return self._end(begun, seen, starts, ends)

    def _look(self, expected: Collection[TopicPartition]) -> _Seen:
        known = self._refresh(expected)
        listed = self._view.listed(dict.fromkeys(known, LATEST))
        offsets = {key: each.offset for key, each in listed.items()}
        ids, _ = self._identities(offsets)
        return _Seen(offsets, {key: each.leader_epoch for key, each in listed.items()}, ids)

    def _refresh(self, expected: Collection[TopicPartition]) -> dict[TopicPartition, Known]:
        """Return the partitions to read. The list is refreshed from time to time, so that new partitions are found.

        A partition counts as deleted only if repeated answers lack it (`fetchOffset.numRetries`). One answer is not
        enough, because a broker that has just started may not know the partition yet.
        """
        now = time.monotonic()
        fresh = self._known_at is not None and now - self._known_at <= _METADATA_SECONDS
        if fresh and all(key in self._known for key in expected):
            return self._known
        self._known = self._view.partitions(all_must_exist=False)
        for _ in range(self.options.retries):
            if all(key in self._known for key in expected):
                break
            time.sleep(self.options.retry_interval_ms / 1000)
            self._known = self._view.partitions(all_must_exist=False)
        self._known_at = now
        return self._known

    def _identities(
        self, keys: Mapping[TopicPartition, int]
    ) -> tuple[dict[str, bytes], dict[TopicPartition, int]]:
        known = {key: self._known[key] for key in keys}
        ids = {key.topic: each.topic_id for key, each in known.items() if each.topic_id != NO_TOPIC_ID}
        return ids, {key: each.leader_epoch for key, each in known.items() if each.leader_epoch >= 0}

    def _wait_for_news(self, ends: Mapping[TopicPartition, int]) -> None:
        from odradek.spark.reading.news import News

        client = self._view.client
        if self._news is None or self._news.core is not client.core:
            committed = self.options.consumer.isolation_level == "read_committed"
            self._news = News(client.core, int(committed))
        client.run(self._news.wait(ends, _NEWS_WAIT_MS))

    def _limited(
        self, starts: Mapping[TopicPartition, int], ends: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        """Reduce the ends to the limit that Spark passes. Spark may pass no limit even if an option sets a limit."""
        least = None
        if isinstance(limit, ReadMinRows):
            least = limit.min_rows
        elif isinstance(limit, ReadMaxRows):
            least = self.options.offsets_per_trigger_min
        if least is not None and self._target is None and self._delays(starts, ends, least):
            return dict(starts)
        if isinstance(limit, ReadMaxRows):
            return rate_limited(starts, ends, limit.max_rows)
        return dict(ends)

    def _delays(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], least: int
    ) -> bool:
        """True if the next batch must wait: there are fewer than `least` new records, and `maxTriggerDelay` has not
        passed.
        """
        now = time.monotonic()
        overdue = (
            self._triggered_at is None
            or now - self._triggered_at >= self.options.trigger_delay_max.total_seconds()
        )
        backlog = sum(max(0, end - starts[key]) for key, end in ends.items())
        if not overdue and backlog < least:
            return True
        self._triggered_at = now
        return False

    def _end(
        self,
        begun: StreamOffset,
        seen: _Seen,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> StreamOffset | None:
        """Return the end position of the batch; None if no partition has moved."""
        moved = {key for key, end in ends.items() if begun.offsets.get(key) != end or starts[key] != end}
        same_topics = all(seen.topic_ids.get(name) == each for name, each in begun.topic_ids.items())
        if not moved and not begun.is_initial and ends.keys() == begun.offsets.keys() and same_topics:
            return None
        epochs = {
            key: seen.epochs.get(key, -1) if key in moved else begun.epochs.get(key, seen.epochs.get(key, -1))
            for key in ends
        }
        return StreamOffset(
            offsets=dict(ends),
            topic_ids={
                name: each for name, each in seen.topic_ids.items() if any(name == key.topic for key in ends)
            },
            epochs={key: epoch for key, epoch in epochs.items() if epoch >= 0},
            group=self._group(begun.group),
            begun=begun.offsets if begun.is_initial else None,
        )

    # Detection of lost records

    def _starts(self, begun: StreamOffset, seen: _Seen, limit: ReadLimit) -> dict[TopicPartition, int]:
        """Return the offset at which the batch begins, for each partition that exists now."""
        for key in begun.offsets.keys() - seen.offsets.keys():
            self._lost(
                f"{key} does not exist any more; the query has read it up to offset {begun.offsets[key]}"
            )
        others = {
            name
            for name, each in begun.topic_ids.items()
            if seen.topic_ids.get(name, NO_TOPIC_ID) not in (each, NO_TOPIC_ID)
        }
        for name in sorted(others):
            where = ", ".join(
                f"{key.partition}: {at}" for key, at in sorted(begun.offsets.items()) if key.topic == name
            )
            self._lost(
                f"topic {name} was deleted, and another topic has its name now; the query has read the "
                f"old topic up to the offsets {{{where}}}"
            )
        fresh = [key for key in seen.offsets if key not in begun.offsets or key.topic in others]
        starts = {key: begun.offsets[key] for key in seen.offsets if key not in fresh}
        earliest = self._view.earliest(fresh) if fresh else {}
        for key, first in earliest.items():
            if first > 0:
                self._lost(f"offsets 0 to {first - 1} of the new partition {key} do not exist any more")
        starts |= earliest
        self._check_ends(begun, seen, starts)
        if isinstance(limit, ReadMaxRows) and not self.options.fail_on_data_loss:
            # Executors skip records that retention has deleted. If such records counted, they could use up the limit
            # in batch after batch.
            floors = self._view.earliest(starts)
            starts = {key: max(at, floors[key]) for key, at in starts.items()}
        return {key: starts[key] for key in seen.offsets}

    def _check_ends(self, begun: StreamOffset, seen: _Seen, starts: dict[TopicPartition, int]) -> None:
        what = f"{self.options.starting.what} asks for" if begun.is_initial else "the query has read to"
        for key, start in starts.items():
            end = seen.offsets[key]
            if end < start:
                self._lost(f"{what} offset {start} of {key}, but its log ends at offset {end}")
        doubtful = {
            key: begun.epochs[key]
            for key in starts
            if -1 < begun.epochs.get(key, -1) < seen.epochs.get(key, -1)
            and self._checked_epochs.get(key) != seen.epochs[key]
        }
        if not doubtful:
            return
        from odradek.spark.reading.news import epoch_ends

        client = self._view.client
        ends = client.run(epoch_ends(client.core, doubtful, deadline=client.core.now + client.timeout))
        for key, end in ends.items():
            self._checked_epochs[key] = seen.epochs[key]
            if end < starts[key]:
                self._lost(
                    f"the query has read offsets {end} to {starts[key] - 1} of {key}, but its leader "
                    "now has other records there"
                )

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false continues without these records")
        _LOGGER.warning("%s", text)

    # The tasks of a batch

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of the batch from the checkpoint alone, so that a repeated batch has the same tasks.

        Raises:
            ReadError: the batch would start after its end.
        """
        if start == end:
            return []
        first, last = self._read_offset(start), self._read_offset(end)
        # With `jvmOffsets` the checkpoint lacks the start. If the start is `latest`, it may now be beyond the end of
        # the empty first batch.
        may_be_behind = first.is_initial and self.options.jvm_offsets
        begin = last.begun if first.is_initial and last.begun is not None else first.offsets
        ranges = []
        for key, behind in sorted(last.offsets.items()):
            topic_id = self._topic_id(key, last)
            other = first.topic_id(key.topic) not in (topic_id, NO_TOPIC_ID) and not first.is_initial
            at = 0 if other else begin.get(key, 0)
            if at > behind and self.options.fail_on_data_loss and not may_be_behind:
                raise ReadError(
                    f"the batch of {key} starts at offset {at}, which is after its end offset {behind}"
                )
            ranges.append(OffsetRange(*key, at, behind, topic_id))
        bounds = (self.options.partitions_min, self.options.records_per_partition_max)
        tasks = gathered(split(ranges, *bounds), STREAM_TASK_RECORDS, *bounds)
        return [RangePartition(each) for each in tasks]

    def _topic_id(self, key: TopicPartition, last: StreamOffset) -> bytes:
        """Return the topic id in the checkpoint. The JVM connector stores no ids, so for its checkpoints the
        id is looked up in the cluster.
        """
        if last.topic_id(key.topic) != NO_TOPIC_ID:
            return last.topic_id(key.topic)
        known = self._view.patiently(lambda: self._refresh((key,))).get(key)
        return known.topic_id if known is not None else NO_TOPIC_ID

    # Reports to Spark

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end offsets of the logs, and `@lag`: the number of records and seconds by which the planned
        batch is behind these ends.
        """
        if self._seen is None:
            return None
        behind = {
            key: self._planned[key]
            for key, end in self._seen.offsets.items()
            if self._planned.get(key, end) < end
        }
        records = sum(self._seen.offsets[key] - at for key, at in behind.items())
        written = StreamOffset(self._seen.offsets).to_json()
        return {**written, "@lag": {"records": records, "seconds": self._lag_seconds(behind)}}

    def _lag_seconds(self, behind: dict[TopicPartition, int]) -> float:
        """Return the age in seconds of the oldest record that is not in a batch yet; -1 if the brokers do not report
        it. The age is computed again only from time to time.
        """
        if not behind:
            return 0.0
        seconds, found_at = self._lag
        now = time.monotonic()
        if not found_at or now - found_at > _LAG_SECONDS:
            from odradek.client.admin.admin_offsets import record_times

            client = self._view.client
            try:
                times = client.run(record_times(client.core, behind, client.core.now + client.timeout))
            except (ClientError, KafkaError) as error:
                # A missing figure must not fail the query.
                _LOGGER.warning("the age of the oldest unread record is unknown: %s", error)
                return -1.0
            oldest = min(times.values(), default=None)
            seconds = -1.0 if oldest is None else round(max(0.0, time.time() - oldest / 1000), 3)
            self._lag = (seconds, now)
        return seconds

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets that the query has processed to the group. A refusal only logs a warning."""
        self._publish(StreamOffset.from_json(end))

    def _publish(self, done: StreamOffset) -> None:
        """Send the offsets to the group once, without waiting for the answer."""
        if done.group is None or done.offsets == self._published:
            return
        from odradek.client.admin.admin_offsets import CommittedOffset, alter_group_offsets

        self._finish_commit()
        offsets = {
            key: CommittedOffset(offset, leader_epoch=done.epochs.get(key, -1))
            for key, offset in done.offsets.items()
        }
        client = self._view.client
        operation = alter_group_offsets(client.core, done.group, offsets, timeout=client.timeout)
        self._commit = (done.group, client.begin(operation))
        self._published = done.offsets
        if self._target is not None:
            # AvailableNow: this may be the last call, since Spark does not always call `stop`.
            self._finish_commit()

    def _finish_commit(self) -> None:
        if self._commit is None:
            return
        (group, task), self._commit = self._commit, None
        try:
            errors = [each for each in self._view.client.finish(task).values() if each is not None]
        except (ClientError, KafkaError) as error:
            errors = [error]
        if errors:
            _LOGGER.warning(
                "the offsets of the query could not be committed for the group %s: %s", group, errors[0]
            )

    def stop(self) -> None:
        """Finish the last commit, and close the connections: the query has ended."""
        self._finish_commit()
        self._view.close()
