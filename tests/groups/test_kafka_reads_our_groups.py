"""Apache Kafka's own tool reads the records of our coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.data_plane.coordination.records import CoordinatorRecord
from odradek.data_plane.groups.classic_group import ClassicGroup, GroupPhase, Member
from odradek.data_plane.groups.records import (
    OffsetCommitValue,
    group_metadata_record,
    group_metadata_tombstone,
    offset_commit_record,
    offset_tombstone,
)
from odradek.wire.batches.batch_header import assign_offsets
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.kafka_server import run_tool


def records() -> list[CoordinatorRecord]:
    """One of each kind that a coordinator writes."""
    group = ClassicGroup("g")
    member = Member("m-1", "one", "client", "/host", 10_000, 20_000, (("range", b"\0\0"),))
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
    ]


@pytest.mark.java
@pytest.mark.usefixtures("kafka_jars")
def test_dump_log_segments_decodes_them(tmp_path: Path) -> None:
    """`DumpLogSegments --offsets-decoder` can read every record, and names groups, members and offsets."""
    builder = RecordBatchBuilder()
    for record in records():
        builder.append(1_700_000_000_000, record.encoded_key(), record.encoded_value())
    batch = memoryview(builder.build())
    assign_offsets(batch, 0, 0, 1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    told = run_tool("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", path)
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
    ):
        assert expected in told, told
    assert told.count('"payload"') + told.count("payload:") >= 6
