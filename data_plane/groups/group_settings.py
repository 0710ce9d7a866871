"""What group coordinators take from a node's configuration. PURE."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class GroupSettings:
    """Kafka's keys, in the units of their names. The defaults are Kafka's."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    group_size_max: int = 2_147_483_647
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    new_member_join_timeout_ms: int = 5 * 60_000
    """How long a new member may wait for its first rebalance to end (a constant of Kafka's)."""
    append_bytes_max: int = 1_048_588
    """The largest batch of coordinator records (Kafka: `max.message.bytes` of the topic)."""
    topic_partitions: int = 50
    topic_replication_factor: int = 3
    topic_segment_bytes: int = 104_857_600
    compression_type: int = 0
    """`offsets.topic.compression.codec`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
