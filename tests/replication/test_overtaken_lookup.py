"""A partition is removed while a worker looks up a timestamp in it."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.data_plane.log.segments.segment import Segment
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.replication.brokers import TOPIC, ReplicatedTopic


@pytest.mark.reaches("offsets.log_went_while_searched")
def test_a_partition_that_goes_during_a_lookup_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOffsets gets a retriable error, and the connection goes on working."""

    async def script(cluster: ReplicatedTopic) -> None:
        assert (await cluster.produce(1, b"a"))[0] == 0
        log = cluster.members[1].partition().log
        real = Segment.pinned_file

        def pinned(segment: Segment) -> Any:
            if segment in log.segments:
                log.abandon()
            return real(segment)

        monkeypatch.setattr(Segment, "pinned_file", pinned)
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(TOPIC, [ListOffsetsPartition(0, -1, 0)])])
        answer = await cluster.ask(1, request, version=7)
        code = answer.topics[0].partitions[0].error_code
        assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
        assert cluster.members[1].broker.log_dirs[0].offline_reason is None

    ReplicatedTopic().play(script)
