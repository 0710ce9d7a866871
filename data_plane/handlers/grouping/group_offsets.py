"""Handlers of OffsetCommit, OffsetFetch and OffsetDelete, which check names, ids and partitions; coordinators
decide the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from odradek.data_plane.groups.coordinator import GroupCoordinator
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    PartitionCommit,
    record_bytes,
)
from odradek.data_plane.groups.state import OffsetKey
from odradek.data_plane.handlers.desk import Desk
from odradek.data_plane.handlers.grouping.named_partitions import sorted_out
from odradek.metadata_quorum.image.metadata_image import MetadataImage, TopicImage
from odradek.named_states import reached
from odradek.serving.answer_size import TOO_LARGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.steps import Steps, Work
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
)
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from odradek.wire.messages.txn_offset_commit import TxnOffsetCommitRequestPartition
from odradek.wire.schema.anatomy import anatomy_of
from odradek.wire.schema.versions import (
    OFFSET_FETCH_GROUP_ERROR,
    OFFSET_FETCH_GROUPS,
    OFFSET_FETCH_TOPIC_IDS,
)
from odradek.wire.structure import ZERO_UUID

NO_OFFSET = -1
PARTITION_BYTES = 24
PARTITIONS_PER_DECISION = 500
"""The most partitions in one decision. A larger request is decided in independent parts of this size."""
DECIDED_UNITS = 4
"""The cost of deciding and writing one offset, in units of work. One unit is the cost of looking up a
partition.
"""
SIZES_PER_UNIT = 10
"""The number of offsets whose record sizes are computed in one unit of work."""

P = TypeVar("P")


def _parts(partitions: Sequence[P]) -> Iterator[Sequence[P]]:
    for start in range(0, len(partitions) or 1, PARTITIONS_PER_DECISION):
        yield partitions[start : start + PARTITIONS_PER_DECISION]


def _ask_in_parts(
    groups: GroupCoordinator, version: int, parts: Sequence[CommitOffsets | DeleteOffsets]
) -> Steps[list[Any]]:
    asked = [(part.group_id, part) for part in parts]
    return groups.ask_all(version, asked, 1 + DECIDED_UNITS * len(parts[0].partitions))


def commit_of(
    topic: TopicImage, asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
) -> PartitionCommit:
    """Convert the offset of one partition in a request to a `PartitionCommit`."""
    return PartitionCommit(
        topic.name,
        topic.topic_id,
        asked.partition_index,
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
    )


def _key_of(topic: TopicImage, asked: OffsetDeleteRequestPartition) -> OffsetKey:
    return topic.name, asked.partition_index


class OffsetCommitHandler:
    """Handler of OffsetCommit (API 8). From version 10 on, topics are named by id (KIP-848)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: OffsetCommitRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: OffsetCommitRequest) -> Steps[Result]:
        shape = anatomy_of(request, version)
        named = yield from sorted_out(self._desk.image, shape, request, commit_of)
        response = OffsetCommitResponse(0, named.merged())
        if not named.kept:
            return response
        metadata_bytes_max = self._groups.settings.offset_metadata_bytes_max
        group_bytes, size = len(request.group_id.encode()), 0
        for part in _parts(named.kept):
            size += sum(
                record_bytes(group_bytes, each) for each in part if len(each.metadata) <= metadata_bytes_max
            )
            yield len(part) // SIZES_PER_UNIT
        parts = [
            CommitOffsets(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                request.retention_time_ms,
                tuple(part),
                size,
            )
            for part in _parts(named.kept)
        ]
        answers = yield from _ask_in_parts(self._groups, version, parts)
        yield from named.fill(chain.from_iterable(answers))
        return response


class OffsetFetchHandler:
    """Handler of OffsetFetch (API 9).

    From version 8 on, a request has several groups (KIP-709); from version 10 on, topics are named by id.
    """

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: OffsetFetchRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: OffsetFetchRequest) -> Steps[Result]:
        groups = request.groups
        if version < OFFSET_FETCH_GROUPS:
            topics: list[OffsetFetchRequestTopics] | None = None if request.topics is None else []
            for each in request.topics or ():
                assert topics is not None
                topics.append(OffsetFetchRequestTopics(each.name, ZERO_UUID, each.partition_indexes))
                yield 1
            groups = [OffsetFetchRequestGroup(request.group_id, None, -1, topics)]
        asked: dict[tuple[str, str | None, int], FetchOffsets] = {}
        for group in groups:
            key = (group.group_id, group.member_id, group.member_epoch)
            if key not in asked:
                asked[key] = FetchOffsets(*key, is_confirmed=request.require_stable)
            yield 1
        answers = yield from self._groups.ask_all(version, [(each.group_id, each) for each in asked.values()])
        fetched: dict[tuple[str, str | None, int], FetchedOffsets] = dict(zip(asked, answers, strict=True))
        answering = _Answering(self._desk.image, version, request.require_stable)
        results = []
        for group in groups:
            key = (group.group_id, group.member_id, group.member_epoch)
            results.append((yield from answering.answer(group, fetched[key])))
        if version >= OFFSET_FETCH_GROUPS:
            return OffsetFetchResponse(0, groups=results)
        return (yield from _single(results[0]))


class _Answering:
    """The answer to one OffsetFetch while it is built.

    All offsets of a group are collected only once, even if the request names the group several times.
    """

    __slots__ = (
        "_answered",
        "_by_id",
        "_image",
        "_is_full",
        "_repeated",
        "_require_stable",
        "_version",
        "_whole",
    )

    def __init__(self, image: MetadataImage, version: int, require_stable: bool) -> None:
        self._require_stable = require_stable
        self._image = image
        self._version = version
        self._by_id = version >= OFFSET_FETCH_TOPIC_IDS
        self._repeated = RepeatedSize()
        self._is_full = False
        self._whole: dict[str, list[OffsetFetchResponseTopics]] = {}
        self._answered: dict[tuple[str, str | bytes, int], None] = {}
        """The keys of all offsets in the answer: (group id, name or id of the topic, partition)."""

    def answer(
        self, group: OffsetFetchRequestGroup, fetched: FetchedOffsets
    ) -> Work[OffsetFetchResponseGroup]:
        yield 1
        group_id = group.group_id
        code = TOO_LARGE if self._is_full else fetched.code
        if code and self._version >= OFFSET_FETCH_GROUP_ERROR:
            return OffsetFetchResponseGroup(group_id, [], code)
        if group.topics is not None:
            topics = yield from self._named(group_id, group.topics, fetched)
        elif group_id in self._whole:
            topics = self._whole[group_id]
            self._repeat(sum(_bytes(each) for topic in topics for each in topic.partitions))
        else:
            topics = self._whole[group_id] = yield from self._all(fetched)
        if self._is_full:
            return OffsetFetchResponseGroup(group_id, [], TOO_LARGE)
        return OffsetFetchResponseGroup(group_id, topics, ErrorCode.NONE)

    def _partition(
        self, name: str, topic_id: bytes, index: int, fetched: FetchedOffsets, missing: ErrorCode
    ) -> OffsetFetchResponsePartitions:
        """Return the result for one partition: its committed offset, or the error `missing`.

        With `require_stable`, an offset that an open transaction may change gets an error (KIP-447).
        """
        if self._require_stable and not missing and (name, index) in fetched.pending:
            missing = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return _fetched_partition(name, topic_id, index, fetched, missing)

    def _repeat(self, count: int) -> None:
        """Count the bytes of a repeated answer.

        If the sum exceeds the limit, the rest of the answer has an error instead of offsets.
        """
        self._is_full = not self._repeated.has_room(count)

    def _all(self, fetched: FetchedOffsets) -> Work[list[OffsetFetchResponseTopics]]:
        topics = []
        for asked in _all_topics(fetched):
            topic_id = asked.topic_id
            if self._by_id:
                topic = self._image.topics.get(asked.name)
                if topic is None:
                    continue
                topic_id = topic.topic_id
            partitions = []
            for index in asked.partition_indexes:
                partitions.append(self._partition(asked.name, topic_id, index, fetched, ErrorCode.NONE))
                yield 1
            topics.append(OffsetFetchResponseTopics(asked.name, topic_id, partitions))
        return topics

    def _named(
        self, group_id: str, named: list[OffsetFetchRequestTopics], fetched: FetchedOffsets
    ) -> Work[list[OffsetFetchResponseTopics]]:
        """Build the results of the topics that the request names, in the request's order.

        Topics whose id is unknown come last.
        """
        topics: list[OffsetFetchResponseTopics] = []
        unknown: list[OffsetFetchResponseTopics] = []
        for asked in named:
            name, missing = asked.name, ErrorCode.NONE
            if self._by_id:
                topic = self._image.topics_by_id.get(asked.topic_id)
                if topic is None:
                    missing = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    name = topic.name
            key = asked.topic_id if self._by_id else name
            partitions = []
            for index in asked.partition_indexes:
                answer = self._partition(name, asked.topic_id, index, fetched, missing)
                if (group_id, key, index) in self._answered:
                    self._repeat(_bytes(answer))
                    if self._is_full:
                        return []
                self._answered[group_id, key, index] = None
                partitions.append(answer)
                yield 1
            (unknown if missing else topics).append(
                OffsetFetchResponseTopics(name, asked.topic_id, partitions)
            )
        return topics + unknown


def _bytes(partition: OffsetFetchResponsePartitions) -> int:
    return PARTITION_BYTES + len(partition.metadata or "")


def _all_topics(fetched: FetchedOffsets) -> list[OffsetFetchRequestTopics]:
    partitions: dict[str, list[int]] = {}
    for name, index in sorted(fetched.offsets):
        partitions.setdefault(name, []).append(index)
    return [OffsetFetchRequestTopics(name, ZERO_UUID, indexes) for name, indexes in partitions.items()]


def _fetched_partition(
    name: str, topic_id: bytes, index: int, fetched: FetchedOffsets, missing: ErrorCode
) -> OffsetFetchResponsePartitions:
    code = missing or fetched.code
    value = None if code else fetched.offsets.get((name, index))
    if value is None or (ZERO_UUID not in (topic_id, value.topic_id) and topic_id != value.topic_id):
        if value is not None:
            reached("groups.offset_of_earlier_topic_hidden")
        # Hide the offset if it was committed for an earlier topic of the same name.
        return OffsetFetchResponsePartitions(index, NO_OFFSET, -1, "", code)
    return OffsetFetchResponsePartitions(
        index, value.offset, value.leader_epoch, value.metadata, ErrorCode.NONE
    )


def _single(group: OffsetFetchResponseGroup) -> Work[OffsetFetchResponse]:
    """Build the response in versions before 8, in which the response itself has the fields of its only group."""
    topics = []
    for topic in group.topics:
        partitions = [
            OffsetFetchResponsePartition(
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.metadata,
                each.error_code,
            )
            for each in topic.partitions
        ]
        topics.append(OffsetFetchResponseTopic(topic.name, partitions))
        yield 1 + len(partitions) // 2
    return OffsetFetchResponse(0, topics, group.error_code)


class OffsetDeleteHandler:
    """Handler of OffsetDelete (API 47, KIP-496)."""

    def __init__(self, desk: Desk, groups: GroupCoordinator) -> None:
        self._desk = desk
        self._groups = groups

    def handle(self, context: Context, request: OffsetDeleteRequest) -> Result:
        return self._desk.steps.begin(self._answer(context.api_version, request), is_long=True)

    def _answer(self, version: int, request: OffsetDeleteRequest) -> Steps[Result]:
        shape = anatomy_of(request, version)
        named = yield from sorted_out(self._desk.image, shape, request, _key_of)
        response = OffsetDeleteResponse(ErrorCode.NONE, 0, named.merged())
        parts = [DeleteOffsets(request.group_id, tuple(part)) for part in _parts(named.kept)]
        answers = yield from _ask_in_parts(self._groups, version, parts)
        if answers[0][0]:
            return OffsetDeleteResponse(answers[0][0])
        # If a part other than the first fails as a whole, each of its partitions gets the error.
        of_parts = (
            codes or (code,) * len(part.partitions)
            for part, (code, codes) in zip(parts, answers, strict=True)
        )
        yield from named.fill(chain.from_iterable(of_parts))
        return response
