"""A simple producer: batches by partition, sent to their leaders, repeated safely. PURE.

Theory of operation
-------------------
`produce` is an operation on a list of records. Each record gets a partition (its own, its key's, or the sticky
one), records of a partition are cut into batches, and each round sends the first batch of every partition to its
leader, one Produce per leader. What is acknowledged makes room for the next; retriable errors come again after a
backoff on fresh metadata, until the deadline.

Rules
-----
* One batch per partition is in flight, so order survives every repetition.
* With acks=all the producer is idempotent: it has a producer id, and a batch keeps its sequence number through
  all repetitions, so that a batch whose answer was lost is not appended twice. Sequence numbers advance when a
  batch is acknowledged; a batch that is refused for good has used none. When the fate of a batch stays unknown,
  the producer id is given up with it, and the next call of `produce` starts under a new one.
* A batch that is too large for the broker is halved until it is one record; then the error is the record's.
* A refused batch is that batch's failure alone. Where the fate of a batch is unknown, the later batches of its
  partition are not sent: they would come before it if it is sent again.

Deliberately absent: linger, memory limits, concurrent callers. The caller chooses how much to pass at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from odradek.client.cluster import NO_TOPIC_ID, Broker
from odradek.client.errors import (
    BrokerUnavailable,
    ClientError,
    UnsupportedByBroker,
    broker_error,
    error_code,
    is_retriable,
)
from odradek.client.operation import Call, Operation, Wait
from odradek.client.partitioner import StickyPartitioner, partition_for_key
from odradek.client.requests import known_leaders, refresh_metadata, request, topics_with_metadata
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.record_batch import Header, RecordBatchBuilder

if TYPE_CHECKING:
    from odradek.client.core import ClientCore

__all__ = ["Delivery", "ProduceConfig", "Producing", "RecordToSend"]

_TopicPartition = tuple[str, int]
_VERSION_MAX_WITHOUT_TOPIC_IDS = 12
_RECORD_OVERHEAD = 24
"""Upper bound of a small record's lengths and deltas, for the estimate of a batch's size."""
_SEQUENCE_END = 1 << 31


@attrs.frozen
class ProduceConfig:
    """`acks` is -1 (all), 1 or 0; sizes in bytes before compression; `idempotent` needs acks=-1."""

    acks: int = -1
    compression_type: int = 0
    batch_bytes_max: int = 256 << 10
    request_bytes_max: int = 1 << 20
    idempotent: bool = True
    auto_create: bool = True


@attrs.frozen
class RecordToSend:
    """One record on its way; `partition` None: by key, or any. `timestamp_ms` since 1970."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int = 0


@attrs.frozen
class Delivery:
    """What became of one batch: `indexes` are the places of its records in the list that was passed.

    `base_offset` is the first record's offset, -1 where the broker does not say (acks=0, or a repetition whose
    original was acknowledged long ago). `error` is None when it was acknowledged.
    """

    topic: str
    partition: int
    indexes: tuple[int, ...]
    base_offset: int
    error: Exception | None


@attrs.define(eq=False)
class _Batch:
    records: list[tuple[int, RecordToSend]]
    base_sequence: int = -1
    producer_id: int = -1
    topic_id: bytes = NO_TOPIC_ID
    data: bytearray | None = None
    last_error: Exception | None = None
    maybe_appended: bool = False
    """An attempt was sent whose answer is unknown."""


@attrs.define
class _Identity:
    producer_id: int
    producer_epoch: int
    sequences: dict[tuple[_TopicPartition, bytes], int] = attrs.field(factory=dict)
    """The sequence number that is due, by partition and topic id: a topic made anew starts over."""


class Producing:
    """See the module. Keeps partitioner state and producer id from call to call; one operation at a time."""

    def __init__(self, core: ClientCore, config: ProduceConfig) -> None:
        self.config = config
        self._core = core
        self._sticky = StickyPartitioner(core.rng)
        self._identity: _Identity | None = None
        self._identity_stale = False

    def produce(self, records: Sequence[RecordToSend], *, timeout: float) -> Operation[list[Delivery]]:
        """Send records; the deliveries cover every record, those of a partition in order.

        Raises `KafkaError` or `ClientError` only where nothing was sent (unknown topic or partition, no broker).
        """
        core = self._core
        deadline = core.now + timeout
        names = dict.fromkeys(record.topic for record in records)
        yield from topics_with_metadata(core, names, deadline=deadline, auto_create=self.config.auto_create)
        if self._identity_stale:
            # Only now: until all batches of the last call had their fate, they needed the numbers they had.
            self._identity = None
            self._identity_stale = False
        if self.config.idempotent and self.config.acks == -1 and self._identity is None:
            yield from self._identify(deadline)
        queues = self._batches(records)
        deliveries: list[Delivery] = []
        attempt = 0
        while queues:
            troubled = yield from self._round(queues, deliveries, deadline)
            if not troubled:
                attempt = 0
                continue
            wake_at = core.now + core.backoff(attempt)
            if wake_at >= deadline:
                self._give_up(queues, deliveries)
                break
            attempt += 1
            yield Wait(until=wake_at)
            try:
                yield from refresh_metadata(core, list(names), timeout=deadline - core.now)
            except ClientError as error:
                for queue in queues.values():
                    queue[0].last_error = queue[0].last_error or error
        return deliveries

    def _identify(self, deadline: float) -> Operation[None]:
        from wire.messages.init_producer_id import InitProducerIdRequest

        core = self._core
        attempt = 0
        while True:
            message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=(1 << 31) - 1)
            try:
                response = yield from request(core, message, timeout=deadline - core.now)
            except UnsupportedByBroker:
                return
            code = error_code(response.error_code)
            if code is ErrorCode.NONE:
                self._identity = _Identity(response.producer_id, response.producer_epoch)
                return
            wake_at = core.now + core.backoff(attempt)
            if not code.retriable or wake_at >= deadline:
                raise broker_error(response.error_code, None, "producer id")
            attempt += 1
            yield Wait(until=wake_at)

    # Batches

    def _batches(self, records: Sequence[RecordToSend]) -> dict[_TopicPartition, deque[_Batch]]:
        """Records by partition, cut at `batch_bytes_max`. Raises for a partition that its topic does not have."""
        queues: dict[_TopicPartition, deque[_Batch]] = {}
        sizes: dict[_TopicPartition, int] = {}
        available = {name: self._available(name) for name in dict.fromkeys(r.topic for r in records)}
        for index, record in enumerate(records):
            sticky = record.partition is None and record.key is None
            key = (record.topic, self._partition(record, available[record.topic]))
            size = _size(record)
            if key in queues and sizes[key] + size > self.config.batch_bytes_max and sticky:
                self._sticky.batch_full(record.topic, available[record.topic])
                key = (record.topic, self._partition(record, available[record.topic]))
            queue = queues.setdefault(key, deque())
            if not queue or sizes[key] + size > self.config.batch_bytes_max:
                queue.append(_Batch([]))
                sizes[key] = 0
            queue[-1].records.append((index, record))
            sizes[key] += size
        return queues

    def _available(self, name: str) -> list[int]:
        """The topic's partitions that have a leader; all where none has."""
        partitions = self._core.cluster.topic(name).partitions
        return sorted(p.index for p in partitions.values() if p.leader >= 0) or sorted(partitions)

    def _partition(self, record: RecordToSend, available: list[int]) -> int:
        if record.partition is not None:
            return self._core.cluster.partition(record.topic, record.partition).index
        if record.key is None:
            return self._sticky.partition(record.topic, available)
        return partition_for_key(record.key, len(self._core.cluster.topic(record.topic).partitions))

    def _data(self, key: _TopicPartition, batch: _Batch) -> bytearray:
        """The batch's bytes; made once per producer id and topic id."""
        identity = self._identity
        producer_id = identity.producer_id if identity is not None else -1
        topic_id = self._core.cluster.topics[key[0]].topic_id
        if batch.data is None or batch.producer_id != producer_id or batch.topic_id != topic_id:
            batch.producer_id = producer_id
            batch.topic_id = topic_id
            builder = RecordBatchBuilder(compression_type=self.config.compression_type)
            if identity is not None:
                batch.base_sequence = identity.sequences.get((key, topic_id), 0)
                builder.producer_id = producer_id
                builder.producer_epoch = identity.producer_epoch
                builder.base_sequence = batch.base_sequence
            for _, record in batch.records:
                builder.append(record.timestamp_ms, record.key, record.value, record.headers)
            batch.data = builder.build()
        return batch.data

    # Rounds

    def _round(
        self, queues: dict[_TopicPartition, deque[_Batch]], deliveries: list[Delivery], deadline: float
    ) -> Operation[bool]:
        """Send the first batch of each partition and take the answers in; whether anything is to be repeated."""
        core = self._core
        by_leader, without = known_leaders(core, queues)
        for topic, partition in without:
            error = broker_error(ErrorCode.LEADER_NOT_AVAILABLE, None, f"{topic}-{partition}")
            queues[topic, partition][0].last_error = error
        sent: list[tuple[Call, list[_TopicPartition]]] = []
        for node, keys in by_leader.items():
            for group in self._requests(queues, keys):
                sent.append((self._send(queues, group, node, deadline), group))
        if sent:
            yield Wait([call for call, _ in sent])
        troubled = bool(without)
        for call, group in sent:
            troubled |= self._take(call, group, queues, deliveries)
        return troubled

    def _requests(
        self, queues: dict[_TopicPartition, deque[_Batch]], keys: list[_TopicPartition]
    ) -> list[list[_TopicPartition]]:
        """Partitions that go into one request each, by its size."""
        groups: list[list[_TopicPartition]] = []
        size = 0
        for key in keys:
            count = len(self._data(key, queues[key][0]))
            if not groups or size + count > self.config.request_bytes_max:
                groups.append([])
                size = 0
            groups[-1].append(key)
            size += count
        return groups

    def _send(
        self,
        queues: dict[_TopicPartition, deque[_Batch]],
        group: list[_TopicPartition],
        node: int,
        deadline: float,
    ) -> Call:
        topics: dict[str, TopicProduceData] = {}
        ids_known = True
        for name, index in group:
            topic_id = self._core.cluster.topics[name].topic_id
            ids_known &= topic_id != NO_TOPIC_ID
            topic = topics.setdefault(name, TopicProduceData(name=name, topic_id=topic_id))
            data = self._data((name, index), queues[name, index][0])
            topic.partition_data.append(PartitionProduceData(index=index, records=data))
        message = ProduceRequest(
            acks=self.config.acks,
            timeout_ms=max(1, int(min(deadline - self._core.now, self._core.config.request_timeout) * 1000)),
            topic_data=list(topics.values()),
        )
        return self._core.call(
            message,
            node=node,
            deadline=deadline,
            version_max=None if ids_known else _VERSION_MAX_WITHOUT_TOPIC_IDS,
            expects_response=self.config.acks != 0,
        )

    # Answers

    def _take(
        self,
        call: Call,
        group: list[_TopicPartition],
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> bool:
        if call.error is not None:
            for key in group:
                queues[key][0].maybe_appended |= not isinstance(call.error, BrokerUnavailable)
            outcomes = [self._failed(key, call.error, queues, deliveries) for key in group]
            return any(outcomes)
        if call.response is None:
            for key in group:
                self._acknowledged(key, -1, queues, deliveries)
            return False
        answers = self._answers(call.response)
        troubled = False
        for key in group:
            answer = answers.get(key)
            if answer is None:
                lost = broker_error(
                    ErrorCode.UNKNOWN_SERVER_ERROR, "missing in the answer", f"{key[0]}-{key[1]}"
                )
                troubled |= self._failed(key, lost, queues, deliveries)
            else:
                troubled |= self._take_answer(key, answer, queues, deliveries)
        return troubled

    def _answers(self, response: ProduceResponse) -> dict[_TopicPartition, PartitionProduceResponse]:
        cluster = self._core.cluster
        cluster.add_brokers(Broker(b.node_id, b.host, b.port, b.rack) for b in response.node_endpoints)
        answers = {}
        for topic in response.responses:
            name = topic.name or cluster.topic_name(bytes(topic.topic_id)) or ""
            for answer in topic.partition_responses:
                answers[name, answer.index] = answer
        return answers

    def _take_answer(
        self,
        key: _TopicPartition,
        answer: PartitionProduceResponse,
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> bool:
        """One partition's answer; whether its batch is to be repeated."""
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._acknowledged(key, answer.base_offset if code is ErrorCode.NONE else -1, queues, deliveries)
            return False
        batch = queues[key][0]
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            middle = len(batch.records) // 2
            queues[key].popleft()
            queues[key].extendleft([_Batch(batch.records[middle:]), _Batch(batch.records[:middle])])
            return False
        hint = answer.current_leader
        self._core.cluster.set_leader(*key, hint.leader_id, hint.leader_epoch)
        error = broker_error(answer.error_code, answer.error_message, f"{key[0]}-{key[1]}")
        return self._failed(key, error, queues, deliveries)

    def _acknowledged(
        self,
        key: _TopicPartition,
        base_offset: int,
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> None:
        batch = queues[key][0]
        identity = self._identity
        if identity is not None and identity.producer_id == batch.producer_id:
            identity.sequences[key, batch.topic_id] = (
                batch.base_sequence + len(batch.records)
            ) % _SEQUENCE_END
        self._deliver(key, base_offset, None, queues, deliveries)

    def _deliver(
        self,
        key: _TopicPartition,
        base_offset: int,
        error: Exception | None,
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> None:
        batch = queues[key].popleft()
        if not queues[key]:
            del queues[key]
        deliveries.append(Delivery(*key, tuple(index for index, _ in batch.records), base_offset, error))

    def _failed(
        self,
        key: _TopicPartition,
        error: Exception,
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> bool:
        """Whether the partition's first batch is to be repeated; if not, it fails, and maybe all behind it."""
        batch = queues[key][0]
        batch.last_error = error
        repeatable = is_retriable(error)
        if batch.maybe_appended and batch.producer_id < 0:
            # Without a sequence number a repetition could append the batch twice: at most once it is.
            repeatable = False
        if repeatable:
            return True
        if batch.maybe_appended or not isinstance(error, KafkaError) or error.code in _IDENTITY_LOST:
            self._fail_partition(key, error, queues, deliveries)
        else:
            self._deliver(key, -1, error, queues, deliveries)
        return False

    def _fail_partition(
        self,
        key: _TopicPartition,
        error: Exception,
        queues: dict[_TopicPartition, deque[_Batch]],
        deliveries: list[Delivery],
    ) -> None:
        lost_track = not isinstance(error, KafkaError) or error.code in _IDENTITY_LOST
        if lost_track or queues[key][0].maybe_appended:
            self._identity_stale = True
        for batch in queues.pop(key):
            deliveries.append(Delivery(*key, tuple(index for index, _ in batch.records), -1, error))

    def _give_up(self, queues: dict[_TopicPartition, deque[_Batch]], deliveries: list[Delivery]) -> None:
        for key in list(queues):
            error = queues[key][0].last_error or broker_error(
                ErrorCode.REQUEST_TIMED_OUT, None, f"{key[0]}-{key[1]}"
            )
            self._fail_partition(key, error, queues, deliveries)


_IDENTITY_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


def _size(record: RecordToSend) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 8 + 4 * len(name) + len(value or b"")
    return size
