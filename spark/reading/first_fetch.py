"""The first fetch of many small ranges together, with one request to each leader instead of one request for each
range. PURE.

The operation may return nothing for a range. Then the range's own reader fetches the range again, and handles the
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odradek.client.core.known_cluster import NO_TOPIC_ID
from odradek.client.core.operation import Call, Operation, Wait
from odradek.client.core.requests import known_leaders, refresh_metadata
from odradek.spark.reading.offset_ranges import OffsetRange
from odradek.wire.errors import ErrorCode
from odradek.wire.schema.versions import FETCH_TOPIC_IDS
from odradek.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from odradek.client.core.client_core import ClientCore

__all__ = ["first_fetch"]


def first_fetch(
    core: ClientCore,
    ranges: Sequence[OffsetRange],
    *,
    bytes_max: int,
    isolation_level: int,
    rack: str,
) -> Operation[dict[TopicPartition, Any]]:
    """Fetch the start of each range from its leader. Return the answers (`PartitionData`) without an error, by
    partition.

    `bytes_max` limits each leader's answer. No two ranges may be of the same partition.
    """
    by_key = {TopicPartition(each.topic, each.partition): each for each in ranges}
    names = {each.topic for each in ranges}
    if not names <= core.cluster.topics.keys():
        yield from refresh_metadata(core, sorted(names), timeout=core.config.request_timeout)
    leaders, _ = known_leaders(core, by_key)
    calls = [
        _call(core, node, [by_key[key] for key in keys], bytes_max, isolation_level, rack)
        for node, keys in leaders.items()
    ]
    if calls:
        yield Wait(calls)
    topics = {each.topic_id: each.topic for each in ranges}
    found: dict[TopicPartition, Any] = {}
    for call in calls:
        if call.error is not None or call.response.error_code != ErrorCode.NONE:
            continue
        for topic in call.response.responses:
            name = topic.topic or topics.get(topic.topic_id, "")
            for each in topic.partitions:
                key = TopicPartition(name, each.partition_index)
                if key in by_key and each.error_code == ErrorCode.NONE:
                    found[key] = each
    return found


def _call(
    core: ClientCore,
    node: int,
    ranges: Sequence[OffsetRange],
    bytes_max: int,
    isolation_level: int,
    rack: str,
) -> Call:
    from odradek.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    topics: dict[str, FetchTopic] = {}
    for each in ranges:
        topic = topics.setdefault(each.topic, FetchTopic(topic=each.topic, topic_id=each.topic_id))
        known = core.cluster.partition(each.topic, each.partition)
        topic.partitions.append(
            FetchPartition(
                partition=each.partition,
                current_leader_epoch=known.leader_epoch,
                fetch_offset=each.start,
                partition_max_bytes=bytes_max,
            )
        )
    with_ids = all(each.topic_id != NO_TOPIC_ID for each in ranges)
    return core.call(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=bytes_max,
            isolation_level=isolation_level,
            topics=list(topics.values()),
            rack_id=rack,
        ),
        node=node,
        deadline=core.now + core.config.request_timeout,
        version_max=None if with_ids else FETCH_TOPIC_IDS - 1,
    )
