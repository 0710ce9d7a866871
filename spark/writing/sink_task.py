"""The write of one task's rows: they are gathered, encoded and sent, and the task waits for the acknowledgements.
SHELL.

Some hundred kilobytes of rows per partition are gathered, and encoded as record batches without making Python objects
(`odradek.spark.writing.encode`). Then the producer sends them.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.producer.accumulator import Batch
from odradek.client.shells.producer import Producer
from odradek.spark.delivery.row_hash import hash_rows
from odradek.spark.delivery.row_hash_before import hash_rows as hash_rows_before
from odradek.spark.delivery.task_protocol import HASH_VERSION, RowSummary, TopicIds
from odradek.spark.delivery.two_phase import Prepared
from odradek.spark.writing.encode import Rows, encode, partitions_of
from odradek.spark.writing.sink_plan import SinkPlan
from odradek.wire.batches.compression import CompressionType
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["CountedRows", "SinkTask", "TaskReport", "Written", "about_topic"]

_GATHERED_BYTES_MAX = 16 << 20
_ENCODED_BYTES_MAX = 64 << 20
"""The most bytes of rows that are encoded together. (The limit of one Arrow array of bytes is 2 GiB.)"""
_ROW_OVERHEAD = 100
"""The bytes that are added to the size of each row, for the batch's header and the record's numbers."""
_MASK = (1 << 64) - 1
_HASHED = ("key", "value", "headers", "topic", "partition")


@attrs.define
class Written:
    """The rows written to one partition: their number, and the first and last offset (-1 if the broker does not
    report them).
    """

    rows: int = 0
    first_offset: int = -1
    last_offset: int = -1


@attrs.define
class TaskReport(WriterCommitMessage):
    """The report of one task after all its rows were acknowledged."""

    rows: int = 0
    record_bytes: int = 0
    """The bytes of keys and values."""
    batch_bytes: int = 0
    """The bytes of the record batches that were sent, compressed. A batch that was sent again counts once."""
    batches: int = 0
    batches_repeated: int = 0
    seconds: float = 0.0
    written: dict[TopicPartition, Written] = attrs.field(factory=dict)
    query: str | None = None
    """The query id with which the rows were written exactly once; None with at-least-once delivery."""
    rows_compared: int = -1
    """The number of rows that this attempt only compared, because an earlier attempt had committed them. It
    is -1 if this attempt wrote its rows.
    """
    row_hash: int = 0
    """The hash of the rows, which does not depend on their order. The driver compares it."""
    hash_version: int = HASH_VERSION
    prepared: Prepared | None = None
    """The transaction that the driver must commit or abort; None if there were no rows, or if tasks commit
    themselves.
    """
    topics: TopicIds = ()
    """The topics that were written and their ids."""
    task: int = -1
    run: str = ""
    """The run of the query (`SinkPlan.run`)."""
    held: Prepared | None = None
    """The transaction that the driver must commit, because an earlier run has begun the batch (`completion.py`)."""


def about_topic(topic: str, where: str, error: KafkaError) -> str:
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"the topic '{topic}' does not exist at {where}: create it before you write to it."
    return f"the topic '{topic}' cannot be written to at {where}: {str(error).rstrip('.')}."


@attrs.define
class CountedRows:
    """The number and the hash of the rows so far. `columns` are the written columns."""

    columns: Mapping[str, int]
    summary: RowSummary = attrs.field(factory=lambda: RowSummary(0, 0))
    """It has no rows at first. Its version says how rows are hashed."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows."""
        found = [batch.column(self.columns[name]) if name in self.columns else None for name in _HASHED]
        before = self.summary
        row_hash = (hash_rows if before.hash_version == HASH_VERSION else hash_rows_before)(found)
        self.summary = RowSummary(
            before.rows + batch.num_rows, (before.row_hash + row_hash) & _MASK, before.hash_version
        )


class SinkTask:
    """Collects the rows of a single task, and sends them to the topic."""

    def __init__(self, plan: SinkPlan, producer: Producer) -> None:
        self._plan = plan
        self._producer = producer
        self._settings = producer.settings
        self._codec = int(CompressionType[self._settings.compression_type.upper()])
        self._level = _level(producer)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._partitions: dict[str, int] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._keyless: dict[str, list[int]] = {}
        self._sent: deque[Batch] = deque()
        self._report = TaskReport()
        self._repeated_before = producer.metrics().get("batches repeated", 0)
        self._started = time.monotonic()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, and send them when there are enough to fill batches."""
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        partitions = max(self._partitions.values(), default=1)
        if self._gathered_bytes >= min(self._settings.batch_size * partitions, _GATHERED_BYTES_MAX):
            self.send_rest()

    def finish(self) -> TaskReport:
        """Send the remaining rows, and wait until all are acknowledged. If a row is not acknowledged, its error is
        raised.
        """
        self.send_rest()
        self._producer.flush()
        self._settle()
        for topic in self._topic_ids:
            self._check_topic(topic)
        report = self._report
        report.batches_repeated = self._producer.metrics().get("batches repeated", 0) - self._repeated_before
        report.seconds = time.monotonic() - self._started
        return report

    def send_rest(self) -> None:
        """Send the rows that were collected so far."""
        if not self._gathered:
            return
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        whole = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        parts = [whole]
        while parts:
            part = parts.pop()
            if part.nbytes > _ENCODED_BYTES_MAX and part.num_rows > 1:
                half = part.num_rows // 2
                parts += [part.slice(half), part.slice(0, half)]
            elif part.num_rows:
                self._send(part)

    def _send(self, batch: pa.RecordBatch) -> None:
        rows = Rows(
            self._bytes_of(batch, "key"),
            self._bytes_of(batch, "value"),
            _headers_of(self._column(batch, "headers")),
        )
        wanted = self._column(batch, "partition")
        if self._plan.topic is not None:
            self._send_to(self._plan.topic, rows, wanted)
            return
        topics = batch.column(self._plan.columns["topic"])
        missing = topics.null_count
        if missing:
            raise ValueError(
                f"the column 'topic' is null in {missing} of {len(topics)} rows: name a topic in each row, or set the"
                " option 'topic'."
            )
        names = pc.unique(topics).to_pylist()
        for name in names:
            if len(names) == 1:
                self._send_to(name, rows, wanted)
                continue
            places = np.flatnonzero(pc.equal(topics, name).to_numpy(zero_copy_only=False))
            self._send_to(name, rows.take(places), None if wanted is None else wanted.take(pa.array(places)))

    def _send_to(self, topic: str, rows: Rows, wanted: pa.Array | None) -> None:
        count = self._partitions_of(topic)
        keys = pa.nulls(len(rows), pa.binary()) if self._settings.partitioner_ignore_keys else rows.key
        try:
            lanes = partitions_of(keys, count, wanted=wanted, keyless=self._spread(topic, count, rows, keys))
        except ValueError as error:
            raise ValueError(
                f"the column 'partition' has {error}, but the topic '{topic}' has only the partitions "
                f"0 to {count - 1}."
            ) from None
        self._check_sizes(topic, rows)
        report = self._report
        for encoded in encode(
            rows,
            lanes,
            timestamp_ms=time.time_ns() // 1_000_000,
            batch_bytes_max=min(self._settings.batch_size, self._settings.max_request_size),
            compression_type=self._codec,
            compression_level=self._level,
        ):
            report.rows += encoded.record_count
            report.record_bytes += encoded.record_bytes
            report.batch_bytes += len(encoded.data)
            report.batches += 1
            self._sent.append(
                self._producer.send_encoded(topic, encoded.lane, encoded.data, encoded.record_count)
            )
            self._settle()

    def _check_sizes(self, topic: str, rows: Rows) -> None:
        """Refuse rows whose size before compression is above the limit of a request, as Kafka's producer does."""
        limit = self._settings.max_request_size
        sizes = [pc.fill_null(pc.binary_length(column), 0) for column in (rows.key, rows.value)]
        total = pc.add(*(size.cast(pa.int64()) for size in sizes))
        if rows.headers is not None:
            total = pc.add(total, _header_bytes(rows.headers))
        largest = pc.max(total).as_py()
        if largest is not None and largest + _ROW_OVERHEAD > limit:
            raise ValueError(
                f"a row for the topic '{topic}' has {largest} bytes, which is above max.request.size ({limit}): set the option"
                " 'kafka.max.request.size', and the topic's max.message.bytes."
            )

    def _settle(self) -> None:
        """Process the batches that are acknowledged or have failed. Raises the error of a batch that was not
        delivered.
        """
        while self._sent and self._sent[0].done:
            batch = self._sent.popleft()
            failure = batch.failure()
            if failure is not None:
                raise RuntimeError(f"the rows were not delivered to {batch.lane}: {failure}") from failure
            lane = batch.lane
            written = self._report.written.setdefault(TopicPartition(lane.topic, lane.partition), Written())
            first, last = batch.outcome(0)[0], batch.outcome(batch.record_count - 1)[0]
            if not written.rows:
                written.first_offset = first
            written.last_offset = max(written.last_offset, last)
            written.rows += batch.record_count

    # Columns and partitions

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        place = self._plan.columns.get(name)
        return None if place is None else batch.column(place)

    def _bytes_of(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = self._column(batch, name)
        return pa.nulls(batch.num_rows, pa.binary()) if column is None else column.cast(pa.binary())

    def _partitions_of(self, topic: str) -> int:
        """Return the number of partitions of the topic. Raises `ValueError` with one sentence."""
        count = self._partitions.get(topic)
        if count is None:
            seconds = self._plan.look_up_ms / 1000
            try:
                count = len(self._producer.partitions_for(topic, seconds))
                if self._producer.topic_id(topic) != self._plan.topic_id or topic != self._plan.topic:
                    # A producer that was kept may know an earlier topic of this name, or fewer partitions.
                    self._producer._refresh_topic(topic, seconds)
                    count = len(self._producer.partitions_for(topic, seconds))
            except KafkaError as error:
                where = self._plan.properties["bootstrap.servers"]
                raise ValueError(about_topic(topic, where, error)) from None
            self._partitions[topic] = count
            self._topic_ids[topic] = self._producer.topic_id(topic)
            self._check_topic(topic, self._plan.topic_id)
        return count

    @property
    def topics(self) -> TopicIds:
        """The topics that were written, with their ids at the start of the task."""
        return tuple(sorted(self._topic_ids.items()))

    def _check_topic(self, topic: str, planned: bytes = NO_TOPIC_ID) -> None:
        """Raise `RuntimeError` if the topic was created again. Its id then differs from the id in the plan,
        or from the id with which earlier rows were written.
        """
        now, before = self._producer.topic_id(topic), self._topic_ids[topic]
        if NO_TOPIC_ID in (now, before) or (now == before and planned in (now, NO_TOPIC_ID)):
            return
        raise RuntimeError(
            f"the topic '{topic}' was deleted and created again while the query ran, so rows that it "
            "had written are gone: start the query again to go on with the new topic."
        )

    def _spread(self, topic: str, count: int, rows: Rows, keys: pa.Array) -> npt.NDArray[np.int32]:
        """Choose partitions for rows without a key. The partitions take turns, and each partition gets `batch.size`
        bytes per turn. (In KIP-794 the next partition is chosen at random.)
        """
        lanes = np.zeros(len(rows), np.int32)
        if count == 1 or not keys.null_count:
            return lanes
        turn = self._keyless.get(topic)
        if turn is None:
            turn = self._keyless[topic] = random.sample(range(count), count)
        sizes = pc.fill_null(pc.binary_length(rows.value), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        sizes[pc.is_valid(keys).to_numpy(zero_copy_only=False)] = 0
        blocks = np.cumsum(sizes) // max(1, self._settings.batch_size)
        used = int(blocks[-1]) + 1
        lanes[:] = np.array(turn, np.int32)[blocks % count]
        self._keyless[topic] = turn[used % count :] + turn[: used % count]
        return lanes


def _level(producer: Producer) -> int | None:
    """Return the producer's compression level; None for the codec's default."""
    settings = producer.settings
    if settings.compression_type == "gzip":
        return None if settings.compression_gzip_level == -1 else settings.compression_gzip_level
    return {"lz4": settings.compression_lz4_level, "zstd": settings.compression_zstd_level}.get(
        settings.compression_type
    )


def _headers_of(column: pa.Array | None) -> pa.Array | None:
    """Return the headers with the types that `encode` needs. Raises `ValueError` for a header without a name."""
    if column is None:
        return None
    lists = column.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    items = lists.flatten()
    if items.null_count or pc.struct_field(items, "key").null_count:
        raise ValueError("the column 'headers' has a header without a key: give every header a key.")
    return lists


def _header_bytes(headers: pa.Array) -> pa.Array:
    """Count the bytes of names and values of each row's headers."""
    items = headers.flatten()
    lengths = pc.add(
        pc.binary_length(pc.struct_field(items, "key")),
        pc.fill_null(pc.binary_length(pc.struct_field(items, "value")), 0),
    ).to_numpy(zero_copy_only=False)
    sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts)
    return pa.array(sums[ends] - sums[ends - counts])
