"""OffsetCommit, OffsetFetch and OffsetDelete: names, ids and partitions are checked here, the rest by coordinators."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from data_plane.broker import Broker
from data_plane.groups.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffsets,
    FetchOffsets,
    PartitionCommit,
)
from data_plane.handlers.answer_size import TOO_LARGE, AnswerSize
from data_plane.handlers.contract import Context, Result
from data_plane.handlers.gathering import ask_groups
from wire.errors import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from wire.messages.offset_fetch import (
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
from wire.structure import ZERO_UUID

TOPIC_IDS_SINCE = 10
GROUPS_SINCE = 8
GROUP_ERROR_SINCE = 2
NO_OFFSET = -1
PARTITION_BYTES = 24


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


class OffsetCommitHandler:
    """API 8. Topics by id from version 10 on (KIP-848)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetCommitRequest) -> Result:
        by_id = context.api_version >= TOPIC_IDS_SINCE
        image = self._broker.image
        answers: Merged[OffsetCommitResponseTopic] = Merged()
        commits: list[PartitionCommit] = []
        accepted: list[OffsetCommitResponsePartition] = []
        for asked in request.topics:
            topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics.get(asked.name)
            good, bad = [], []
            for each in asked.partitions:
                answer = OffsetCommitResponsePartition(each.partition_index, ErrorCode.NONE)
                if topic is None:
                    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    answer.error_code = unknown
                    bad.append(answer)
                elif each.partition_index not in topic.partitions:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    bad.append(answer)
                else:
                    good.append(answer)
                    commits.append(
                        PartitionCommit(
                            topic.name,
                            topic.topic_id,
                            each.partition_index,
                            each.committed_offset,
                            each.committed_leader_epoch,
                            each.committed_metadata or "",
                        )
                    )
            accepted += good
            key = asked.topic_id if by_id else asked.name
            answers.add_refused(key, OffsetCommitResponseTopic(asked.name, asked.topic_id, bad))
            answers.add_accepted(key, OffsetCommitResponseTopic(asked.name, asked.topic_id, good))
        response = OffsetCommitResponse(0, answers.topics())
        if not commits:
            return response

        def combine(answers: list[list[ErrorCode]]) -> OffsetCommitResponse:
            for partition, code in zip(accepted, answers[0], strict=True):
                partition.error_code = code
            return response

        commit = CommitOffsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            request.retention_time_ms,
            tuple(commits),
        )
        return ask_groups(self._broker, context, [(request.group_id, commit)], combine)


class OffsetFetchHandler:
    """API 9. Several groups at once from version 8 on (KIP-709), topics by id from version 10 on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetFetchRequest) -> Result:
        version = context.api_version
        if version < GROUPS_SINCE:
            named = request.topics
            topics = (
                None
                if named is None
                else [
                    OffsetFetchRequestTopics(each.name, ZERO_UUID, each.partition_indexes) for each in named
                ]
            )
            groups = [OffsetFetchRequestGroup(request.group_id, None, -1, topics)]
        else:
            groups = request.groups

        def combine(answers: list[FetchedOffsets]) -> OffsetFetchResponse:
            size = AnswerSize()
            told = [
                self._group_answer(group, answer, version, size)
                for group, answer in zip(groups, answers, strict=True)
            ]
            return (
                OffsetFetchResponse(0, groups=told) if version >= GROUPS_SINCE else _single(told[0], version)
            )

        asked: list[tuple[str, Any]] = [
            (group.group_id, FetchOffsets(group.group_id, group.member_id, group.member_epoch))
            for group in groups
        ]
        return ask_groups(self._broker, context, asked, combine)

    def _group_answer(
        self, group: OffsetFetchRequestGroup, fetched: FetchedOffsets, version: int, size: AnswerSize
    ) -> OffsetFetchResponseGroup:
        if size.is_full:
            fetched = FetchedOffsets(TOO_LARGE, {})
        if fetched.code and version >= GROUP_ERROR_SINCE:
            return OffsetFetchResponseGroup(group.group_id, [], fetched.code)
        by_id = version >= TOPIC_IDS_SINCE
        image = self._broker.image
        topics: list[OffsetFetchResponseTopics] = []
        unknown: list[OffsetFetchResponseTopics] = []
        for asked in _all_topics(fetched) if group.topics is None else group.topics:
            name, topic_id = asked.name, asked.topic_id
            missing = ErrorCode.NONE
            if by_id and group.topics is None:
                topic = image.topics.get(name)
                if topic is None:
                    continue
                topic_id = topic.topic_id
            elif by_id:
                topic = image.topics_by_id.get(topic_id)
                if topic is None:
                    missing = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    name = topic.name
            partitions = [
                _fetched_partition(name, topic_id, index, fetched, missing)
                for index in asked.partition_indexes
            ]
            (unknown if missing else topics).append(OffsetFetchResponseTopics(name, topic_id, partitions))
        topics += unknown
        if not size.has_room(_group_bytes(topics)):
            return OffsetFetchResponseGroup(group.group_id, [], TOO_LARGE)
        return OffsetFetchResponseGroup(group.group_id, topics, ErrorCode.NONE)


def _group_bytes(topics: list[OffsetFetchResponseTopics]) -> int:
    return sum(PARTITION_BYTES + len(each.metadata or "") for topic in topics for each in topic.partitions)


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


def _single(group: OffsetFetchResponseGroup, version: int) -> OffsetFetchResponse:
    """Versions before 8 have one group in fields of their own."""
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(0, topics, group.error_code)


class OffsetDeleteHandler:
    """API 47 (KIP-496)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, context: Context, request: OffsetDeleteRequest) -> Result:
        image = self._broker.image
        answers: Merged[OffsetDeleteResponseTopic] = Merged()
        deletions: list[tuple[str, int]] = []
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
            accepted += good
            answers.add_refused(asked.name, OffsetDeleteResponseTopic(asked.name, bad))
            answers.add_accepted(asked.name, OffsetDeleteResponseTopic(asked.name, good))
        response = OffsetDeleteResponse(ErrorCode.NONE, 0, answers.topics())

        def combine(answers: list[tuple[ErrorCode, tuple[ErrorCode, ...]]]) -> OffsetDeleteResponse:
            code, codes = answers[0]
            if code:
                return OffsetDeleteResponse(code)
            for partition, each in zip(accepted, codes, strict=True):
                partition.error_code = each
            return response

        delete = DeleteOffsets(request.group_id, tuple(deletions))
        return ask_groups(self._broker, context, [(request.group_id, delete)], combine)
