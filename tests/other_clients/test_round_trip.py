"""Each client library reads back its own records, with every codec, with and without idempotence, and with all acks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from kafka.partitioner.default import murmur2

from tests.node_process import RunningNode
from tests.other_clients.drivers import CODECS, DRIVERS, Driver, Received, Sent

T0_MS = 1_700_000_000_000


def samples(count: int) -> list[Sent]:
    """Make compressible records of growing size, one of them far larger than a socket buffer."""
    records = [
        Sent(value=b"%d " % index * (index % 40), key=b"k%d" % index, timestamp_ms=T0_MS + index)
        for index in range(count)
    ]
    return [*records, Sent(value=b"0123456789abcdef" * 20_000, key=b"large", timestamp_ms=T0_MS + count)]


def expected(records: list[Sent], places: list[tuple[int, int]]) -> list[Received]:
    """Return the records that a consumer must return, at the offsets that the producer got."""
    return [
        Received(partition, offset, sent.timestamp_ms or 0, sent.key, sent.value, sent.headers)
        for sent, (partition, offset) in zip(records, places, strict=True)
    ]


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_codec(driver: Driver, codec: str, idempotent: bool, fresh_topic: Callable[[str], str]) -> None:
    """With every codec, offsets have no gaps from 0 on, and all bytes are read back."""
    topic = fresh_topic("codec")
    driver.create_topic(topic, 1)
    records = samples(200)
    places = driver.produce(topic, records, codec=codec, idempotent=idempotent, acks=-1)
    assert places == [(0, offset) for offset in range(len(records))]
    assert driver.consume(topic, {0: 0}, len(records)) == expected(records, places)


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks(driver: Driver, acks: int, fresh_topic: Callable[[str], str]) -> None:
    """With acks=1 the producer gets offsets, with acks=0 no answer. Both kinds are stored in order."""
    topic = fresh_topic("acks")
    driver.create_topic(topic, 1)
    records = samples(50)
    places = driver.produce(topic, records, codec="none", idempotent=False, acks=acks)
    stored = [(0, offset) for offset in range(len(records))]
    assert places == (stored if acks else [(0, -1)] * len(records))
    assert driver.consume(topic, {0: 0}, len(records)) == expected(records, stored)


def test_nulls_and_headers(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """Null and empty keys and values stay distinct, and headers keep their order and duplicates."""
    topic = fresh_topic("nulls")
    driver.create_topic(topic, 1)
    headers = (("trace", b"\x00\xff"), ("trace", b"again"), ("", b""), ("größe", "groß".encode()))
    records = [
        Sent(value=None, key=b"tombstone", timestamp_ms=T0_MS),
        Sent(value=b"", key=b"", timestamp_ms=T0_MS + 1),
        Sent(value=b"no key", timestamp_ms=T0_MS + 2),
        Sent(value=b"headers", key=b"h", headers=headers, timestamp_ms=T0_MS + 3),
    ]
    if driver.name == "confluent-kafka":  # only this library can send a record without key and value
        records.append(Sent(value=None, timestamp_ms=T0_MS + 4))
    places = driver.produce(topic, records, codec="none", idempotent=False, acks=-1)
    assert driver.consume(topic, {0: 0}, len(records)) == expected(records, places)


def test_keyed_partitioning(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """A key goes to the partition that Java's murmur2 gives, and each partition keeps the order of its records."""
    topic = fresh_topic("keyed")
    driver.create_topic(topic, 6)
    records = [
        Sent(value=b"%d" % index, key=b"tail-%d" % (index % 37), partition=None, timestamp_ms=T0_MS)
        for index in range(300)
    ]
    places = driver.produce(topic, records, codec="lz4", idempotent=True, acks=-1)
    for sent, (partition, _) in zip(records, places, strict=True):
        assert sent.key is not None
        assert partition == (murmur2(sent.key) & 0x7FFFFFFF) % 6
    received = driver.consume(topic, dict.fromkeys(range(6), 0), len(records))
    order = Counter[int]()
    for record in received:
        assert record.offset == order[record.partition]
        order[record.partition] += 1
    assert sorted(received, key=lambda each: int(each.value or b"")) == expected(records, places)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", DRIVERS, ids=lambda driver: driver.name)
def test_crosswise(
    node: RunningNode, reader: type[Driver], codec: str, fresh_topic: Callable[[str], str]
) -> None:
    """Each library reads the records that the other two wrote into one partition."""
    topic = fresh_topic("crosswise")
    written: list[Received] = []
    for index, writer_class in enumerate(DRIVERS):
        writer = writer_class(node.bootstrap)
        if index == 0:
            writer.create_topic(topic, 1)
        records = samples(20)
        places = writer.produce(topic, records, codec=codec, idempotent=True, acks=-1)
        written += expected(records, places)
    assert [each.offset for each in written] == list(range(len(written)))
    driver = reader(node.bootstrap)  # type: ignore[call-arg]  # a Protocol has no constructor
    assert driver.consume(topic, {0: 0}, len(written)) == written
