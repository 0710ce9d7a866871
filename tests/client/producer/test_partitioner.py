"""A key's partition must be that of every other Kafka client."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.producer.partitioner import murmur2, partition_for_key


def test_murmur2_gives_kafkas_hashes() -> None:
    """Our murmur2 returns the values of Kafka's own test. Kafka's values are signed."""
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: (murmur2(key) ^ 1 << 31) - (1 << 31) for key in expected} == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib", "ignore::DeprecationWarning:kafka")
@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(1, 1000))
def test_keys_go_where_kafka_python_sends_them(key: bytes, count: int) -> None:
    """kafka-python, an independent implementation, chooses equal partitions: toPositive(murmur2(key)) % partitions."""
    from kafka.partitioner.default import murmur2 as kafka_pythons

    assert murmur2(key) == kafka_pythons(key) & 0xFFFFFFFF
    assert partition_for_key(key, count) == (kafka_pythons(key) & 0x7FFFFFFF) % count
