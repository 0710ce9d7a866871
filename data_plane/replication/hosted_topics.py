"""The topics and partitions that are hosted on this broker, by name and by id. PURE.

Only `HostedPartitions` changes it, to follow the metadata; all other parts of a broker look partitions up in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.data_plane.log.log_config import KEEP_CODEC, LogConfig
from odradek.data_plane.replication.partition import Partition


class HostedTopic:
    """A topic of which this broker hosts partitions."""

    __slots__ = ("config", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, config: LogConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.partitions: dict[int, Partition] = {}


class HostedTopics:
    """All hosted topics. Requests read the dicts directly: a call would cost each of them time."""

    __slots__ = ("by_id", "by_name", "recompressed")

    def __init__(self) -> None:
        self.by_name: dict[str, HostedTopic] = {}
        self.by_id: dict[bytes, HostedTopic] = {}
        self.recompressed: dict[bytes, None] = {}
        """Ids of the topics whose `compression.type` is not `producer`."""

    def find(self, topic: str | bytes) -> HostedTopic | None:
        """Return the topic of this name or id."""
        return self.by_id.get(topic) if isinstance(topic, bytes) else self.by_name.get(topic)

    def partition(self, topic: str | bytes, index: int) -> Partition | None:
        """Find the partition of a topic's name or id, if it is hosted here."""
        found = self.find(topic)
        return None if found is None else found.partitions.get(index)

    def holds(self, partition: Partition) -> bool:
        """True if this partition object is hosted. After a deletion, another object may have the same topic and
        number.
        """
        return self.partition(partition.log.topic_id, partition.log.partition) is partition

    def partitions(self) -> Iterator[Partition]:
        """Yield all hosted partitions. Code that changes the set makes a list of them first."""
        for hosted in self.by_name.values():
            yield from hosted.partitions.values()

    def put(self, hosted: HostedTopic) -> None:
        """Host this topic with its present configuration. It replaces another topic of its name."""
        self.by_name[hosted.name] = hosted
        self.by_id[hosted.topic_id] = hosted
        self.note_config(hosted)

    def note_config(self, hosted: HostedTopic) -> None:
        """Note that the topic's configuration may have changed."""
        if hosted.config.codec == KEEP_CODEC:
            self.recompressed.pop(hosted.topic_id, None)
        else:
            self.recompressed[hosted.topic_id] = None

    def remove(self, topic_id: bytes) -> HostedTopic | None:
        """Stop hosting this topic; returns the hosted topic, if there was one."""
        hosted = self.by_id.pop(topic_id, None)
        if hosted is not None:
            self.recompressed.pop(topic_id, None)
            if self.by_name.get(hosted.name) is hosted:
                del self.by_name[hosted.name]
        return hosted
