"""The records in `__consumer_offsets`, and the versions in which values are written. PURE."""

from __future__ import annotations

from odradek.data_plane.coordination.records import CoordinatorRecord, RecordProducer
from odradek.wire.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.wire.metadata_frames import UnknownRecord, decode_coordinator_key
from odradek.wire.structure import Message

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1


def offset_commit_record(
    group: str, topic: str, partition: int, value: OffsetCommitValue, producer: RecordProducer | None = None
) -> CoordinatorRecord:
    """Make the record of a committed offset.

    A request of version 2 to 4 may have an expiry time. A value with an expiry time is written in version 1,
    since later versions of the value lack this field.
    """
    version = OFFSET_COMMIT_VERSION if value.expire_timestamp < 0 else OFFSET_COMMIT_VERSION_WITH_EXPIRY
    return CoordinatorRecord(OffsetCommitKey(group, topic, partition), value, version, producer)


def offset_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group, topic, partition), None)


def group_metadata_record(group: str, value: GroupMetadataValue) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group), value, GROUP_METADATA_VERSION)


def group_metadata_tombstone(group: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group), None)


def decode_key(data: bytes) -> Message | None:
    """Decode the key of a coordinator record.

    Returns None for an empty key, and for a type of key that only newer versions know. (Kafka skips such
    keys, too.) Raises `MalformedMessage`.
    """
    try:
        return decode_coordinator_key(data) if len(data) >= 2 else None
    except UnknownRecord:
        return None


__all__ = [
    "GroupMetadataKey",
    "GroupMetadataValue",
    "LegacyOffsetCommitKey",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "decode_key",
    "group_metadata_record",
    "group_metadata_tombstone",
    "offset_commit_record",
    "offset_tombstone",
]
