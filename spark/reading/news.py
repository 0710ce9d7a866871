"""Two operations of a streaming query that send requests to the leaders: wait for new records, and detect a truncated
log. PURE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.requests import known_leaders
from odradek.client.core.scatter import CallError, item_error, scatter, to_leaders
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["News", "epoch_ends"]

_LANE = 1


@attrs.define
class News:
    """The wait of a streaming query for new records. It uses a long poll at every leader instead of repeated
    requests for offsets.

    When one leader has new records, the Fetches at other leaders may still be unanswered. These Fetches stay
    open on connections of their own, and serve the next wait.
    """

    core: ClientCore
    isolation_level: int
    _held: dict[int, Call] = attrs.field(factory=dict)

    def wait(self, offsets: Mapping[TopicPartition, int], wait_ms: int) -> Operation[None]:
        """Wait until there may be records from `offsets` on, at most `wait_ms`."""
        core = self.core
        by_leader, _ = known_leaders(core, offsets)
        for node, keys in by_leader.items():
            if node not in self._held:
                self._held[node] = self._fetch(node, keys, offsets, wait_ms)
        if not self._held:
            yield Wait(until=core.now + wait_ms / 1000)
            return
        yield Wait(list(self._held.values()), first=True, until=core.now + wait_ms / 1000)
        self._held = {node: call for node, call in self._held.items() if not call.done}

    def _fetch(
        self, node: int, keys: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int], wait_ms: int
    ) -> Call:
        from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        core = self.core
        topics: dict[str, FetchTopic] = {}
        for key in keys:
            known = core.cluster.topics[key.topic]
            topic = topics.setdefault(key.topic, FetchTopic(topic=key.topic, topic_id=known.topic_id))
            topic.partitions.append(
                FetchPartition(partition=key.partition, fetch_offset=offsets[key], partition_max_bytes=1)
            )
        with_ids = all(topic.topic_id != NO_TOPIC_ID for topic in topics.values())
        return core.call(
            FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                # With this limit the answer has one complete batch, which is enough to show that there are new
                # records.
                max_bytes=1,
                isolation_level=self.isolation_level,
                topics=list(topics.values()),
            ),
            node=node,
            deadline=core.now + core.config.request_timeout,
            version_max=None if with_ids else FETCH_TOPIC_IDS - 1,
            lane=_LANE,
        )


def epoch_ends(
    core: ClientCore, epochs: Mapping[TopicPartition, int], *, deadline: float
) -> Operation[dict[TopicPartition, int]]:
    """Look up where each leader epoch ends in the leader's current log (KIP-320). If the log has no such epoch, the
    result is the end of the epoch before.

    A partition is left out if its leader is silent, or answers without the end.
    """
    from odradek.wire.messages.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    def message(keys: list[TopicPartition], _: int) -> OffsetForLeaderEpochRequest:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for key in keys:
            topic = topics.setdefault(key.topic, OffsetForLeaderTopic(topic=key.topic))
            topic.partitions.append(OffsetForLeaderPartition(key.partition, -1, epochs[key]))
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))

    def take(response: Any, _: list[TopicPartition]) -> Iterable[tuple[TopicPartition, int | CallError]]:
        for topic in response.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.topic, each.partition)
                problem = item_error(each.error_code, None, str(key))
                yield key, problem or each.end_offset

    outcomes = yield from scatter(core, epochs, to_leaders, message, take, deadline=deadline)
    return {key: end for key, end in outcomes.items() if isinstance(end, int) and end >= 0}
