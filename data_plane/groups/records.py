"""Coordinator records as `__consumer_offsets` holds them. PURE.

A key is its record type as an int16 and the key message at version 0; a value is its version as an int16 and the
value message at that version; no value is a tombstone.
"""

from __future__ import annotations

import struct

import attrs

from wire.codec import decode, encode
from wire.messages.coordinator_records import (
    KEYS,
    VALUES,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from wire.structure import Message

GROUP_METADATA_VERSION = 3
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1
_TYPE = struct.Struct(">h")


@attrs.frozen
class CoordinatorRecord:
    """One record: a key, and a value at the version in which it is written, or None."""

    key: Message
    value: Message | None
    value_version: int = 0

    def encoded_key(self) -> bytes:
        assert self.key.API_KEY is not None
        return _TYPE.pack(self.key.API_KEY) + encode(self.key, 0)

    def encoded_value(self) -> bytes | None:
        if self.value is None:
            return None
        return _TYPE.pack(self.value_version) + encode(self.value, self.value_version)


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
    """The key; None for a type that this version does not know (a newer one's, which Kafka skips too).

    Raises `MalformedMessage`.
    """
    kind = _TYPE.unpack_from(data)[0] if len(data) >= 2 else -1
    key_class = KEYS.get(kind)
    return None if key_class is None else decode(key_class, 0, data, 2)


def decode_value(key: Message, data: bytes) -> Message:
    """The value that belongs to `key`. Raises `MalformedMessage`."""
    assert key.API_KEY is not None
    version = _TYPE.unpack_from(data)[0] if len(data) >= 2 else -1
    message: Message = decode(VALUES[key.API_KEY], version, data, 2)
    return message


__all__ = [
    "CoordinatorRecord",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "LegacyOffsetCommitKey",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "decode_key",
    "decode_value",
    "group_metadata_record",
    "group_metadata_tombstone",
    "offset_commit_record",
    "offset_tombstone",
]
