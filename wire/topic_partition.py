"""Defines two named tuples that identify a partition: one by its topic's name, the other by its topic's id.

A named tuple is equal to the plain tuple of its two fields, and has the same hash. So both find the same entry of a
dict. Making a named tuple takes four times as long as making a plain tuple. So code that makes a key for each record or
request uses plain tuples, and the type of its dict says so.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TopicIdPartition", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A topic's name and a partition number. Equal to the plain tuple `(topic, partition)`, which may be used
    instead.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A topic's id (16 bytes) and a partition number. Unlike a name, an id is never given to a second topic.

    Inside a broker, this tuple also identifies the broker's own replica of the partition.
    """

    topic_id: bytes
    partition: int
