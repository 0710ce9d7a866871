"""Settings of group coordinators, from a node's configuration. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from odradek.metadata_quorum.config.typed_settings import minutes_as_milliseconds, setting

ASSIGNOR_NAMES = ("uniform", "range")
"""The supported assignors; the first is the default."""
_ASSIGNOR_CLASSES = "org.apache.kafka.coordinator.group.assignor."


def _offered_assignors(names: Sequence[str]) -> tuple[str, ...]:
    """List the supported assignors among `names`, which are short names or Kafka's class names.

    If none is supported, return all assignors.
    """
    known = {f"{_ASSIGNOR_CLASSES}{name.capitalize()}Assignor": name for name in ASSIGNOR_NAMES}
    found = (known.get(name, name) for name in names)
    return tuple(dict.fromkeys(name for name in found if name in ASSIGNOR_NAMES)) or ASSIGNOR_NAMES


@attrs.frozen(kw_only=True)
class GroupSettings:
    """The settings of a broker's group coordinators. Times are in milliseconds, sizes in bytes."""

    session_timeout_ms_min: int = setting("group.min.session.timeout.ms")
    session_timeout_ms_max: int = setting("group.max.session.timeout.ms")
    initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    group_size_max: int = setting("group.max.size")
    offset_metadata_bytes_max: int = setting("offset.metadata.max.bytes")
    offsets_retention_ms: int = setting("offsets.retention.minutes", minutes_as_milliseconds)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    offsets_commit_timeout_ms: int = setting("offsets.commit.timeout.ms")
    new_member_join_timeout_ms: int = 5 * 60_000
    """The time limit, in milliseconds, of a new member's wait for its first rebalance (a constant in Kafka).
    """
    append_bytes_max: int = setting("message.max.bytes")
    """The largest size of a batch of coordinator records, in bytes (Kafka uses the topic's
    `max.message.bytes`).
    """
    consumer_session_timeout_ms: int = setting("group.consumer.session.timeout.ms")
    consumer_session_timeout_ms_min: int = setting("group.consumer.min.session.timeout.ms")
    consumer_session_timeout_ms_max: int = setting("group.consumer.max.session.timeout.ms")
    consumer_heartbeat_interval_ms: int = setting("group.consumer.heartbeat.interval.ms")
    consumer_heartbeat_interval_ms_min: int = setting("group.consumer.min.heartbeat.interval.ms")
    consumer_heartbeat_interval_ms_max: int = setting("group.consumer.max.heartbeat.interval.ms")
    consumer_assignment_interval_ms: int = setting("group.consumer.assignment.interval.ms")
    consumer_assignment_interval_ms_min: int = setting("group.consumer.min.assignment.interval.ms")
    consumer_assignment_interval_ms_max: int = setting("group.consumer.max.assignment.interval.ms")
    consumer_group_size_max: int = setting("group.consumer.max.size")
    consumer_assignors: tuple[str, ...] = setting("group.consumer.assignors", _offered_assignors)
    """The assignors that members may name. The first is used if no member names one."""
    consumer_members_per_partition_max: int = 100_000
    """`odradek.group.consumer.members.max.per.partition`: the `consumer_weight` above which members are refused."""
    migration_policy: str = setting("group.consumer.migration.policy")
    """`group.consumer.migration.policy`: disabled, upgrade, downgrade or bidirectional, in upper or lower case."""
    consumer_regex_refresh_interval_ms: int = setting("group.consumer.regex.refresh.interval.ms")
    rebalance_protocols: tuple[str, ...] = setting("group.coordinator.rebalance.protocols")
    topic_partitions: int = setting("offsets.topic.num.partitions")
    topic_replication_factor: int = setting("offsets.topic.replication.factor")
    topic_segment_bytes: int = setting("offsets.topic.segment.bytes")
    compression_type: int = setting("offsets.topic.compression.codec")
    """`offsets.topic.compression.codec`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
