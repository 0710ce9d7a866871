"""The topic behind group coordinators, and how it is created at the first need. PURE."""

from __future__ import annotations

from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_topic(settings: GroupSettings) -> CreatableTopic:
    """The topic as the `offsets.topic.*` keys describe it; it is compacted, since the latest value of each key is all
    that counts."""
    configs = [
        CreatableTopicConfig("cleanup.policy", "compact"),
        CreatableTopicConfig("segment.bytes", str(settings.topic_segment_bytes)),
        CreatableTopicConfig("compression.type", "producer"),
    ]
    return CreatableTopic(
        OFFSETS_TOPIC, settings.topic_partitions, settings.topic_replication_factor, [], configs
    )
