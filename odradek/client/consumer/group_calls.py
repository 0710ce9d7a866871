"""Talking to a group's coordinator: finding it, committing offsets, asking for commits. PURE.

The coordinator has a lane of its own, since a JoinGroup may be held back for minutes. Retriable answers are tried
again until the deadline; a coordinator that moved is looked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.client.core.known_cluster import Broker
from odradek.client.core.operation import Operation, Wait
from odradek.client.errors import ClientError, RequestTimedOut, broker_error, error_code, is_retriable
from wire.errors import ErrorCode, KafkaError
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["COORDINATOR_LANE", "Coordinator", "Member"]

COORDINATOR_LANE = 2
_GROUP = 0
_VERSION_MAX_WITH_TOPIC_NAMES = 9
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@attrs.frozen
class Member:
    """The identity for a commit: a member of a generation, or (with the defaults) a client outside of the group's
    membership."""

    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class Coordinator:
    """The broker that coordinates one group: it is found, asked, and looked for again when it is lost."""

    def __init__(self, core: ClientCore, group_id: str) -> None:
        self.group_id = group_id
        self.node: int | None = None
        self._core = core

    def lost(self) -> None:
        """Forget the coordinator, which moved or cannot be reached, so that it is looked for again."""
        self.node = None

    def find(self, *, deadline: float) -> Operation[int]:
        """The coordinator's broker id. Raises a `KafkaError` that is not retriable, and at the deadline the last
        error."""
        core = self._core
        attempt = 0
        while self.node is None:
            request = FindCoordinatorRequest(
                key=self.group_id, key_type=_GROUP, coordinator_keys=[self.group_id]
            )
            call = core.call(request, node=None, deadline=deadline)
            yield Wait([call])
            error = call.error if call.error is not None else self._found(call.response)
            if error is None:
                break
            wake_at = core.now + core.backoff(attempt)
            if not is_retriable(error) or wake_at >= deadline:
                raise error
            attempt += 1
            yield Wait(until=wake_at)
        assert self.node is not None
        return self.node

    def _found(self, response: Any) -> KafkaError | None:
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            return broker_error(found.error_code, found.error_message, f"group {self.group_id}")
        self._core.cluster.add_brokers([Broker(found.node_id, found.host, found.port)])
        self.node = found.node_id
        return None

    def request(self, message: Any, *, deadline: float, version_max: int | None = None) -> Operation[Any]:
        """One request to the coordinator, looked for if need be; a broken connection is tried again."""
        attempt = 0
        core = self._core
        while True:
            node = yield from self.find(deadline=deadline)
            call = core.call(
                message, node=node, deadline=deadline, version_max=version_max, lane=COORDINATOR_LANE
            )
            yield Wait([call])
            if call.error is None:
                return call.response
            self.lost()
            wake_at = core.now + core.backoff(attempt)
            if not is_retriable(call.error) or wake_at >= deadline:
                raise call.error
            attempt += 1
            yield Wait(until=wake_at)

    def noted(self, code: ErrorCode) -> None:
        """Look at an error code: if the coordinator has moved, it is looked for again."""
        if code in _MOVED:
            self.lost()

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
