"""The internal topic `__consumer_offsets`: the request that creates it when it is first needed. PURE."""

from __future__ import annotations

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_topic(settings: GroupSettings) -> CreatableTopic:
    """Build the request to create the topic, from the `offsets.topic.*` keys.

    The topic is compacted, since only the latest value of each key counts.
    """
    configs = [
        CreatableTopicConfig("cleanup.policy", "compact"),
        CreatableTopicConfig("segment.bytes", str(settings.topic_segment_bytes)),
        CreatableTopicConfig("compression.type", "producer"),
    ]
    return CreatableTopic(
        OFFSETS_TOPIC, settings.topic_partitions, settings.topic_replication_factor, [], configs
    )
