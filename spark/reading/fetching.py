"""The reader of ranges of offsets on executors. It reads directly from the partitions' leaders, and makes Arrow
batches. SHELL.

Theory of operation
-------------------
A Python worker of Spark runs many tasks, and keeps its connections to the cluster. `_clients` has one client for each
set of `kafka.*` options. So a task of a streaming query costs one Fetch and no connection.

While one answer is decoded and passed to Spark, the next Fetch is under way. The batch headers of an answer are
enough to know where it ends. So the next Fetch is sent before the first row of this answer is made. If a task has
several ranges, these ranges are small. Their first bytes are fetched together, with one Fetch for each leader
(`first_fetch`). The rows of many ranges are put into one Arrow batch. Ranges that need further Fetches are read
several at a time.

A range ends at its last offset, even if there is no record at this offset. Gaps from compaction, aborted transactions
and control batches are skipped by means of the batches' own offsets.

Some failures are temporary, such as a moved leader. Then the same Fetch is sent again with fresh metadata, until
`kafkaConsumer.pollTimeoutMs` has passed without progress. Other failures mean data loss: retention has deleted unread
records, the log is shorter than before, or another topic has the same name now. Depending on `failOnDataLoss`, data
loss is an error, or a warning after which reading continues at the next existing offset. In both cases the text has
the offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypedDict

import attrs
import pyarrow as pa

from odradek.client.core.client_keys import ConsumerSettings
from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.operation import Operation, Task, Wait
from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import ClientError, broker_error, error_code, is_retriable
from odradek.client.shells.blocking import Client
from odradek.spark.decode import FetchedRange, decode_batches, decode_ranges
from odradek.spark.reading.cluster_view import new_client
from odradek.spark.reading.first_fetch import first_fetch
from odradek.spark.reading.offset_ranges import OffsetRange
from odradek.spark.reading.read_errors import DataLoss, ReadError
from odradek.spark.source_options import SOURCE_DEFAULTS, SourceOptions
from odradek.spark.worker_process import spare_collector
from odradek.wire.batches.batch_errors import CorruptBatch, DecompressionBomb, InvalidRecord
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

__all__ = ["close_idle_clients", "read_ranges"]

_LOGGER = logging.getLogger("odradek.spark")
_PARTITION_BYTES = int(SOURCE_DEFAULTS["max.partition.fetch.bytes"])
_ROWS = 10_000
_RANGES_TOGETHER = 256
"""The largest number of small ranges that a task fetches together."""
_RANGES_AHEAD = 8
"""The largest number of ranges for which a task has a Fetch under way at the same time."""
_CLIENTS_MAX = 8
"""The largest number of clients that a process keeps. Beyond this number, the least recently used client is closed."""

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_OTHER_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

_CLIENT_IDLE_SECONDS = 300.0
"""Seconds after which an unused client is closed, at the end of the next task. (Spark ends idle workers after a
minute.)
"""


@attrs.define
class _Cached:
    client: Client
    used_at: float


_clients: dict[tuple[tuple[str, str], ...], _Cached] = {}
"""The clients by their options, the least recently used first."""


def _cached_client(options: SourceOptions, now: float) -> Client:
    """Return the client of this process for these options. (Spark forks its workers before their first task.)"""
    key = tuple(sorted(options.properties.items()))
    cached = _clients.pop(key, None)
    client = new_client(options) if cached is None else cached.client
    _clients[key] = _Cached(client, now)
    while len(_clients) > _CLIENTS_MAX:
        _clients.pop(next(iter(_clients))).client.close()
    return client


def close_idle_clients(now: float) -> int:
    """Close the clients that no task has used for `_CLIENT_IDLE_SECONDS`. Return the number of clients that are left.
    `now` is in seconds.
    """
    while _clients:
        key, oldest = next(iter(_clients.items()))
        if now - oldest.used_at <= _CLIENT_IDLE_SECONDS:
            break
        oldest.client.close()
        del _clients[key]
    return len(_clients)


def read_ranges(ranges: Sequence[OffsetRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read the records of the ranges, one range after the other, and yield them as Arrow batches."""
    client = _cached_client(options, time.monotonic())
    settings = options.consumer
    readers = [_RangeReader(each, options, settings, client) for each in ranges]
    try:
        if len(readers) == 1:
            readers[0].start()
            yield from readers[0].batches()
        else:
            yield from _read_several(readers, settings, client)
    finally:
        for reader in readers:
            reader.abandon()
        now = time.monotonic()
        _cached_client(options, now)
        close_idle_clients(now)
        spare_collector()


def _read_several(
    readers: Sequence[_RangeReader], settings: ConsumerSettings, client: Client
) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(readers), _RANGES_TOGETHER):
        several = readers[first : first + _RANGES_TOGETHER]
        answers = _fetch_first(several, settings, client)
        whole = {reader for reader, answer in answers.items() if reader.ends_in(answer)}
        going_on = [reader for reader in several if reader not in whole]
        for is_whole, group in groupby(several, whole.__contains__):
            if is_whole:
                yield from _read_together([(reader, answers[reader]) for reader in group])
                continue
            for reader in group:
                place = going_on.index(reader)
                for each in going_on[place : place + _RANGES_AHEAD]:
                    if each not in answers:
                        each.start()
                yield from reader.batches(answers.get(reader))


def _read_together(answered: Sequence[tuple[_RangeReader, _Answer]]) -> Iterator[pa.RecordBatch]:
    """Decode ranges whose first answers have all their records. Raises `ReadError`."""
    try:
        yield from decode_ranges(
            [reader.fetched(answer) for reader, answer in answered], **answered[0][0].decoding()
        )
    except (DecompressionBomb, CorruptBatch, InvalidRecord):
        # Decode each range alone, to name the faulty range in the error.
        for reader, answer in answered:
            for _ in reader.batches(answer):
                pass
        raise


def _fetch_first(
    readers: Sequence[_RangeReader], settings: ConsumerSettings, client: Client
) -> dict[_RangeReader, _Answer]:
    """Fetch the first bytes of several ranges together. Ranges without an answer or with an error are left out; their
    readers fetch again.
    """
    by_key: dict[TopicPartition, _RangeReader] = {}
    for reader in readers:
        by_key.setdefault(TopicPartition(reader.wanted.topic, reader.wanted.partition), reader)
    operation = first_fetch(
        client.core,
        [reader.wanted for reader in by_key.values()],
        bytes_max=min(settings.fetch_max_bytes, readers[0].partition_bytes),
        isolation_level=1 if settings.isolation_level == "read_committed" else 0,
        rack=settings.client_rack,
    )
    try:
        found = client.run(operation)
    except (ClientError, KafkaError):
        return {}
    answers = {}
    for key, reader in by_key.items():
        answer = reader.take(found[key], reader.wanted.start) if key in found else None
        if isinstance(answer, _Answer):
            answers[reader] = answer
    return answers


@attrs.define
class _Answer:
    """The part of a Fetch answer for one partition."""

    records: memoryview
    end: int
    """The offset after the last complete batch; the offset of the Fetch if there is none."""
    aborted: list[tuple[int, int]]
    """(first offset, producer id) of each aborted transaction."""


class _Decoding(TypedDict):
    decompressed_bytes_max: int
    with_headers: bool
    rows_wanted: int


class _RangeReader:
    """A reader of a single range. It fetches the batches from the partition's leader, or from a replica in
    the reader's rack.
    """

    def __init__(
        self, wanted: OffsetRange, options: SourceOptions, settings: ConsumerSettings, client: Client
    ) -> None:
        self.wanted = wanted
        self._options = options
        self._client = client
        self._core = client.core
        self._settings = settings
        self._read_committed = settings.isolation_level == "read_committed"
        given = "max.partition.fetch.bytes" in options.properties
        self.partition_bytes = settings.max_partition_fetch_bytes if given else _PARTITION_BYTES
        self._with_id = wanted.topic_id != NO_TOPIC_ID
        self._replica: int | None = None
        self._failures = 0
        self._progress_at = time.monotonic()
        self._started = False
        self._under_way: Task[Any] | None = None

    def start(self) -> None:
        """Send the first Fetch, unless it was sent already."""
        if not self._started:
            self._started = True
            self._begin(self.wanted.start)

    def abandon(self) -> None:
        """Stop waiting for the Fetch under way, because its answer is no longer needed."""
        if self._under_way is not None:
            self._core.abandon(self._under_way)
            self._under_way = None

    def ends_in(self, answer: _Answer) -> bool:
        """True if the answer has all remaining records of the range."""
        return answer.end >= self.wanted.end

    def fetched(self, answer: _Answer) -> FetchedRange:
        """Return the range together with its first answer, as `decode_ranges` needs it."""
        wanted = self.wanted
        return FetchedRange(
            answer.records, wanted.topic, wanted.partition, wanted.start, wanted.end, answer.aborted
        )

    def decoding(self) -> _Decoding:
        """Return the arguments that limit decoding in this query."""
        return {
            "decompressed_bytes_max": self._options.batch_bytes_max,
            "with_headers": self._options.include_headers,
            "rows_wanted": _ROWS,
        }

    def batches(self, answer: _Answer | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the range's records as Arrow batches. `answer` is the first answer if it was fetched already."""
        position = self.wanted.start
        # The timeout starts now, because the time that Spark has spent on earlier ranges must not count.
        self._progressed()
        while answer is not None or self._under_way is not None:
            if answer is None:
                assert self._under_way is not None
                task, self._under_way = self._under_way, None
                found = self._finish(task, position)
                if not isinstance(found, _Answer):
                    position = found
                    self._begin(position)
                    continue
                answer = found
            following = min(answer.end, self.wanted.end)
            self._begin(following)
            yield from self._rows(answer, position)
            self._progressed()
            position, answer = following, None

    def _rows(self, answer: _Answer, position: int) -> Iterator[pa.RecordBatch]:
        pieces = decode_batches(
            answer.records,
            topic=self.wanted.topic,
            partition=self.wanted.partition,
            offset=position,
            offset_end=self.wanted.end,
            aborted=answer.aborted,
            **self.decoding(),
        )
        where = f"{self.wanted.topic}-{self.wanted.partition}"
        try:
            for piece in pieces:
                position = piece.next_offset
                if piece.rows.num_rows:
                    yield piece.rows
        except DecompressionBomb:
            raise ReadError(
                f"a record batch of {where} from offset {position} on decompresses to more than "
                f"{self._options.batch_bytes_max} bytes: raise the option maxBatchBytes"
            ) from None
        except (CorruptBatch, InvalidRecord) as error:
            raise ReadError(
                f"a record batch of {where} from offset {position} on is damaged: {error}"
            ) from error

    # One Fetch

    def _begin(self, position: int) -> None:
        if position < self.wanted.end:
            self._under_way = self._client.begin(self._fetch(position))

    def _fetch(self, position: int) -> Operation[Any]:
        """Send one Fetch to the leader, or to the nearer replica that the leader has named (KIP-392)."""
        core, wanted = self._core, self.wanted
        if wanted.topic not in core.cluster.topics:
            yield from refresh_metadata(core, [wanted.topic], timeout=self._client.timeout)
        partition = core.cluster.partition(wanted.topic, wanted.partition)
        node = self._replica if self._replica in core.cluster.brokers else None
        call = core.call(
            self._request(position, partition.leader_epoch),
            node=core.cluster.leader(wanted.topic, wanted.partition) if node is None else node,
            deadline=core.now + core.config.request_timeout,
            version_max=None if self._with_id else FETCH_TOPIC_IDS - 1,
        )
        yield Wait([call])
        return call.result()

    def _request(self, position: int, leader_epoch: int) -> Any:
        from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        wanted, settings = self.wanted, self._settings
        partition = FetchPartition(
            partition=wanted.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=position,
            partition_max_bytes=self.partition_bytes,
        )
        topic = FetchTopic(topic=wanted.topic, topic_id=wanted.topic_id, partitions=[partition])
        return FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=1 if self._read_committed else 0,
            topics=[topic],
            rack_id=settings.client_rack,
        )

    def _finish(self, task: Task[Any], position: int) -> _Answer | int:
        """Wait for the Fetch at `position`. Return its answer, or the offset from which to fetch again."""
        try:
            response = self._client.finish(task)
            error = error_code(response.error_code)
            if error is not ErrorCode.NONE:
                raise broker_error(error, None, f"fetch of {self.wanted.topic}-{self.wanted.partition}")
        except (ClientError, KafkaError) as failure:
            if isinstance(failure, KafkaError) and failure.code in _OTHER_TOPIC:
                return self._other_topic(position)
            if not is_retriable(failure):
                raise
            return self._again(position, failure)
        [topic] = response.responses
        [answer] = topic.partitions
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE:
            return self.take(answer, position)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._replica is None:
            return self._out_of_range(position)
        if code in _OTHER_TOPIC:
            return self._other_topic(position)
        problem = broker_error(code, None, f"{self.wanted.topic}-{self.wanted.partition}")
        if code not in _PASSING and code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise problem
        return self._again(position, problem)

    def take(self, answer: Any, position: int) -> _Answer | int:
        """Process an answer. Return it if it has records, or else the offset from which to fetch again."""
        preferred = answer.preferred_read_replica
        if preferred >= 0:
            self._replica = preferred
        records = memoryview(answer.records or b"")
        end = position
        for _, header in iter_batches(records):
            end = max(end, header.next_offset)
        if end == position:
            if preferred < 0 and time.monotonic() - self._progress_at > self._options.poll_timeout_ms / 1000:
                raise ReadError(
                    f"no record of {self.wanted} arrived within {self._options.poll_timeout_ms / 1000:g} s "
                    f"(kafkaConsumer.pollTimeoutMs): the next offset to read is {position}, and the log ends at "
                    f"{answer.high_watermark}"
                )
            return position
        self._progressed()
        aborted = answer.aborted_transactions or () if self._read_committed else ()
        return _Answer(records, end, sorted((each.first_offset, each.producer_id) for each in aborted))

    # Errors

    def _progressed(self) -> None:
        self._failures = 0
        self._progress_at = time.monotonic()

    def _again(self, position: int, problem: Exception) -> int:
        """Wait, fetch fresh metadata, and return the same offset. If there was no progress for too long, raise
        `problem` instead.
        """
        if time.monotonic() - self._progress_at > self._options.poll_timeout_ms / 1000:
            raise problem
        self._replica = None
        self._client.run(self._pause_and_refresh())
        self._failures += 1
        return position

    def _pause_and_refresh(self) -> Operation[None]:
        core = self._core
        yield Wait(until=core.now + core.backoff(self._failures))
        try:
            yield from refresh_metadata(core, [self.wanted.topic], timeout=core.config.request_timeout)
        except ClientError as error:
            if not is_retriable(error):
                raise

    def _other_topic(self, position: int) -> int:
        """Handle the error that the topic is missing or has another id. If only this client's metadata was old, fetch
        again. Otherwise the topic's records are lost.
        """
        wanted, cluster = self.wanted, self._core.cluster
        self._client.run(self._pause_and_refresh())
        topic = cluster.topics.get(wanted.topic)
        if topic is not None and wanted.partition in topic.partitions:
            if not self._with_id or topic.topic_id == wanted.topic_id:
                code = ErrorCode.UNKNOWN_TOPIC_ID if self._with_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return self._again(position, broker_error(code, None, f"{wanted.topic}-{wanted.partition}"))
            what = f"topic {wanted.topic} was deleted, and another topic has its name now"
        else:
            what = f"{wanted.topic}-{wanted.partition} does not exist any more"
        return self._lost(position, wanted.end, wanted.end, what)

    def _out_of_range(self, position: int) -> int:
        """Handle a position outside of the log: retention has deleted the records there, or the log has become
        shorter.
        """
        key = TopicPartition(self.wanted.topic, self.wanted.partition)
        begin = self._client.list_offsets({key: EARLIEST})[key].offset
        end = self._client.list_offsets({key: LATEST})[key].offset
        if begin <= position <= end:
            return self._again(position, broker_error(ErrorCode.OFFSET_OUT_OF_RANGE, None, str(self.wanted)))
        if position < begin:
            behind = min(begin, self.wanted.end)
            return self._lost(position, behind, behind, f"the log of {key} now begins at offset {begin}")
        return self._lost(
            position, self.wanted.end, self.wanted.end, f"the log of {key} now ends at offset {end}"
        )

    def _lost(self, first: int, behind: int, go_on: int, what: str) -> int:
        text = (
            f"offsets {first} to {behind - 1} of {self.wanted.topic}-{self.wanted.partition} are lost: {what}"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false continues without these records")
        _LOGGER.warning("%s", text)
        self._progressed()
        return go_on
