"""A simple reader of assigned partitions, for the simulator and for tests. PURE.

The reader fetches nothing in advance, unlike `odradek.Consumer`. So a check that compares records with a history
knows when the records were requested. And the checks of the product's consumer do not depend on that consumer's code.

A `Fetcher` keeps a position (the next offset to read) for each partition, and at most one Fetch in flight per leader.
A poll sends the missing Fetches and returns as soon as one leader has answered. Later polls process the other
answers, so that a slow leader delays no other partition. After a seek, answers for the former position are dropped.
Data are raw batches; `FetchedPartition.records` parses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from odradek.client.core.known_cluster import NO_TOPIC_ID, Broker
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.partition_offsets import list_offsets
from odradek.client.core.requests import known_leaders, refresh_metadata, topics_with_metadata
from odradek.client.errors import broker_error, error_code, is_retriable
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import iter_batches
from odradek.wire.batches.records import Record, records
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["FetchConfig", "FetchedPartition", "Fetcher"]


@attrs.frozen
class FetchConfig:
    """Limits of a fetch in bytes, and `max_wait`: how many seconds a broker may delay an empty answer."""

    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 1 << 20
    max_wait: float = 0.5
    isolation_level: int = 0
    decompressed_bytes_max: int = 256 << 20
    reset_to: int | None = None
    """The offset at which the reader continues if its position is out of range: `offsets.EARLIEST` or
    `offsets.LATEST`. With None the error is raised.
    """
    unavailable_timeout: float = 30.0
    """How many seconds partitions may be unreadable before the error is raised."""


@attrs.frozen
class FetchedPartition:
    """Complete batches of one partition, from the reader's position on. The first batch may begin before that
    position.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    high_watermark: int
    data: memoryview
    decompressed_bytes_max: int

    def records(self) -> list[Record]:
        """Parse the records from `start_offset` on, without control records. Raises `KafkaError` for damaged batches."""
        found: list[Record] = []
        for position, header in iter_batches(self.data):
            if header.is_control:
                continue
            parsed = records(self.data, position, decompressed_bytes_max=self.decompressed_bytes_max)
            if header.base_offset < self.start_offset:
                parsed = [record for record in parsed if record.offset >= self.start_offset]
            found += parsed
        return found


class Fetcher:
    """A reader of assigned partitions. Only one operation may run at a time."""

    def __init__(self, core: ClientCore, config: FetchConfig) -> None:
        self.config = config
        self.positions: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._core = core
        self._in_flight: dict[int, tuple[Call, dict[TopicPartition, int]]] = {}
        self._turn = 0
        self._failures = 0
        self._failing_since: float | None = None

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from `offset` on; also used to seek."""
        self.positions[TopicPartition(topic, partition)] = offset

    def poll(self, *, timeout: float) -> Operation[list[FetchedPartition]]:
        """Fetch from the leaders at the present positions, and advance the positions. Returns an empty list after
        `timeout` seconds, or earlier if a leader has answered without records. Raises `KafkaError` (such as
        OFFSET_OUT_OF_RANGE without `reset_to`) and `ClientError`.
        """
        deadline = self._core.now + timeout
        names = dict.fromkeys(key.topic for key in self.positions)
        yield from topics_with_metadata(
            self._core, names, deadline=self._core.now + self.config.unavailable_timeout
        )
        errors = self._send_fetches()
        calls = [call for call, _ in self._in_flight.values()]
        if calls:
            yield Wait(calls, first=True, until=deadline)
        fetched: list[FetchedPartition] = []
        out_of_range: list[TopicPartition] = []
        for node, (call, asked) in list(self._in_flight.items()):
            if not call.done:
                continue
            del self._in_flight[node]
            if call.error is not None:
                errors.append(call.error)
            else:
                self._take(call.response, asked, fetched, out_of_range, errors)
        if out_of_range:
            yield from self._reset(out_of_range)
        if errors:
            yield from self._recover(errors, calm=bool(fetched))
        elif calls:
            self._failing_since = None
            self._failures = 0
        return fetched

    def _send_fetches(self) -> list[Exception]:
        """Send a Fetch to each leader without one in flight. Return an error for each partition without a leader."""
        # Rotate the order of partitions. A broker fills its answer in this order, and may not reach the last
        # partitions.
        keys = list(self.positions)
        self._turn = (self._turn + 1) % len(keys) if keys else 0
        keys = keys[self._turn :] + keys[: self._turn]
        by_leader, without = known_leaders(self._core, keys)
        for node, of_leader in by_leader.items():
            if node in self._in_flight:
                continue
            message, ids_known = self._request(of_leader)
            call = self._core.call(
                message,
                node=node,
                deadline=self._core.now + self._core.config.request_timeout,
                version_max=None if ids_known else FETCH_TOPIC_IDS - 1,
            )
            self._in_flight[node] = (call, {key: self.positions[key] for key in of_leader})
        return [broker_error(ErrorCode.LEADER_NOT_AVAILABLE, None, str(key)) for key in without]

    def _request(self, keys: list[TopicPartition]) -> tuple[FetchRequest, bool]:
        topics: dict[str, FetchTopic] = {}
        for key in keys:
            name, index = key
            known = self._core.cluster.topics[name]
            topic = topics.setdefault(name, FetchTopic(topic=name, topic_id=known.topic_id))
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=known.partitions[index].leader_epoch,
                    fetch_offset=self.positions[key],
                    partition_max_bytes=self.config.partition_max_bytes,
                )
            )
        message = FetchRequest(
            max_wait_ms=int(self.config.max_wait * 1000),
            min_bytes=self.config.min_bytes,
            max_bytes=self.config.max_bytes,
            isolation_level=self.config.isolation_level,
            topics=list(topics.values()),
        )
        return message, all(topic.topic_id != NO_TOPIC_ID for topic in topics.values())

    def _take(
        self,
        response: FetchResponse,
        asked: dict[TopicPartition, int],
        fetched: list[FetchedPartition],
        out_of_range: list[TopicPartition],
        errors: list[Exception],
    ) -> None:
        if error_code(response.error_code) is not ErrorCode.NONE:
            errors.append(broker_error(response.error_code, None, "fetch"))
            return
        cluster = self._core.cluster
        cluster.add_brokers(Broker(b.node_id, b.host, b.port, b.rack) for b in response.node_endpoints)
        for topic in response.responses:
            name = topic.topic or cluster.topic_name(bytes(topic.topic_id))
            for answer in topic.partitions:
                key = TopicPartition(name or "", answer.partition_index)
                if key not in asked or self.positions.get(key) != asked[key]:
                    continue
                code = error_code(answer.error_code)
                if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append(key)
                elif code is not ErrorCode.NONE:
                    hint = answer.current_leader
                    cluster.set_leader(*key, hint.leader_id, hint.leader_epoch)
                    errors.append(broker_error(code, None, str(key)))
                else:
                    self._take_data(key, asked[key], answer, fetched)

    def _take_data(
        self, key: TopicPartition, start: int, answer: PartitionData, fetched: list[FetchedPartition]
    ) -> None:
        self.high_watermarks[key] = answer.high_watermark
        data = memoryview(answer.records or b"")
        next_offset = start
        for _, header in iter_batches(data):
            next_offset = max(next_offset, header.next_offset)
        if next_offset == start:
            if data:
                raise CorruptBatch(f"{key}: no whole batch from offset {start} on in {len(data)} bytes")
            return
        self.positions[key] = next_offset
        fetched.append(
            FetchedPartition(
                *key, start, next_offset, answer.high_watermark, data, self.config.decompressed_bytes_max
            )
        )

    def _reset(self, keys: list[TopicPartition]) -> Operation[None]:
        if self.config.reset_to is None:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {self.positions[keys[0]]} of {keys[0]} is out of range, and `reset_to` is not set",
            )
        wanted = dict.fromkeys(keys, self.config.reset_to)
        found = yield from list_offsets(self._core, wanted, timeout=self.config.unavailable_timeout)
        for key, listed in found.items():
            self.positions[key] = listed.offset

    def _recover(self, errors: list[Exception], *, calm: bool) -> Operation[None]:
        """Raise an error that is final, or any error after `unavailable_timeout` seconds of failures. Otherwise wait
        a little and refresh the metadata.
        """
        now = self._core.now
        fatal = next((error for error in errors if not is_retriable(error)), None)
        if fatal is not None:
            raise fatal
        if self._failing_since is None or calm:
            self._failing_since = now
        if now - self._failing_since >= self.config.unavailable_timeout:
            raise errors[0]
        yield Wait(until=now + self._core.backoff(self._failures))
        self._failures += 1
        names = list(dict.fromkeys(key.topic for key in self.positions))
        yield from refresh_metadata(self._core, names, timeout=self.config.unavailable_timeout)
