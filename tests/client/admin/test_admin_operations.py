"""Administration against scripted brokers: rare answers, and answers that no broker should give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.admin import (
    alter_group_offsets,
    describe_groups,
    describe_topic_partitions,
)
from odradek.client.admin.admin_offsets import record_times
from odradek.client.admin.admin_transactions import list_transactions
from odradek.client.core.operation import Operation
from odradek.client.errors import UnsupportedByBroker
from odradek.wire.api import ApiKey, api_versions
from odradek.wire.codec import encode
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.data_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
)
from odradek.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from odradek.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from odradek.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from odradek.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.record_batch import RecordBatchBuilder
from tests.client.core.test_scatter import TwoBrokers, coordinators
from tests.schedule import examples


def two_brokers(*keys: ApiKey) -> TwoBrokers:
    """Make two brokers that serve the APIs of `keys` besides the usual ones. Broker 1 coordinates group g."""
    two = TwoBrokers()
    for broker in two.brokers.values():
        broker.versions |= {int(key): api_versions(key) for key in keys}
    two.answer(1, ApiKey.FIND_COORDINATOR, *[coordinators(g=1)] * 9)
    return two


def described(assignment: bytes, protocol_type: str = "consumer") -> Any:
    """Describe group g, whose only member has this assignment."""
    two = two_brokers(ApiKey.DESCRIBE_GROUPS)
    member = DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_assignment=assignment
    )
    group = DescribedGroup(
        group_id="g",
        group_state="Stable",
        protocol_type=protocol_type,
        protocol_data="range",
        members=[member],
    )
    two.answer(1, ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=[group]))
    (found,) = two.run(describe_groups(two.wire.core, ["g"]))
    return found


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_assignments_of_consumers_are_read(version: int) -> None:
    """A consumer's assignment is decoded in any version. Newer versions only add fields at the end."""
    topics = [ConsumerProtocolAssignmentTopicPartition(topic="t", partitions=[2, 0])]
    body = encode(ConsumerProtocolAssignment(assigned_partitions=topics), 0)
    (member,) = described(version.to_bytes(2, "big") + body + b"more").members
    assert member.partitions == (("t", 0), ("t", 2))
    assert described(b"\0\0" + body, protocol_type="connect").members[0].partitions == ()


@given(st.binary(max_size=60))
@settings(max_examples=examples(50))
def test_assignments_of_anybodys_make_do_no_harm(data: bytes) -> None:
    """A member's assignment may be any bytes, since brokers do not look into it. It is returned as it came."""
    (member,) = described(data).members
    assert member.assignment == data


def test_a_broker_too_old_for_patterns_is_told_apart() -> None:
    """A pattern of transactional ids needs ListTransactions 2 (KIP-1152).

    If a broker is older, the call fails before it sends a request to that broker.
    """
    two = two_brokers()
    for broker in two.brokers.values():
        broker.versions[ApiKey.LIST_TRANSACTIONS] = 0, 1
    with pytest.raises(UnsupportedByBroker, match="supports no version of LIST_TRANSACTIONS"):
        two.run(list_transactions(two.wire.core, transactional_id_pattern="a.*"))


def test_a_dead_group_does_not_exist() -> None:
    """Brokers below DescribeGroups 6 report a missing group as Dead.

    The result is GROUP_ID_NOT_FOUND, as newer brokers say (KIP-1043).
    """
    two = two_brokers(ApiKey.DESCRIBE_GROUPS)
    dead = DescribedGroup(group_id="g", group_state="Dead")
    two.answer(1, ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=[dead]))
    (found,) = two.run(describe_groups(two.wire.core, ["g"]))
    assert isinstance(found.error, KafkaError)
    assert (found.error.code, found.error.message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "group g does not exist",
    )


def test_a_commit_that_a_partition_refuses_for_the_coordinator_is_repeated() -> None:
    """A commit that the wrong coordinator refuses is sent again.

    The refusal has NOT_COORDINATOR for each partition, since OffsetCommit has no error for the whole request.
    """
    two = two_brokers(ApiKey.OFFSET_COMMIT)

    def answer(*codes: ErrorCode) -> OffsetCommitResponse:
        partitions = [
            OffsetCommitResponsePartition(partition_index=index, error_code=int(code))
            for index, code in enumerate(codes)
        ]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=partitions)])

    two.answer(
        1,
        ApiKey.OFFSET_COMMIT,
        answer(ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        answer(ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    )
    found = two.run(alter_group_offsets(two.wire.core, "g", {("t", 0): 1, ("t", 1): 2}))
    assert found["t", 0] is None
    assert found["t", 1].code is ErrorCode.OFFSET_METADATA_TOO_LARGE


def batch(base_offset: int, times: list[int]) -> bytes:
    """Make a batch with one record for each timestamp."""
    builder = RecordBatchBuilder()
    for moment in times:
        builder.append(moment, None, b"v")
    data = builder.build()
    data[:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


def fetched(**records: bytes) -> FetchResponse:
    """Make a Fetch response with these bytes for partitions p0, p1 and so on of topic t."""
    partitions = [
        PartitionData(partition_index=int(name[1:]), records=data) for name, data in records.items()
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def test_times_of_records_whose_batches_do_not_fit_one_answer() -> None:
    """A Fetch response lacks the data of some partitions, which are fetched again.

    A batch above the size limit is returned only if it is the first of its response (KIP-74).
    """
    two = two_brokers()
    two.leaders = [1, 1, 1]
    two.answer(
        1,
        ApiKey.FETCH,
        fetched(p0=batch(0, [100, 200, 300]), p1=b"", p2=b""),
        fetched(p1=batch(4, [400]), p2=b""),
        fetched(p2=b""),
    )
    wanted = {("t", 0): 1, ("t", 1): 4, ("t", 2): 0}
    assert two.run(record_times(two.wire.core, wanted, 10.0)) == {("t", 0): 200, ("t", 1): 400}
    asked = [
        [partition.partition for topic in request.topics for partition in topic.partitions]
        for request in two.asked(1, ApiKey.FETCH)
    ]
    assert asked == [[0, 1, 2], [1, 2], [2]]


def test_times_behind_batches_without_records() -> None:
    """The search for a record's time skips batches below its offset. A failed fetch gives no time for its partition."""
    two = two_brokers()
    two.leaders = [1, 1]
    answer = fetched(p0=batch(0, [100]) + batch(1, [200]), p1=b"")
    answer.responses[0].partitions[1].error_code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
    two.answer(1, ApiKey.FETCH, answer)
    assert two.run(record_times(two.wire.core, {("t", 0): 1, ("t", 1): 7}, 10.0)) == {("t", 0): 200}


def test_pages_that_do_not_go_on_are_an_error() -> None:
    """A page has the same cursor as the page before (KIP-966). This is an error, since the paging would never end."""
    two = two_brokers(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    page = DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(name="t")],
        next_cursor=Cursor(topic_name="t", partition_index=3),
    )
    for node in (1, 2):
        two.answer(node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, *[page] * 5)
    with pytest.raises(KafkaError, match="do not advance"):
        two.run(describe_topic_partitions(two.wire.core, ["t"]))


def test_nothing_of_an_operation_happens_before_it_runs() -> None:
    """Creating an operation sends nothing, since operations are generators.

    Any thread may create one for the client's thread to run.
    """
    two = two_brokers()
    operation: Operation[Any] = describe_groups(two.wire.core, ["g"])
    assert two.wire.core.effects() == []
    operation.close()
