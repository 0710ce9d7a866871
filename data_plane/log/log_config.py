"""The configuration of one topic's logs, as plain numbers.

Values come from the caller with all defaults of the broker filled in; what is missing here falls back to Kafka's
defaults. Names are Kafka's topic keys with underscores; times in milliseconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from wire.batches.compression import CompressionType

LONG_MAX = (1 << 63) - 1
LOG_APPEND_TIME = "LogAppendTime"
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
"""Kafka's number for lz4's ordinary, fast compression; all others mean the slow, dense one."""
ZSTD_LEVEL_DEFAULT = 3
KEEP_CODEC = -1


@attrs.frozen
class LogConfig:
    """One topic's settings, shared by the logs of all its partitions."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    """-1: records are kept whatever their age."""
    retention_bytes: int = -1
    """-1: the log may grow without bound."""
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    cleanup_policy: tuple[str, ...] = ("delete",)
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = GZIP_LEVEL_DEFAULT
    compression_lz4_level: int = LZ4_LEVEL_DEFAULT
    compression_zstd_level: int = ZSTD_LEVEL_DEFAULT
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    unclean_leader_election_enable: bool = False
    decompressed_bytes_max: int = 128 << 20
    """Ours, not Kafka's: a batch may not grow beyond this, so that a small request cannot cost much memory."""

    is_compacted: bool = attrs.field(init=False)
    deletes_by_retention: bool = attrs.field(init=False)
    uses_append_time: bool = attrs.field(init=False)
    checks_records: bool = attrs.field(init=False)
    """Whether a rule needs every record: a header tells the largest timestamp, but neither keys nor the smallest."""
    codec: int = attrs.field(init=False)
    """The codec (`wire.batches.compression.CompressionType`) that all batches get; KEEP_CODEC: the one they came with."""
    codec_level: int | None = attrs.field(init=False)
    offset_index_entries_max: int = attrs.field(init=False)
    time_index_entries_max: int = attrs.field(init=False)

    @is_compacted.default
    def _is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @deletes_by_retention.default
    def _deletes_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

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
        level, default = {
            "gzip": (self.compression_gzip_level, GZIP_LEVEL_DEFAULT),
            "lz4": (self.compression_lz4_level, LZ4_LEVEL_DEFAULT),
            "zstd": (self.compression_zstd_level, ZSTD_LEVEL_DEFAULT),
        }.get(self.compression_type, (0, 0))
        return None if level == default else level

    @offset_index_entries_max.default
    def _offset_index_entries_max(self) -> int:
        return max(1, self.segment_index_bytes // OFFSET_ENTRY_BYTES)

    @time_index_entries_max.default
    def _time_index_entries_max(self) -> int:
        """One entry is kept free for the last one, which a segment gets when it is rolled."""
        return max(1, self.segment_index_bytes // TIME_ENTRY_BYTES - 1)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LogConfig:
        """From Kafka's topic keys; keys that say nothing about a log are ignored.

        `internal.segment.bytes` wins over `segment.bytes`, as in Kafka (it is not bounded from below).

        Raises:
            ValueError: a value that is no number where one is needed.
        """
        values: dict[str, object] = {}
        for field in attrs.fields(cls):
            text = properties.get(field.name.replace("_", ".")) if field.init else None
            if text is not None:
                values[field.name] = _parse(text, field.default)
        internal = properties.get("internal.segment.bytes")
        if internal:
            values["segment_bytes"] = int(internal)
        return cls(**values)  # type: ignore[arg-type]  # each value has the type of its field's default


def _parse(text: str, like: object) -> object:
    if isinstance(like, bool):
        return text.strip().lower() == "true"
    if isinstance(like, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(like, float):
        return float(text)
    if isinstance(like, int):
        return int(text)
    return text
