"""Reads, writes, deletes and resets the committed offsets of groups, computes their lag, and looks up start,
end and timestamps of partitions. The functions are operations. PURE.

A partition's lag is given in records and in time. The lag in records is the partition's end offset minus the
committed offset. The lag in time is the age of the first record that the group has not read. To find that
record's timestamp, its batch is fetched and parsed, because indexes do not map an offset to a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.admin.about_partitions import asking, outcomes_as, results_in
from odradek.client.admin.admin_groups import describe_groups, group_error
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition, by_topic, named
from odradek.client.core.partition_offsets import EARLIEST, LATEST
from odradek.client.core.scatter import deadline_of, item_error, scatter, to_coordinators, to_leaders
from odradek.client.errors import ClientError, broker_error
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import FETCH_TOPIC_IDS, OFFSET_COMMIT_TOPIC_IDS, OFFSET_FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = [
    "CommittedOffset",
    "GroupOffsets",
    "OffsetReset",
    "OffsetSpan",
    "PartitionLag",
    "ResetTarget",
    "ResetTo",
    "alter_group_offsets",
    "delete_group_offsets",
    "describe_group_lag",
    "describe_lag",
    "list_group_offsets",
    "offset_spans",
    "plan_offset_reset",
]

_MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
_FETCH_BYTES = 16 << 20
_FETCH_PARTITION_BYTES = 64 << 10
_DECOMPRESSED_BYTES_MAX = 256 << 20


@attrs.frozen
class CommittedOffset:
    """The commit of a group for one partition. `offset` is the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    error: KafkaError | None = None


@attrs.frozen
class GroupOffsets:
    """The committed offsets of a group. Partitions without a commit are left out."""

    group_id: str
    offsets: dict[TopicPartition, CommittedOffset]
    error: CallError | None = None


@attrs.frozen
class OffsetSpan:
    """A partition's range of offsets, from `start` up to but not including `end`."""

    start: int
    end: int


@attrs.frozen
class PartitionLag:
    """The progress of a group in a partition.

    `committed` and `lag` are None if the group committed no offset. `behind_ms` is the age in milliseconds of
    the first record that the group has not read. `behind_ms` is 0 if the group has read all records, and None
    if the age is unknown. If `span` is None, `error` says why.
    """

    topic: str
    partition: int
    committed: int | None
    span: OffsetSpan | None
    behind_ms: int | None
    error: CallError | None = None

    @property
    def key(self) -> TopicPartition:
        """(topic, partition), as in the mappings of other operations."""
        return TopicPartition(self.topic, self.partition)

    @property
    def lag(self) -> int | None:
        """The number of records between the committed offset and the end of the partition; None if either
        offset is unknown.
        """
        if self.committed is None or self.span is None:
            return None
        return max(0, self.span.end - self.committed)


class ResetTo(Enum):
    """The kinds of position that a group's offsets can be reset to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"


@attrs.frozen
class ResetTarget:
    """The position to reset offsets to. `value` is an offset, a time in milliseconds since 1970, or a number
    of records, depending on the kind.
    """

    to: ResetTo
    value: int = 0


@attrs.frozen
class OffsetReset:
    """The planned reset of one partition. `old` is None if the group committed no offset."""

    topic: str
    partition: int
    old: int | None
    new: int

    @property
    def key(self) -> TopicPartition:
        """(topic, partition), as in the mappings of other operations."""
        return TopicPartition(self.topic, self.partition)


def list_group_offsets(
    core: ClientCore,
    groups: Mapping[str, Sequence[tuple[str, int]] | None],
    *,
    require_stable: bool = False,
    timeout: float | None = None,
) -> Operation[list[GroupOffsets]]:
    """List each group's committed offsets for its partitions in `groups` (None: for all). Raises `ClientError`.

    With `require_stable` the coordinator waits for open transactions that may change an offset (KIP-447).
    """
    from odradek.wire.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopic,
        OffsetFetchRequestTopics,
    )

    def topics_of(wanted: Sequence[tuple[str, int]] | None, structure: Any) -> list[Any] | None:
        if wanted is None:
            return None
        return [structure(name=name, partition_indexes=indexes) for name, indexes in by_topic(wanted).items()]

    def message(group_ids: list[str], _: int) -> OffsetFetchRequest:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=each, topics=topics_of(groups[each], OffsetFetchRequestTopics)
                )
                for each in group_ids
            ],
            require_stable=require_stable,
        )
        if len(group_ids) == 1:
            # Brokers before 3.0 accept only one group per request.
            request.group_id = group_ids[0]
            request.topics = topics_of(groups[group_ids[0]], OffsetFetchRequestTopic)
        return request

    def take(response: Any, group_ids: list[str]) -> Iterable[tuple[str, GroupOffsets | CallError]]:
        answers = [(each.group_id, each) for each in response.groups] or [(group_ids[0], response)]
        for group_id, answer in answers:
            yield (
                group_id,
                group_error(answer.error_code, group_id) or GroupOffsets(group_id, _committed(answer)),
            )

    outcomes = yield from scatter(
        core,
        groups,
        to_coordinators,
        message,
        take,
        deadline=deadline_of(core, timeout),
        versions=(0, OFFSET_FETCH_TOPIC_IDS - 1),
    )
    return [
        found if isinstance(found, GroupOffsets) else GroupOffsets(group_id, {}, found)
        for group_id, found in outcomes.items()
    ]


def _committed(answer: Any) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(topic.name, each.partition_index): CommittedOffset(
            each.committed_offset,
            each.committed_leader_epoch,
            each.metadata or "",
            item_error(each.error_code, None, f"{topic.name}-{each.partition_index}"),
        )
        for topic in answer.topics
        for each in topic.partitions
        if each.committed_offset >= 0 or each.error_code
    }


def alter_group_offsets(
    core: ClientCore,
    group_id: str,
    offsets: ByPartition[int | CommittedOffset],
    *,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, CallError | None]]:
    """Commit offsets for a group that has no members; return each partition's error, or None on success.

    The coordinator refuses the commit while the group has members (UNKNOWN_MEMBER_ID). Raises `ClientError`.
    """
    from odradek.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition

    wanted_of = named(offsets)

    def partition_of(key: TopicPartition) -> OffsetCommitRequestPartition:
        wanted = wanted_of[key]
        if isinstance(wanted, int):
            wanted = CommittedOffset(wanted)
        return OffsetCommitRequestPartition(
            partition_index=key.partition,
            committed_offset=wanted.offset,
            committed_leader_epoch=wanted.leader_epoch,
            committed_metadata=wanted.metadata,
        )

    def message(_: list[str], __: int) -> OffsetCommitRequest:
        return asking(OffsetCommitRequest(group_id=group_id), wanted_of, partition_of)

    found = yield from _about_partitions(core, group_id, wanted_of, message, timeout)
    return {
        key: group_error(ErrorCode.NON_EMPTY_GROUP, group_id) if _is_unknown_member(error) else error
        for key, error in found.items()
    }


def _is_unknown_member(error: CallError | None) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_MEMBER_ID


def delete_group_offsets(
    core: ClientCore,
    group_id: str,
    partitions: Sequence[tuple[str, int]],
    *,
    timeout: float | None = None,
) -> Operation[dict[TopicPartition, CallError | None]]:
    """Delete the group's committed offsets of these partitions; return each partition's error, or None on
    success.

    The coordinator refuses topics to which a member is subscribed (GROUP_SUBSCRIBED_TO_TOPIC). Raises
    `ClientError`.
    """
    from odradek.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition

    wanted = [TopicPartition(*each) for each in partitions]

    def message(_: list[str], __: int) -> OffsetDeleteRequest:
        request = OffsetDeleteRequest(group_id=group_id)
        return asking(request, wanted, lambda key: OffsetDeleteRequestPartition(key.partition))

    return (yield from _about_partitions(core, group_id, wanted, message, timeout))


def _about_partitions(
    core: ClientCore,
    group_id: str,
    partitions: Iterable[TopicPartition],
    message: Callable[[list[str], int], Any],
    timeout: float | None,
) -> Operation[dict[TopicPartition, CallError | None]]:
    """Send a request about partitions to a group's coordinator. If the coordinator has moved, send the whole
    request again.
    """

    def take(response: Any, _: list[str]) -> Iterable[tuple[str, Any]]:
        errors = {key: error for key, error, _ in results_in(response)}
        moved = (error.code for error in errors.values() if error is not None and error.code in _MOVED)
        code = getattr(response, "error_code", 0) or next(moved, 0)
        yield group_id, group_error(code, group_id) or errors

    outcomes = yield from scatter(
        core,
        [group_id],
        to_coordinators,
        message,
        take,
        deadline=deadline_of(core, timeout),
        versions=(0, OFFSET_COMMIT_TOPIC_IDS - 1),
    )
    found = outcomes[group_id]
    if isinstance(found, KafkaError | ClientError):
        return dict.fromkeys(partitions, found)
    lost = broker_error(
        ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name this partition", "partition"
    )
    return {key: found.get(key, lost) for key in partitions}


# Lag and resets of a group


def offset_spans(
    core: ClientCore, partitions: Iterable[tuple[str, int]], *, timeout: float | None = None
) -> Operation[dict[TopicPartition, OffsetSpan | CallError]]:
    """Return the start offset and the end offset of each partition, or the error of a partition whose offsets
    are unknown.

    Raises `ClientError`.
    """
    deadline = deadline_of(core, timeout)
    keys = [TopicPartition(*each) for each in partitions]
    starts = yield from offsets_at(core, dict.fromkeys(keys, EARLIEST), deadline)
    ends = yield from offsets_at(core, dict.fromkeys(keys, LATEST), deadline)
    found: dict[TopicPartition, OffsetSpan | CallError] = {}
    for key in keys:
        start, end = starts[key], ends[key]
        if isinstance(start, int) and isinstance(end, int):
            found[key] = OffsetSpan(start, end)
        else:
            found[key] = end if isinstance(start, int) else start  # type: ignore[assignment] # at least one of the two is an error
    return found


def offsets_at(
    core: ClientCore, wanted: Mapping[TopicPartition, int], deadline: float
) -> Operation[dict[TopicPartition, int | CallError]]:
    """Look up, in each partition, the first offset with the given timestamp or a later one (ListOffsets).
    Return -1 if there is no such record, or the partition's error.
    """
    from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest

    def message(keys: list[TopicPartition], timeout_ms: int) -> ListOffsetsRequest:
        request = ListOffsetsRequest(replica_id=-1, timeout_ms=timeout_ms)
        return asking(request, keys, lambda key: ListOffsetsPartition(key.partition, timestamp=wanted[key]))

    take = outcomes_as(lambda _, result: int(result.offset))
    return (yield from scatter(core, wanted, to_leaders, message, take, deadline=deadline))


def describe_lag(
    core: ClientCore,
    committed: ByPartition[int | None],
    *,
    now_ms: int,
    timeout: float | None = None,
) -> Operation[list[PartitionLag]]:
    """Describe a group's progress in partitions. `committed` has the group's committed offset of each
    partition (None: no commit). Return one `PartitionLag` for each partition.

    `now_ms` is the present in milliseconds since 1970. Results are sorted by partition. Raises `ClientError`.
    """
    deadline = deadline_of(core, timeout)
    known_of = named(committed)
    spans = yield from offset_spans(core, sorted(known_of), timeout=deadline - core.now)
    unread = {}
    for key, span in spans.items():
        offset = known_of[key]
        if isinstance(span, OffsetSpan) and offset is not None and offset < span.end:
            unread[key] = max(offset, span.start)
    times = yield from record_times(core, unread, deadline)
    found = []
    for key, span in spans.items():
        behind: int | None = None
        if key in times:
            behind = max(0, now_ms - times[key])
        elif isinstance(span, OffsetSpan) and known_of[key] is not None and key not in unread:
            behind = 0
        known = isinstance(span, OffsetSpan)
        found.append(
            PartitionLag(
                *key,
                known_of[key],
                span if known else None,  # type: ignore[arg-type] # `known` implies this type
                behind,
                None if known else span,  # type: ignore[arg-type] # `known` implies this type
            )
        )
    return found


def record_times(
    core: ClientCore, offsets: Mapping[TopicPartition, int], deadline: float
) -> Operation[dict[TopicPartition, int]]:
    """Read the timestamp of the first record at or after the given offset of each partition. Partitions
    without such a record are left out.
    """
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest

    def partition_of(key: TopicPartition) -> FetchPartition:
        return FetchPartition(
            partition=key.partition, fetch_offset=offsets[key], partition_max_bytes=_FETCH_PARTITION_BYTES
        )

    def message(keys: list[TopicPartition], _: int) -> FetchRequest:
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES)
        return asking(request, keys, partition_of)

    def take(
        response: Any, _: list[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, int | CallError | None]]:
        error = item_error(response.error_code, None, "fetch")
        if error is not None:
            raise error
        for key, problem, result in results_in(response):
            yield key, problem or _first_time(result.records, offsets[key])

    found: dict[TopicPartition, int] = {}
    pending = list(offsets)
    while pending:
        outcomes = yield from scatter(
            core,
            pending,
            to_leaders,
            message,
            take,
            deadline=deadline,
            versions=(0, FETCH_TOPIC_IDS - 1),
        )
        found |= {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, int)}
        # A broker returns a batch above the size limit only for the first partition of a request. So each round puts
        # other partitions first. A round in which no partition got a batch ends the loop.
        empty = [key for key, outcome in outcomes.items() if outcome is None]
        pending = empty if len(empty) < len(pending) else []
    return found


def _first_time(data: Any, offset: int) -> int | None:
    """Find the timestamp of the first record at or after `offset`; return None if no complete batch has such
    a record.
    """
    from odradek.wire.batches.batch_header import iter_batches
    from odradek.wire.batches.records import records

    buffer = memoryview(data or b"")
    for position, header in iter_batches(buffer):
        if header.is_control or header.next_offset <= offset:
            continue
        for record in records(buffer, position, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX):
            if record.offset >= offset:
                return record.timestamp
    return None


def plan_offset_reset(
    core: ClientCore,
    committed: ByPartition[int | None],
    target: ResetTarget,
    *,
    timeout: float | None = None,
) -> Operation[list[OffsetReset]]:
    """Compute the offsets that a reset would set for these partitions, sorted by partition. No offset is
    changed.

    As in Kafka's own tool, an offset outside of the partition's range becomes the start or the end offset. A
    time after the last record gives the end offset. A shift counts from the committed offset, or from the end
    offset if there is no commit. Raises the `KafkaError` or `ClientError` of the first partition whose span
    is unknown.
    """
    deadline = deadline_of(core, timeout)
    old_of = named(committed)
    keys = sorted(old_of)
    spans = yield from offset_spans(core, keys, timeout=deadline - core.now)
    at_time: dict[TopicPartition, int | CallError] = {}
    if target.to is ResetTo.TIME:
        at_time = yield from offsets_at(core, dict.fromkeys(keys, max(0, target.value)), deadline)
    plan = []
    for key in keys:
        span = spans[key]
        if not isinstance(span, OffsetSpan):
            raise span
        old = old_of[key]
        match target.to:
            case ResetTo.EARLIEST:
                new = span.start
            case ResetTo.LATEST:
                new = span.end
            case ResetTo.OFFSET:
                new = target.value
            case ResetTo.SHIFT:
                new = (span.end if old is None else old) + target.value
            case ResetTo.TIME:
                found = at_time[key]
                if not isinstance(found, int):
                    raise found
                new = span.end if found < 0 else found
        plan.append(OffsetReset(*key, old, min(max(new, span.start), span.end)))
    return plan


def describe_group_lag(
    core: ClientCore, group_id: str, *, now_ms: int, timeout: float | None = None
) -> Operation[list[PartitionLag]]:
    """Describe a group's progress in every partition for which it committed an offset, or that is assigned to a
    member.

    `now_ms` is the present in milliseconds since 1970. Raises the `KafkaError` of the group, and `ClientError`.
    """
    deadline = deadline_of(core, timeout)
    (description,) = yield from describe_groups(core, [group_id], timeout=deadline - core.now)
    if description.error is not None:
        raise description.error
    (offsets,) = yield from list_group_offsets(core, {group_id: None}, timeout=deadline - core.now)
    if offsets.error is not None:
        raise offsets.error
    committed: dict[TopicPartition, int | None] = {
        key: None for member in description.members for key in member.partitions
    }
    committed |= {key: each.offset for key, each in offsets.offsets.items() if each.error is None}
    return (yield from describe_lag(core, committed, now_ms=now_ms, timeout=deadline - core.now))
