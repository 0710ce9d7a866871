"""Apache Kafka's own tool can read the records of our coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.classic_group import ClassicGroup, GroupPhase
from odradek.data_plane.groups.classic_group import Member as ClassicMember
from odradek.data_plane.groups.consumers.consumer_group import (
    ClassicSide,
    ConsumerGroup,
    Member,
    MemberState,
    Profile,
    Resolved,
)
from odradek.data_plane.groups.consumers.consumer_records import (
    current_record,
    epoch_record,
    group_tombstones,
    member_record,
    pattern_record,
    target_epoch_record,
    target_record,
)
from odradek.data_plane.groups.records import (
    OffsetCommitValue,
    group_metadata_record,
    group_metadata_tombstone,
    offset_commit_record,
    offset_tombstone,
)
from odradek.serving.layered_map import LayeredMap
from odradek.wire.batches.batch_header import assign_offsets
from odradek.wire.record_batch import RecordBatchBuilder
from tests.kafka_tools import run_tool_here


def records() -> list[CoordinatorRecord]:
    """Return one record of each kind that a coordinator writes."""
    group = ClassicGroup("g")
    member = ClassicMember("m-1", "one", "client", "/host", 10_000, 20_000, (("range", b"\0\0"),))
    member.assignment = b"share"
    group.add(member, "consumer", None)
    group.phase = GroupPhase.STABLE
    group.generation, group.protocol, group.state_timestamp_ms = 3, "range", 1_700_000_000_000
    return [
        group_metadata_record("g", group.stored()),
        group_metadata_record("empty", ClassicGroup("empty").stored()),
        group_metadata_tombstone("gone"),
        offset_commit_record("g", "t", 0, OffsetCommitValue(5, 2, "note", 7, -1, bytes(range(16)))),
        offset_commit_record("g", "t", 1, OffsetCommitValue(6, 2, "", 7, 9, bytes(range(16)))),
        offset_tombstone("g", "t", 2),
        *consumer_records(),
    ]


def consumer_records() -> list[CoordinatorRecord]:
    """Return one record of each kind that a group of the consumer protocol writes."""
    topic = bytes(range(16))
    classic = ClassicSide(10_000, (("range", b"\0\0"),))
    profile = Profile("two", "rack", "client", "/host", ("t",), "u.*", 30_000, "uniform", classic)
    member = Member(
        "m-2",
        profile,
        7,
        6,
        MemberState.UNREVOKED_PARTITIONS,
        {topic: {0: 5}},
        {topic: {1: 6}},
    )
    consumers = ConsumerGroup("consumers", members=LayeredMap({"m-2": member}))
    return [
        member_record("consumers", member),
        epoch_record("consumers", 7, -42),
        target_record("consumers", "m-2", {topic: frozenset([0, 2])}),
        target_epoch_record("consumers", 7, 1_700_000_000_001),
        current_record("consumers", member),
        pattern_record("consumers", "u.*", Resolved(frozenset(["u1"]), 99, 1_700_000_000_002)),
        *group_tombstones(consumers),
    ]


@pytest.mark.java
@pytest.mark.usefixtures("kafka_jars")
def test_dump_log_segments_decodes_them(tmp_path: Path) -> None:
    """`DumpLogSegments --offsets-decoder` reads every record, and shows groups, members and offsets."""
    builder = RecordBatchBuilder()
    for record in records():
        builder.append(1_700_000_000_000, record.encoded_key(), record.encoded_value())
    batch = memoryview(builder.build())
    assign_offsets(batch, 0, 0, 1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    told = run_tool_here("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", path)
    assert "Could not" not in told
    for expected in (
        '"protocolType":"consumer"',
        '"generation":3',
        '"memberId":"m-1"',
        '"groupInstanceId":"one"',
        '"rebalanceTimeout":20000',
        '"offset":5',
        '"metadata":"note"',
        '"expireTimestamp":9',
        '"group":"gone"',
        '"groupId":"consumers"',
        '"metadataHash":-42',
        '"memberEpoch":7,"previousMemberEpoch":6,"state":1',
        '"assignmentEpochs":[5]',
        '"subscribedTopicRegex":"u.*"',
        '"assignmentTimestamp":1700000000001',
        '"regularExpression":"u.*"',
    ):
        assert expected in told, told
    assert told.count('"payload"') + told.count("payload:") >= 18
