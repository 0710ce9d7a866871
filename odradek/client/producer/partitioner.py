"""The hash of a record's key (murmur2), and the partition that follows from it; records without a key are in
`accumulator.py`. PURE.

All Kafka clients hash keys with murmur2, and so does this client. So a key always goes to the same partition,
whichever client writes it. The accumulator chooses the partition of records without a key (KIP-794).
"""

from __future__ import annotations

import struct
from functools import lru_cache

__all__ = ["murmur2", "partition_for_key"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_REMEMBERED_BYTES_MAX = 64
_REMEMBERED_KEYS_MAX = 8192


def murmur2(data: bytes) -> int:
    """Compute the 32-bit hash (unsigned) that Kafka's clients use: MurmurHash2 with Kafka's seed.

    Hashing a key of 16 bytes takes 2 us, and most keys are used again. So the hashes of recent short keys are cached.
    """
    return _remembered(data) if len(data) <= _REMEMBERED_BYTES_MAX else _murmur2(data)


def _murmur2(data: bytes) -> int:
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for word in struct.unpack_from(f"<{whole >> 2}I", data):
        k = word * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_remembered = lru_cache(maxsize=_REMEMBERED_KEYS_MAX)(_murmur2)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Compute the partition of a key in a topic with `partition_count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
