"""The groups of one partition of `__consumer_offsets`: an immutable value, changed by replay alone. PURE.

A group exists as soon as there is a record of it, of its metadata or of an offset. It ends with a tombstone of its
metadata that comes when it has no offset left. The messages in the maps are shared between states and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from data_plane.groups.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
)
from metadata_quorum.image.layered_map import LayeredMap
from wire.errors import MalformedMessage
from wire.messages.coordinator_records import LegacyOffsetCommitValue
from wire.metadata_frames import decode_coordinator_value
from wire.structure import Message

OffsetKey: TypeAlias = tuple[str, int]
"""Topic and partition, as a plain tuple. The replay of a record makes a key, and takes 1.4 us instead of 0.9 where that is
a `TopicPartition`. The garbage collector leaves plain tuples alone, of which a coordinator may hold a million."""
Offsets = LayeredMap[OffsetKey, OffsetCommitValue]
"""The committed offsets of one group."""
NO_OFFSETS: Offsets = LayeredMap()
SHOWN_BYTES = 64
"""The number of bytes of an unreadable key that a log line shows."""


@attrs.frozen
class GroupsState:
    """All groups of one partition."""

    metadata: LayeredMap[str, GroupMetadataValue] = attrs.field(factory=LayeredMap)
    offsets: LayeredMap[str, Offsets] = attrs.field(factory=LayeredMap)

    def has_group(self, group_id: str) -> bool:
        return group_id in self.metadata or group_id in self.offsets

    @property
    def group_count(self) -> int:
        return len(self.metadata) + sum(group not in self.metadata for group in self.offsets)

    def group_ids(self) -> list[str]:
        """The groups that have metadata or committed offsets, sorted."""
        return sorted({**dict.fromkeys(self.metadata), **dict.fromkeys(self.offsets)})

    def offsets_of(self, group_id: str) -> Offsets:
        offsets: Offsets = self.offsets.get(group_id, NO_OFFSETS)
        return offsets

    def replay(self, records: Sequence[CoordinatorRecord]) -> GroupsState:
        """The state after `records`, which are one decision."""
        metadata: dict[str, GroupMetadataValue | None] = {}
        offsets: dict[str, dict[OffsetKey, OffsetCommitValue | None]] = {}
        for record in records:
            key, value = record.key, record.value
            if isinstance(key, OffsetCommitKey):
                assert value is None or isinstance(value, OffsetCommitValue)
                offsets.setdefault(key.group, {})[key.topic, key.partition] = value
            elif isinstance(key, GroupMetadataKey):
                assert value is None or isinstance(value, GroupMetadataValue)
                metadata[key.group] = value
        changed: dict[str, Offsets | None] = {
            group: self.offsets_of(group).changed(changes) for group, changes in offsets.items()
        }
        for group, group_metadata in metadata.items():
            left = changed.get(group) if group in changed else self.offsets.get(group)
            if group_metadata is None and not left:
                changed[group] = None
        return GroupsState(self.metadata.changed(metadata), self.offsets.changed(changed))


def state_of(latest: Mapping[bytes, bytes | None], skipped: list[str]) -> GroupsState:
    """The state from the latest value of every key: the order of keys does not matter, so only these are decoded.

    A record that does not decode comes from another writer than a coordinator. It is left out, and `skipped` gets a
    text that says what was wrong with it.
    """
    metadata: dict[str, GroupMetadataValue] = {}
    offsets: dict[str, dict[OffsetKey, OffsetCommitValue]] = {}
    deleted: list[str] = []
    for raw_key, raw_value in latest.items():
        try:
            key = decode_key(raw_key)
            value = None if key is None or raw_value is None else decode_coordinator_value(key, raw_value)
        except MalformedMessage as error:
            skipped.append(f"{error}, key {raw_key[:SHOWN_BYTES].hex()}")
            continue
        if isinstance(key, (OffsetCommitKey, LegacyOffsetCommitKey)):
            of_group = offsets.setdefault(key.group, {})
            if value is not None:
                of_group[key.topic, key.partition] = _offset_value(value)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                deleted.append(key.group)
            else:
                assert isinstance(value, GroupMetadataValue)
                metadata[key.group] = value
    for group in deleted:
        if not offsets.get(group, True):
            del offsets[group]
    return GroupsState(
        LayeredMap(metadata), LayeredMap({group: LayeredMap(values) for group, values in offsets.items()})
    )


def _offset_value(value: Message) -> OffsetCommitValue:
    if isinstance(value, LegacyOffsetCommitValue):
        return OffsetCommitValue(value.offset, -1, value.metadata, value.commit_timestamp)
    assert isinstance(value, OffsetCommitValue)
    return value
