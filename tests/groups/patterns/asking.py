"""Patterns tried on a server: the error of a member that subscribes to one, or the topics that the member gets.

Each pattern has a group of its own. A second member subscribes to topics of its own. All patterns of a group are resolved
together, so the first member's topics are known as soon as the second one has any.
"""

from __future__ import annotations

import time
from typing import Any

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from testkit.raw_requests import RawClient
from tests.groups.patterns.table import NAMES, PATTERNS

__all__ = ["answers_of"]

WAIT_SECONDS = 300.0
SECOND_TOPIC = "second.member.of.a.group"
PARTITIONS = 2
"""Partitions of each topic. The second member may get one even of topics that match the first member's pattern."""


def answers_of(bootstrap: str) -> dict[str, list[Any]]:
    """Try all patterns on a server without topics. Return for each the name of an error, or the sorted names that
    match."""
    with RawClient(bootstrap, WAIT_SECONDS) as client:
        _create_topics(client)
        _find_coordinator(client)
        found: dict[str, list[Any]] = {}
        pending: dict[str, int] = {}
        for number, pattern in enumerate(PATTERNS):
            answer = _beat(client, number, "first", pattern)
            if answer.error_code:
                found[pattern] = [ErrorCode(answer.error_code).name]
            else:
                pending[pattern] = number
        epochs = {number: _joined(client, number) for number in pending.values()}
        deadline = time.monotonic() + WAIT_SECONDS
        while pending:
            assert time.monotonic() < deadline, sorted(pending)
            for pattern, number in list(pending.items()):
                epochs[number] = _go_on(client, number, epochs[number])
                names = _topics_of_first(client, number)
                if names is not None:
                    found[pattern] = [names]
                    del pending[pattern]
            time.sleep(0.5)
    return {pattern: found[pattern] for pattern in PATTERNS}


def _create_topics(client: RawClient) -> None:
    counts = {**dict.fromkeys(NAMES, 1), SECOND_TOPIC: PARTITIONS}
    topics = [CreatableTopic(name, count, 1, [], []) for name, count in counts.items()]
    answer = client.request(CreateTopicsRequest(topics, 30_000, False), 7)
    assert not any(each.error_code for each in answer.topics), answer


def _find_coordinator(client: RawClient) -> None:
    """Wait until the server coordinates groups and knows all topics."""
    deadline = time.monotonic() + WAIT_SECONDS
    while client.request(FindCoordinatorRequest("", 0, ["patterns"]), 4).coordinators[0].error_code:
        assert time.monotonic() < deadline, "the server has no coordinator"
        time.sleep(0.1)
    names = [*NAMES, SECOND_TOPIC]
    while True:
        join = ConsumerGroupHeartbeatRequest("probe", "p", 0, None, None, 60_000, names, None, None, [])
        answer = client.request(join, 1)
        count = (
            0
            if answer.error_code
            else sum(len(each.partitions) for each in answer.assignment.topic_partitions)
        )
        if count == len(NAMES) + PARTITIONS:
            break
        assert time.monotonic() < deadline, answer
        client.request(ConsumerGroupHeartbeatRequest("probe", "p", -1), 1)
        time.sleep(0.2)
    client.request(ConsumerGroupHeartbeatRequest("probe", "p", -1), 1)


def _beat(client: RawClient, number: int, member: str, pattern: str) -> Any:
    join = ConsumerGroupHeartbeatRequest(
        f"group-{number}", member, 0, None, None, 60_000, [], pattern, None, []
    )
    return client.request(join, 1)


def _joined(client: RawClient, number: int) -> int:
    answer = _beat(client, number, "second", SECOND_TOPIC.replace(".", r"\."))
    assert not answer.error_code, answer
    epoch: int = answer.member_epoch
    return epoch


def _go_on(client: RawClient, number: int, epoch: int) -> int:
    answer = client.request(ConsumerGroupHeartbeatRequest(f"group-{number}", "second", epoch), 1)
    assert not answer.error_code, answer
    found: int = answer.member_epoch
    return found


def _topics_of_first(client: RawClient, number: int) -> list[str] | None:
    """Return the names in the group's target that are not the second member's, once that member has topics.

    Before Kafka has resolved the second member's pattern, it may give that member partitions of the first pattern.
    """
    (group,) = client.request(ConsumerGroupDescribeRequest([f"group-{number}"], False), 1).groups
    assert not group.error_code, group
    targets = {
        each.member_id: {topic.topic_name for topic in each.target_assignment.topic_partitions}
        for each in group.members
    }
    if not targets["second"]:
        return None
    return sorted((targets["first"] | targets["second"]) - {SECOND_TOPIC})
