"""Small requests that name one thing many times. The size of the response is bounded."""

from __future__ import annotations

import time

from odradek.serving.answer_size import REPEATED_BYTES_MAX, TOO_LARGE, RepeatedSize
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.describe_groups import DescribeGroupsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.wire.structure import ZERO_UUID
from testkit.raw_requests import RawClient
from tests.node_process import RunningNode

TOPIC = GROUP = "large-answers"
PARTITIONS = 80
METADATA = "m" * 4096
TIMES = 400
WAIT_SECONDS = 20.0


def test_nothing_fits_once_something_did_not() -> None:
    """Once a part of the response is refused, all later parts are refused as well, even empty ones."""
    size = RepeatedSize(10)
    assert [size.has_room(count) for count in (10, 1, 0)] == [True, False, False]


def test_offsets_of_one_group_many_times_over(node: RunningNode) -> None:
    """OffsetFetch names one group many times. Groups beyond the size limit get an error, and the response can be
    parsed."""
    with RawClient(node.bootstrap) as client:
        _commit(client)
        groups = [OffsetFetchRequestGroup(GROUP, None, -1, None)] * TIMES
        response = client.request(OffsetFetchRequest("", [], groups, False), 8)
    codes = [group.error_code for group in response.groups]
    whole = codes.index(TOO_LARGE)
    assert codes == [ErrorCode.NONE] * whole + [TOO_LARGE] * (TIMES - whole)
    told = sum(
        len(each.metadata) for group in response.groups for topic in group.topics for each in topic.partitions
    )
    assert told / whole * (whole - 1) <= REPEATED_BYTES_MAX < told / whole * (whole + 1)


def test_a_group_described_twice_is_told_twice(node: RunningNode) -> None:
    """DescribeGroups answers each name of the request in order, also a repeated one, as Kafka does."""
    with RawClient(node.bootstrap) as client:
        _commit(client)
        response = client.request(DescribeGroupsRequest([GROUP, "no-such", GROUP], True), 5)
    assert [group.group_id for group in response.groups] == [GROUP, "no-such", GROUP]
    assert [group.group_state for group in response.groups] == ["Empty", "Dead", "Empty"]


def _commit(client: RawClient) -> None:
    """Commit offsets with long metadata; retry until the group's coordinator is ready."""
    client.request(CreateTopicsRequest([CreatableTopic(TOPIC, PARTITIONS, 1)], 10_000, False), 7)
    offsets = [OffsetCommitRequestPartition(index, 5, -1, METADATA) for index in range(PARTITIONS)]
    request = OffsetCommitRequest(
        GROUP, -1, "", None, -1, [OffsetCommitRequestTopic(TOPIC, ZERO_UUID, offsets)]
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        client.request(FindCoordinatorRequest("", 0, [GROUP]), 4)
        codes = {each.error_code for each in client.request(request, 8).topics[0].partitions}
        if codes == {ErrorCode.NONE}:
            return
        assert time.monotonic() < deadline, codes
        time.sleep(0.02)
