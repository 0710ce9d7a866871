"""Coordinator records as `__consumer_offsets` holds them, and the versions that values are written at. PURE.

Their frames are those of `wire.metadata_frames`; no value is a tombstone.
"""

from __future__ import annotations

import attrs

from wire.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from wire.metadata_frames import (
    UnknownRecord,
    decode_coordinator_key,
    encode_coordinator_key,
    encode_coordinator_value,
)
from wire.structure import Message

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1


@attrs.frozen
class CoordinatorRecord:
    """One record: a key, and a value at the version in which it is written, or None."""

    key: Message
    value: Message | None
    value_version: int = 0

    def encoded_key(self) -> bytes:
        return encode_coordinator_key(self.key)

    def encoded_value(self) -> bytes | None:
        if self.value is None:
            return None
        return encode_coordinator_value(self.value, self.value_version)


def offset_commit_record(
    group: str, topic: str, partition: int, value: OffsetCommitValue
) -> CoordinatorRecord:
    """A committed offset. Only version 1 can say when it expires (a request of versions 2 to 4)."""
    version = OFFSET_COMMIT_VERSION if value.expire_timestamp < 0 else OFFSET_COMMIT_VERSION_WITH_EXPIRY
    return CoordinatorRecord(OffsetCommitKey(group, topic, partition), value, version)


def offset_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group, topic, partition), None)


def group_metadata_record(group: str, value: GroupMetadataValue) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group), value, GROUP_METADATA_VERSION)


def group_metadata_tombstone(group: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group), None)


def decode_key(data: bytes) -> Message | None:
    """The key of a coordinator record, decoded.

    None for an empty one, and for a type that this version does not know (a newer one's, which Kafka skips too).

    Raises:
        MalformedMessage
    """
    try:
        return decode_coordinator_key(data) if len(data) >= 2 else None
    except UnknownRecord:
        return None


__all__ = [
    "CoordinatorRecord",
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
