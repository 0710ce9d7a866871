"""Two named tuples that name a partition: by its topic's name, and by its topic's id.

Each is equal to the plain tuple of its two fields and has the same hash, so either finds the same entry of a
dict. To make a named tuple takes four times as long as to make a plain one. So code that makes a key per
record or per request uses plain tuples, and its dict's type shows this.
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

    Inside a broker it also names the broker's own replica of that partition.
    """

    topic_id: bytes
    partition: int
