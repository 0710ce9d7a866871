"""The blocking producer against our node, Apache Kafka, and a broker that makes trouble."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

import odradek
from odradek.client.admin import NewTopic
from odradek.client.core.partition_offsets import LATEST
from odradek.client.errors import BrokerUnavailable, BufferFull, ClientClosed, RequestTimedOut
from odradek.client.producer.partitioner import partition_for_key
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer, RecordFuture
from odradek.wire.api import ApiKey
from odradek.wire.batches.records import Record
from odradek.wire.errors import ErrorCode, KafkaError
from sim.load.fetching import FetchConfig, Fetcher
from tests.client.fake_broker import HANG_UP, SILENCE, LoopbackBroker
from tests.client.fresh_topics import wait_until_known

TIME = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(
    params=[
        pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
        pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
    ]
)
def client(request: pytest.FixtureRequest) -> Iterator[tuple[str, Client]]:
    """The bootstrap address and a client of one of the servers."""
    server = request.getfixturevalue(request.param)
    with Client(server.bootstrap, timeout_ms=20_000) as opened:
        yield server.bootstrap, opened


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker that makes trouble on demand, with the topic `t`."""
    with LoopbackBroker() as opened:
        opened.broker.add_topic("t", 1)
        yield opened


def read(client: Client, topic: str, partitions: int) -> list[list[Record]]:
    """Read each partition from its start."""
    keys = [(topic, index) for index in range(partitions)]
    ends = {key: found.offset for key, found in client.list_offsets(dict.fromkeys(keys, LATEST)).items()}
    fetcher = Fetcher(client.core, FetchConfig(max_wait=0.1))
    for key in keys:
        fetcher.assign(*key, 0)
    found: list[list[Record]] = [[] for _ in range(partitions)]
    while fetcher.positions != ends:
        for fetched in client.run(fetcher.poll(timeout=5)):
            found[fetched.partition] += fetched.records()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_go_where_their_futures_say(
    client: tuple[str, Client], fresh_topic: Callable[[str], str], codec: str
) -> None:
    """Records are stored unchanged, and at the partitions and offsets that their futures report."""
    bootstrap, reader = client
    topic = fresh_topic("producer")
    reader.admin.create_topics([NewTopic(topic, 3)])
    sent: list[tuple[RecordFuture, tuple[object, ...]]] = []
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=2000) as producer:
        for number in range(600):
            key = None if number % 3 == 0 else b"key %d" % (number % 50)
            value = None if key is not None and number % 7 == 3 else b"value %d" % number
            headers = (("h", b"%d" % number), ("empty", None)) if number % 4 == 0 else ()
            future = producer.send(topic, value, key, headers, timestamp_ms=TIME + number)
            sent.append((future, (TIME + number, key, value, headers)))
        assert producer.partitions_for(topic) == [0, 1, 2]
    found = read(reader, topic, 3)
    assert sum(map(len, found)) == 600
    for future, fields in sent:
        metadata = future.result(0)
        assert (metadata.topic, metadata.timestamp_ms) == (topic, fields[0])
        assert found[metadata.partition][metadata.offset] == (metadata.offset, *fields)
        key = fields[1]
        if isinstance(key, bytes):
            assert metadata.partition == partition_for_key(key, 3)
    reader.admin.delete_topics([topic])


def test_many_threads_keep_each_its_order(
    client: tuple[str, Client], fresh_topic: Callable[[str], str]
) -> None:
    """Many threads send in small batches, with five requests in flight.

    No record is lost or duplicated, and each thread's order is kept.
    """
    bootstrap, reader = client
    topic = fresh_topic("producer")
    reader.admin.create_topics([NewTopic(topic, 2)])

    with Producer({"bootstrap.servers": bootstrap, "linger.ms": "0", "batch.size": 300}) as producer:

        def work(name: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d %d" % (name, number), partition=name % 2)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(20)
        assert producer.metrics()["batches incomplete"] == 0
    values = [[(record.value or b"").split() for record in partition] for partition in read(reader, topic, 2)]
    for name in range(4):
        numbers = [int(number) for thread, number in values[name % 2] if int(thread) == name]
        assert numbers == list(range(500))
    reader.admin.delete_topics([topic])


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1(client: tuple[str, Client], fresh_topic: Callable[[str], str], acks: int) -> None:
    """With acks=0 the futures have no offsets, but the records are written as with acks=1."""
    bootstrap, reader = client
    topic = fresh_topic("producer")
    reader.admin.create_topics([NewTopic(topic, 1)])
    wait_until_known(reader, topic)
    reader.list_offsets({(topic, 0): LATEST})  # wait for the leader: with acks=0 its errors stay unseen
    with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        producer.flush(20)
        offsets = [future.result(0).offset for future in futures]
        assert offsets == (list(range(100)) if acks else [-1] * 100)
    # `close` does not wait for answers with acks=0, so the broker may still be reading records.
    while len(read(reader, topic, 1)[0]) < 100:
        continue
    reader.admin.delete_topics([topic])


def test_refusals_of_the_broker(client: tuple[str, Client], fresh_topic: Callable[[str], str]) -> None:
    """A batch is refused with MESSAGE_TOO_LARGE and halved until its parts fit.

    A record that is too large fails alone.
    """
    bootstrap, reader = client
    topic = fresh_topic("producer")
    reader.admin.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "2000"})])
    sizes = (100, 700, 3000, 1500, 900, 100)
    with Producer(bootstrap_servers=bootstrap) as producer:
        futures = [producer.send(topic, bytes([size % 251]) * size) for size in sizes]
        producer.flush(20)
        refused = futures[2].exception(0)
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(topic, b"afterwards").result(20).offset == 5
    stored = read(reader, topic, 1)[0]
    assert [len(record.value or b"") for record in stored] == [100, 700, 1500, 900, 100, 10]
    offsets = [future.result(0).offset for future in futures if future is not futures[2]]
    assert offsets == list(range(5))
    reader.admin.delete_topics([topic])


def test_partitioners_of_the_application(
    client: tuple[str, Client], fresh_topic: Callable[[str], str]
) -> None:
    """`partitioner.class` is a callable or round robin. A record's own partition takes precedence."""
    bootstrap, reader = client
    topic = fresh_topic("producer")
    reader.admin.create_topics([NewTopic(topic, 4)])

    def by_length(_topic: str, _key: bytes | None, value: bytes, count: int, _available: object) -> int:
        return len(value) % count

    with Producer(bootstrap_servers=bootstrap, partitioner_class=by_length) as producer:
        futures = [producer.send(topic, b"x" * size) for size in range(8)]
        futures.append(producer.send(topic, b"", partition=3))
        producer.flush(20)
        assert [future.result(0).partition for future in futures] == [0, 1, 2, 3, 0, 1, 2, 3, 3]
    with Producer(bootstrap_servers=bootstrap, partitioner_class="RoundRobinPartitioner") as producer:
        futures = [producer.send(topic, b"v") for _ in range(8)]
        producer.flush(20)
        assert sorted(future.result(0).partition for future in futures) == [0, 0, 1, 1, 2, 2, 3, 3]
    reader.admin.delete_topics([topic])


def test_futures_work_with_the_standard_library(broker: LoopbackBroker) -> None:
    """`concurrent.futures.wait`, `as_completed`, callbacks and `asyncio.wrap_future` accept our futures."""
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(5)]
        done, late = concurrent.futures.wait(futures, 10)
        assert (len(done), late) == (5, set())
        more = [producer.send("t", b"x") for _ in range(3)]
        assert {f.result().offset for f in concurrent.futures.as_completed(more, 10)} == {5, 6, 7}
        called: list[int] = []
        threads: list[str] = []
        over = threading.Event()

        def callback(future: concurrent.futures.Future[odradek.RecordMetadata]) -> None:
            called.append(future.result().offset)
            threads.append(threading.current_thread().name)
            producer.send("t", b"from a callback").add_done_callback(lambda _: over.set())

        producer.send("t", b"y").add_done_callback(callback)
        assert over.wait(10)
        assert called == [8]
        assert threads == ["odradek-producer"]
        assert not futures[0].cancel()

        async def through_asyncio() -> int:
            return (await asyncio.wrap_future(producer.send("t", b"z"))).offset

        assert asyncio.run(through_asyncio()) == 10


def test_flush_does_not_linger(broker: LoopbackBroker) -> None:
    """With `linger.ms` of an hour, `flush` sends the waiting records at once."""
    with Producer(
        bootstrap_servers=broker.bootstrap, linger_ms=3_600_000, delivery_timeout_ms=3_700_000
    ) as p:
        futures = [p.send("t", b"%d" % number) for number in range(3)]
        with pytest.raises(TimeoutError):
            futures[0].result(0.02)
        p.flush(10)
        assert [future.result(0).offset for future in futures] == [0, 1, 2]
    assert len(broker.broker.topics["t"].partitions[0].batches) == 1


def test_memory_holds_the_application_back(broker: LoopbackBroker) -> None:
    """`buffer.memory` is full for `max.block.ms`, and `send` raises BufferFull.

    When there is room again, it succeeds.
    """
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    with Producer(
        bootstrap_servers=broker.bootstrap,
        buffer_memory=4800,
        batch_size=1000,
        max_block_ms=400,
        request_timeout_ms=800,
    ) as producer:
        for _ in range(4):
            producer.send("t", b"x" * 900)
        with pytest.raises(BufferFull, match=r"buffer.memory \(4800 bytes\)"):
            producer.send("t", b"x" * 900)
        producer.flush(10)
        assert producer.metrics()["buffer bytes used"] == 0
        assert producer.send("t", b"y").result(10).offset == 4


def test_a_lost_answer_is_not_a_lost_or_doubled_record(broker: LoopbackBroker) -> None:
    """Requests or answers are lost.

    Repeated batches keep their sequence numbers, so each record is written once (KIP-98).
    """
    for performed in (True, False):
        broker.broker.append_before_trouble = performed
        broker.broker.trouble[ApiKey.PRODUCE].extend([0, HANG_UP, 0, HANG_UP])
        start = len(broker.broker.values("t")[0])
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=200, retry_backoff_ms=1) as producer:
            for number in range(100):
                producer.send("t", b"%d" % number)
        assert broker.broker.values("t")[0][start:] == [b"%d" % number for number in range(100)]


def test_close_gives_up_after_its_time(broker: LoopbackBroker) -> None:
    """`close` has a timeout. Records without an answer by then fail with ClientClosed, and so does every later call."""
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    producer = Producer(bootstrap_servers=broker.bootstrap)
    future = producer.send("t", b"x")
    producer.close(0.05)
    with pytest.raises(ClientClosed):
        future.result(0)
    with pytest.raises(ClientClosed):
        producer.send("t", b"x")
    producer.close()


def test_delivery_timeout_bounds_everything(broker: LoopbackBroker) -> None:
    """After `delivery.timeout.ms` the future fails, even if its request is in flight."""
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    with (
        Producer(
            bootstrap_servers=broker.bootstrap, linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=100
        ) as producer,
        pytest.raises(RequestTimedOut),
    ):
        producer.send("t", b"lost").result(10)
    assert broker.broker.values("t") == [[]]


def test_nobody_there() -> None:
    """Without a reachable broker, `send` raises after `max.block.ms` and names the reason."""
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=100) as producer,
        pytest.raises(BrokerUnavailable, match="cannot connect"),
    ):
        producer.send("t", b"x")


def test_mistakes_of_the_caller(broker: LoopbackBroker) -> None:
    """Wrong arguments and settings raise at once, in the call that has them."""
    with Producer(bootstrap_servers=broker.bootstrap, max_request_size=1000) as producer:
        with pytest.raises(KafkaError, match="no partition 7"):
            producer.send("t", b"x", partition=7)
        with pytest.raises(KafkaError, match=r"max\.request\.size"):
            producer.send("t", b"x" * 1000)
        with pytest.raises(TypeError, match="value is a str"):
            producer.send("t", "text")
    with pytest.raises(ValueError, match=r"unknown configuration key 'linger\.millis'"):
        Producer(bootstrap_servers=broker.bootstrap, linger_millis=1)


def test_an_interrupted_wait_leaves_the_producer_usable(broker: LoopbackBroker) -> None:
    """Ctrl-C interrupts the wait for a result. The record is still sent, and the producer remains usable."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Producer(
            bootstrap_servers=broker.bootstrap, linger_ms=3_600_000, delivery_timeout_ms=3_700_000
        ) as producer:
            future = producer.send("t", b"x")
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                future.result()
            producer.flush(10)
            assert future.result(0).offset == 0
            assert producer.partitions_for("t") == [0]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_close_hands_over_what_has_no_answer(broker: LoopbackBroker) -> None:
    """With acks=0, `close` waits until all records are handed to the connection."""
    broker.broker.max_batch_bytes = 64 << 20
    with Producer(bootstrap_servers=broker.bootstrap, acks=0, max_request_size=64 << 20) as producer:
        producer.send("t", b"x")
        producer.flush(10)
        producer.send("t", bytes(16 << 20))
    with Client(broker.bootstrap) as client:
        for _ in range(3000):
            client.metadata([])
            if len(broker.broker.topics["t"].partitions[0].batches) == 2:
                break
        assert len(broker.broker.topics["t"].partitions[0].batches) == 2


def test_serializers(broker: LoopbackBroker) -> None:
    """Serializers are callables, or Kafka's names of simple ones."""
    with Producer(
        bootstrap_servers=broker.bootstrap,
        key_serializer="org.apache.kafka.common.serialization.StringSerializer",
        value_serializer=lambda value: b"<%d>" % value,
    ) as producer:
        producer.send("t", 7, "key")
    assert broker.broker.values("t") == [[b"<7>"]]
