"""The names of a partition: by its topic's name, and by its topic's id.

Each is equal to the plain tuple of its two fields and has the same hash, so either finds the same entry of a dict.
To make one costs four times as much as to make a plain tuple. Code that makes a key per record or per request uses
plain tuples, and its dict's declaration says so.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TopicIdPartition", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A partition of a topic; equal to the plain tuple `(topic, partition)`, which may be used instead."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of the topic that has this id of 16 bytes. An id, unlike a name, is never used again.

    Inside a broker it also names the broker's own replica of that partition.
    """

    topic_id: bytes
    partition: int
