"""The rule by which a group or a transactional id has its coordinator. PURE."""

from __future__ import annotations

__all__ = ["coordinator_partition"]


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of the coordinators' topic, which has so many of them, whose leader coordinates this key.

    Kafka's rule: the absolute value of Java's `String.hashCode` (over UTF-16 code units), modulo the partitions.
    """
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    magnitude = code if code < 1 << 31 else (1 << 32) - code
    return (0 if magnitude == 1 << 31 else magnitude) % partitions
