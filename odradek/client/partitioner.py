"""Which partition a record goes to. PURE.

A key always goes to the same partition, whichever client wrote it: Kafka's clients hash keys with murmur2, and so
do we. Records without a key stick to one partition until its batch is full (KIP-480): fewer, fuller batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["StickyPartitioner", "murmur2", "partition_for_key"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash (unsigned) that Kafka's clients use: MurmurHash2 with Kafka's seed."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key in a topic with so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The partition for records without a key, by topic."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._current: dict[str, int] = {}

    def partition(self, topic: str, available: Sequence[int]) -> int:
        """The topic's partition of the moment, one of `available` (not empty)."""
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._current[topic] = self._rng.choice(available)
        return current

    def batch_full(self, topic: str, available: Sequence[int]) -> None:
        """Move on to another partition, if there is one."""
        current = self._current.get(topic)
        others = [partition for partition in available if partition != current]
        if others:
            self._current[topic] = self._rng.choice(others)
