"""Sends the requests that commit offsets, or fetch committed offsets, to a group's coordinator. PURE.

After a retriable error a request is sent again, until its deadline. If the coordinator has moved, the client
finds the new coordinator first. A request names topics by their ids if the coordinator supports this (version
10). So the offset of a deleted topic is never stored for a new topic of the same name. A topic that the
coordinator does not know may be new or deleted. Fresh metadata shows which is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from odradek.client.consumer.consumer_types import CommitRefused, OffsetAndMetadata, TopicGone
from odradek.client.core.coordinator_finder import CoordinatorFinder, CoordinatorKind
from odradek.client.core.operation import Operation, Wait
from odradek.client.core.requests import refresh_metadata
from odradek.client.errors import ClientError, RequestTimedOut, broker_error, error_code, is_retriable
from odradek.named_states import reached
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.schema.versions import OFFSET_COMMIT_TOPIC_IDS, OFFSET_FETCH_TOPIC_IDS
from odradek.wire.structure import ZERO_UUID
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.wire.messages.offset_commit import OffsetCommitRequest
    from odradek.wire.messages.offset_fetch import OffsetFetchRequest

__all__ = ["Coordinator", "Member", "TopicIds"]

_MEMBER_REFUSED = frozenset(
    {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
)
_TOPIC_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
TopicIds: TypeAlias = Mapping[TopicPartition, bytes]
"""The topic id of each partition. Partitions whose topic id is unknown are left out."""


@attrs.frozen
class Member:
    """The member id and generation that a commit names. The default names a client that is not a member of
    the group.
    """

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class Coordinator(CoordinatorFinder):
    """Finds the coordinator of one group, and sends it a consumer's requests about offsets."""

    def __init__(self, core: ClientCore, group_id: str) -> None:
        super().__init__(core, CoordinatorKind.GROUP, group_id)
        self.group_id = group_id
        self.reader: Callable[[], Member] = Member
        """Returns the member to name in requests for committed offsets. Only members of the new protocol are named.
        """
        self.reader_refused: Callable[[Member, KafkaError], None] = _ignore
        """Called when the coordinator refuses a request for committed offsets because of its member id or epoch."""

    # Offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: Member,
        *,
        deadline: float,
        topic_ids: TopicIds,
    ) -> Operation[None]:
        """Commit offsets. `topic_ids` are the ids of the topics that the offsets were read from.

        Each partition has its own outcome. If some partitions are finally refused, raises `CommitRefused` with these
        partitions, after all other offsets were committed.
        """
        pending = dict(offsets)
        refused: dict[TopicPartition, KafkaError] = {}
        version_max = _version_max(pending, topic_ids, OFFSET_COMMIT_TOPIC_IDS)
        names = {topic_ids.get(key, ZERO_UUID): key.topic for key in pending}
        unknown = _UnknownTopics(self._core, topic_ids, deadline)
        attempt = 0
        while pending:
            message = self._commit_request(pending, member, topic_ids)
            response = yield from self.request(message, deadline=deadline, version_max=version_max)
            errors: dict[TopicPartition, KafkaError] = {}
            for topic in response.topics:
                for answer in topic.partitions:
                    key = TopicPartition(topic.name or names[topic.topic_id], answer.partition_index)
                    if answer.error_code:
                        errors[key] = self._noted_error(
                            answer.error_code, f"commit of {key} in group {self.group_id}"
                        )
            yield from unknown.look(errors)
            for key, error in errors.items():
                if key in unknown.gone:
                    refused[key] = TopicGone(key.topic)
                elif not (_passing(error) or error.code in _TOPIC_UNKNOWN):
                    refused[key] = error
            pending = {key: pending[key] for key in errors if key not in refused}
            if pending:
                yield from self._pause(errors[next(iter(pending))], attempt, deadline)
                attempt += 1
        if refused:
            raise CommitRefused(refused)

    def _commit_request(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: Member, topic_ids: TopicIds
    ) -> OffsetCommitRequest:
        from odradek.wire.messages.offset_commit import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

        topics: dict[tuple[str, bytes], OffsetCommitRequestTopic] = {}
        for key, (offset, epoch, metadata) in offsets.items():
            named = key.topic, topic_ids.get(key, ZERO_UUID)
            topic = topics.setdefault(named, OffsetCommitRequestTopic(*named))
            topic.partitions.append(OffsetCommitRequestPartition(key.partition, offset, epoch, metadata))
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=list(topics.values()),
        )

    def committed(
        self, keys: Iterable[TopicPartition], *, deadline: float
    ) -> Operation[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Fetch the group's committed offsets. The value is None for a partition without a commit. The coordinator
        first waits for open transactions that may change these offsets (KIP-447).
        """
        pending = list(dict.fromkeys(keys))
        known = self._core.cluster.topics
        topic_ids = {
            key: topic.topic_id
            for key in pending
            if (topic := known.get(key.topic)) is not None and topic.topic_id != ZERO_UUID
        }
        version_max = _version_max(pending, topic_ids, OFFSET_FETCH_TOPIC_IDS)
        names = {topic_id: key.topic for key, topic_id in topic_ids.items()}
        unknown = _UnknownTopics(self._core, topic_ids, deadline)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        attempt = 0
        while pending:
            who = self.reader()
            message = self._fetch_request(pending, topic_ids, who)
            response = yield from self.request(message, deadline=deadline, version_max=version_max)
            answer = response.groups[0] if response.groups else response
            errors: dict[TopicPartition, KafkaError] = {}
            if answer.error_code:
                refusal = self._noted_error(answer.error_code, f"group {self.group_id}")
                errors = dict.fromkeys(pending, refusal)
                if who.member_id and refusal.code in _MEMBER_REFUSED:
                    reached("client.reader_refused")
                    self.reader_refused(who, refusal)
                    yield from self._pause(refusal, attempt, deadline)
                    attempt += 1
                    continue
            for topic in answer.topics if not answer.error_code else ():
                for partition in topic.partitions:
                    # Requests before version 8 name only one group, and identify topics only by their names.
                    name = topic.name or names[topic.topic_id]
                    key = TopicPartition(name, partition.partition_index)
                    if partition.error_code:
                        errors[key] = self._noted_error(partition.error_code, str(key))
                    elif partition.committed_offset < 0:
                        found[key] = None
                    else:
                        found[key] = OffsetAndMetadata(
                            partition.committed_offset,
                            partition.committed_leader_epoch,
                            partition.metadata or "",
                        )
            yield from unknown.look(errors)
            for key, error in errors.items():
                if key in unknown.gone:
                    found[key] = None
                elif not (_passing(error) or error.code in _TOPIC_UNKNOWN):
                    raise error
            pending = [key for key in errors if key not in found]
            if pending:
                yield from self._pause(errors[pending[0]], attempt, deadline)
                attempt += 1
        return found

    def _fetch_request(
        self, keys: Iterable[TopicPartition], topic_ids: TopicIds, member: Member
    ) -> OffsetFetchRequest:
        from odradek.wire.messages.offset_fetch import (
            OffsetFetchRequest,
            OffsetFetchRequestGroup,
            OffsetFetchRequestTopic,
            OffsetFetchRequestTopics,
        )

        topics: dict[tuple[str, bytes], list[int]] = {}
        for key in keys:
            topics.setdefault((key.topic, topic_ids.get(key, ZERO_UUID)), []).append(key.partition)
        return OffsetFetchRequest(
            group_id=self.group_id,
            topics=[OffsetFetchRequestTopic(name, indexes) for (name, _), indexes in topics.items()],
            groups=[
                OffsetFetchRequestGroup(
                    self.group_id,
                    member.member_id or None,
                    member.generation,
                    topics=[
                        OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=indexes)
                        for (name, topic_id), indexes in topics.items()
                    ],
                )
            ],
            require_stable=True,
        )

    def classic_state(self, *, deadline: float) -> Operation[str]:
        """Return the state of the classic group of this name. It is "Dead" if there is no such group, or if the group
        uses another protocol.
        """
        from odradek.wire.messages.describe_groups import DescribeGroupsRequest

        attempt = 0
        while True:
            response = yield from self.request(DescribeGroupsRequest([self.group_id]), deadline=deadline)
            (group,) = response.groups
            code = error_code(group.error_code)
            if code is ErrorCode.NONE:
                return str(group.group_state)
            if code is ErrorCode.GROUP_ID_NOT_FOUND:
                return "Dead"
            error = self._noted_error(group.error_code, f"group {self.group_id}")
            if not _passing(error):
                raise error
            yield from self._pause(error, attempt, deadline)
            attempt += 1

    def _noted_error(self, number: int, subject: str) -> KafkaError:
        """Make the error for an error code. If the code says that the coordinator has moved, the next request
        looks up the new coordinator.
        """
        self.noted(error_code(number))
        return broker_error(number, None, subject)

    def _pause(self, error: KafkaError, attempt: int, deadline: float) -> Operation[None]:
        """Wait for the backoff before the next attempt. Raises `RequestTimedOut` if the backoff would end
        after the deadline.
        """
        wake_at = self._core.now + self._core.backoff(attempt)
        if wake_at >= deadline:
            raise RequestTimedOut(f"{error} (retried until the timeout)") from error
        yield Wait(until=wake_at)


def _ignore(_member: Member, _error: KafkaError) -> None:
    """Called when a request for committed offsets is refused, in a consumer without a group membership.
    Nothing happens.
    """


class _UnknownTopics:
    """Decides whether a topic that a coordinator does not know is new or deleted.

    One Metadata answer may come from a broker with old metadata. So a topic counts as deleted if two answers in a row
    lack it.
    """

    def __init__(self, core: ClientCore, topic_ids: TopicIds, deadline: float) -> None:
        self.gone: set[TopicPartition] = set()
        self._core = core
        self._topic_ids = topic_ids
        self._deadline = deadline
        self._suspects: set[TopicPartition] = set()

    def look(self, errors: Mapping[TopicPartition, KafkaError]) -> Operation[None]:
        """Fetch metadata for the partitions with an error for an unknown topic, and update `gone`."""
        unknown = [key for key, error in errors.items() if error.code in _TOPIC_UNKNOWN]
        if not unknown:
            return
        names = list(dict.fromkeys(key.topic for key in unknown))
        yield from refresh_metadata(self._core, names, timeout=self._deadline - self._core.now)
        missing = {key for key in unknown if self._is_missing(key)}
        self.gone |= missing & self._suspects
        self._suspects = missing

    def _is_missing(self, key: TopicPartition) -> bool:
        cluster = self._core.cluster
        topic = cluster.topics.get(key.topic)
        if topic is None:
            return cluster.topic_errors.get(key.topic) in _TOPIC_UNKNOWN
        return topic.topic_id != self._topic_ids.get(key, topic.topic_id)


def _version_max(keys: Iterable[TopicPartition], topic_ids: TopicIds, ids_since: int) -> int | None:
    """Return the highest request version to use; None means no limit. If the id of some topic is unknown,
    return the last version that names topics.
    """
    return None if all(key in topic_ids for key in keys) else ids_since - 1


def _passing(error: KafkaError | ClientError) -> bool:
    """True if the same request may succeed later. This is false for a commit that was refused because of a
    rebalance.
    """
    return is_retriable(error) and not (
        isinstance(error, KafkaError) and error.code is ErrorCode.REBALANCE_IN_PROGRESS
    )
