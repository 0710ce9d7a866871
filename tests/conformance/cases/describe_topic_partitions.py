"""DescribeTopicPartitions: topics page by page."""

from __future__ import annotations

from functools import partial
from typing import Any

from odradek.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.conformance.asking.talk import Talk, case


def _describe(talk: Talk, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    asked = [TopicRequest(name) for name in names]
    return talk.ask(
        DescribeTopicPartitionsRequest(asked, limit, None if cursor is None else Cursor(*cursor)), 0
    )


@case("describe_topic_partitions v0")
def _(talk: Talk) -> None:
    one, _ = talk.topic("dtp-one")
    three, _ = talk.topic("dtp-three", 3)
    _describe(talk, one)
    _describe(talk, three, one)
    _describe(talk, one, talk.name("dtp-unknown"), three)


@case("describe_topic_partitions of topics that cannot be")
def _(talk: Talk) -> None:
    _describe(talk, "bad name")
    _describe(talk, "")
    _describe(talk, "x" * 250, ".")
    _describe(talk, "__cluster_metadata")


@case("describe_topic_partitions names a topic twice")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dtp-twice", 2)
    _describe(talk, name, name)
    _describe(talk, name, name, limit=3)


@case("describe_topic_partitions page by page")
def _(talk: Talk) -> None:
    names = [talk.topic(f"dtp-page-{letter}", 3)[0] for letter in "cab"]
    for limit in (1, 2, 3, 4, 9):
        cursor = None
        while True:
            page = _describe(talk, *names, limit=limit, cursor=cursor)
            if page.next_cursor is None:
                break
            cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)


def _limited(talk: Talk, *, limit: int) -> None:
    name, _ = talk.topic(f"dtp-limit{limit}", 3)
    _describe(talk, name, talk.name("dtp-unknown"), limit=limit)


for _limit in (-1, 0, 1, 2, 3, 2_000, 2_001, 2**31 - 1, -(2**31)):
    case(f"describe_topic_partitions with a limit of {_limit}")(partial(_limited, limit=_limit))


def _from(talk: Talk, *, topic: str, partition: int) -> None:
    names = [talk.topic(f"dtp-from-{letter}{topic}{partition}", 2)[0] for letter in "bd"]
    start = talk.name(f"dtp-from-{topic}{topic}{partition}") if topic else ""
    _describe(talk, *names, cursor=(start, partition))
    _describe(talk, *names, limit=1, cursor=(start, partition))


for _topic in ("a", "b", "c", "d", "e", ""):
    for _partition in (0, 1, 2, 9, -1):
        case(f"describe_topic_partitions from {_topic or 'an empty name'}, {_partition}")(
            partial(_from, topic=_topic, partition=_partition)
        )


@case("describe_topic_partitions from a topic that is gone")
def _(talk: Talk) -> None:
    first, _ = talk.topic("dtp-gone-a", 2)
    gone, _ = talk.topic("dtp-gone-b", 2)
    last, _ = talk.topic("dtp-gone-c", 2)
    talk.delete_topic(gone)
    _describe(talk, first, gone, last, cursor=(gone, 1))
    _describe(talk, first, gone, last)


@case("describe_topic_partitions of the internal topic")
def _(talk: Talk) -> None:
    _describe(talk, "__consumer_offsets")


@case("describe_topic_partitions of all topics")
def _(talk: Talk) -> None:
    name, _ = talk.topic("dtp-all")
    talk.ask(
        DescribeTopicPartitionsRequest([], 2_000),
        0,
        lambda answer: name in {topic.name for topic in answer.topics},
    )
    talk.ask(
        DescribeTopicPartitionsRequest([], 2_000, Cursor("zzz", 0)), 0, lambda answer: len(answer.topics)
    )
