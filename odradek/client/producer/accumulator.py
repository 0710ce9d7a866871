"""A producer's records until their acknowledgement: batches by partition, the memory limit, the choice of each
record's partition (KIP-794). PURE.

Theory of operation
-------------------
`Accumulator.append` adds a record to the open batch of its partition. It returns `None` if there is no such
batch, because the topic is unknown or a new batch is needed. Then the caller uses `open_batch`. The sender
(`odradek.client.producer.sender`) takes batches from the queues (`Lane`) of the partitions, oldest first, and
puts back batches that must be sent again.

A `Batch` is completed once, and then has the outcome of its records. So a record's future needs only a
reference to the batch and the record's index in the batch. Completing a batch costs the same for one record
as for a thousand.

Rules
-----
* When a batch is opened, it reserves memory for its bytes and for the Python objects of its first rows. For
  the bytes it reserves `batch.size`, or the size of the first record if that is larger. For further rows the
  batch reserves further memory. After encoding, the batch keeps only the memory of its bytes. This memory is
  released when the batch is done. Never more than `buffer.memory` is in use.
* Records without key and partition go to one partition, the sticky one, and their bytes are counted as they are
  appended. After `batch.size` bytes, another partition is chosen at random when the next batch would be opened
  (KIP-794). By then the previous batch is full, or was sent after its linger time. An open batch has at most
  `batch.size` bytes, so the partition changes after at most twice as many bytes.
* With `partitioner.adaptive.partitioning.enable`, a partition is chosen less often the more batches wait for it. With
  `partitioner.availability.timeout.ms`, partitions are left out if their leader has accepted nothing for that time,
  unless this is true of all leaders.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

import attrs

from odradek.client.core.client_keys import ProducerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID, Cluster, Topic
from odradek.client.errors import BufferFull
from odradek.client.producer.partitioner import murmur2
from odradek.wire.batches.batch_header import HEADER_SIZE
from odradek.wire.batches.record_writer import Row
from odradek.wire.batches.records import Header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Accumulator", "Batch", "Lane"]

_RECORD_OVERHEAD = 16
"""The maximum number of bytes that a record needs in addition to key, value and headers: for lengths, deltas
and the number of headers. This holds for records below a megabyte.
"""
_HEADER_OVERHEAD = 10
_ROW_MEMORY = 200
"""The measured memory of a row in bytes, in addition to key and value: a tuple, a number, two objects, a list entry.
"""
_ROW_BYTES = 1024
"""A new batch reserves the memory of one row per this number of bytes of `batch.size`."""
_ROWS_MORE = 64
"""Each time a batch reserves memory for further rows, it does so for at least this number of rows."""
_BATCH_MEMORY = 600
"""The measured memory of a batch in bytes, in addition to its data."""


@attrs.define(eq=False)
class Batch:
    """Records of one partition that are sent together. Times are in seconds of the core's clock.

    `rows` has the records; after encoding, `data` has their bytes. `base_offset` is -1 if the broker does not report
    it: with acks=0, or for a repetition whose original was acknowledged long ago. `log_append_time_ms` is -1 unless
    the topic uses LogAppendTime.
    """

    lane: Lane
    opened_at: float
    deadline: float
    memory: int
    rows: list[Row] = attrs.field(factory=list, repr=False)
    rows_max: int = 0
    """The number of rows for which memory is reserved."""
    size: int = HEADER_SIZE
    closed: bool = False
    data: bytearray | None = attrs.field(default=None, repr=False)
    record_count: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    attempts: int = 0
    number: int = 0
    """The number of this batch in the sequence of batches that its partition's queue has sent; the first has 1."""
    not_before: float = 0.0
    last_error: Exception | None = None
    maybe_appended: bool = False
    """True if the broker may have appended the batch in an earlier attempt that got no answer. The answers to
    later attempts cannot show whether it has.
    """
    done: bool = False
    outcome_taken: bool = False
    """True once the application has read the outcome of one of its records."""
    whole: Batch | None = None
    """The original batch, if this batch is one half of a batch that was split; otherwise None."""
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: Exception | None = None
    record_errors: dict[int, Exception] | None = None
    parts: list[tuple[int, Batch]] | None = None
    """The batches that replaced this one after a split, each with the index of its first record."""
    on_done: list[Callable[[Batch], None]] = attrs.field(factory=list, repr=False)

    def outcome(self, index: int) -> tuple[int, int, Exception | None]:
        """Return offset, broker's timestamp (each -1 if unknown) and error of the record with this index. The batch
        must be `done`.
        """
        if self.parts is not None:
            first, part = self.parts[bisect_right(self.parts, index, key=lambda each: each[0]) - 1]
            return part.outcome(index - first)
        if self.record_errors is not None and index in self.record_errors:
            return -1, -1, self.record_errors[index]
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return offset, self.log_append_time_ms, self.error

    @property
    def is_heard_of(self) -> bool:
        """True if the application has read the outcome of this batch, or of the batch from which it was split."""
        return self.outcome_taken or (self.whole is not None and self.whole.is_heard_of)

    def failure(self) -> Exception | None:
        """Return the first error of any record in the batch; None if all were written. The batch must be `done`."""
        self.outcome_taken = True
        if self.parts is not None:
            return next((error for _, part in self.parts if (error := part.failure()) is not None), None)
        return self.error

    def finish(self) -> None:
        """Mark the batch as done, and call its callbacks."""
        self.done = True
        self.rows = []
        self.data = None
        callbacks, self.on_done = self.on_done, []
        for callback in callbacks:
            callback(self)


@attrs.define(eq=False)
class Lane:
    """The queue of one partition's batches, and the sequence numbers for them (KIP-98).

    `batches` has the batches that wait to be sent; batches that must be sent again come first. `in_flight` has the
    batches that were sent and have no answer yet, in the order of their sequence numbers. `open` is the last batch of
    `batches` while records may be added to it.
    """

    topic: str
    partition: int
    open: Batch | None = None
    batches: deque[Batch] = attrs.field(factory=deque)
    in_flight: deque[Batch] = attrs.field(factory=deque)
    topic_id: bytes = NO_TOPIC_ID
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    batches_sent: int = 0
    """The number of batches sent so far. A batch counts once, even if it was sent several times. The split of
    a batch adds one to this number.
    """
    established: bool = False
    """True if the broker has accepted a batch under the current sequence numbers. From then on the broker
    refuses gaps in these numbers.
    """
    records_acknowledged: int = 0
    records_failed: int = 0
    batches_acknowledged: int = 0
    bytes_acknowledged: int = 0
    rebase: Exception | None = None
    """The reason why the queue must start with new sequence numbers and a new epoch before it sends another
    batch (KIP-360). None if the queue can continue with its numbers.
    """
    repeating: bool = False
    """True while some batch must be sent again. Until every batch in flight has been answered, the queue sends
    nothing.
    """

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def count_acknowledged(self, batch: Batch) -> None:
        """Count the records of a batch that the broker has acknowledged."""
        self.records_acknowledged += batch.record_count
        self.batches_acknowledged += 1
        self.bytes_acknowledged += len(batch.data or b"")

    def metrics(self) -> dict[str, int]:
        """Return counters of one partition by name: totals since the start, and the present queue."""
        waiting = [*self.batches, *self.in_flight]
        return {
            "records": self.records_acknowledged,
            "bytes": self.bytes_acknowledged,
            "batches": self.batches_acknowledged,
            "errors": self.records_failed,
            "queued_records": sum(batch.record_count or len(batch.rows) for batch in waiting),
            "queued_batches": len(waiting),
        }


class _TopicState:
    """The data about a topic that `append` needs. The data is valid as long as the cluster has the same
    `topic` object.
    """

    __slots__ = ("available", "lanes", "sticky", "sticky_bytes", "topic")

    def __init__(self, topic: Topic, lanes: list[Lane]) -> None:
        self.topic = topic
        self.lanes = lanes
        self.available = sorted(p.index for p in topic.partitions.values() if p.leader >= 0)
        self.sticky: Lane | None = None
        self.sticky_bytes = 0


class Accumulator:
    """The batches of a producer that are not acknowledged yet, by partition."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, rng: random.Random) -> None:
        self.memory_used = 0
        self.lanes: dict[TopicPartition, Lane] = {}
        self.active: dict[Lane, None] = {}
        """The queues that have batches, either waiting or in flight."""
        self.incomplete: dict[Batch, None] = {}
        self.on_room: Callable[[], None] | None = None
        """Called when a batch has released memory."""
        self.flushing = 0
        """The number of callers in `flush`, which wait until everything is sent. Batches linger only while this is 0.
        """
        self.blocked: frozenset[int] = frozenset()
        """The ids of the leaders that have accepted nothing for `partitioner.availability.timeout.ms`."""
        self.starving = 0
        """The number of callers that wait for memory. Batches linger only while it is 0."""
        self._settings = settings
        self._batch_bytes_max = settings.batch_size
        self._rows_first = max(1, settings.batch_size // _ROW_BYTES)
        self._cluster = cluster
        self._rng = rng
        self._topics: dict[str, _TopicState] = {}
        self._custom = settings.partitioner_class
        self._ignore_keys = settings.partitioner_ignore_keys
        self._round_robin = 0

    def append(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> Batch | None:
        """Add a record to the open batch of its partition, as the last of the batch's `rows`, and return the batch.
        Return None if the caller must use `open_batch`.

        Raises `KafkaError` for a partition that the topic does not have.
        """
        state = self._topics.get(topic)
        if state is None or state.topic is not self._cluster.topics.get(topic):
            return None
        if partition is None:
            if self._custom is not None:
                return None
            if key is None or self._ignore_keys:
                lane = state.sticky
                if lane is None:
                    return None
            else:
                lane = state.lanes[(murmur2(key) & 0x7FFFFFFF) % len(state.lanes)]
        else:
            lane = self._lane(state, partition)
        batch = lane.open
        if batch is None:
            return None
        size = _RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size += _headers_size(headers)
        total = size + batch.size
        rows = batch.rows
        if total > self._batch_bytes_max or len(rows) >= batch.rows_max:
            return None
        batch.size = total
        if partition is None and (key is None or self._ignore_keys):
            state.sticky_bytes += size
        rows.append((timestamp_ms, key, value, headers))
        return batch

    def partition_metrics(self) -> dict[TopicPartition, dict[str, int]]:
        """Return the counters of each partition to which records were sent."""
        return {key: metrics for key, lane in self.lanes.items() if any((metrics := lane.metrics()).values())}

    def has_filled(self, batch: Batch) -> bool:
        """True if the sender must act now that this batch was opened: the batch is full, or an earlier batch
        of the partition waits.
        """
        return len(batch.lane.batches) > 1 or batch.size >= self._batch_bytes_max

    def out_of_memory(self) -> BufferFull:
        """Make the error for a record that got no memory within `max.block.ms`."""
        settings = self._settings
        return BufferFull(
            f"buffer.memory ({settings.buffer_memory} bytes) was full for max.block.ms "
            f"({settings.max_block_ms} ms)"
        )

    def knows(self, topic: str) -> bool:
        """True if the client knows the topic's partitions."""
        return topic in self._cluster.topics

    def open_batch(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        now: float,
        *,
        deadline: float | None = None,
        any_size: bool = False,
    ) -> Batch | None:
        """Open a new batch for a record that `append` could not add, and return the batch; None if memory is short.

        The topic must be known. With `deadline`, the batch gets this deadline, and `delivery.timeout.ms` does
        not apply. With `any_size`, the client does not check the record's size, and only the broker may
        refuse it. Raises `KafkaError`: MESSAGE_TOO_LARGE (above `max.request.size` or `buffer.memory`), or
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"") + _headers_size(headers)
        limit = min(self._settings.max_request_size, self._settings.buffer_memory)
        if size + HEADER_SIZE > limit and not any_size:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size + HEADER_SIZE} bytes for {topic} exceeds max.request.size or "
                f"buffer.memory ({limit} bytes)",
            )
        state = self._state(topic)
        lane = self._choose(state, partition, key, value, size)
        batch = lane.open
        if batch is None or batch.size + size > self._batch_bytes_max:
            memory = max(self._batch_bytes_max, size + HEADER_SIZE) + self._rows_first * _ROW_MEMORY
            if self.memory_used + memory > self._settings.buffer_memory and self.memory_used:
                return None
            self.close(lane)
            self.memory_used += memory
            if deadline is None:
                deadline = now + self._settings.delivery_timeout_ms / 1000
            batch = Batch(lane, now, deadline, memory, rows_max=self._rows_first)
            lane.open = batch
            lane.batches.append(batch)
            self.active[lane] = None
            self.incomplete[batch] = None
        elif len(batch.rows) >= batch.rows_max:
            more = min(batch.rows_max, max(_ROWS_MORE, self._rows_first))
            if self.memory_used + more * _ROW_MEMORY > self._settings.buffer_memory:
                return None
            self.memory_used += more * _ROW_MEMORY
            batch.memory += more * _ROW_MEMORY
            batch.rows_max += more
        batch.size += size
        batch.rows.append((timestamp_ms, key, value, headers))
        if lane is state.sticky and partition is None and (key is None or self._ignore_keys):
            state.sticky_bytes += size if len(batch.rows) > 1 else batch.size
        return batch

    def add_encoded(
        self, topic: str, partition: int, data: bytearray, record_count: int, now: float
    ) -> Batch | None:
        """Append a batch that the caller has encoded (`odradek.wire.batches.record_writer`) to its partition's queue.
        Return the batch, or None if memory is short.

        The topic must be known. Raises `KafkaError`: MESSAGE_TOO_LARGE (above `max.request.size` or `buffer.memory`),
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        limit = min(self._settings.max_request_size, self._settings.buffer_memory)
        if len(data) > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes for {topic} exceeds max.request.size or buffer.memory "
                f"({limit} bytes)",
            )
        lane = self._lane(self._state(topic), partition)
        memory = len(data) + _BATCH_MEMORY
        if self.memory_used + memory > self._settings.buffer_memory and self.memory_used:
            return None
        self.close(lane)
        self.memory_used += memory
        deadline = now + self._settings.delivery_timeout_ms / 1000
        batch = Batch(lane, now, deadline, memory, size=len(data), closed=True)
        batch.data = data
        batch.record_count = record_count
        lane.batches.append(batch)
        self.active[lane] = None
        self.incomplete[batch] = None
        return batch

    def close_all(self) -> None:
        """Close all open batches to further records."""
        for lane in self.active:
            self.close(lane)

    def take(self, lane: Lane) -> Batch:
        """Remove the queue's first batch, and return it for sending."""
        batch = lane.batches.popleft()
        if lane.open is batch:
            self.close(lane)
        return batch

    def encoded(self, batch: Batch) -> None:
        """Drop a batch's rows and release their memory, because the batch is encoded."""
        batch.rows = []
        given = batch.memory - (len(batch.data or b"") + _BATCH_MEMORY)
        if given > 0:
            self.memory_used -= given
            batch.memory -= given
            if self.on_room is not None:
                self.on_room()

    def complete(self, batch: Batch) -> None:
        """Mark a batch as done, and release its memory."""
        self.memory_used -= batch.memory
        batch.memory = 0
        self.incomplete.pop(batch, None)
        batch.finish()
        if self.on_room is not None:
            self.on_room()

    def split(self, batch: Batch, parts: list[tuple[int, Batch]]) -> None:
        """Replace a batch that was too large by `parts`. The batch is done when all its parts are done."""
        batch.parts = parts
        waiting = len(parts)
        share = batch.memory // len(parts)

        def part_done(_: Batch) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self.complete(batch)

        for _, part in parts:
            batch.memory -= share
            part.memory = share
            part.whole = batch
            part.on_done.append(part_done)
            self.incomplete[part] = None

    def settle(self, lane: Lane) -> None:
        """Remove a queue from `active` if it has no batches."""
        if not lane.batches and not lane.in_flight:
            self.active.pop(lane, None)

    # Partitions

    def _state(self, name: str) -> _TopicState:
        topic = self._cluster.topic(name)
        state = self._topics.get(name)
        if state is None or state.topic is not topic:
            lanes = [
                self.lanes.setdefault(TopicPartition(name, i), Lane(name, i))
                for i in sorted(topic.partitions)
            ]
            old = state
            state = self._topics[name] = _TopicState(topic, lanes)
            if old is not None and old.sticky in lanes:
                state.sticky, state.sticky_bytes = old.sticky, old.sticky_bytes
        return state

    def _lane(self, state: _TopicState, partition: int) -> Lane:
        if not 0 <= partition < len(state.lanes):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {state.topic.name} has no partition {partition} (it has {len(state.lanes)})",
            )
        return state.lanes[partition]

    def _choose(
        self, state: _TopicState, partition: int | None, key: bytes | None, value: bytes | None, size: int
    ) -> Lane:
        """Choose the queue for a record: by its given partition, the application's partitioner, its key, or the
        sticky partition.
        """
        if partition is not None:
            return self._lane(state, partition)
        if self._custom == "RoundRobinPartitioner":
            self._round_robin += 1
            available = state.available or range(len(state.lanes))
            return state.lanes[available[self._round_robin % len(available)]]
        if self._custom is not None:
            chosen = self._custom(state.topic.name, key, value, len(state.lanes), tuple(state.available))
            return self._lane(state, chosen)
        if key is not None and not self._ignore_keys:
            return state.lanes[(murmur2(key) & 0x7FFFFFFF) % len(state.lanes)]
        lane = state.sticky
        if lane is None:
            return self._draw(state)
        if lane.open is not None and lane.open.size + size <= self._batch_bytes_max:
            return lane  # the batch has room for the record, but no memory is reserved for its row
        self.close(lane)
        return lane if state.sticky_bytes < self._batch_bytes_max else self._draw(state)

    def _draw(self, state: _TopicState) -> Lane:
        """Choose another sticky partition at random, among the partitions whose leader accepts records. A
        partition with a short queue is more likely to be chosen.
        """
        candidates = [state.lanes[index] for index in state.available] or state.lanes
        if self.blocked:
            leaders = {index: partition.leader for index, partition in state.topic.partitions.items()}
            candidates = [
                lane for lane in candidates if leaders[lane.partition] not in self.blocked
            ] or candidates
        others = [lane for lane in candidates if lane is not state.sticky] or candidates
        if self._settings.partitioner_adaptive_partitioning_enable and len(others) > 1:
            longest = max(len(lane.batches) for lane in others)
            sums = list(accumulate(longest + 1 - len(lane.batches) for lane in others))
            lane = others[bisect_right(sums, self._rng.random() * sums[-1])]
        else:
            lane = self._rng.choice(others)
        state.sticky = lane
        state.sticky_bytes = 0
        return lane

    def close(self, lane: Lane) -> None:
        """Close the queue's open batch to further records."""
        if lane.open is not None:
            lane.open.closed = True
            lane.open = None


def _headers_size(headers: Sequence[Header]) -> int:
    size = 0
    for name, value in headers:
        size += _HEADER_OVERHEAD + 4 * len(name) + len(value or b"")
    return size
