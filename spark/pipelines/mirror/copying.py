"""The copying of records, exactly once. Each transaction in the target includes the source ranges that it has
copied.

Theory of operation
===================

A session begins with `init_transactions`, with a transactional id made from the mirror's name. This call
fences every older process with the same name. Before the call returns, the open transaction of such a process
is committed or aborted. Then the session reads the map (`offset_map.py`) to its end. The map alone decides
where the session continues.

A transaction has records, and then the source ranges from which these records come. Either both are committed
or neither. A fenced process can commit nothing more. So every visible record of the source is copied to the
target once, in the order of its partition, even if processes die.

After a temporary error a new session begins, and reads the map again. A broken session is never repaired.

A topic of the target must be empty when the mirror begins. Until the switch to the target, no other program
may write to it. Because of these two rules, the offsets of groups can be translated exactly. The ids of each
pair of topics are written to the map before the first record is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs

from odradek import Admin, Consumer, KafkaError, Producer
from odradek.client.admin import NewTopic
from odradek.client.consumer.consumer_types import ConsumerRecord
from odradek.client.errors import ClientError, TransactionFatalError
from odradek.client.producer.accumulator import Batch
from odradek.spark.pipelines.failure import Failed
from odradek.spark.pipelines.mirror.offset_map import (
    CopiedRange,
    MapError,
    OffsetMap,
    Run,
    TopicPair,
    runs_of,
)
from odradek.wire.batches.compression import CompressionType
from odradek.wire.batches.record_writer import Row, encode_batch
from odradek.wire.errors import ErrorCode
from odradek.wire.topic_partition import TopicPartition

__all__ = ["Limits", "Mirror", "Progress", "map_topic", "read_map"]

_BATCH_BYTES = 256 << 10
_BATCH_RECORDS = 10_000
_RECORD_BYTES = 32
_POLL_SECONDS = 0.2
_POLL_RECORDS = 5000
_LOOK_SECONDS = 30.0
"""Seconds after which a run with `follow` checks the source for new partitions."""
_MAP_SETTINGS = {"cleanup.policy": "compact", "compression.type": "producer"}
_REQUEST_BYTES_MAX = 64 << 20
"""The producer's limit for the size of a batch, in bytes. This limit is large, so that the target's own limit
decides.
"""


@attrs.frozen
class Limits:
    """The limits of one transaction. The transaction is committed when one of these limits is reached."""

    records: int = 100_000
    seconds: float = 5.0
    runs: int = 10_000
    """The most runs in the map's record for one partition. Many small transactions of the source make many runs."""


@attrs.frozen
class Progress:
    """The progress of a mirror after a transaction."""

    records: int
    """The number of records that this process has copied."""
    lag: int
    """The number of source offsets that are not copied yet."""
    lost: int = 0


@attrs.define
class _Part:
    """The records of one partition in the open transaction: records that wait to be sent, and records that
    were sent.
    """

    rows: list[Row] = attrs.field(factory=list)
    offsets: list[int] = attrs.field(factory=list)
    size: int = 0
    sent: list[tuple[Batch, list[int]]] = attrs.field(factory=list)
    gaps: int = 0
    last: int = -1


class _PlaceUnknown(ClientError):
    """Raised if the target has stored a batch, but its response does not say at which offset. The transaction
    is then repeated, so that the mirror learns the offset.
    """

    retriable = True


def map_topic(name: str) -> str:
    """Return the name of the target's topic that has the map of this mirror."""
    return f"odradek-mirror-{name}"


def read_map(target: Mapping[str, str], name: str, *, keep_runs: bool) -> OffsetMap:
    """Read the map to its present end. Raises `Failed` if another client's open transaction hides a part of it."""
    found = OffsetMap(keep_runs=keep_runs)
    place = TopicPartition(map_topic(name), 0)
    reader = {"isolation.level": "read_committed", "auto.offset.reset": "none", "enable.auto.commit": "false"}
    with Consumer({**target, "isolation.level": "read_uncommitted"}) as ends:
        end = ends.end_offsets([place])[place]
        begin = ends.beginning_offsets([place])[place]
    with Consumer({**target, **reader, "max.poll.records": str(_POLL_RECORDS)}) as consumer:
        consumer.assign([place])
        consumer.seek(place, begin)
        deadline = time.monotonic() + 90.0
        # The last stable offset may be below a committed record of the map. So read up to the high watermark.
        while consumer.position(place) < end:
            for record in consumer.poll(_POLL_SECONDS):
                try:
                    found.take_in(record.key, record.value)
                except MapError as error:
                    raise Failed(
                        f"the record at offset {record.offset} of {map_topic(name)} cannot be used: {error}"
                    ) from None
                deadline = time.monotonic() + 90.0
            if time.monotonic() > deadline:
                raise Failed(
                    f"another program has an open transaction in {map_topic(name)}: `odradek txn` "
                    "shows the transaction"
                )
    return found


class Mirror:
    """Copies topics between two clusters. `source` and `target` are client configurations with Kafka's keys.

    `ready` is called before each session. It returns each pair of topics (with the ids of both topics) and the pair's
    number of partitions.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        name: str,
        ready: Callable[[], Mapping[TopicPair, int]],
        *,
        producer_keys: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        skip_lost: bool = False,
    ) -> None:
        self._source, self._target, self._name = source, target, name
        self._ready = ready
        self._producer_keys = {"compression.type": "lz4", **(producer_keys or {})}
        codec = str(self._producer_keys["compression.type"]).upper()
        if codec not in CompressionType.__members__:
            raise Failed(f"compression.type={codec.lower()} is not a known codec")
        self._codec = CompressionType[codec]
        self._limits = limits or Limits()
        self._skip_lost = skip_lost
        self.records = 0
        self.lost = 0
        self.ends: dict[TopicPartition, int] = {}
        """The end offsets of the source at the start. A run without `follow` copies up to them."""

    def run(
        self, show: Callable[[Progress], None], *, follow: bool = False, patience_seconds: float = 120.0
    ) -> None:
        """Copy all records up to the present ends of the source; with `follow`, continue for ever.

        Raises `Failed` for a permanent error, or after `patience_seconds` without a commit.
        """
        last_good = time.monotonic()
        while True:
            before = self.records
            try:
                if _Session(self, show).run(follow=follow):
                    return
                last_good = time.monotonic()
            except (KafkaError, ClientError) as error:
                if self.records != before:
                    last_good = time.monotonic()
                if not _may_pass(error) or time.monotonic() - last_good > patience_seconds:
                    raise Failed(_sentence(error)) from error
                time.sleep(0.5)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _may_pass(error: BaseException) -> bool:
    """True if another session may succeed: no broker answered, or all error codes are retriable."""
    causes = _causes(error)
    codes = [each.code for each in causes if isinstance(each, KafkaError)]
    if codes:
        return all(code.retriable for code in codes)
    if any(isinstance(each, TransactionFatalError) for each in causes):
        return False
    return any(isinstance(each, ClientError) and each.retriable for each in causes)


def _sentence(error: BaseException) -> str:
    causes = _causes(error)
    codes = {each.code for each in causes if isinstance(each, KafkaError)}
    if codes & {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH} or any(
        type(each).__name__ == "ProducerFencedError" for each in causes
    ):
        return (
            "another mirror of this name has begun, or this mirror was paused for too long: start it "
            f"again if no other mirror runs ({error})"
        )
    return str(causes[-1])


class _Session:
    """One attempt at copying, with a consumer and a producer: from reading the map to the end of the source, or to an
    error.
    """

    def __init__(self, mirror: Mirror, show: Callable[[Progress], None]) -> None:
        self._mirror = mirror
        self._show = show
        self._parts: dict[TopicPartition, _Part] = {}
        self._done: dict[TopicPartition, int] = {}
        """The next source offset to be committed, by partition."""
        self._count = 0
        self._is_open = False

    def run(self, *, follow: bool) -> bool:
        """Copy records. Return True at the end of the source, False if the topics must be checked again. Raises
        `KafkaError`, `ClientError`.
        """
        mirror = self._mirror
        pairs = mirror._ready()
        _make_map(mirror._target, mirror._name)
        writer = {
            **mirror._target,
            **mirror._producer_keys,
            "transactional.id": map_topic(mirror._name),
            "max.request.size": str(_REQUEST_BYTES_MAX),
        }
        reader = {
            **mirror._source,
            "isolation.level": "read_committed",
            "auto.offset.reset": "none",
            "enable.auto.commit": "false",
            "max.poll.records": str(min(_POLL_RECORDS, mirror._limits.records)),
        }
        with Producer(writer) as self._producer, Consumer(reader) as self._consumer:
            self._producer.init_transactions()
            self._begin(pairs)
            return self._copy(follow, pairs)

    def _begin(self, pairs: Mapping[TopicPair, int]) -> None:
        """Read the map, seek the consumer to where copying continues, and write new topics to the map. Raises
        `Failed`.
        """
        mirror, consumer = self._mirror, self._consumer
        known = read_map(mirror._target, mirror._name, keep_runs=False)
        keys = [TopicPartition(pair.topic, index) for pair, count in pairs.items() for index in range(count)]
        fresh = [pair for pair in pairs if pair.topic not in known.pairs]
        for pair in pairs:
            _check_pair(pair, known.pairs.get(pair.topic, pair))
        self._check_empty([key for key in keys if key.topic in {pair.topic for pair in fresh}])
        if fresh:
            with self._producer.transaction():
                for pair in fresh:
                    record_key, value = pair.encoded()
                    self._producer.send(map_topic(mirror._name), value, record_key, partition=0)
        begins = consumer.beginning_offsets(keys)
        ends = consumer.end_offsets(keys)
        for key in keys:
            mirror.ends.setdefault(key, ends[key])
        consumer.assign(keys)
        for key in keys:
            progress = known.progress(key)
            if progress is not None and progress < begins[key]:
                lost = begins[key] - progress
                if not mirror._skip_lost:
                    raise Failed(
                        f"{key} now begins at offset {begins[key]}, and {lost} offsets before that "
                        "were not copied: add --skip-lost to continue without them"
                    )
                mirror.lost += lost
            self._done[key] = max(progress or 0, begins[key])
            consumer.seek(key, self._done[key])
            if self._done[key] > ends[key]:
                raise Failed(
                    f"{key} ends at offset {ends[key]}, but this mirror has copied it up to "
                    f"{self._done[key]}: the source lost records"
                )

    def _check_empty(self, keys: list[TopicPartition]) -> None:
        if not keys:
            return
        with Consumer({**self._mirror._target, "isolation.level": "read_uncommitted"}) as consumer:
            for key, end in consumer.end_offsets(keys).items():
                if end:
                    raise Failed(
                        f"the target's {key} has records that this mirror did not write: delete that "
                        "topic in the target, or do not mirror it"
                    )

    def _copy(self, follow: bool, pairs: Mapping[TopicPair, int]) -> bool:
        looked_at = time.monotonic()
        while True:
            began = time.monotonic()
            self._transact(began)
            behind = self._lag(follow)
            self._show(Progress(self._mirror.records, behind, self._mirror.lost))
            if not follow and not behind:
                return True
            if follow and time.monotonic() - looked_at > _LOOK_SECONDS:
                looked_at = time.monotonic()
                if self._mirror._ready() != pairs:
                    return False

    def _lag(self, follow: bool) -> int:
        ends = self._consumer.end_offsets(list(self._done)) if follow else self._mirror.ends
        return sum(max(0, ends[key] - done) for key, done in self._done.items())

    def _transact(self, began: float) -> None:
        """Copy records in one transaction, and commit it together with its progress."""
        limits = self._mirror._limits
        ends = self._mirror.ends
        while self._count < limits.records and time.monotonic() - began < limits.seconds:
            found = self._consumer.poll(_POLL_SECONDS)
            for record in found:
                self._add(record)
            if any(part.gaps >= limits.runs for part in self._parts.values()):
                break
            if not found and all(
                self._consumer.position(key) >= ends[key]
                for key, done in self._done.items()
                if done < ends[key]
            ):
                break
        self._commit()

    def _add(self, record: ConsumerRecord) -> None:
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        key = TopicPartition(record.topic, record.partition)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part()
        part.rows.append((record.timestamp, record.key, record.value, record.headers))
        part.offsets.append(record.offset)
        part.gaps += record.offset != part.last + 1
        part.last = record.offset
        part.size += len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES
        self._count += 1
        if part.size >= _BATCH_BYTES or len(part.rows) >= _BATCH_RECORDS:
            self._ship(key, part)

    def _ship(self, key: TopicPartition, part: _Part) -> None:
        data = encode_batch(part.rows, compression_type=self._mirror._codec, is_transactional=True)
        part.sent.append((self._producer.send_encoded(*key, data, len(part.rows)), part.offsets))
        part.rows, part.offsets, part.size = [], [], 0

    def _commit(self) -> None:
        moved = {
            key: position
            for key, done in self._done.items()
            if (position := self._consumer.position(key)) > done
        }
        if not moved:
            return
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        for key, part in self._parts.items():
            if part.rows:
                self._ship(key, part)
        self._producer.flush()
        for key, position in moved.items():
            runs = _runs(self._parts[key]) if key in self._parts else []
            record_key, value = CopiedRange(key, self._done[key], position, tuple(runs)).encoded()
            self._producer.send(map_topic(self._mirror._name), value, record_key, partition=0)
        self._producer.commit_transaction()
        self._mirror.records += self._count
        self._done.update(moved)
        self._parts, self._count, self._is_open = {}, 0, False


def _runs(part: _Part) -> list[Run]:
    """List the runs of the records of a partition that were sent. If a batch was not written, raise its
    error.
    """
    offsets: list[int] = []
    targets: list[int] = []
    for batch, of_batch in part.sent:
        for index, offset in enumerate(of_batch):
            target, _, error = batch.outcome(index)
            if error is not None:
                raise error
            if target < 0:
                raise _PlaceUnknown("the target has written a batch, but did not report its offset")
            offsets.append(offset)
            targets.append(target)
    return runs_of(offsets, targets)


def _check_pair(now: TopicPair, then: TopicPair) -> None:
    for side, is_same in (
        ("source", now.source_id == then.source_id),
        ("target", now.target_id == then.target_id),
    ):
        if not is_same:
            raise Failed(
                f"the topic '{now.topic}' of the {side} was deleted and created again since this "
                "mirror began: begin a mirror with another --name, and a target without this topic"
            )


def _make_map(target: Mapping[str, str], name: str) -> None:
    with Admin(dict(target)) as admin:
        brokers = len(admin.describe_cluster().brokers)
        [made] = admin.create_topics([NewTopic(map_topic(name), 1, min(3, brokers), _MAP_SETTINGS)])
    if made.error is not None and made.error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise made.error
