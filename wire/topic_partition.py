"""The names of a partition: by its topic's name, and by its topic's id.

Each is equal to the plain tuple of its two fields and has its hash, so a dict finds one by the other. Making one
costs four times as much as making a plain tuple. Code that makes a key per record or per request uses plain tuples,
and says so where it declares the dict.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TopicIdPartition", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A partition of a topic; equal to the plain tuple `(topic, partition)`, which is accepted wherever this is."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of the topic that has this id: 16 bytes, unlike a name never given again.

    Inside a broker it also names the broker's own replica of that partition.
    """

    topic_id: bytes
    partition: int
