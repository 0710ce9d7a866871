"""Converts partitions from callers, which may be plain tuples, to the `TopicPartition` keys of operations.
PURE.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from odradek.wire.topic_partition import TopicPartition

__all__ = ["ByPartition", "by_topic", "named"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class ByPartition(Protocol[V_co]):
    """A mapping from partitions to values. Its keys are tuples or `TopicPartition`s. (For a type checker, no single
    `Mapping` type has both kinds of keys.)
    """

    def items(self) -> Iterable[tuple[tuple[str, int], V_co]]:
        """Return the pairs of key and value, as `Mapping.items` does. A key is (topic, partition)."""


def named(values: ByPartition[V]) -> dict[TopicPartition, V]:
    """Return the same mapping, in the same order, with `TopicPartition` keys. A printed `TopicPartition`
    looks as in Kafka's tools.
    """
    return {TopicPartition(*key): value for key, value in values.items()}


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """List the numbers of the partitions by topic. Topics are in the order of their first partition."""
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return topics
