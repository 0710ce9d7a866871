"""The client against servers: our own node, and Apache Kafka where Java runs (one of each per session)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from odradek.client.admin import ConfigResource, NewTopic, ResourceType
from odradek.client.core.partition_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from odradek.client.shells.blocking import Client
from odradek.wire.errors import ErrorCode, KafkaError
from sim.load.fetching import FetchConfig, Fetcher
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.fresh_topics import wait_until_known

TIME = 1_700_000_000_000


@pytest.fixture(
    params=[
        pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
        pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
    ]
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of one of the servers."""
    server = request.getfixturevalue(request.param)
    with Client(server.bootstrap, timeout_ms=20_000) as opened:
        yield opened


def produce(client: Client, records: list[RecordToSend], config: ProduceConfig | None = None) -> None:
    """Produce all records, and check that they are acknowledged."""
    producing = Producing(client.core, config or ProduceConfig(auto_create=False))
    deliveries = client.run(producing.produce(records, timeout=20))
    assert [delivery.error for delivery in deliveries if delivery.error is not None] == []


def read(
    client: Client, topic: str, partitions: int, config: FetchConfig | None = None
) -> list[list[RecordToSend]]:
    """Read each partition from its start. Return the records as they could be sent again."""
    keys = [(topic, index) for index in range(partitions)]
    ends = {key: found.offset for key, found in client.list_offsets(dict.fromkeys(keys, LATEST)).items()}
    fetcher = Fetcher(client.core, config or FetchConfig(max_wait=0.1))
    for key in keys:
        fetcher.assign(*key, 0)
    found: list[list[RecordToSend]] = [[] for _ in range(partitions)]
    while fetcher.positions != ends:
        for fetched in client.run(fetcher.poll(timeout=5)):
            for record in fetched.records():
                assert record.offset == len(found[fetched.partition])
                found[fetched.partition].append(
                    RecordToSend(
                        topic, record.value, record.key, record.headers, fetched.partition, record.timestamp
                    )
                )
    return found


@pytest.mark.parametrize("compression_type", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were(
    client: Client, fresh_topic: Callable[[str], str], compression_type: int
) -> None:
    """Records come back unchanged: keys, values, nulls, headers and timestamps, in every codec.

    Batches are small, so that a fetch returns many.
    """
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 2)])
    wait_until_known(client, topic)
    records = [
        RecordToSend(
            topic,
            None if number % 7 == 3 else b"value %d" % number * (number % 5),
            None if number % 3 == 0 else b"key %d" % number,
            (("h", b"%d" % number), ("empty", None)) if number % 4 == 0 else (),
            number % 2,
            TIME + number,
        )
        for number in range(500)
    ]
    produce(client, records, ProduceConfig(compression_type=compression_type, batch_bytes_max=2000))
    assert read(client, topic, 2) == [records[0::2], records[1::2]]
    client.admin.delete_topics([topic])


def test_large_amounts_in_small_answers(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """Fetch limits are far below the stored bytes.

    Every fetch continues where the last one ended, in all partitions.
    """
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 4)])
    wait_until_known(client, topic)
    records = [RecordToSend(topic, bytes([n % 251]) * 1000, None, (), n % 4, TIME) for n in range(4000)]
    produce(client, records, ProduceConfig(batch_bytes_max=16384))
    limits = FetchConfig(max_bytes=100_000, partition_max_bytes=40_000, max_wait=0.1)
    assert read(client, topic, 4, limits) == [records[n::4] for n in range(4)]
    client.admin.delete_topics([topic])


def test_idempotence_over_many_calls(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """Sequence numbers of a partition continue from call to call. The server would refuse a gap."""
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 2)])
    wait_until_known(client, topic)
    producing = Producing(client.core, ProduceConfig())
    for start in range(0, 60, 3):
        records = [RecordToSend(topic, b"%d" % n, None, (), n % 2, TIME) for n in range(start, start + 3)]
        assert all(d.error is None for d in client.run(producing.produce(records, timeout=20)))
    values = [[int(record.value or b"") for record in partition] for partition in read(client, topic, 2)]
    assert values == [list(range(0, 60, 2)), list(range(1, 60, 2))]
    client.admin.delete_topics([topic])


def test_acks_0_and_1(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """Records with acks=0 and acks=1 are written in order over one connection.

    The first request has acks=1, because the new leader may refuse it. With acks=0 the client would not get this error.
    """
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 1)])
    wait_until_known(client, topic)
    for number, acks in enumerate((1, 0, 1)):
        produce(client, [RecordToSend(topic, b"%d" % number, None, (), 0, TIME)], ProduceConfig(acks=acks))
    assert [record.value for record in read(client, topic, 1)[0]] == [b"0", b"1", b"2"]
    client.admin.delete_topics([topic])


def test_offsets(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """Offsets are found for both ends, for times in between, and for the greatest time.

    A time after the last record has none.
    """
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 1)])
    wait_until_known(client, topic)
    times = [TIME, TIME + 100, TIME + 50, TIME + 200]
    for time in times:
        produce(client, [RecordToSend(topic, b"v", None, (), 0, time)])
    found = {
        wanted: client.list_offsets({(topic, 0): wanted})[topic, 0].offset
        for wanted in (EARLIEST, LATEST, MAX_TIMESTAMP, TIME, TIME + 1, TIME + 101, TIME + 201)
    }
    assert found == {
        EARLIEST: 0,
        LATEST: 4,
        MAX_TIMESTAMP: 3,
        TIME: 0,
        TIME + 1: 1,
        TIME + 101: 3,
        TIME + 201: -1,
    }
    client.admin.delete_topics([topic])


def test_refusals(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """A broker's error code is raised as `KafkaError`, whose text names the topic or partition."""
    topic = fresh_topic("client")
    (created,) = client.admin.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "2000"})])
    assert created.error is None
    (again,) = client.admin.create_topics([NewTopic(topic, 1)])
    assert again.error is not None
    assert again.error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    producing = Producing(client.core, ProduceConfig())
    records = [RecordToSend(topic, b"x" * size, None, (), 0, TIME) for size in (100, 3000, 1500, 100)]
    deliveries = client.run(producing.produce(records, timeout=20))
    refused = {
        index: delivery.error for delivery in deliveries for index in delivery.indexes if delivery.error
    }
    assert list(refused) == [1]
    assert isinstance(refused[1], KafkaError)
    assert refused[1].code is ErrorCode.MESSAGE_TOO_LARGE
    assert [len(record.value or b"") for record in read(client, topic, 1)[0]] == [100, 1500, 100]
    fetcher = Fetcher(client.core, FetchConfig())
    fetcher.assign(topic, 0, 99)
    with pytest.raises(KafkaError) as caught:
        client.run(fetcher.poll(timeout=5))
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError, match="does not exist"):
        client.admin.describe_topics([fresh_topic("missing")])
    client.admin.delete_topics([topic])


def test_configurations(client: Client, fresh_topic: Callable[[str], str]) -> None:
    """Configurations of topics and brokers are read, set by key, and replaced as a whole."""
    topic = fresh_topic("client")
    client.admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "12345"})])
    wait_until_known(client, topic)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (found,) = client.admin.describe_configs([resource], ["retention.ms"])
    (entry,) = found.entries
    assert (entry.value, entry.source.name) == ("12345", "TOPIC_CONFIG")
    (broker,) = client.admin.describe_cluster().brokers
    (found,) = client.admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker.node_id))])
    assert {"log.dirs", "num.partitions"} <= {each.name for each in found.entries}
    client.admin.delete_topics([topic])


def test_a_topic_made_anew_is_read_and_written_by_the_same_client(
    client: Client, fresh_topic: Callable[[str], str]
) -> None:
    """A topic is deleted and created again.

    After UNKNOWN_TOPIC_ID the client finds the new id, and sequence numbers begin at 0.
    """
    topic = fresh_topic("client")
    producing = Producing(client.core, ProduceConfig())
    for value in (b"old", b"new"):
        client.admin.create_topics([NewTopic(topic, 1)])
        record = RecordToSend(topic, value, None, (), 0, TIME)
        (delivery,) = client.run(producing.produce([record], timeout=20))
        assert (delivery.error, delivery.base_offset) == (None, 0)
        assert read(client, topic, 1) == [[record]]
        client.admin.delete_topics([topic])
