"""Batches that the application has encoded itself: `Producer.send_encoded`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from odradek.client.admin import NewTopic
from odradek.client.core.partition_offsets import LATEST
from odradek.client.errors import BufferFull
from odradek.client.shells.blocking import Client
from odradek.client.shells.producer import Producer
from odradek.wire.api import ApiKey
from odradek.wire.batches.record_writer import encode_batch
from odradek.wire.errors import ErrorCode, KafkaError
from sim.load.fetching import FetchConfig, Fetcher
from tests.client.fake_broker import HANG_UP, SILENCE, LoopbackBroker
from tests.node_process import RunningNode

pytestmark = pytest.mark.xdist_group("client-node")
NOW = 1_700_000_000_000


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    """A broker that makes trouble on demand. Its topic `t` has two partitions."""
    with LoopbackBroker() as opened:
        opened.broker.add_topic("t", 2)
        yield opened


def batch(values: Sequence[bytes]) -> bytearray:
    return encode_batch([(NOW, b"k", value, ()) for value in values])


def read(client: Client, topic: str) -> list[bytes | None]:
    """Read the values of partition 0, and check every batch's checksum."""
    end = client.list_offsets({(topic, 0): LATEST})[topic, 0].offset
    fetcher = Fetcher(client.core, FetchConfig(max_wait=0.1))
    fetcher.assign(topic, 0, 0)
    found: list[bytes | None] = []
    while fetcher.positions != {(topic, 0): end}:
        for fetched in client.run(fetcher.poll(timeout=5)):
            found += [record.value for record in fetched.records()]
    return found


@pytest.mark.parametrize("idempotence", [True, False])
def test_encoded_batches_and_records_keep_their_order(
    node: RunningNode, fresh_topic: Callable[[str], str], idempotence: bool
) -> None:
    """An encoded batch is sent after earlier records and before later ones, in one sequence of numbers."""
    topic = fresh_topic("encoded")
    with (
        Client(node.bootstrap) as client,
        Producer(bootstrap_servers=node.bootstrap, enable_idempotence=idempotence) as producer,
    ):
        client.admin.create_topics([NewTopic(topic, 1)])
        expected: list[bytes] = []
        for number in range(20):
            mine = [b"%d %d" % (number, place) for place in range(50)]
            sent = producer.send_encoded(topic, 0, batch(mine), len(mine))
            producer.send(topic, b"alone %d" % number, partition=0)
            expected += [*mine, b"alone %d" % number]
        producer.flush(30)
        assert sent.done
        assert sent.failure() is None
        assert sent.outcome(49)[0] == len(expected) - 2
        assert producer.metrics()["buffer bytes used"] == 0
        assert read(client, topic) == expected


def test_what_is_too_large_for_the_broker_is_cut(
    node: RunningNode, fresh_topic: Callable[[str], str]
) -> None:
    """The broker answers MESSAGE_TOO_LARGE.

    The batch is halved until its parts fit. A record that never fits fails the batch, but the rest is written.
    """
    topic = fresh_topic("encoded")
    values = [b"a" * 500, b"b" * 500, b"c" * 3000, b"d" * 500]
    with Client(node.bootstrap) as client, Producer(bootstrap_servers=node.bootstrap) as producer:
        client.admin.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "1500"})])
        whole = producer.send_encoded(topic, 0, batch(values[:2] * 4), 8)
        broken = producer.send_encoded(topic, 0, batch(values), 4)
        producer.flush(30)
        assert whole.failure() is None
        failure = broken.failure()
        assert isinstance(failure, KafkaError)
        assert failure.code is ErrorCode.MESSAGE_TOO_LARGE
        assert read(client, topic) == [*values[:2] * 4, *values[:2], values[3]]
        with pytest.raises(KafkaError, match="a batch of"):
            producer.send_encoded(topic, 0, batch([b"x" * (1 << 20)]), 1)
        with pytest.raises(KafkaError, match="no partition 1"):
            producer.send_encoded(topic, 1, batch([b"x"]), 1)


def test_a_lost_answer_neither_loses_nor_doubles_a_batch(broker: LoopbackBroker) -> None:
    """Answers are lost.

    Encoded batches are repeated with the same sequence numbers, so each is written once (KIP-98).
    """
    broker.broker.trouble[ApiKey.PRODUCE].extend([0, HANG_UP, 0, HANG_UP])
    with Producer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=1) as producer:
        for number in range(10):
            producer.send_encoded("t", number % 2, batch([b"%d" % number]), 1)
        producer.flush(30)
        assert producer.metrics()["batches repeated"] > 0
    assert broker.broker.values("t") == [
        [b"%d" % number for number in range(start, 10, 2)] for start in (0, 1)
    ]


def test_memory_holds_the_maker_of_batches_back(broker: LoopbackBroker) -> None:
    """`buffer.memory` counts encoded batches by their bytes.

    If it is full, `send_encoded` waits until there is room.
    """
    broker.broker.trouble[ApiKey.PRODUCE].append(SILENCE)
    with Producer(
        bootstrap_servers=broker.bootstrap, buffer_memory=6000, max_block_ms=400, request_timeout_ms=800
    ) as producer:
        for _ in range(3):
            producer.send_encoded("t", 0, batch([b"x" * 1200]), 1)
        with pytest.raises(BufferFull, match=r"buffer.memory \(6000 bytes\)"):
            producer.send_encoded("t", 0, batch([b"x" * 1200]), 1)
        producer.flush(30)
        assert producer.send_encoded("t", 0, batch([b"y"]), 1).failure() is None
        producer.flush(30)
    assert len(broker.broker.values("t")[0]) == 4
