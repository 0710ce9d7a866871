"""Finds the partition whose leader coordinates a group or a transactional id. PURE."""

from __future__ import annotations

import sys
from operator import mul

__all__ = ["coordinator_partition"]

_NATIVE_UTF16 = f"utf-16-{'le' if sys.byteorder == 'little' else 'be'}"
_CHUNK_UNITS = 256
_MASK = 0xFFFFFFFF
_POWERS = [pow(31, exponent, _MASK + 1) for exponent in range(_CHUNK_UNITS + 1)]


def coordinator_partition(key: str, partitions: int) -> int:
    """Return the number of the partition whose leader is the coordinator of this group or transactional id.
    `partitions` is the number of partitions of the coordinators' topic.

    The number is computed as in Kafka: the absolute value of Java's `String.hashCode` (over UTF-16 code
    units), modulo the number of partitions.
    """
    # Avoid a Python loop over the characters, which would take 5 ms for a key of 32 KiB. A request may have
    # many such keys.
    units = memoryview(key.encode(_NATIVE_UTF16, "surrogatepass")).cast("H").tolist()
    units.reverse()
    code, scale = 0, 1
    for at in range(0, len(units), _CHUNK_UNITS):
        code = (code + scale * sum(map(mul, units[at : at + _CHUNK_UNITS], _POWERS))) & _MASK
        scale = scale * _POWERS[_CHUNK_UNITS] & _MASK
    magnitude = code if code < 1 << 31 else (1 << 32) - code
    return (0 if magnitude == 1 << 31 else magnitude) % partitions
