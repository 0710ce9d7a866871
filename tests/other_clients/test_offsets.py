"""Watermarks, offsets by time, reading from the middle of a partition, and waiting at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.other_clients.drivers import Driver, Sent

T0_MS = 1_700_000_000_000


def test_watermarks(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """The low watermark is the log start offset and the high one the next offset, for each partition."""
    topic = fresh_topic("watermarks")
    driver.create_topic(topic, 2)
    assert driver.watermarks(topic, 0) == (0, 0)
    driver.produce(topic, [Sent(b"x", partition=1)] * 7, codec="none", idempotent=False, acks=-1)
    assert driver.watermarks(topic, 0) == (0, 0)
    assert driver.watermarks(topic, 1) == (0, 7)


def test_offset_by_time(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """ListOffsets by time returns the first offset whose timestamp is at or after the given time."""
    topic = fresh_topic("times")
    driver.create_topic(topic, 1)
    for codec in ("none", "zstd"):
        start = driver.watermarks(topic, 0)[1]
        records = [Sent(b"%d" % index, timestamp_ms=T0_MS + 1000 * (start + index)) for index in range(20)]
        driver.produce(topic, records, codec=codec, idempotent=False, acks=-1)
    assert driver.offset_for_time(topic, 0, 0) == 0
    assert driver.offset_for_time(topic, 0, T0_MS + 5000) == 5
    assert driver.offset_for_time(topic, 0, T0_MS + 5001) == 6
    assert driver.offset_for_time(topic, 0, T0_MS + 27_500) == 28
    assert driver.offset_for_time(topic, 0, T0_MS + 39_001) is None


def test_from_the_middle(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """A consumer that starts inside a batch gets no record before its offset."""
    topic = fresh_topic("middle")
    driver.create_topic(topic, 1)
    records = [Sent(b"%d" % index) for index in range(100)]
    driver.produce(topic, records, codec="gzip", idempotent=False, acks=-1)
    received = driver.consume(topic, {0: 63}, 37)
    assert [record.offset for record in received] == list(range(63, 100))
    assert [record.value for record in received] == [record.value for record in records[63:]]


def test_long_poll(driver: Driver, fresh_topic: Callable[[str], str]) -> None:
    """A consumer that waits at the end of a partition gets records that are written later."""
    topic = fresh_topic("poll")
    driver.create_topic(topic, 1)
    driver.produce(topic, [Sent(b"early")], codec="none", idempotent=False, acks=-1)
    values: list[bytes | None] = []
    reader = threading.Thread(
        target=lambda: values.extend(record.value for record in driver.consume(topic, {0: 1}, 2))
    )
    reader.start()
    try:
        driver.produce(topic, [Sent(b"late"), Sent(b"later")], codec="none", idempotent=False, acks=-1)
    finally:
        reader.join()
    assert values == [b"late", b"later"]
