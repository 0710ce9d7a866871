"""Settings of group coordinators, from a node's configuration. PURE."""

from __future__ import annotations

import attrs

from odradek.metadata_quorum.config.typed_settings import minutes_as_milliseconds, setting


@attrs.frozen(kw_only=True)
class GroupSettings:
    """Times in milliseconds, sizes in bytes."""

    session_timeout_ms_min: int = setting("group.min.session.timeout.ms")
    session_timeout_ms_max: int = setting("group.max.session.timeout.ms")
    initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    group_size_max: int = setting("group.max.size")
    offset_metadata_bytes_max: int = setting("offset.metadata.max.bytes")
    offsets_retention_ms: int = setting("offsets.retention.minutes", minutes_as_milliseconds)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    offsets_commit_timeout_ms: int = setting("offsets.commit.timeout.ms")
    new_member_join_timeout_ms: int = 5 * 60_000
    """Milliseconds that a new member may wait for its first rebalance to end (a constant of Kafka's)."""
    append_bytes_max: int = setting("message.max.bytes")
    """The largest batch of coordinator records (Kafka: `max.message.bytes` of the topic)."""
    topic_partitions: int = setting("offsets.topic.num.partitions")
    topic_replication_factor: int = setting("offsets.topic.replication.factor")
    topic_segment_bytes: int = setting("offsets.topic.segment.bytes")
    compression_type: int = setting("offsets.topic.compression.codec")
    """`offsets.topic.compression.codec`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
