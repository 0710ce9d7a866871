"""The newest committed metadata of all nodes, and the last changes in these metadata. PURE.

All images are states of the same metadata log, so the image with the highest offset is the newest. A node may answer
by an image that was not recorded here yet. So `refresh` reads the images of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odradek.metadata_quorum.image.metadata_image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from odradek.wire.topic_partition import TopicIdPartition
from sim.checks.watched import Processes

__all__ = ["NewestMetadata"]


class NewestMetadata:
    """The newest metadata image. `see` is called with each image that a node publishes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.image: MetadataImage | None = None
        self.configs_changed_at = float("-inf")
        """The virtual time in seconds at which any configuration last changed."""
        self._fenced_at: dict[int, int] = {}
        """For each broker id, the offset of the last image that showed the broker as fenced or newly registered."""
        self.on_change: list[Callable[[TopicIdPartition, PartitionImage], None]] = []
        """Called with each partition that is new or has changed."""

    def refresh(self) -> None:
        """Read the images of all living nodes, and adopt the newest."""
        for _, node in self._processes.living():
            if node.metadata is not None:
                self.see(node.metadata.committed_image, None)

    def see(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        """Adopt an image if it is newer. `delta` has the changes since the node's previous image; None if these are
        unknown.
        """
        before = self.image
        if before is not None and image.offset <= before.offset:
            return
        self.image = image
        if delta is None or delta.changed_configs:
            self.configs_changed_at = self._processes.world.now
        if before is None or image.brokers is not before.brokers:
            for broker_id, broker in image.brokers.items():
                known = None if before is None else before.brokers.get(broker_id)
                if known is None or broker.fenced or known.epoch != broker.epoch:
                    self._fenced_at[broker_id] = image.offset
        names = image.topics if delta is None or before is None else delta.changed_topics
        for name in names:
            topic = image.topics.get(name)
            if topic is None:
                continue
            old = None if before is None else before.topics_by_id.get(topic.topic_id)
            if old is not topic:
                self._compare(topic.topic_id, {} if old is None else old.partitions, topic.partitions)

    def _compare(
        self, topic_id: bytes, old: Mapping[int, PartitionImage], new: Mapping[int, PartitionImage]
    ) -> None:
        for index, partition in new.items():
            known = old.get(index)
            if known is partition:
                continue
            for listener in self.on_change:
                listener(TopicIdPartition(topic_id, index), partition)

    def partition(self, key: TopicIdPartition) -> PartitionImage | None:
        """Return the newest image of a partition; None if it is deleted."""
        topic = None if self.image is None else self.image.topics_by_id.get(key.topic_id)
        return None if topic is None else topic.partitions.get(key.partition)

    def name(self, key: TopicIdPartition) -> str | None:
        """Return `topic-partition`, as log directories are named; None for a deleted topic."""
        topic = None if self.image is None else self.image.topics_by_id.get(key.topic_id)
        return None if topic is None else f"{topic.name}-{key.partition}"

    def was_active_since(self, broker_id: int, offset: int) -> bool:
        """True if no image after `offset` shows this broker as fenced or newly registered."""
        return (
            self.image is not None
            and broker_id in self.image.brokers
            and self._fenced_at[broker_id] <= offset
        )
