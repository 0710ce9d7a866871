"""The environment of a simulated coordinator of consumer groups: its broker, on which topics are created and get more
partitions. PURE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.metadata_quorum.image.metadata_image import (
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.serving.layered_map import LayeredMap
from sim.alone.consumers.consumer_checks import topic_id
from sim.alone.groups.group_host import GroupHost
from sim.alone.replication_broker import TOPIC_ID, Broker

__all__ = ["ConsumerHost"]

ONE_REPLICA = PartitionImage(1, 0, 0, (1,), (1,))


class ConsumerHost(GroupHost):
    """A group coordinator, with the topics that its broker's metadata image contains."""

    def __init__(self, broker: Broker, settings: GroupSettings, now_ms: Callable[[], int]) -> None:
        super().__init__(broker, settings, now_ms)
        self._seen: dict[str, int] = {}

    def see(self, counts: Mapping[str, int], offset: int) -> None:
        """Publish a metadata image with these topics to the coordinator. `counts` has the number of partitions by topic
        name. `offset` is the end offset of the metadata log that has these topics. For the same topics it is the same
        on every broker.
        """
        if counts == self._seen:
            return
        changed = [name for name in sorted(counts) if counts[name] != self._seen.get(name)]
        created = tuple(name for name in changed if name not in self._seen)
        self._seen = dict(counts)
        images = {
            name: TopicImage(name, topic_id(name), dict.fromkeys(range(count), ONE_REPLICA))
            for name, count in counts.items()
        }
        images[OFFSETS_TOPIC] = TopicImage(OFFSETS_TOPIC, TOPIC_ID, {0: ONE_REPLICA})
        self.newest.image = MetadataImage(
            offset,
            topics=LayeredMap(images),
            topics_by_id=LayeredMap({each.topic_id: each for each in images.values()}),
        )
        self.coordinator.apply_metadata(
            MetadataDelta(changed_topics=dict.fromkeys(changed, ()), created_topics=created)
        )
