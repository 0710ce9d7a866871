"""Describes the logs of single replicas, followers included: start offset, end offset. The broker that has a
replica describes the replica's log. The functions are operations. PURE.

Usually only a partition's leader answers ListOffsets. But any replica answers a request with the replica id -2 (Kafka's
debugging consumer), from its own log. Followers answer it, and so do the replicas of a partition without a leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from odradek.client.admin.about_partitions import asking, results_in
from odradek.client.core.operation import Operation
from odradek.client.core.partition_keys import ByPartition
from odradek.client.core.scatter import deadline_of, scatter, this_broker
from odradek.wire.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore
    from odradek.client.core.scatter import CallError

__all__ = ["ReplicaLog", "describe_replica_logs"]

Replica: TypeAlias = tuple[str, int, int]
"""The identity of a replica: (topic, partition, broker id)."""
_Answer: TypeAlias = "tuple[int, int, int] | KafkaError"
_DEBUGGER = -2
_LATEST, _EARLIEST, _NEWEST = -1, -2, -3


@attrs.frozen
class ReplicaLog:
    """The log of one replica: its start offset and its end offset. `newest_ms` is the timestamp of its newest
    record, in milliseconds since 1970. `newest_epoch` is the leader epoch in which that record was written.
    Both are None if the log has no records.
    """

    start: int
    end: int
    newest_ms: int | None
    newest_epoch: int | None


def describe_replica_logs(
    core: ClientCore, replicas: ByPartition[Sequence[int]], *, timeout: float | None = None
) -> Operation[dict[Replica, ReplicaLog | CallError]]:
    """Describe the logs of these replicas; `replicas` lists the broker ids of each partition.

    Returns an error for each replica whose broker gave no answer. KAFKA_STORAGE_ERROR means that the
    replica's directory is offline. Requests are not repeated, so the answer describes the present. There are
    three rounds of requests, each with this `timeout` in seconds. Raises `ClientError`.
    """
    wanted = [(name, index, node) for (name, index), nodes in replicas.items() for node in nodes]
    ends = yield from _ask(core, wanted, _LATEST, timeout)
    answered = [each for each in wanted if isinstance(ends[each], tuple)]
    # A broker that gave no answer has used up the whole timeout of the first round. Send it no later
    # requests, because the other replicas would have to wait.
    starts = yield from _ask(core, answered, _EARLIEST, timeout)
    newest = yield from _ask(core, answered, _NEWEST, timeout)
    found: dict[Replica, ReplicaLog | CallError] = {}
    for each in wanted:
        end, start = ends[each], starts.get(each)
        if not isinstance(end, tuple):
            found[each] = end
        elif not isinstance(start, tuple):
            assert start is not None, f"the brokers were asked only for the end of {each}, not for its start"
            found[each] = start
        else:
            record = newest[each]
            time_ms, offset, epoch = record if isinstance(record, tuple) else (-1, -1, -1)
            found[each] = ReplicaLog(
                start[1],
                end[1],
                time_ms if offset >= 0 and time_ms >= 0 else None,
                epoch if offset >= 0 and epoch >= 0 else None,
            )
    return found


def _ask(
    core: ClientCore, replicas: Sequence[Replica], timestamp: int, timeout: float | None
) -> Operation[dict[Replica, Any]]:
    """Look up the offset for a timestamp in each replica. Return (timestamp, offset, leader epoch), or the
    replica's error.
    """
    from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest

    def message(asked: list[Replica], timeout_ms: int) -> ListOffsetsRequest:
        request = ListOffsetsRequest(replica_id=_DEBUGGER, timeout_ms=timeout_ms)
        keys = ((name, index) for name, index, _ in asked)
        return asking(request, keys, lambda key: ListOffsetsPartition(key.partition, timestamp=timestamp))

    def take(response: Any, asked: list[Replica]) -> Iterable[tuple[Replica, _Final]]:
        node = asked[0][2]
        for key, error, result in results_in(response):
            answer = (result.timestamp, result.offset, result.leader_epoch)
            # Wrap the error, so that `scatter` treats it as a value. Otherwise `scatter` would repeat a
            # request with a retriable error until the timeout.
            yield (*key, node), _Final(answer if error is None else error)

    if not replicas:
        return {}
    found = yield from scatter(
        core,
        replicas,
        this_broker(lambda replica: replica[2]),
        message,
        take,
        deadline=deadline_of(core, timeout),
    )
    return {each: final.answer if isinstance(final, _Final) else final for each, final in found.items()}


@attrs.frozen
class _Final:
    """A wrapper around a broker's answer or error. `scatter` treats it as a value, so it does not repeat the
    request.
    """

    answer: _Answer
