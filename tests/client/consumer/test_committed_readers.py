"""A consumer with `isolation.level=read_committed` against servers: our own node, and Apache Kafka where Java runs.

No coordinator takes part. The tests write batches and markers as a coordinator would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from odradek import Consumer
from odradek.client.admin import AlterConfig, ConfigResource, NewTopic, ResourceType
from odradek.client.core.partition_offsets import LATEST
from odradek.client.core.requests import request
from odradek.client.shells.blocking import Client
from odradek.wire.batches.record_writer import encode_batch, stamp
from odradek.wire.batches.records import records
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.client.fresh_topics import wait_until_known

pytestmark = pytest.mark.long
"""These tests start their own servers, so `make quick` leaves them out."""

PATIENCE_SECONDS = 60.0
VERIFICATION = "transaction.partition.verification.enable"
_PRODUCE_VERSION_MAX = 11
"""The newest version of Produce for which the broker asks no coordinator about the transaction."""


@pytest.fixture(
    params=[
        pytest.param("node", marks=pytest.mark.xdist_group("client-node")),
        pytest.param("apache_kafka", marks=[pytest.mark.java, pytest.mark.xdist_group("apache-kafka")]),
    ]
)
def client(request: pytest.FixtureRequest) -> Iterator[tuple[str, Client]]:
    """The bootstrap address and a client of one of the servers. Its brokers do not verify transactions."""
    server = request.getfixturevalue(request.param)
    with Client(server.bootstrap, timeout_ms=20_000) as opened:
        every_broker = ConfigResource(ResourceType.BROKER, "")
        opened.admin.incremental_alter_configs({every_broker: [AlterConfig(VERIFICATION, "false")]})
        yield server.bootstrap, opened
        opened.admin.incremental_alter_configs({every_broker: [AlterConfig(VERIFICATION, None)]})


class Writer:
    """Writes batches and markers of several producers into partition 0 of a new topic.

    Remembers which records are committed.
    """

    def __init__(self, client: Client, topic: str, rng: Random) -> None:
        self.client = client
        self.topic = topic
        self.rng = rng
        self.end = 0
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[tuple[int, bytes]]] = {}
        self.first: dict[int, int] = {}
        self.visible: list[tuple[int, bytes]] = []
        """Offset and value of each record that a committed reader sees."""

    def write(self, producer_id: int, *, in_transaction: bool = True) -> None:
        """Write a batch of up to 20 records."""
        count = self.rng.randint(1, 20)
        values = [b"%d of %d" % (self.end + n, producer_id) for n in range(count)]
        data = encode_batch(
            [(1_700_000_000_000, None, value, ()) for value in values],
            compression_type=self.rng.randrange(5),
            is_transactional=in_transaction,
        )
        sequence = self.sequences.get(producer_id, 0)
        stamp(data, producer_id, 0, sequence)
        message = ProduceRequest(
            f"id {producer_id}" if in_transaction else None,
            -1,
            10_000,
            [TopicProduceData(self.topic, bytes(16), [PartitionProduceData(0, data)])],
        )
        answer = self._ask(message).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, self.end)
        self.sequences[producer_id] = sequence + count
        offsets = [(self.end + n, value) for n, value in enumerate(values)]
        if in_transaction:
            self.first.setdefault(producer_id, self.end)
            self.open.setdefault(producer_id, []).extend(offsets)
        else:
            self.visible += offsets
        self.end += count

    def finish(self, producer_id: int, *, commit: bool) -> None:
        """Write the marker that ends a producer's transaction."""
        marker = WritableTxnMarker(producer_id, 0, commit, [WritableTxnMarkerTopic(self.topic, [0])], 0)
        answer = self._ask(WriteTxnMarkersRequest([marker]))
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        written = self.open.pop(producer_id)
        del self.first[producer_id]
        if commit:
            self.visible += written
        self.end += 1

    def _ask(self, message: Any) -> Any:
        leader = self.client.core.cluster.leader(self.topic, 0)
        return self.client.run(
            request(self.client.core, message, node=leader, timeout=20, version_max=_PRODUCE_VERSION_MAX)
        )

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return min(self.first.values(), default=self.end)


def new_writer(client: Client, topic: str, seed: int) -> Writer:
    (created,) = client.admin.create_topics([NewTopic(topic, 1)])
    assert created.error is None
    wait_until_known(client, topic)
    client.metadata([topic])
    return Writer(client, topic, Random(seed))


@pytest.mark.parametrize("seed", range(3))
def test_committed_records_are_seen_and_no_others(
    client: tuple[str, Client], fresh_topic: Callable[[str], str], seed: int
) -> None:
    """Transactions are interleaved, and some are aborted or open.

    Fetches from any offset return only committed records (KIP-98).
    """
    bootstrap, opened = client
    writer = new_writer(opened, fresh_topic("committed"), seed)
    first_id = 1_000_000 * (seed + 1)
    for _ in range(120):
        producer_id = first_id + writer.rng.randrange(4)
        if producer_id in writer.open and writer.rng.random() < 0.4:
            writer.finish(producer_id, commit=writer.rng.random() < 0.5)
        elif writer.rng.random() < 0.2:
            writer.write(first_id + 9, in_transaction=False)
        else:
            writer.write(producer_id)
    expected = sorted(each for each in writer.visible if each[0] < writer.stable_end)
    key = (writer.topic, 0)
    for limit in (1, 2000, 1 << 20):
        with Consumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=limit,
        ) as consumer:
            consumer.assign([key])
            assert consumer.end_offsets([key]) == {key: writer.stable_end}
            assert [(r.offset, r.value) for r in read_to(consumer, key, writer.stable_end)] == expected
            consumer.seek(key, 0)
            assert batches_to(consumer, key, writer.stable_end) == expected
            start = expected[len(expected) // 2][0] + 1
            consumer.seek(key, start)
            found = [(r.offset, r.value) for r in read_to(consumer, key, writer.stable_end)]
            assert found == [each for each in expected if each[0] >= start]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([key])
        assert consumer.end_offsets([key]) == {key: writer.end}
        everything = {offset for offset, _ in writer.visible} | {
            offset for written in writer.open.values() for offset, _ in written
        }
        offsets = {record.offset for record in read_to(consumer, key, writer.end)}
        assert everything <= offsets
    opened.admin.delete_topics([writer.topic])


def read_to(consumer: Consumer, key: tuple[str, int], end: int) -> list[Any]:
    """Read all records until the position reaches `end`. The position passes markers and aborted records."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[Any] = []
    while consumer.position(key) < end:
        found += consumer.poll(1)
        assert time.monotonic() < deadline, consumer.statistics()
    return found


def batches_to(consumer: Consumer, key: tuple[str, int], end: int) -> list[tuple[int, bytes]]:
    """Read whole batches until the position reaches `end`, and return offsets and values from the start offset on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = []
    while consumer.position(key) < end:
        for batch in consumer.poll_batches(1):
            parsed = records(batch.data, decompressed_bytes_max=1 << 20)
            found += [(each.offset, each.value) for each in parsed if each.offset >= batch.start_offset]
        assert time.monotonic() < deadline, consumer.statistics()
    return found


def test_an_open_transaction_holds_readers_up_until_its_marker(
    client: tuple[str, Client], fresh_topic: Callable[[str], str]
) -> None:
    """An open transaction hides later committed records. Its marker raises the last stable offset, and they come."""
    bootstrap, opened = client
    writer = new_writer(opened, fresh_topic("committed"), 7)
    writer.write(5_000_000)
    writer.write(5_000_001)
    writer.finish(5_000_001, commit=True)
    key = (writer.topic, 0)
    with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([key])
        assert consumer.poll(0.5) == []
        assert consumer.end_offsets([key]) == {key: 0}
        assert opened.list_offsets({key: LATEST})[key].offset == writer.end
        writer.finish(5_000_000, commit=False)
        found = [(r.offset, r.value) for r in read_to(consumer, key, writer.end)]
        assert found == writer.visible
        assert consumer.lag(key) == 0
    opened.admin.delete_topics([writer.topic])
