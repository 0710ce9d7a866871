"""The groups of one partition of `__consumer_offsets`: an immutable value, changed by replay alone. PURE.

A group exists as soon as there is a record of its metadata or of one of its offsets. The group ends with the
tombstone of its metadata, which is written when the group's last offset is gone. The messages in the maps are
shared between states and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from odradek.data_plane.coordination.decision_log import Latest
from odradek.data_plane.coordination.records import CoordinatorRecord, TransactionEnd
from odradek.data_plane.groups.consumers.consumer_group import (
    ConsumerGroup,
    ConsumerKey,
    GroupRecord,
    replayed,
)
from odradek.data_plane.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
)
from odradek.named_states import reached
from odradek.serving.layered_map import LayeredMap
from odradek.wire.errors import MalformedMessage
from odradek.wire.messages.coordinator_records import ConsumerGroupMetadataKey, LegacyOffsetCommitValue
from odradek.wire.metadata_frames import decode_coordinator_value
from odradek.wire.structure import Message

OffsetKey: TypeAlias = tuple[str, int]
"""Topic and partition, as a plain tuple. With such tuples the replay of a record takes 0.9 us, with a
`TopicPartition` 1.4 us. The garbage collector does not track these tuples, of which a coordinator may hold a
million.
"""
Offsets = LayeredMap[OffsetKey, OffsetCommitValue]
"""The committed offsets of one group."""
NO_OFFSETS: Offsets = LayeredMap()
SHOWN_BYTES = 64
"""The most bytes of an unreadable key that are shown in a log line."""


@attrs.frozen
class PendingOffset:
    """An offset that was committed in a transaction which is still open."""

    offset: int
    """The offset of the commit's record in the log."""
    value: OffsetCommitValue | None
    """The committed value. None if a later commit has the same key. Then the end of the transaction leaves
    that later offset unchanged.
    """


Pending: TypeAlias = Mapping[str, Mapping[OffsetKey, PendingOffset]]
"""The pending offsets of one transaction, by group id."""


@attrs.frozen
class GroupsState:
    """The state of all groups of one partition."""

    metadata: LayeredMap[str, GroupMetadataValue] = attrs.field(factory=LayeredMap)
    offsets: LayeredMap[str, Offsets] = attrs.field(factory=LayeredMap)
    pending: LayeredMap[int, Pending] = attrs.field(factory=LayeredMap)
    """Offsets that were committed in open transactions, by producer id."""
    consumers: LayeredMap[str, ConsumerGroup] = attrs.field(factory=LayeredMap)
    """Groups of the consumer protocol. All others are groups of the classic protocol."""
    consumer_weight: int = 0
    """The memory that the groups of the consumer protocol take, in units of a member of ordinary size."""

    def has_group(self, group_id: str) -> bool:
        return (
            group_id in self.metadata
            or group_id in self.consumers
            or group_id in self.offsets
            or self.has_pending(group_id)
        )

    def has_classic_group(self, group_id: str) -> bool:
        """True if a group of this name exists and is not a consumer group."""
        return group_id not in self.consumers and self.has_group(group_id)

    def has_pending(self, group_id: str) -> bool:
        """True if some open transaction has committed offsets for this group."""
        return any(group_id in self.pending[producer] for producer in self.pending)

    @property
    def group_count(self) -> int:
        others = sum(group not in self.metadata and group not in self.consumers for group in self.offsets)
        return len(self.metadata) + len(self.consumers) + others

    def group_ids(self) -> list[str]:
        """List the ids of all groups that have a record or committed or pending offsets, sorted."""
        pending = (group for producer in self.pending for group in self.pending[producer])
        return sorted(
            {
                **dict.fromkeys(self.metadata),
                **dict.fromkeys(self.consumers),
                **dict.fromkeys(self.offsets),
                **dict.fromkeys(pending),
            }
        )

    def offsets_of(self, group_id: str) -> Offsets:
        offsets: Offsets = self.offsets.get(group_id, NO_OFFSETS)
        return offsets

    def pending_of(self, group_id: str) -> frozenset[OffsetKey]:
        """Return the offsets of a group that open transactions have committed."""
        return frozenset(key for producer in self.pending for key in self.pending[producer].get(group_id, ()))

    def replay(
        self, records: Sequence[CoordinatorRecord | TransactionEnd], base_offset: int = 0
    ) -> GroupsState:
        """Apply the records of one decision, the first of which is at `base_offset` in the log.

        Returns the new state.
        """
        first = records[0] if records else None
        if isinstance(first, TransactionEnd):
            return self._ended(first)
        if first is not None and first.producer is not None:
            return self._with_pending(first.producer.producer_id, records, base_offset)
        metadata: dict[str, GroupMetadataValue | None] = {}
        offsets: dict[str, dict[OffsetKey, OffsetCommitValue | None]] = {}
        of_consumers: dict[str, list[GroupRecord]] = {}
        for record in records:
            assert isinstance(record, CoordinatorRecord)
            key, value = record.key, record.value
            if isinstance(key, OffsetCommitKey):
                assert value is None or isinstance(value, OffsetCommitValue)
                offsets.setdefault(key.group, {})[key.topic, key.partition] = value
            elif isinstance(key, GroupMetadataKey):
                assert value is None or isinstance(value, GroupMetadataValue)
                metadata[key.group] = value
            elif isinstance(key, ConsumerKey):
                of_consumers.setdefault(key.group_id, []).append((key, value))
        consumers = {
            group: replayed(group, self.consumers.get(group), some) for group, some in of_consumers.items()
        }
        changed: dict[str, Offsets | None] = {
            group: self.offsets_of(group).changed(changes) for group, changes in offsets.items()
        }
        for group in (group for some in (metadata, consumers) for group in some if some[group] is None):
            left = changed.get(group) if group in changed else self.offsets.get(group)
            if not left:
                changed[group] = None
        return GroupsState(
            self.metadata.changed(metadata),
            self.offsets.changed(changed),
            self._overtaken(offsets),
            self.consumers.changed(consumers),
            self.consumer_weight
            + sum(_weight(after) - _weight(self.consumers.get(group)) for group, after in consumers.items()),
        )

    def _with_pending(
        self, producer_id: int, records: Sequence[CoordinatorRecord | TransactionEnd], base_offset: int
    ) -> GroupsState:
        groups: dict[str, dict[OffsetKey, PendingOffset]] = {
            group: dict(offsets) for group, offsets in self.pending.get(producer_id, {}).items()
        }
        for offset, record in enumerate(records, base_offset):
            assert isinstance(record, CoordinatorRecord)
            key, value = record.key, record.value
            assert isinstance(key, OffsetCommitKey), (
                "a transaction may write only offsets, not other records of groups"
            )
            assert isinstance(value, OffsetCommitValue), "a transaction cannot delete offsets"
            groups.setdefault(key.group, {})[key.topic, key.partition] = PendingOffset(offset, value)
        return attrs.evolve(self, pending=self.pending.changed({producer_id: groups}))

    def _ended(self, end: TransactionEnd) -> GroupsState:
        ended: Pending | None = self.pending.get(end.producer_id)
        if ended is None:
            return self
        left = attrs.evolve(self, pending=self.pending.changed({end.producer_id: None}))
        if not end.is_commit:
            reached("groups.pending_offsets_dropped")
            return left
        taken = {
            group: {key: each for key, each in offsets.items() if each.value is not None}
            for group, offsets in ended.items()
        }
        changed: dict[str, Offsets | None] = {
            group: self.offsets_of(group).changed({key: each.value for key, each in offsets.items()})
            for group, offsets in taken.items()
            if offsets
        }
        return attrs.evolve(left, offsets=self.offsets.changed(changed), pending=left._overtaken_by(taken))

    def _overtaken(
        self, offsets: Mapping[str, Mapping[OffsetKey, OffsetCommitValue | None]]
    ) -> LayeredMap[int, Pending]:
        """Compute the pending offsets after a commit of `offsets` outside of transactions.

        A pending offset with the same key loses its value; a tombstone removes it.
        """
        changes: dict[int, Pending | None] = {}
        for producer_id in self.pending:
            of_producer = self.pending[producer_id]
            common = [group for group in offsets if group in of_producer]
            if not common:
                continue
            reached("groups.commit_overtook_pending")
            groups = dict(of_producer)
            for group in common:
                left = dict(groups[group])
                for key, value in offsets[group].items():
                    if key in left and value is None:
                        del left[key]
                    elif key in left:
                        left[key] = PendingOffset(left[key].offset, None)
                groups[group] = left
                if not left:
                    del groups[group]
            changes[producer_id] = groups or None
        return self.pending.changed(changes) if changes else self.pending

    def _overtaken_by(
        self, committed: Mapping[str, Mapping[OffsetKey, PendingOffset]]
    ) -> LayeredMap[int, Pending]:
        """Compute the pending offsets after a transaction has committed the offsets `committed`.

        An earlier pending offset with the same key loses its value.
        """
        changes: dict[int, Pending | None] = {}
        for producer_id in self.pending:
            groups = {
                group: {
                    key: PendingOffset(each.offset, None)
                    if key in (later := committed.get(group, {})) and each.offset < later[key].offset
                    else each
                    for key, each in offsets.items()
                }
                for group, offsets in self.pending[producer_id].items()
            }
            if groups != self.pending[producer_id]:
                changes[producer_id] = groups
        return self.pending.changed(changes) if changes else self.pending


def state_of(latest: Latest, skipped: list[str]) -> GroupsState:
    """Build the state from the latest value of every key in the log. Only these values are decoded, as their
    order does not matter.

    A malformed record cannot come from a coordinator. Such a record is left out, and a text about it is
    appended to `skipped`.
    """
    metadata: dict[str, GroupMetadataValue] = {}
    offsets: dict[str, dict[OffsetKey, OffsetCommitValue]] = {}
    consumers: dict[str, list[GroupRecord]] = {}
    deleted: list[str] = []
    for raw_key, raw_value in latest.values.items():
        decoded = _decoded(raw_key, raw_value, skipped)
        if decoded is None:
            continue
        key, value = decoded
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
        elif isinstance(key, ConsumerKey):
            if value is not None:
                consumers.setdefault(key.group_id, []).append((key, value))
            elif isinstance(key, ConsumerGroupMetadataKey):
                deleted.append(key.group_id)
    for group in deleted:
        if not offsets.get(group, True):
            del offsets[group]
    replayed_consumers = {
        group: found
        for group, some in consumers.items()
        if (found := replayed(group, None, some)) is not None
    }
    return GroupsState(
        LayeredMap(metadata),
        LayeredMap({group: LayeredMap(values) for group, values in offsets.items()}),
        LayeredMap(_pending(latest, skipped)),
        LayeredMap(replayed_consumers),
        sum(map(_weight, replayed_consumers.values())),
    )


def _weight(group: ConsumerGroup | None) -> int:
    return 0 if group is None else group.weight


def _pending(latest: Latest, skipped: list[str]) -> dict[int, Pending]:
    """Collect the offsets of open transactions, by producer id."""
    pending: dict[int, Pending] = {}
    for producer_id, records in latest.pending.items():
        groups: dict[str, dict[OffsetKey, PendingOffset]] = {}
        for record in records:
            decoded = _decoded(record.key, record.value, skipped)
            if decoded is None:
                continue
            key, value = decoded
            if isinstance(key, OffsetCommitKey) and value is not None:
                offset = None if latest.is_overtaken(record) else _offset_value(value)
                of_group = groups.setdefault(key.group, {})
                of_group[key.topic, key.partition] = PendingOffset(record.offset, offset)
        if groups:
            pending[producer_id] = groups
    return pending


def _decoded(
    raw_key: bytes, raw_value: bytes | None, skipped: list[str]
) -> tuple[Message | None, Message | None] | None:
    try:
        key = decode_key(raw_key)
        return key, None if key is None or raw_value is None else decode_coordinator_value(key, raw_value)
    except MalformedMessage as error:
        skipped.append(f"{error}, key {raw_key[:SHOWN_BYTES].hex()}")
        return None


def _offset_value(value: Message) -> OffsetCommitValue:
    if isinstance(value, LegacyOffsetCommitValue):
        return OffsetCommitValue(value.offset, -1, value.metadata, value.commit_timestamp)
    assert isinstance(value, OffsetCommitValue)
    return value
