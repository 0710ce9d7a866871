"""The topics and partitions that this broker hosts, by name and by id. PURE.

Only `HostedPartitions` changes this collection, as the metadata says; all other parts of a broker only read
it.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.data_plane.log.log_config import KEEP_CODEC, LogConfig
from odradek.data_plane.replication.partition import Partition


class HostedTopic:
    """A topic of which this broker hosts at least one partition."""

    __slots__ = ("config", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, config: LogConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.partitions: dict[int, Partition] = {}


class HostedTopics:
    """All topics that this broker hosts. Requests read the dicts directly, which saves the time of a call."""

    __slots__ = ("by_id", "by_name", "recompressed")

    def __init__(self) -> None:
        self.by_name: dict[str, HostedTopic] = {}
        self.by_id: dict[bytes, HostedTopic] = {}
        self.recompressed: dict[bytes, None] = {}
        """Ids of the topics whose `compression.type` is not `producer`."""

    def find(self, topic: str | bytes) -> HostedTopic | None:
        """Return the hosted topic with this name or id; None if there is none."""
        return self.by_id.get(topic) if isinstance(topic, bytes) else self.by_name.get(topic)

    def partition(self, topic: str | bytes, index: int) -> Partition | None:
        """Return the hosted partition of the topic with this name or id; None if there is none."""
        found = self.find(topic)
        return None if found is None else found.partitions.get(index)

    def holds(self, partition: Partition) -> bool:
        """True if exactly this partition object is hosted. After a deletion, another object may have the same
        topic and number.
        """
        return self.partition(partition.log.topic_id, partition.log.partition) is partition

    def partitions(self) -> Iterator[Partition]:
        """Yield all hosted partitions. Copy them into a list before hosting or removing any."""
        for hosted in self.by_name.values():
            yield from hosted.partitions.values()

    def put(self, hosted: HostedTopic) -> None:
        """Add this topic, or replace the hosted topic of the same name."""
        self.by_name[hosted.name] = hosted
        self.by_id[hosted.topic_id] = hosted
        self.note_config(hosted)

    def note_config(self, hosted: HostedTopic) -> None:
        """Update `recompressed`, because the topic's configuration may have changed."""
        if hosted.config.codec == KEEP_CODEC:
            self.recompressed.pop(hosted.topic_id, None)
        else:
            self.recompressed[hosted.topic_id] = None

    def remove(self, topic_id: bytes) -> HostedTopic | None:
        """Stop hosting the topic with this id. Returns the hosted topic, or None if there was none."""
        hosted = self.by_id.pop(topic_id, None)
        if hosted is not None:
            self.recompressed.pop(topic_id, None)
            if self.by_name.get(hosted.name) is hosted:
                del self.by_name[hosted.name]
        return hosted
