"""Looks up offsets of partitions by ListOffsets: the start, the end, or the offset for a time. The functions
are operations. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.partition_keys import ByPartition, named
from odradek.client.core.requests import in_parts, known_leaders, refresh_metadata, topics_with_metadata
from odradek.client.errors import broker_error, error_code, is_retriable
from odradek.wire.errors import ErrorCode
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "ListedOffset", "list_offsets"]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3


@attrs.frozen
class ListedOffset:
    """The outcome of ListOffsets for one partition. `offset` is -1 if no record is new enough. `timestamp` is -1
    unless a time was looked up.
    """

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    core: ClientCore,
    wanted: ByPartition[int],
    *,
    timeout: float | None = None,
    isolation_level: int = 0,
) -> Operation[dict[TopicPartition, ListedOffset]]:
    """Look up an offset of each partition by ListOffsets.

    The value in `wanted` selects the offset. A time in milliseconds since 1970 selects the first record at or
    after that time. -2 (`EARLIEST`) selects the start offset. -1 (`LATEST`) selects the end offset: the
    offset after the last record that consumers may read. -3 (`MAX_TIMESTAMP`) selects the record with the
    highest timestamp. With `isolation_level` 1 the end is the last stable offset.

    Retriable errors are retried with fresh metadata until the deadline. Raises `KafkaError` and `ClientError`.
    """
    timeout = core.config.api_timeout if timeout is None else timeout
    deadline = core.now + timeout
    times = named(wanted)
    names = list(dict.fromkeys(key.topic for key in times))
    yield from topics_with_metadata(core, names, deadline=deadline)
    for key in times:
        core.cluster.partition(*key)
    found: dict[TopicPartition, ListedOffset] = {}
    attempt = 0
    while True:
        pending = [key for key in times if key not in found]
        if not pending:
            return {key: found[key] for key in times}
        by_leader, without = known_leaders(core, pending)
        calls = []
        for node, keys in in_parts(by_leader):
            message = _request(core, {key: times[key] for key in keys}, isolation_level, timeout)
            calls.append(core.call(message, node=node, deadline=deadline))
        if calls:
            yield Wait(calls)
        errors = _collect(calls, found)
        for key in without:
            errors.append(broker_error(ErrorCode.LEADER_NOT_AVAILABLE, None, str(key)))
        if not errors:
            continue
        wake_at = core.now + core.backoff(attempt)
        fatal = next((error for error in errors if not is_retriable(error)), None)
        if fatal is not None or wake_at >= deadline:
            raise fatal or errors[0]
        attempt += 1
        yield Wait(until=wake_at)
        yield from refresh_metadata(core, names, timeout=deadline - core.now)
        for key in times:
            core.cluster.partition(*key)


def _request(
    core: ClientCore, wanted: Mapping[TopicPartition, int], isolation_level: int, timeout: float
) -> Any:
    from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), timestamp in wanted.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        epoch = core.cluster.partition(name, index).leader_epoch
        topic.partitions.append(
            ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=list(topics.values()),
        timeout_ms=max(1, int(timeout * 1000)),
    )


def _collect(calls: list[Call], found: dict[TopicPartition, ListedOffset]) -> list[Exception]:
    errors: list[Exception] = []
    for call in calls:
        if call.error is not None:
            errors.append(call.error)
            continue
        for topic in call.response.topics:
            for answer in topic.partitions:
                key = TopicPartition(topic.name, answer.partition_index)
                if error_code(answer.error_code) is ErrorCode.NONE:
                    found[key] = ListedOffset(answer.offset, answer.timestamp, answer.leader_epoch)
                else:
                    errors.append(broker_error(answer.error_code, None, str(key)))
    return errors
