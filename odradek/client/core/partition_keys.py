"""Partitions as callers name them, by `TopicPartition` or by a plain tuple, and as operations hold them. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from odradek.wire.topic_partition import TopicPartition

__all__ = ["ByPartition", "by_topic", "named"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class ByPartition(Protocol[V_co]):
    """A mapping with a value for each partition, whichever its keys are. (To type checkers no `Mapping` is both.)"""

    def items(self) -> Iterable[tuple[tuple[str, int], V_co]]:
        """The pairs of (topic, partition) and value, as `Mapping.items` gives them."""


def named(values: ByPartition[V]) -> dict[TopicPartition, V]:
    """The same values in the same order, under names whose text is that of Kafka's tools."""
    return {TopicPartition(*key): value for key, value in values.items()}


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers of the partitions by topic, in the order in which each topic comes first."""
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return topics
