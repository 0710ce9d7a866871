"""A small broker in memory, without IO. It serves enough of Kafka's protocol to test clients.

`FakeBroker` answers requests, and makes trouble on demand. `Wire` connects it to a core without sockets, step by step.
`LoopbackBroker` puts it behind a real listening socket, in a thread.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import attrs

from odradek.client.core.client_core import ClientCore, Close, Compute, Connect, Send
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.batches.batch_header import assign_offsets, parse_header
from odradek.wire.batches.records import records
from odradek.wire.codec import encoder
from odradek.wire.errors import ErrorCode
from odradek.wire.framing.connection import ConnectionClosed, RequestReceived, ServerConnection
from odradek.wire.framing.frames import frame_response
from odradek.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from odradek.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from odradek.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from odradek.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from odradek.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.wire.messages.init_producer_id import InitProducerIdResponse
from odradek.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from odradek.wire.structure import Message

SILENCE = object()
"""In `trouble`: the request is never answered."""
HANG_UP = object()
"""In `trouble`: the connection is closed in place of an answer."""


@attrs.define
class FakeProducer:
    """A producer's state in a partition: epoch, next sequence number, and the last five batches.

    A batch is (base sequence, base offset).
    """

    epoch: int
    due: int = 0
    batches: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=5))


@attrs.define
class FakePartition:
    """A partition: its batches as (base offset, bytes), its offsets, and its producers."""

    batches: list[tuple[int, bytes]] = attrs.field(factory=list)
    start_offset: int = 0
    end_offset: int = 0
    producers: dict[int, FakeProducer] = attrs.field(factory=dict)
    """By producer id."""


@attrs.define
class FakeTopic:
    topic_id: bytes
    partitions: list[FakePartition]


class FakeBroker:
    """Node 1 of a cluster of one broker.

    `trouble[key]` holds what the next requests of this API get: answers, error codes, `SILENCE` or `HANG_UP`. Requests
    after those are answered properly. `requests` has every request that came.
    """

    def __init__(self, host: str = "fake", port: int = 9092) -> None:
        self.host = host
        self.port = port
        self.topics: dict[str, FakeTopic] = {}
        self.trouble: dict[int, deque[Any]] = defaultdict(deque)
        self.requests: list[Any] = []
        self.versions: dict[int, tuple[int, int]] = {int(key): api_versions(key) for key in _SERVED}
        self.answers = dict(_ANSWERS)
        self.max_batch_bytes = 1 << 20
        self.throttle_ms = 0
        self.delays: dict[int, float] = {}
        """The delay in seconds of answers, by API. Only `Wire` applies it."""
        self.producer_ids = 0
        self.connections = 0
        self.append_before_trouble = False

    def add_topic(self, name: str, partitions: int = 1) -> FakeTopic:
        """Create a topic. It replaces a topic of this name, and has a new id."""
        topic_id = (len(self.requests) + len(self.topics) + 1).to_bytes(16, "big")
        topic = self.topics[name] = FakeTopic(topic_id, [FakePartition() for _ in range(partitions)])
        return topic

    def values(self, name: str) -> list[list[bytes | None]]:
        """Return the values in each partition of a topic."""
        return [
            [
                record.value
                for _, data in partition.batches
                for record in records(data, decompressed_bytes_max=1 << 20)
            ]
            for partition in self.topics[name].partitions
        ]

    def answer(self, event: RequestReceived) -> Any:
        """Return the response, or None if the request has none, or `SILENCE` or `HANG_UP`."""
        key = ApiKey(event.api_key)
        if key is ApiKey.API_VERSIONS:
            low, high = self.versions[key]
            code = 0 if low <= event.api_version <= high else int(ErrorCode.UNSUPPORTED_VERSION)
            apis = [
                ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()
            ]
            return ApiVersionsResponse(error_code=code, api_keys=apis)
        request = event.request()
        self.requests.append(request)
        trouble = self.trouble[key].popleft() if self.trouble[key] else None
        if trouble is SILENCE or trouble is HANG_UP:
            if self.append_before_trouble:
                self.answers[key](self, request, 0)
            return trouble
        if trouble is not None and not isinstance(trouble, int):
            return trouble
        response = self.answers[key](self, request, int(trouble or 0))
        if response is not None and self.throttle_ms:
            response.throttle_time_ms = self.throttle_ms
        return response

    def _metadata(self, request: Any, code: int) -> MetadataResponse:
        asked = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        asked += [names[topic.topic_id] for topic in request.topics or () if topic.topic_id in names]
        answers = []
        for name in filter(None, asked):
            topic = self.topics.get(name)
            if topic is None or code:
                unknown = code or int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                answers.append(MetadataResponseTopic(error_code=unknown, name=name))
                if topic is None and request.allow_auto_topic_creation:
                    self.add_topic(name)
                continue
            partitions = [
                MetadataResponsePartition(
                    partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
                )
                for index in range(len(topic.partitions))
            ]
            answers.append(MetadataResponseTopic(name=name, topic_id=topic.topic_id, partitions=partitions))
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host=self.host, port=self.port)],
            cluster_id="fake-cluster",
            controller_id=1,
            topics=answers,
        )

    def _produce(self, request: Any, code: int) -> ProduceResponse | None:
        answers = []
        for topic in request.topic_data:
            name, known = self._topic(topic.name, topic.topic_id)
            partitions = []
            for sent in topic.partition_data:
                answer = PartitionProduceResponse(index=sent.index, error_code=code, base_offset=-1)
                if known is None:
                    answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
                elif len(sent.records) > self.max_batch_bytes:
                    answer.error_code = int(ErrorCode.MESSAGE_TOO_LARGE)
                elif not code:
                    self._append(known.partitions[sent.index], bytes(sent.records), answer)
                partitions.append(answer)
            answers.append(
                TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        return ProduceResponse(responses=answers) if request.acks else None

    def _append(self, partition: FakePartition, data: bytes, answer: PartitionProduceResponse) -> None:
        """Append a batch. A repeated batch is answered with its old offset, a gap with the error (KIP-98)."""
        header = parse_header(data)
        known = partition.producers.get(header.producer_id)
        if header.producer_id >= 0:
            if known is None:
                # As Kafka does, accept any first sequence number of an unknown producer.
                known = FakeProducer(header.producer_epoch, header.base_sequence)
            elif header.producer_epoch > known.epoch:
                known = FakeProducer(header.producer_epoch)
            if header.producer_epoch < known.epoch:
                answer.error_code = int(ErrorCode.INVALID_PRODUCER_EPOCH)
                return
            for sequence, offset in known.batches:
                if sequence == header.base_sequence:
                    answer.base_offset = offset
                    return
            if header.base_sequence != known.due:
                answer.error_code = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                return
        base = partition.end_offset
        changed = bytearray(data)
        assign_offsets(changed, 0, base, 0)
        partition.batches.append((base, bytes(changed)))
        partition.end_offset += header.record_count
        if known is not None:
            known.due = header.base_sequence + header.record_count
            known.batches.append((header.base_sequence, base))
            partition.producers[header.producer_id] = known
        answer.base_offset = base

    def _fetch(self, request: Any, code: int) -> FetchResponse:
        answers = []
        for topic in request.topics:
            name, known = self._topic(topic.topic, topic.topic_id)
            partitions = []
            for asked in topic.partitions:
                answer = PartitionData(partition_index=asked.partition, error_code=code, records=b"")
                if known is None:
                    answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
                elif not code:
                    partition = known.partitions[asked.partition]
                    answer.high_watermark = partition.end_offset
                    if not partition.start_offset <= asked.fetch_offset <= partition.end_offset:
                        answer.error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
                    answer.records = b"".join(
                        data
                        for base, data in partition.batches
                        if base + int.from_bytes(data[23:27], "big") >= asked.fetch_offset
                    )[: max(asked.partition_max_bytes, 0)]
                partitions.append(answer)
            answers.append(FetchableTopicResponse(topic=name, topic_id=topic.topic_id, partitions=partitions))
        return FetchResponse(responses=answers)

    def _list_offsets(self, request: Any, code: int) -> ListOffsetsResponse:
        answers = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                partition = self.topics[topic.name].partitions[asked.partition_index]
                found = partition.end_offset if asked.timestamp == -1 else partition.start_offset
                if asked.timestamp >= 0:
                    stamped = (
                        record
                        for _, data in partition.batches
                        for record in records(data, decompressed_bytes_max=1 << 20)
                        if record.timestamp >= asked.timestamp
                    )
                    found = next((record.offset for record in stamped), -1)
                partitions.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=code, offset=found, leader_epoch=0
                    )
                )
            answers.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=answers)

    def _create_topics(self, request: Any, code: int) -> CreateTopicsResponse:
        answers = []
        for topic in request.topics:
            error = code or (int(ErrorCode.TOPIC_ALREADY_EXISTS) if topic.name in self.topics else 0)
            count = max(1, topic.num_partitions)
            created = self.add_topic(topic.name, count) if not error and not request.validate_only else None
            answers.append(
                CreatableTopicResult(
                    name=topic.name,
                    topic_id=created.topic_id if created else bytes(16),
                    error_code=error,
                    error_message=None,
                    num_partitions=count,
                    replication_factor=1,
                )
            )
        return CreateTopicsResponse(topics=answers)

    def _delete_topics(self, request: Any, code: int) -> DeleteTopicsResponse:
        answers = []
        for name in [topic.name for topic in request.topics] or request.topic_names:
            error = code or (0 if name in self.topics else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if not error:
                del self.topics[name]
            answers.append(DeletableTopicResult(name=name, error_code=error))
        return DeleteTopicsResponse(responses=answers)

    def _describe_cluster(self, request: Any, code: int) -> DescribeClusterResponse:
        broker = DescribeClusterBroker(broker_id=1, host=self.host, port=self.port)
        return DescribeClusterResponse(
            error_code=code, cluster_id="fake-cluster", controller_id=1, brokers=[broker]
        )

    def _describe_configs(self, request: Any, code: int) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            entries = [
                DescribeConfigsResourceResult(name="retention.ms", value="1000", config_source=1),
                DescribeConfigsResourceResult(name="cleanup.policy", value="delete", config_source=5),
                DescribeConfigsResourceResult(
                    name="ssl.key.password", value=None, config_source=4, is_sensitive=True
                ),
            ]
            keys = resource.configuration_keys
            results.append(
                DescribeConfigsResult(
                    error_code=code,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[entry for entry in entries if keys is None or entry.name in keys],
                )
            )
        return DescribeConfigsResponse(results=results)

    def _init_producer_id(self, request: Any, code: int) -> InitProducerIdResponse:
        self.producer_ids += 1
        return InitProducerIdResponse(error_code=code, producer_id=1000 + self.producer_ids, producer_epoch=0)

    def _topic(self, name: str, topic_id: bytes) -> tuple[str, FakeTopic | None]:
        if name:
            return name, self.topics.get(name)
        return "", next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)


_ANSWERS: dict[int, Callable[[FakeBroker, Any, int], Any]] = {
    ApiKey.METADATA: FakeBroker._metadata,
    ApiKey.PRODUCE: FakeBroker._produce,
    ApiKey.FETCH: FakeBroker._fetch,
    ApiKey.LIST_OFFSETS: FakeBroker._list_offsets,
    ApiKey.CREATE_TOPICS: FakeBroker._create_topics,
    ApiKey.DELETE_TOPICS: FakeBroker._delete_topics,
    ApiKey.DESCRIBE_CLUSTER: FakeBroker._describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: FakeBroker._describe_configs,
    ApiKey.INIT_PRODUCER_ID: FakeBroker._init_producer_id,
}
_SERVED = (ApiKey.API_VERSIONS, *_ANSWERS)


class BrokerEnd:
    """The broker's end of one connection: bytes in, bytes out."""

    def __init__(self, broker: FakeBroker) -> None:
        broker.connections += 1
        self.broker = broker
        self.connection = ServerConnection()
        self.silent = False
        self.delay_seconds = 0.0
        """The delay in seconds of the answers to the bytes that were received last."""

    def receive(self, data: bytes | bytearray) -> bytes | None:
        """Return the bytes that the broker sends back, or None if it closes the connection."""
        self.connection.receive_data(data)
        answer = bytearray()
        self.delay_seconds = 0.0
        while isinstance(event := self.connection.next_event(), RequestReceived):
            self.delay_seconds = max(self.delay_seconds, self.broker.delays.get(ApiKey(event.api_key), 0.0))
            response = SILENCE if self.silent else self.broker.answer(event)
            if response is HANG_UP:
                return None
            if response is SILENCE:
                # Answers come in order, so after a missing answer there are no more.
                self.silent = True
            elif response is None:
                self.connection.send_nothing()
            elif isinstance(response, ApiVersionsResponse) and response.error_code:
                # Kafka answers this error in version 0 (KIP-511). `ServerConnection` does so only for versions above
                # Kafka 4.3's.
                encode = encoder(ApiVersionsResponse, 0)
                (frame,) = frame_response(event.correlation_id, event.api_key, 0, encode, response)
                assert isinstance(frame, bytes | bytearray)
                answer += frame
                self.connection.send_nothing()
            else:
                assert isinstance(response, Message)
                for chunk in self.connection.send(response):
                    assert isinstance(chunk, bytes | bytearray | memoryview)
                    answer += chunk
        return None if isinstance(event, ConnectionClosed) else bytes(answer)


class Wire:
    """Connects a core to brokers by address, without sockets. Time moves only by `advance`."""

    def __init__(self, core: ClientCore, brokers: dict[tuple[str, int], FakeBroker]) -> None:
        self.core = core
        self.brokers = brokers
        self.now = 0.0
        self.ends: dict[int, BrokerEnd] = {}
        self.connects: list[tuple[str, int]] = []
        self.piece_sizes: Callable[[], int] | None = None
        self.late: list[tuple[float, int, bytes]] = []
        """Delayed answers: when each arrives, on which connection, and its bytes."""

    def settle(self) -> None:
        """Perform the core's effects until there are no more."""
        while effects := self.core.effects():
            for effect in effects:
                match effect:
                    case Connect(connection_id, host, port):
                        self._connect(connection_id, (host, port))
                    case Send(connection_id, data):
                        self._send(connection_id, data)
                    case Close(connection_id):
                        self.ends.pop(connection_id, None)
                    case Compute(work):
                        self.core.computed(work, work.function(), None, self.now)

    def _connect(self, connection_id: int, address: tuple[str, int]) -> None:
        self.connects.append(address)
        if address in self.brokers:
            self.ends[connection_id] = BrokerEnd(self.brokers[address])
            self.core.connected(connection_id, self.now)
        else:
            self.core.connect_failed(connection_id, "Connection refused", self.now)

    def _send(self, connection_id: int, data: bytes | bytearray) -> None:
        end = self.ends.get(connection_id)
        if end is None:
            return
        answer = end.receive(data)
        if answer is None:
            del self.ends[connection_id]
            self.core.receive_data(connection_id, b"", self.now)
            return
        before = max((at for at, other, _ in self.late if other == connection_id), default=0.0)
        at = max(self.now + end.delay_seconds, before)
        if at > self.now:
            self.late.append((at, connection_id, answer))
        else:
            self._deliver(connection_id, answer)

    def _deliver(self, connection_id: int, answer: bytes) -> None:
        while answer:
            size = self.piece_sizes() if self.piece_sizes is not None else len(answer)
            self.core.receive_data(connection_id, answer[:size], self.now)
            answer = answer[size:]

    def run(self, operation: Any, *, until: float = 1e9) -> Any:
        """Run an operation to its end. Time jumps to the next deadline when nothing else can happen."""
        task = self.core.start(operation, self.now)
        self.settle()
        return self.finish(task, until=until)

    def finish(self, task: Any, *, until: float = 1e9) -> Any:
        """Continue a started operation until it ends."""
        while not task.done:
            moments = [at for at, _, _ in self.late]
            if (deadline := self.core.next_deadline()) is not None:
                moments.append(deadline)
            assert moments, "the operation waits, but no timer or answer is due"
            assert min(moments) < until, f"the operation has not ended at {until} s of virtual time"
            self.now = max(self.now, min(moments))
            come = [each for each in self.late if each[0] <= self.now]
            self.late = [each for each in self.late if each[0] > self.now]
            for _, connection_id, answer in come:
                if connection_id in self.ends:
                    self._deliver(connection_id, answer)
            self.core.tick(self.now)
            self.settle()
        return task.result()


class LoopbackBroker:
    """A `FakeBroker`, or another `kind`, that listens on a loopback address in its own thread. A context manager.

    With `of` it serves an existing broker, which may have listened at another address, or under a host name.
    """

    def __init__(
        self, kind: type[FakeBroker] = FakeBroker, *, address: str = "127.0.0.1", of: FakeBroker | None = None
    ) -> None:
        self.listener = socket.create_server((address, 0 if of is None else of.port))
        self.listener.setblocking(False)
        self.broker = kind(address, self.listener.getsockname()[1]) if of is None else of
        self.bootstrap = f"127.0.0.1:{self.broker.port}"
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> LoopbackBroker:
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake_writer.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr] # sockets, all of them
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_reader:
                    return
                if key.fileobj is self.listener:
                    connection, _address = self.listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, BrokerEnd(self.broker))
                else:
                    self._receive(key)

    def _receive(self, key: selectors.SelectorKey) -> None:
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(1 << 16)
            answer = key.data.receive(data) if data else None
            if answer:
                connection.sendall(answer)
        except OSError:
            answer = None
        if answer is None:
            self._selector.unregister(connection)
            connection.close()
