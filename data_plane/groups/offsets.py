"""Committed offsets: commit (also in transactions), fetch, delete, expiry. PURE.

All state of offsets is replicated. Members matter only for the permission to commit. Members of the present
generation may commit. While the group is empty, any client may commit. An offset expires
`offsets.retention.minutes` after its group has become empty. In a group with members, an offset expires
`offsets.retention.minutes` after its commit, if no member reads its topic any more (KIP-211).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.records import RecordProducer, TransactionEnd
from odradek.data_plane.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupPhase
from odradek.data_plane.groups.consumers.consumer_group import ConsumerGroup
from odradek.data_plane.groups.consumers.consumer_membership import ConsumerMembership
from odradek.data_plane.groups.consumers.consumer_offsets import (
    commit_refusal,
    fetch_refusal,
    transactional_commit_refusal,
)
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.membership import Membership
from odradek.data_plane.groups.record_sizes import utf8_size
from odradek.data_plane.groups.records import (
    OffsetCommitValue,
    group_metadata_tombstone,
    offset_commit_record,
    offset_tombstone,
)
from odradek.data_plane.groups.state import GroupsState, OffsetKey
from odradek.data_plane.groups.turn import Turn
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.versions import OFFSET_COMMIT_GROUP_ID_NOT_FOUND

RECORD_OVERHEAD_BYTES = 128
INT64_MAX = (1 << 63) - 1


class PartitionCommit(NamedTuple):
    """One offset to commit. It is a plain tuple for speed, because a request may have many thousands of
    offsets.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@attrs.frozen
class CommitOffsets:
    """An OffsetCommit, or a part of one, for partitions that exist.

    It is answered with the error code of each partition, in order.
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    retention_ms: int
    """The retention of these offsets, in milliseconds. -1 stands for the coordinator's setting."""
    partitions: tuple[PartitionCommit, ...]
    bytes_of_all: int = 0
    """If this is only a part of a request, the size in bytes that the whole request takes in the log. The
    size limit applies to the whole request.
    """
    producer: RecordProducer | None = None
    """The transactional producer, if the offsets take effect only when its transaction commits. None if the
    offsets take effect at once.
    """


def record_bytes(group_bytes: int, commit: PartitionCommit) -> int:
    """Estimate the size of a committed offset's record in the log, in bytes.

    The result is a close upper bound.
    """
    return group_bytes + len(commit.topic) + utf8_size(commit.metadata) + RECORD_OVERHEAD_BYTES


@attrs.frozen
class FetchOffsets:
    """One group of an OffsetFetch. It is answered with `FetchedOffsets`."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    is_confirmed: bool = False
    """True if the answer must wait until the read barrier has confirmed that this broker is still the
    coordinator.
    """


NONE_PENDING: frozenset[OffsetKey] = frozenset()


@attrs.frozen
class FetchedOffsets:
    """The answer to `FetchOffsets`: an error, or all offsets of the group by (topic, partition)."""

    code: ErrorCode
    offsets: Mapping[OffsetKey, OffsetCommitValue]
    pending: frozenset[OffsetKey] = NONE_PENDING
    """Offsets that an open transaction may still change."""


@attrs.frozen
class EndTransaction:
    """A request to append a transaction marker to this partition.

    The offsets of that transaction then take effect, or are dropped. It is answered with an error code.
    """

    end: TransactionEnd


@attrs.frozen
class DeleteOffsets:
    """An OffsetDelete for partitions that exist.

    It is answered with a pair: an error code, and the error codes of all partitions.
    """

    group_id: str
    partitions: tuple[OffsetKey, ...]


@attrs.frozen
class ForgetTopics:
    """A request to delete all offsets in these deleted topics. It has no answer."""

    topics: frozenset[str]


@attrs.frozen
class ExpireOffsets:
    """A request to remove the offsets that have expired by this time, in milliseconds since 1970. It has no answer."""

    earliest_ms: int


class OffsetStore:
    """The committed offsets of one coordinator's groups, with the decisions on requests about them."""

    def __init__(
        self, settings: GroupSettings, membership: Membership, consumers: ConsumerMembership
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._consumers = consumers

    def commit(self, turn: Turn, ask: Ask) -> None:
        request: CommitOffsets = ask.request
        consumers = turn.state.consumers.get(request.group_id)
        if consumers is not None:
            code = self._refusal_by_consumers(consumers, request, ask.version)
        else:
            code = self._refusal_by_classic(turn, request, ask.version)
        if code:
            return turn.answer(ask.reply, [code] * len(request.partitions))
        expires_ms = -1 if request.retention_ms < 0 else min(turn.wall_ms + request.retention_ms, INT64_MAX)
        codes = []
        taken = []
        size = 0
        group_bytes = len(request.group_id.encode())
        for each in request.partitions:
            if len(each.metadata) > self._settings.offset_metadata_bytes_max:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            taken.append(each)
            codes.append(ErrorCode.NONE)
            size += record_bytes(group_bytes, each)
        if max(size, request.bytes_of_all) > self._settings.append_bytes_max:
            return turn.answer(ask.reply, [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(request.partitions))
        for each in taken:
            value = OffsetCommitValue(
                each.offset, each.leader_epoch, each.metadata, turn.wall_ms, expires_ms, each.topic_id
            )
            turn.records.append(
                offset_commit_record(request.group_id, each.topic, each.partition, value, request.producer)
            )
        turn.answer(ask.reply, codes)

    def _refusal_by_consumers(self, group: ConsumerGroup, request: CommitOffsets, version: int) -> ErrorCode:
        member_id, epoch = request.member_id, request.generation
        metadata_bytes_max = self._settings.offset_metadata_bytes_max
        partitions = (
            (each.topic_id, each.partition)
            for each in request.partitions
            if len(each.metadata) <= metadata_bytes_max
        )
        if request.producer is None:
            return commit_refusal(group, member_id, epoch, partitions, version)
        instance_id = request.group_instance_id
        return transactional_commit_refusal(group, member_id, instance_id, epoch, partitions)

    def _refusal_by_classic(self, turn: Turn, request: CommitOffsets, version: int) -> ErrorCode:
        group = self._membership.find(turn, request.group_id)
        if request.producer is not None:
            return self._may_commit_in_transaction(group, request)
        code = self._may_commit(group, request, version)
        if (
            not code
            and group is not None
            and group.phase in (GroupPhase.STABLE, GroupPhase.PREPARING_REBALANCE)
        ):
            self._membership.renew_session(turn, group, request.member_id)
        return code

    def _may_commit(self, group: ClassicGroup | None, request: CommitOffsets, version: int) -> ErrorCode:
        generation = request.generation
        if group is None:
            if generation < 0:
                return ErrorCode.NONE
            newer = version >= OFFSET_COMMIT_GROUP_ID_NOT_FOUND
            return ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.phase is GroupPhase.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.validate_member(request.member_id, request.group_instance_id)
        if code:
            return code
        if generation != group.generation:
            reached("groups.commit_of_other_generation_refused")
            return ErrorCode.ILLEGAL_GENERATION
        if group.phase is GroupPhase.COMPLETING_REBALANCE:
            reached("groups.commit_without_assignment_refused")
            # The member knows the new generation from its JoinGroup, but does not have its assignment yet. So
            # it may not commit.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _may_commit_in_transaction(self, group: ClassicGroup | None, request: CommitOffsets) -> ErrorCode:
        """Return the error for a commit in a transaction, or NONE.

        A member with an old generation is fenced (KIP-447). Producers of old versions send no generation.
        Their commits are accepted.
        """
        generation = request.generation
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and (
            group.phase is GroupPhase.EMPTY or (not request.member_id and request.group_instance_id is None)
        ):
            return ErrorCode.NONE
        code = group.validate_member(request.member_id, request.group_instance_id)
        if code:
            return code
        return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION

    def end_transaction(self, turn: Turn, ask: Ask) -> None:
        request: EndTransaction = ask.request
        turn.records.append(request.end)
        turn.answer(ask.reply, ErrorCode.NONE)

    def fetch(self, turn: Turn, ask: Ask) -> None:
        request: FetchOffsets = ask.request
        consumers = turn.state.consumers.get(request.group_id)
        if consumers is not None:
            code = fetch_refusal(consumers, request.member_id, request.member_epoch)
            if code:
                return turn.answer(ask.reply, FetchedOffsets(code, {}))
        offsets = turn.state.offsets_of(request.group_id)
        pending = turn.state.pending_of(request.group_id) if turn.state.pending else NONE_PENDING
        turn.answer(ask.reply, FetchedOffsets(ErrorCode.NONE, offsets, pending))

    def delete(self, turn: Turn, ask: Ask) -> None:
        request: DeleteOffsets = ask.request
        if not request.group_id:
            return turn.answer(ask.reply, (ErrorCode.INVALID_GROUP_ID, ()))
        group: ClassicGroup | ConsumerGroup | None = turn.state.consumers.get(request.group_id)
        if group is None:
            group = self._membership.find(turn, request.group_id)
        if group is None:
            return turn.answer(ask.reply, (ErrorCode.GROUP_ID_NOT_FOUND, ()))
        if (
            isinstance(group, ClassicGroup)
            and group.phase is not GroupPhase.EMPTY
            and group.protocol_type != CONSUMER_PROTOCOL
        ):
            return turn.answer(ask.reply, (ErrorCode.NON_EMPTY_GROUP, ()))
        codes = []
        offsets = turn.state.offsets_of(request.group_id)
        pending = turn.state.pending_of(request.group_id)
        deleted: dict[OffsetKey, None] = {}
        for topic, partition in request.partitions:
            if group.is_subscribed_to(topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            if (topic, partition) in offsets or (topic, partition) in pending:
                deleted[topic, partition] = None
        turn.records += [offset_tombstone(request.group_id, *key) for key in deleted]
        turn.answer(ask.reply, (ErrorCode.NONE, tuple(codes)))

    def forget_topics(self, turn: Turn, ask: Ask) -> None:
        request: ForgetTopics = ask.request
        for group_id in turn.state.group_ids():
            for topic, partition in _all_keys(turn.state, group_id):
                if topic in request.topics:
                    turn.records.append(offset_tombstone(group_id, topic, partition))

    def delete_all(self, turn: Turn, group_id: str) -> None:
        """Write the tombstones of an empty group and of all its offsets."""
        self._remove(turn, group_id, _all_keys(turn.state, group_id))
        self._remove_group(turn, group_id)

    def _remove_group(self, turn: Turn, group_id: str) -> None:
        """Write the tombstone of an empty group, classic or consumer, and remove it from memory."""
        consumers = turn.state.consumers.get(group_id)
        if consumers is None:
            turn.records.append(group_metadata_tombstone(group_id))
            self._membership.forget_group(group_id)
        else:
            self._consumers.delete(turn, consumers)

    def expire(self, turn: Turn, ask: Ask) -> None:
        request: ExpireOffsets = ask.request
        for group_id in turn.state.group_ids():
            group: ClassicGroup | ConsumerGroup | None = turn.state.consumers.get(group_id)
            if group is None:
                group = self._membership.find(turn, group_id)
            assert group is not None
            offsets = turn.state.offsets_of(group_id)
            pending = turn.state.pending_of(group_id)
            expired = [
                key
                for key, value in offsets.items()
                if key not in pending and self._is_expired(group, key[0], value, request.earliest_ms)
            ]
            self._remove(turn, group_id, sorted(expired))
            if not pending and len(expired) == len(offsets) and _is_empty(group):
                self._remove_group(turn, group_id)

    def _remove(self, turn: Turn, group_id: str, keys: Iterable[OffsetKey]) -> None:
        turn.records += [offset_tombstone(group_id, topic, partition) for topic, partition in keys]

    def _is_expired(
        self, group: ClassicGroup | ConsumerGroup, topic: str, value: OffsetCommitValue, now_ms: int
    ) -> bool:
        since_ms = value.commit_timestamp
        if isinstance(group, ConsumerGroup):
            if group.is_subscribed_to(topic):
                return False
        elif group.protocol_type is not None:
            if group.phase is GroupPhase.EMPTY:
                if group.state_timestamp_ms >= 0:
                    since_ms = group.state_timestamp_ms
            elif (
                group.protocol_type != CONSUMER_PROTOCOL
                or group.subscribed_topics is None
                or group.phase is not GroupPhase.STABLE
                or topic in group.subscribed_topics
            ):
                return False
        if value.expire_timestamp >= 0:
            return now_ms >= value.expire_timestamp
        return now_ms - since_ms >= self._settings.offsets_retention_ms


def _is_empty(group: ClassicGroup | ConsumerGroup) -> bool:
    """True if the group has no members, and none is about to join."""
    if isinstance(group, ConsumerGroup):
        return group.is_empty
    return group.phase is GroupPhase.EMPTY and not group.pending_members


def _all_keys(state: GroupsState, group_id: str) -> list[OffsetKey]:
    """List the committed and the pending offsets of a group, sorted."""
    return sorted({*state.offsets_of(group_id), *state.pending_of(group_id)})
