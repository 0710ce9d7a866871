"""Talking to a group's coordinator: committing offsets, asking for commits. PURE.

Retriable answers are tried again until the deadline; a coordinator that moved is looked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.client.core.coordinator_finder import CoordinatorFinder, CoordinatorKind
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import ClientError, RequestTimedOut, broker_error, error_code, is_retriable
from wire.errors import ErrorCode, KafkaError
from wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["Coordinator", "Member"]

_VERSION_MAX_WITH_TOPIC_NAMES = 9


@attrs.frozen
class Member:
    """The identity for a commit: a member of a generation, or (with the defaults) a client outside of the group's
    membership."""

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class Coordinator(CoordinatorFinder):
    """The broker that coordinates one group, and what a consumer asks it about offsets."""

    def __init__(self, core: ClientCore, group_id: str) -> None:
        super().__init__(core, CoordinatorKind.GROUP, group_id)
        self.group_id = group_id

    # Offsets

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: Member, *, deadline: float
    ) -> Operation[None]:
        """Commit; raises the `KafkaError` of the first partition that is refused for good."""
        if not offsets:
            return
        from wire.messages.offset_commit import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

        attempt = 0
        pending = dict(offsets)
        while True:
            topics: dict[str, OffsetCommitRequestTopic] = {}
            for key, (offset, epoch, metadata) in pending.items():
                topic = topics.setdefault(key.topic, OffsetCommitRequestTopic(name=key.topic))
                topic.partitions.append(OffsetCommitRequestPartition(key.partition, offset, epoch, metadata))
            message = OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=member.generation,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                topics=list(topics.values()),
            )
            response = yield from self.request(
                message, deadline=deadline, version_max=_VERSION_MAX_WITH_TOPIC_NAMES
            )
            errors: dict[TopicPartition, KafkaError] = {}
            for topic in response.topics:
                for answer in topic.partitions:
                    key = TopicPartition(topic.name, answer.partition_index)
                    code = error_code(answer.error_code)
                    if code is not ErrorCode.NONE:
                        self.noted(code)
                        errors[key] = broker_error(code, None, f"commit of {key} in group {self.group_id}")
            if not errors:
                return
            yield from self._again(next(iter(errors.values())), errors.values(), attempt, deadline)
            pending = {key: pending[key] for key in errors}
            attempt += 1

    def committed(
        self, keys: Iterable[TopicPartition], *, deadline: float
    ) -> Operation[dict[TopicPartition, OffsetAndMetadata | None]]:
        """The group's commits; None where there is none. Waits for open transactions (KIP-447)."""
        from wire.messages.offset_fetch import (
            OffsetFetchRequest,
            OffsetFetchRequestGroup,
            OffsetFetchRequestTopic,
            OffsetFetchRequestTopics,
        )

        wanted: dict[str, list[int]] = {}
        for key in keys:
            wanted.setdefault(key.topic, []).append(key.partition)
        if not wanted:
            return {}
        message = OffsetFetchRequest(
            group_id=self.group_id,
            topics=[OffsetFetchRequestTopic(name, indexes) for name, indexes in wanted.items()],
            groups=[
                OffsetFetchRequestGroup(
                    self.group_id,
                    topics=[
                        OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                        for name, indexes in wanted.items()
                    ],
                )
            ],
            require_stable=True,
        )
        attempt = 0
        while True:
            response = yield from self.request(
                message, deadline=deadline, version_max=_VERSION_MAX_WITH_TOPIC_NAMES
            )
            answer = response.groups[0] if response.groups else response
            found: dict[TopicPartition, OffsetAndMetadata | None] = {}
            errors: list[KafkaError] = []
            if answer.error_code:
                errors.append(broker_error(answer.error_code, None, f"group {self.group_id}"))
            for topic in answer.topics:
                for partition in topic.partitions:
                    key = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code:
                        errors.append(broker_error(partition.error_code, None, str(key)))
                    elif partition.committed_offset < 0:
                        found[key] = None
                    else:
                        found[key] = OffsetAndMetadata(
                            partition.committed_offset,
                            partition.committed_leader_epoch,
                            partition.metadata or "",
                        )
            if not errors:
                return found
            self.noted(errors[0].code)
            yield from self._again(errors[0], errors, attempt, deadline)
            attempt += 1

    def _again(
        self, first: KafkaError, errors: Iterable[KafkaError], attempt: int, deadline: float
    ) -> Operation[None]:
        """Wait before the next attempt; raises instead where there must be none."""
        final = next((error for error in errors if not _passing(error)), None)
        if final is not None:
            raise final
        wake_at = self._core.now + self._core.backoff(attempt)
        if wake_at >= deadline:
            raise RequestTimedOut(f"{first}, until the time was up") from first
        yield Wait(until=wake_at)


def _passing(error: KafkaError | ClientError) -> bool:
    """Retriable by the same request: not so once the group has moved on to another generation."""
    return is_retriable(error) and not (
        isinstance(error, KafkaError) and error.code is ErrorCode.REBALANCE_IN_PROGRESS
    )
