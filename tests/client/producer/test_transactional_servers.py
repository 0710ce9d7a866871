"""Transactions against servers: commit, abort, fencing, timeouts, groups' offsets, and a broker that is killed.

`COORDINATORS` are the servers that have a transaction coordinator. Each test runs by both transaction protocols.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

import odradek.trio
from odradek import Consumer, ConsumerRecord, Producer
from odradek.client.admin import NewTopic
from odradek.client.consumer.consumer_types import ConsumerGroupMetadata
from odradek.client.errors import (
    IllegalTransactionCall,
    ProducerFencedError,
    RequestTimedOut,
    TransactionAbortableError,
    TransactionError,
)
from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.kafka_server import start_kafka
from tests.client.fresh_topics import wait_until_known
from tests.kafka_jars import NO_RETENTION, TEST_HEAP
from tests.node_process import RunningNode

pytestmark = pytest.mark.long
"""These tests start their own servers, so `make quick` leaves them out."""

COORDINATORS = [
    "node",
    pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
]
PATIENCE_SECONDS = 60.0
_FEATURE = "transaction.version"


class Cluster:
    """A server with a transaction coordinator, at one level of the feature `transaction.version`."""

    def __init__(self, bootstrap: str, fresh_topic: Callable[[str], str]) -> None:
        self.bootstrap = bootstrap
        self.fresh_topic = fresh_topic
        self.client = Client(bootstrap, timeout_ms=20_000)
        self.opened: list[Producer | Consumer] = []
        self.id = fresh_topic("id")
        self.level = 2

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """Create a new topic."""
        name = self.fresh_topic("transactions")
        wanted = NewTopic(
            name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        (created,) = self.client.admin.create_topics([wanted])
        assert created.error is None
        wait_until_known(self.client, name)
        return name

    def producer(self, **keys: Any) -> Producer:
        """Make a producer that is ready for transactions.

        All share one `transactional.id`, unless `keys` has another.
        """
        producer = Producer(bootstrap_servers=self.bootstrap, **{"transactional_id": self.id, **keys})
        self.opened.append(producer)
        producer.init_transactions()
        return producer

    def consumer(self, **keys: Any) -> Consumer:
        """Make a consumer with `read_committed` that is closed at the end of the test."""
        settings = {
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 100,
            "heartbeat_interval_ms": 300,
            "enable_auto_commit": False,
        }
        found = Consumer(bootstrap_servers=self.bootstrap, **{**settings, **keys})
        self.opened.append(found)
        return found

    def committed(self, topic: str, partitions: int = 1) -> list[bytes]:
        """Return the committed values of the topic. All of its transactions must have ended."""
        consumer = self.consumer()
        keys = [(topic, index) for index in range(partitions)]
        consumer.assign(keys)
        found: list[ConsumerRecord] = []
        # Markers are written after the commit is answered. So read to the end of all records, since the last stable
        # offset may lag.
        ends = self.consumer(isolation_level="read_uncommitted").end_offsets(keys)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(key) < end for key, end in ends.items()):
            found += consumer.poll(1)
            assert time.monotonic() < deadline, consumer.statistics()
        return [record.value for record in found]

    def set_level(self, level: int) -> None:
        """Set the level of the feature `transaction.version`."""
        if level != self.level:
            self.client.admin.update_features({_FEATURE: level}, allow_downgrade=level < self.level)
            self.level = level

    def close(self) -> None:
        for each in self.opened:
            each.close(5)
        self.client.close()


@pytest.fixture(params=COORDINATORS)
def server(request: pytest.FixtureRequest) -> Any:
    """One of the servers under test, see `COORDINATORS`."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[1, 2], ids=["KIP-98", "KIP-890"])
def cluster(
    request: pytest.FixtureRequest, server: Any, fresh_topic: Callable[[str], str]
) -> Iterator[Cluster]:
    """The server at one level of the feature. After the test the level is the highest."""
    found = Cluster(server.bootstrap, fresh_topic)
    if request.param == 1:
        found.set_level(1)
    yield found
    found.close()
    if request.param == 1:
        with Client(server.bootstrap, timeout_ms=20_000) as client:
            client.admin.update_features({_FEATURE: 2})


def test_blocks_commit_at_their_end_and_abort_after_an_exception(cluster: Cluster) -> None:
    """`transaction()` commits at the end of its block, and aborts if the block raises.

    It works for several partitions, with futures and flushes.
    """
    topic = cluster.topic(3)
    producer = cluster.producer()
    for number in range(6):
        try:
            with producer.transaction():
                futures = [producer.send(topic, b"%d-%d" % (number, n), partition=n % 3) for n in range(30)]
                producer.flush()
                assert all(future.result().offset >= 0 for future in futures)
                if number % 3 == 1:
                    raise KeyError(number)
        except KeyError:
            continue
    wanted = sorted(b"%d-%d" % (number, n) for number in (0, 2, 3, 5) for n in range(30))
    assert sorted(cluster.committed(topic, 3)) == wanted


def test_an_open_transaction_is_aborted_by_close(cluster: Cluster) -> None:
    """`close` aborts an open transaction, so readers do not wait for `transaction.timeout.ms`."""
    topic = cluster.topic()
    producer = cluster.producer()
    producer.begin_transaction()
    producer.send(topic, b"open").result()
    producer.close()
    producer = cluster.producer()
    with producer.transaction():
        producer.send(topic, b"done")
    assert cluster.committed(topic) == [b"done"]


def test_a_fenced_producer_closes_in_silence(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A fenced producer closes without a warning, since its successor has already aborted its transaction."""
    topic = cluster.topic()
    zombie = cluster.producer()
    zombie.begin_transaction()
    zombie.send(topic, b"zombie").result()
    with cluster.producer().transaction():
        pass
    zombie.close()
    assert caplog.messages == []
    assert cluster.committed(topic) == []


def test_a_producer_that_changes_its_id_is_as_a_new_one(cluster: Cluster) -> None:
    """It fences earlier producers with the new id, and later ones with the old id are free. While a transaction is open,
    the id cannot change."""
    topic = cluster.topic()
    producer, other = cluster.producer(), f"{cluster.id}-other"
    zombie = cluster.producer(transactional_id=other)
    for name in (other, cluster.id, other):
        with producer.transaction():
            producer.send(topic, b"before " + name.encode())
            with pytest.raises(IllegalTransactionCall):
                producer._change_transactional_id(name)
        producer._change_transactional_id(name)
        with pytest.raises(IllegalTransactionCall):
            producer.begin_transaction()
        producer.init_transactions()
    with pytest.raises(ProducerFencedError), zombie.transaction():
        zombie.send(topic, b"zombie").result()
    with cluster.producer().transaction():
        pass
    with producer.transaction():
        producer.send(topic, b"last")
    names = [b"before " + name.encode() for name in (other, cluster.id, other)]
    assert cluster.committed(topic) == [*names, b"last"]


def test_the_next_producer_of_an_id_aborts_and_fences_the_last(cluster: Cluster) -> None:
    """A second producer with the same `transactional.id` aborts the first one's transaction.

    The first one is fenced, and its block raises that (KIP-98).
    """
    topic = cluster.topic()
    zombie = cluster.producer()

    def fenced_in_between() -> None:
        with zombie.transaction():
            zombie.send(topic, b"zombie").result()
            heir = cluster.producer()
            with heir.transaction():
                heir.send(topic, b"heir")
            zombie.send(topic, b"late").result()

    with pytest.raises(ProducerFencedError) as caught:
        fenced_in_between()
    context = caught.value.__context__
    while context is not None and not isinstance(context, KafkaError | TransactionAbortableError):
        context = context.__context__
    assert context is not None, "the raised error does not have the block's exception as its context"
    with pytest.raises(ProducerFencedError):
        zombie.begin_transaction()
    assert cluster.committed(topic) == [b"heir"]


def test_the_coordinator_aborts_what_is_open_for_too_long(cluster: Cluster) -> None:
    """After `transaction.timeout.ms` the coordinator aborts an open transaction.

    Readers go on, and the producer's commit fails.
    """
    topic = cluster.topic()
    producer = cluster.producer(transaction_timeout_ms=500)
    producer.begin_transaction()
    producer.send(topic, b"late").result()
    reader = cluster.consumer()
    reader.assign([(topic, 0)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while reader.position((topic, 0)) < 2:
        assert reader.poll(1) == []
        assert time.monotonic() < deadline
    with pytest.raises(TransactionError):
        producer.commit_transaction()
    with cluster.producer().transaction() as heir:
        heir.send(topic, b"in time")
    assert cluster.committed(topic) == [b"in time"]


def test_a_record_that_is_refused_costs_its_transaction_only(cluster: Cluster) -> None:
    """A record exceeds `max.message.bytes`.

    The commit raises, and after an abort the producer can be used again (KIP-360).
    """
    topic = cluster.topic(max_message_bytes="2000")
    producer = cluster.producer()
    with producer.transaction():
        producer.send(topic, b"first")
    producer.begin_transaction()
    producer.send(topic, b"good").result()
    producer.send(topic, b"x" * 5000)
    with pytest.raises(TransactionAbortableError) as caught:
        producer.commit_transaction()
    assert isinstance(caught.value.__cause__, KafkaError)
    assert caught.value.__cause__.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(TransactionAbortableError):
        producer.send(topic, b"more")
    producer.abort_transaction()
    for number in range(3):
        with producer.transaction():
            producer.send(topic, b"%d" % number)
    assert cluster.committed(topic) == [b"first", b"0", b"1", b"2"]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(cluster: Cluster) -> None:
    """While a transaction that contains offsets is open, a fetch of these offsets waits (KIP-447).

    An abort discards them.
    """
    topic, source = cluster.topic(), cluster.topic()
    producer = cluster.producer()
    group = ConsumerGroupMetadata(cluster.fresh_topic("group"))
    consumer = cluster.consumer(group_id=group.group_id)
    key = (source, 0)
    with producer.transaction():
        producer.send_offsets_to_transaction({key: 5}, group)
    assert consumer.committed([key])[key].offset == 5
    producer.begin_transaction()
    producer.send(topic, b"v")
    producer.send_offsets_to_transaction({key: 6}, group)
    with pytest.raises(RequestTimedOut):
        consumer.committed([key], timeout=0.5)
    producer.abort_transaction()
    assert consumer.committed([key])[key].offset == 5
    assert cluster.committed(topic) == []


def test_a_member_that_the_group_has_left_behind_commits_no_offsets(cluster: Cluster) -> None:
    """Offsets with a wrong generation or member id are refused (KIP-447).

    The transaction is aborted, and the producer remains usable.
    """
    source = cluster.topic()
    producer = cluster.producer()
    consumer = cluster.consumer(group_id=cluster.fresh_topic("group"))
    consumer.subscribe([source])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    member = consumer.group_metadata()
    assert member.member_id == consumer.member_id
    assert member.generation_id > 0
    key = (source, 0)
    stale = ConsumerGroupMetadata(member.group_id, member.generation_id + 1, member.member_id)
    stranger = ConsumerGroupMetadata(member.group_id, member.generation_id, "nobody")
    for wrong, code in ((stale, ErrorCode.ILLEGAL_GENERATION), (stranger, ErrorCode.UNKNOWN_MEMBER_ID)):
        with pytest.raises(TransactionAbortableError) as caught, producer.transaction():
            producer.send_offsets_to_transaction({key: 1}, wrong)
        assert isinstance(caught.value.__cause__, KafkaError)
        assert caught.value.__cause__.code is code
    with producer.transaction():
        producer.send_offsets_to_transaction({key: 2}, member)
    assert consumer.committed([key])[key].offset == 2


def test_mistakes_are_refused_before_anything_is_sent(cluster: Cluster) -> None:
    """A send outside of a transaction, a second begin, and a begin before `init_transactions` raise at once."""
    topic = cluster.topic()
    producer = cluster.producer()
    with pytest.raises(IllegalTransactionCall, match="send was refused: no transaction is open"):
        producer.send(topic, b"v")
    producer.begin_transaction()
    with pytest.raises(IllegalTransactionCall, match="begin_transaction was refused: a transaction is open"):
        producer.begin_transaction()
    producer.abort_transaction()
    for keys, reason in (
        ({}, "transactional.id"),
        ({"transactional_id": "new"}, "init_transactions was not"),
    ):
        other = Producer(bootstrap_servers=cluster.bootstrap, **keys)
        with pytest.raises(IllegalTransactionCall, match=re.escape(reason)):
            other.begin_transaction()
        other.close()


def test_20000_records_are_copied_exactly_once(cluster: Cluster) -> None:
    """Records are consumed, transformed and produced in transactions that include the offsets.

    Although some transactions abort and clients are replaced, each record is copied once.
    """
    source, target = cluster.topic(3), cluster.topic(2)
    count, rng, group_id = 20_000, Random(4), cluster.fresh_topic("copy")
    with Producer(bootstrap_servers=cluster.bootstrap) as loader:
        for number in range(count):
            loader.send(source, b"%d" % number, partition=number % 3)
    done = 0
    while done < count:
        consumer = cluster.consumer(group_id=group_id, max_poll_records=300)
        producer = cluster.producer()
        consumer.subscribe([source])
        lives = rng.randint(5, 30)
        while lives and done < count:
            found = consumer.poll(1)
            if not found:
                continue
            lives -= 1
            try:
                with producer.transaction():
                    for record in found:
                        producer.send(target, b"copy of " + record.value)
                    positions = {(r.topic, r.partition): r.offset + 1 for r in found}
                    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                    if rng.random() < 0.2:
                        raise KeyError
            except KeyError:
                for key in {(r.topic, r.partition) for r in found}:
                    consumer.seek(key, min(r.offset for r in found if (r.topic, r.partition) == key))
            else:
                done += len(found)
        if rng.random() < 0.5:
            # The producer is replaced in the middle of a transaction.
            producer.begin_transaction()
            producer.send(target, b"never").result()
        consumer.close()
    cluster.producer()
    values = cluster.committed(target, 2)
    assert len(values) == count
    assert set(values) == {b"copy of %d" % number for number in range(count)}


def test_the_async_producer_does_the_same(cluster: Cluster) -> None:
    """The async producer commits, aborts, sends offsets and is fenced in the same way."""
    topic = cluster.topic()
    group = ConsumerGroupMetadata(cluster.fresh_topic("group"))
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": cluster.id}

    async def write_and_raise(producer: odradek.trio.Producer, value: bytes) -> None:
        async with producer.transaction():
            sent = await producer.send(topic, value)
            await producer.flush()
            await sent.result()
            raise KeyError

    async def main() -> None:
        async with odradek.trio.open_producer(settings) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"one")
                await producer.send_offsets_to_transaction({(topic, 0): 3}, group)
            with pytest.raises(KeyError):
                await write_and_raise(producer, b"two")
            with pytest.raises(IllegalTransactionCall):
                await producer.send(topic, b"outside")
            async with odradek.trio.open_producer(settings) as heir:
                await heir.init_transactions()
                with pytest.raises(ProducerFencedError):
                    await write_and_raise(producer, b"zombie")
                async with heir.transaction():
                    await heir.send(topic, b"three")

    trio.run(main)
    assert cluster.committed(topic) == [b"one", b"three"]
    consumer = cluster.consumer(group_id=group.group_id)
    assert consumer.committed([(topic, 0)])[topic, 0].offset == 3


@pytest.mark.java
def test_a_transaction_outlives_kill_9_of_the_broker(
    kafka_jars: Path, tmp_path: Path, fresh_topic: Callable[[str], str], whole_matrix: bool
) -> None:
    """A broker of Apache Kafka is killed in the middle of transactions.

    Each transaction is then committed or aborted as a whole.
    """
    if not whole_matrix:
        pytest.skip("starts Apache Kafka three times: run make test-transactions")
    settings = {
        **NO_RETENTION,
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "200",
    }
    server = start_kafka(tmp_path, settings=settings, heap=TEST_HEAP)
    cluster = Cluster(server.bootstrap, fresh_topic)
    port = int(server.bootstrap.rpartition(":")[2])
    try:
        topic = cluster.topic(2)
        producer = cluster.producer(request_timeout_ms=5_000)
        expected: list[bytes] = []
        for number in range(6):
            values = [b"%d-%d" % (number, n) for n in range(200)]
            try:
                with producer.transaction():
                    for index, value in enumerate(values):
                        producer.send(topic, value, partition=index % 2)
                        if index == 100 and number % 3 == 1:
                            if number == 1:
                                producer.flush()
                            server.kill()
                            server = start_kafka(tmp_path, port=port, settings=settings, heap=TEST_HEAP)
                expected += values
            except TransactionAbortableError:
                continue  # Kafka may have forgotten all batches of a producer except the last
        assert len(expected) >= 800
        assert sorted(cluster.committed(topic, 2)) == sorted(expected)
    finally:
        cluster.close()
        server.kill()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_transaction_crosses_a_change_of_the_level(
    server: Any, fresh_topic: Callable[[str], str], before: int, after: int
) -> None:
    """The feature's level changes during a transaction.

    It ends by the protocol in which it began (KIP-890), and later transactions succeed.
    """
    cross(Cluster(server.bootstrap, fresh_topic), before, after)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (0, 1), (1, 0)])
def test_a_transaction_crosses_a_change_from_or_to_level_0(
    node: RunningNode, fresh_topic: Callable[[str], str], before: int, after: int
) -> None:
    """At level 0 the coordinator's log has no room for data of level 2.

    Transactions still succeed after a change from 2 to 0, where Kafka 4.3 refuses all writes.
    """
    cross(Cluster(node.bootstrap, fresh_topic), before, after)


def cross(cluster: Cluster, before: int, after: int) -> None:
    """Change the level while two transactions are open. One is then committed, the other aborted."""
    topic = cluster.topic(2)
    try:
        cluster.set_level(before)
        committing = cluster.producer()
        aborting = cluster.producer(transactional_id=f"{cluster.id}-aborting")
        for producer, value in ((committing, b"crossing"), (aborting, b"aborted")):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            producer.flush()
        cluster.set_level(after)
        committing.send(topic, b"behind", partition=1)
        committing.commit_transaction()
        aborting.abort_transaction()
        for producer, value in ((committing, b"next"), (aborting, b"after the abort")):
            with producer.transaction():
                producer.send(topic, value, partition=0)
        cluster.producer()
        with pytest.raises(TransactionError), committing.transaction():
            committing.send(topic, b"fenced", partition=0)
        assert sorted(cluster.committed(topic, 2)) == [b"after the abort", b"behind", b"crossing", b"next"]
    finally:
        cluster.set_level(2)
        cluster.close()
