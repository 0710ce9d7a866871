"""The configuration of one topic's logs, as plain numbers. PURE.

Fields are Kafka's topic keys with underscores; times in milliseconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from odradek.metadata_quorum.config.config_defs import topic_defs
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers, topic_value
from odradek.metadata_quorum.config.typed_settings import settings_of, topic_setting
from odradek.wire.batches.compression import CompressionType

LONG_MAX = (1 << 63) - 1
LOG_APPEND_TIME = "LogAppendTime"
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
KEEP_CODEC = -1


@attrs.frozen
class LogConfig:
    """The settings of one topic, which the logs of all its partitions share."""

    segment_bytes: int = topic_setting("segment.bytes")
    segment_ms: int = topic_setting("segment.ms")
    segment_jitter_ms: int = topic_setting("segment.jitter.ms")
    segment_index_bytes: int = topic_setting("segment.index.bytes")
    index_interval_bytes: int = topic_setting("index.interval.bytes")
    retention_ms: int = topic_setting("retention.ms")
    """The age after which records are deleted, in milliseconds; -1 keeps records of any age."""
    retention_bytes: int = topic_setting("retention.bytes")
    """The size to which retention reduces the log, in bytes; -1 lets it grow without bound."""
    flush_messages: int = topic_setting("flush.messages")
    flush_ms: int = topic_setting("flush.ms")
    max_message_bytes: int = topic_setting("max.message.bytes")
    cleanup_policy: tuple[str, ...] = topic_setting("cleanup.policy")
    message_timestamp_type: str = topic_setting("message.timestamp.type")
    message_timestamp_before_max_ms: int = topic_setting("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = topic_setting("message.timestamp.after.max.ms")
    file_delete_delay_ms: int = topic_setting("file.delete.delay.ms")
    min_insync_replicas: int = topic_setting("min.insync.replicas")
    compression_type: str = topic_setting("compression.type")
    compression_gzip_level: int = topic_setting("compression.gzip.level")
    compression_lz4_level: int = topic_setting("compression.lz4.level")
    compression_zstd_level: int = topic_setting("compression.zstd.level")
    delete_retention_ms: int = topic_setting("delete.retention.ms")
    min_compaction_lag_ms: int = topic_setting("min.compaction.lag.ms")
    max_compaction_lag_ms: int = topic_setting("max.compaction.lag.ms")
    min_cleanable_dirty_ratio: float = topic_setting("min.cleanable.dirty.ratio")
    unclean_leader_election_enable: bool = topic_setting("unclean.leader.election.enable")
    verifies_transactions: bool = True
    """True if the broker must ask a transaction's coordinator before the transaction's first append to this
    log (KIP-890).
    """
    decompressed_bytes_max: int = 128 << 20
    """The largest allowed size in bytes of a batch after decompression. It limits the memory that a small
    request can use. Kafka has no such limit.
    """

    is_compacted: bool = attrs.field(init=False)
    deletes_by_retention: bool = attrs.field(init=False)
    roll_ms: int = attrs.field(init=False)
    """The age in milliseconds at which the active segment is finished and a new one begins. In a compacted
    topic it is at most `max.compaction.lag.ms`, because only finished segments are cleaned.
    """
    uses_append_time: bool = attrs.field(init=False)
    checks_records: bool = attrs.field(init=False)
    """True if a rule of the topic needs every record of a batch. The header of a batch lacks the keys and the
    smallest timestamp.
    """
    codec: int = attrs.field(init=False)
    """The codec (`odradek.wire.batches.compression.CompressionType`) in which all batches are stored.
    KEEP_CODEC leaves each batch its own codec.
    """
    codec_level: int | None = attrs.field(init=False)
    offset_index_entries_max: int = attrs.field(init=False)
    time_index_entries_max: int = attrs.field(init=False)

    @is_compacted.default
    def _is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @deletes_by_retention.default
    def _deletes_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @roll_ms.default
    def _roll_ms(self) -> int:
        """Compute the age in milliseconds at which the active segment is finished (Kafka's `maxSegmentMs`)."""
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @uses_append_time.default
    def _uses_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @checks_records.default
    def _checks_records(self) -> bool:
        bounded = self.message_timestamp_before_max_ms < LONG_MAX and not self.uses_append_time
        return self.is_compacted or bounded

    @codec.default
    def _codec(self) -> int:
        if self.compression_type == "producer":
            return KEEP_CODEC
        if self.compression_type == "uncompressed":
            return CompressionType.NONE
        return CompressionType[self.compression_type.upper()]

    @codec_level.default
    def _codec_level(self) -> int | None:
        """Return the compression level for the codec, or None for the codec's default. A topic that
        configures the default level explicitly also gets None. (For lz4, Kafka's default level means fast
        compression, but the lz4 library takes the same number for dense, slow compression.)
        """
        level = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }.get(self.compression_type)
        definition = topic_defs().get(f"compression.{self.compression_type}.level")
        return None if definition is None or level == definition.default_value() else level

    @offset_index_entries_max.default
    def _offset_index_entries_max(self) -> int:
        return max(1, self.segment_index_bytes // OFFSET_ENTRY_BYTES)

    @time_index_entries_max.default
    def _time_index_entries_max(self) -> int:
        """Compute the most entries that a time index may have while its segment is active. One more entry is
        reserved, because a segment gets a last entry when it is finished.
        """
        return max(1, self.segment_index_bytes // TIME_ENTRY_BYTES - 1)


def log_config(
    overrides: Mapping[str, str], layers: BrokerConfigLayers, *, verifies_transactions: bool = True
) -> LogConfig:
    """Build the configuration of a topic's logs: the topic's own values take precedence over the broker's.

    `internal.segment.bytes` takes precedence over `segment.bytes`, as in Kafka (it has no lower bound).
    """
    others: dict[str, Any] = {}
    internal = topic_value("internal.segment.bytes", overrides, layers)
    if internal:
        others["segment_bytes"] = internal
    return settings_of(LogConfig, layers, overrides, verifies_transactions=verifies_transactions, **others)
