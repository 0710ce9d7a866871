"""OffsetCommit, OffsetFetch and OffsetDelete: names, ids and partitions are checked here, the rest by coordinators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import attrs

from odradek.data_plane.broker import Broker
from odradek.data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    PartitionCommit,
    record_bytes,
)
from odradek.data_plane.groups.state import OffsetKey
from odradek.data_plane.handlers.grouping.gathering import asking
from odradek.metadata_quorum.image.metadata_image import MetadataImage
from odradek.serving.answer_size import TOO_LARGE, RepeatedSize
from odradek.serving.contract import Context, Result
from odradek.serving.slices import Work, in_slices
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
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
from odradek.wire.schema.versions import (
    OFFSET_COMMIT_TOPIC_IDS,
    OFFSET_FETCH_GROUP_ERROR,
    OFFSET_FETCH_GROUPS,
    OFFSET_FETCH_TOPIC_IDS,
)
from odradek.wire.structure import ZERO_UUID

NO_OFFSET = -1
PARTITION_BYTES = 24
PARTITIONS_PER_DECISION = 500
"""A request with more partitions is decided, written and answered in parts, each of which stands for itself."""
DECIDED_UNITS = 4
"""The cost of deciding and writing one offset, in look-ups of a partition."""

P = TypeVar("P")


def _parts(partitions: Sequence[P]) -> Iterator[Sequence[P]]:
    for start in range(0, len(partitions), PARTITIONS_PER_DECISION):
        yield partitions[start : start + PARTITIONS_PER_DECISION]


T = TypeVar("T", OffsetCommitResponseTopic, OffsetDeleteResponseTopic)


class Merged(Generic[T]):
    """Topics of an answer in Kafka's order: what was refused at the door first, then what a coordinator answered."""

    def __init__(self) -> None:
        self._refused: dict[str | bytes, T] = {}
        self._accepted: list[tuple[str | bytes, T]] = []

    def add_refused(self, key: str | bytes, topic: T) -> None:
        self._add(self._refused, key, topic)

    def add_accepted(self, key: str | bytes, topic: T) -> None:
        if topic.partitions:
            self._accepted.append((key, topic))

    def _add(self, topics: dict[str | bytes, T], key: str | bytes, topic: T) -> None:
        if key in topics:
            topics[key].partitions.extend(topic.partitions)
        elif topic.partitions:
            topics[key] = topic

    def topics(self) -> list[T]:
        if not self._refused:
            return [topic for _, topic in self._accepted]
        merged = dict(self._refused)
        for key, topic in self._accepted:
            self._add(merged, key, topic)
        return list(merged.values())


@attrs.define(eq=False)
class _Commits:
    """The contents of an OffsetCommit: what a coordinator has to commit, and the answers so far."""

    commits: list[PartitionCommit] = attrs.field(factory=list)
    accepted: list[OffsetCommitResponsePartition] = attrs.field(factory=list)
    """One for each of `commits`, for the coordinator's word."""
    answers: Merged[OffsetCommitResponseTopic] = attrs.field(factory=Merged)
    size: int = 0
    """Bytes of all records together."""


class OffsetCommitHandler:
    """API 8. Topics by id from version 10 on (KIP-848)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetCommitRequest) -> Result:
        return in_slices(self._broker.long_work, self._answer(context.api_version, request))

    def _answer(self, version: int, request: OffsetCommitRequest) -> Work[Result]:
        named = yield from self._sorted_out(version, request)
        response = OffsetCommitResponse(0, named.answers.topics())
        if not named.commits:
            return response

        def combine(answers: list[list[ErrorCode]]) -> Work[OffsetCommitResponse]:
            told = iter(named.accepted)
            for codes in answers:
                for code, partition in zip(codes, told, strict=False):
                    partition.error_code = code
                    yield 1
            return response

        parts = [
            CommitOffsets(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                request.retention_time_ms,
                tuple(part),
                named.size,
            )
            for part in _parts(named.commits)
        ]
        asked_all = [(request.group_id, part) for part in parts]
        units = DECIDED_UNITS * min(len(named.commits), PARTITIONS_PER_DECISION)
        return (yield from asking(self._broker, version, asked_all, combine, units))

    def _sorted_out(self, version: int, request: OffsetCommitRequest) -> Work[_Commits]:
        """The offsets that may be committed, and an answer for each partition that is named."""
        by_id = version >= OFFSET_COMMIT_TOPIC_IDS
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        image = self._broker.image
        metadata_bytes_max = self._broker.groups.settings.offset_metadata_bytes_max
        named = _Commits()
        group_bytes = len(request.group_id.encode())
        for asked in request.topics:
            topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics.get(asked.name)
            good, bad = [], []
            for each in asked.partitions:
                yield 1
                index = each.partition_index
                if topic is None:
                    bad.append(OffsetCommitResponsePartition(index, unknown))
                elif index not in topic.partitions:
                    bad.append(OffsetCommitResponsePartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                else:
                    good.append(OffsetCommitResponsePartition(index, ErrorCode.NONE))
                    metadata = each.committed_metadata or ""
                    commit = PartitionCommit(
                        topic.name,
                        topic.topic_id,
                        index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        metadata,
                    )
                    named.commits.append(commit)
                    if len(metadata) <= metadata_bytes_max:
                        named.size += record_bytes(group_bytes, commit)
            named.accepted += good
            key = asked.topic_id if by_id else asked.name
            named.answers.add_refused(key, OffsetCommitResponseTopic(asked.name, asked.topic_id, bad))
            named.answers.add_accepted(key, OffsetCommitResponseTopic(asked.name, asked.topic_id, good))
        return named


class OffsetFetchHandler:
    """API 9. Several groups at once from version 8 on (KIP-709), topics by id from version 10 on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetFetchRequest) -> Result:
        return in_slices(self._broker.long_work, self._answer(context.api_version, request))

    def _answer(self, version: int, request: OffsetFetchRequest) -> Work[Result]:
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

        def combine(answers: list[FetchedOffsets]) -> Work[OffsetFetchResponse]:
            fetched = dict(zip(asked, answers, strict=True))
            telling = _Telling(self._broker.image, version, request.require_stable)
            told = []
            for group in groups:
                key = (group.group_id, group.member_id, group.member_epoch)
                told.append((yield from telling.tell(group, fetched[key])))
            if version >= OFFSET_FETCH_GROUPS:
                return OffsetFetchResponse(0, groups=told)
            return (yield from _single(told[0]))

        named = [(each.group_id, each) for each in asked.values()]
        return (yield from asking(self._broker, version, named, combine))


class _Telling:
    """The answer to one OffsetFetch. All offsets of a group are put together once, however often it is named."""

    __slots__ = (
        "_by_id",
        "_image",
        "_is_full",
        "_repeated",
        "_require_stable",
        "_told",
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
        self._told: dict[tuple[str, str | bytes, int], None] = {}
        """(group, name or id of a topic, partition) of those that are told."""

    def tell(self, group: OffsetFetchRequestGroup, fetched: FetchedOffsets) -> Work[OffsetFetchResponseGroup]:
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
        """The committed offset; with `require_stable`, an error if an open transaction may change it (KIP-447)."""
        if self._require_stable and not missing and (name, index) in fetched.pending:
            missing = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return _fetched_partition(name, topic_id, index, fetched, missing)

    def _repeat(self, count: int) -> None:
        """Count bytes that are told again; without room for them the rest of the answer is left out."""
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
        """The named topics in the order of the request, but those without a known id behind the others."""
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
                if (group_id, key, index) in self._told:
                    self._repeat(_bytes(answer))
                    if self._is_full:
                        return []
                self._told[group_id, key, index] = None
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
        # Also what was committed for another topic that had this name.
        return OffsetFetchResponsePartitions(index, NO_OFFSET, -1, "", code)
    return OffsetFetchResponsePartitions(
        index, value.offset, value.leader_epoch, value.metadata, ErrorCode.NONE
    )


def _single(group: OffsetFetchResponseGroup) -> Work[OffsetFetchResponse]:
    """Versions before 8 have one group in fields of their own."""
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
    """API 47 (KIP-496)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetDeleteRequest) -> Result:
        return in_slices(self._broker.long_work, self._answer(context.api_version, request))

    def _answer(self, version: int, request: OffsetDeleteRequest) -> Work[Result]:
        image = self._broker.image
        answers: Merged[OffsetDeleteResponseTopic] = Merged()
        deletions: list[OffsetKey] = []
        accepted: list[OffsetDeleteResponsePartition] = []
        for asked in request.topics:
            good, bad = [], []
            for each in asked.partitions:
                answer = OffsetDeleteResponsePartition(each.partition_index, ErrorCode.NONE)
                if image.partition(asked.name, each.partition_index) is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    bad.append(answer)
                else:
                    good.append(answer)
                    deletions.append((asked.name, each.partition_index))
                yield 1
            accepted += good
            answers.add_refused(asked.name, OffsetDeleteResponseTopic(asked.name, bad))
            answers.add_accepted(asked.name, OffsetDeleteResponseTopic(asked.name, good))
        response = OffsetDeleteResponse(ErrorCode.NONE, 0, answers.topics())

        def combine(answers: list[tuple[ErrorCode, tuple[ErrorCode, ...]]]) -> Work[OffsetDeleteResponse]:
            if answers[0][0]:
                return OffsetDeleteResponse(answers[0][0])
            told = iter(accepted)
            for part, (code, codes) in zip(parts, answers, strict=True):
                # What only later parts are refused for is told of their partitions.
                for each, partition in zip(codes or (code,) * len(part.partitions), told, strict=False):
                    partition.error_code = each
                    yield 1
            return response

        parts = [DeleteOffsets(request.group_id, tuple(part)) for part in _parts(deletions)]
        parts = parts or [DeleteOffsets(request.group_id, ())]
        units = DECIDED_UNITS * min(len(deletions), PARTITIONS_PER_DECISION)
        named = [(request.group_id, part) for part in parts]
        return (yield from asking(self._broker, version, named, combine, 1 + units))
