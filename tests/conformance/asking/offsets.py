"""Committed offsets for the cases: how to commit, and how to read commits."""

from __future__ import annotations

import time

from odradek.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tests.conformance.asking.talk import Talk


def partition(
    index: int, offset: int = 5, metadata: str | None = "m", epoch: int = -1
) -> OffsetCommitRequestPartition:
    """Make a partition's committed offset for a request."""
    return OffsetCommitRequestPartition(index, offset, epoch, metadata)


def request(
    group: str,
    topic: str,
    topic_id: bytes,
    *partitions: OffsetCommitRequestPartition,
    member: str = "",
    generation: int = -1,
) -> OffsetCommitRequest:
    """Make an OffsetCommit for one topic that every version can encode."""
    topics = [OffsetCommitRequestTopic(topic, topic_id, list(partitions))]
    return OffsetCommitRequest(group, generation, member, topics=topics)


def commit(talk: Talk, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets of a topic's first partitions, without keeping the answer."""
    positions = [partition(index, offset) for index, offset in enumerate(offsets)]
    answer = talk.ask_silently(request(group, topic, bytes(16), *positions), 9)
    assert not any(answered.error_code for answered in answer.topics[0].partitions), answer


def committed(talk: Talk, group: str, topic: str) -> None:
    """Fetch a group's committed offsets of one topic, and keep the answer."""

    def of_the_topic(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for answered in response.groups:
            answered.topics = [entry for entry in answered.topics or [] if entry.name == topic]
        return response

    talk.ask(_everything(group), 9, of_the_topic)


def wait_until_forgotten(talk: Talk, group: str, topic: str) -> None:
    """Wait until a topic's offsets are gone. After a topic's deletion the coordinator removes them at some
    later time."""
    for _ in range(1_000):
        answer = talk.ask_silently(_everything(group), 9)
        if all(entry.name != topic for entry in answer.groups[0].topics or []):
            return
        time.sleep(0.005)
    raise TimeoutError(f"{group} still has offsets in {topic}")


def _everything(group: str) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
