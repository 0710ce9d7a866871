"""The environment of a simulated group coordinator: the part of its broker that the coordinator uses. PURE.

The coordinator, its shard and its state machine are the product's (`odradek.data_plane.groups.coordinator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from odradek.data_plane.coordination.shard import CoordinatorHost
from odradek.data_plane.groups.coordinator import GroupCoordinator, Shard
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.hosted_topics import HostedTopic
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.serving.layered_map import LayeredMap
from sim.alone.by_hand import ByHand
from sim.alone.replication_broker import TOPIC_ID, Broker

__all__ = ["GroupHost"]


class GroupHost(ByHand):
    """A group coordinator, and the part of its broker that the coordinator uses. Each run of the broker's process has
    its own object.
    """

    def __init__(self, broker: Broker, settings: GroupSettings, now_ms: Callable[[], int]) -> None:
        super().__init__(broker, now_ms)
        topic = TopicImage(OFFSETS_TOPIC, TOPIC_ID, {0: cast("Any", None)})
        self.newest = NewestImage(MetadataImage(topics=LayeredMap({OFFSETS_TOPIC: topic})))
        hosted = HostedTopic(OFFSETS_TOPIC, TOPIC_ID, broker.log.config)
        hosted.partitions[0] = broker.partition
        self.topics: Mapping[str, HostedTopic] = {OFFSETS_TOPIC: hosted}
        self.coordinator = GroupCoordinator(cast("CoordinatorHost", self), settings)

    @property
    def shard(self) -> Shard | None:
        """The coordinator's shard for the only partition; None while this broker does not lead it."""
        return self.coordinator.shards.get(0)
