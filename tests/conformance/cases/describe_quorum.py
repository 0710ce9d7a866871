"""DescribeQuorum: a quorum of one, whose voter is static."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from tests.conformance.asking.talk import Talk, case

METADATA = "__cluster_metadata"


def _describe(talk: Talk, wanted: list[tuple[str, list[int]]], version: int = 2) -> None:
    topics = [
        DescribeQuorumRequestTopicData(name, [DescribeQuorumRequestPartitionData(index) for index in indexes])
        for name, indexes in wanted
    ]
    talk.ask(DescribeQuorumRequest(topics), version, _steady)


def _steady(response: DescribeQuorumResponse) -> Any:
    """Remove values that differ from server to server: offsets, epochs, times, the controller's port."""
    for topic in response.topics:
        for partition in topic.partitions:
            partition.leader_epoch = min(partition.leader_epoch, 1)
            partition.high_watermark = min(partition.high_watermark, 1)
            for replica in (*partition.current_voters, *partition.observers):
                replica.log_end_offset = min(replica.log_end_offset, 1)
                replica.last_fetch_timestamp = min(replica.last_fetch_timestamp, 1)
                replica.last_caught_up_timestamp = min(replica.last_caught_up_timestamp, 1)
    for node in response.nodes:
        for listener in node.listeners:
            listener.port = 1
    return response


def _versions(talk: Talk, *, version: int) -> None:
    _describe(talk, [(METADATA, [0])], version)
    _describe(talk, [(METADATA, [1])], version)
    _describe(talk, [(talk.name("no-quorum"), [0])], version)
    _describe(talk, [], version)


for _version in range(3):
    case(f"describe_quorum v{_version}")(partial(_versions, version=_version))


@case("describe_quorum of what is not one partition")
def _(talk: Talk) -> None:
    _describe(talk, [(METADATA, [])])
    _describe(talk, [(METADATA, [0, 0])])
    _describe(talk, [(METADATA, [0, 1])])
    _describe(talk, [(METADATA, [0]), (METADATA, [0])])
    _describe(talk, [(METADATA, [-1])])
    _describe(talk, [("", [0])])
