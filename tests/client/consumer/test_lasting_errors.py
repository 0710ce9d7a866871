"""Errors that persist until the application acts, and commits of which a part is refused."""

from __future__ import annotations

import pytest

from odradek.client.consumer.consumer_types import CommitRefused, NoOffsetForPartition, OffsetAndMetadata
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.topic_partition import TopicPartition
from tests.client.consumer.consumers import T0, consumer, fill, numbers, reading

U0 = TopicPartition("u", 0)


@pytest.mark.parametrize("by", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT])
def test_a_fenced_member_stays_out_for_good(by: ApiKey) -> None:
    """After FENCED_INSTANCE_ID a static member never joins again, or it would fence its successor (KIP-345).

    The listener's `lost` is called once, and each later poll and commit raises. Fetched records are not handed out.
    `close` sends no LeaveGroup.
    """
    found = consumer(3, group_id="g", group_instance_id="static", enable_auto_commit=False)
    if by in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
        found.broker.trouble[by].append(int(ErrorCode.FENCED_INSTANCE_ID))
    found.machine.subscribe(["t"])
    if by in (ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT):
        found.join()
        found.sleep(1)
        found.broker.trouble[by].append(int(ErrorCode.FENCED_INSTANCE_ID))
        if by is ApiKey.HEARTBEAT:
            found.sleep(5)
        else:
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                found.run(found.machine.commits.commit({T0: OffsetAndMetadata(1)}, timeout=5))
    joins = len(found.broker.asked(JoinGroupRequest))
    for _ in range(3):
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            found.poll(1)
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            found.run(found.machine.commits.commit({T0: OffsetAndMetadata(1)}, timeout=5))
    assert len(found.broker.asked(JoinGroupRequest)) == max(joins, 1)
    lost = [event for event in found.events if event[0] == "lost"]
    assert lost == ([("lost", ["t-0"])] if by in (ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT) else [])
    assert not found.machine.subscription.partitions
    found.close()
    assert not found.broker.asked(LeaveGroupRequest)


def test_a_deleted_topic_holds_up_no_other_commit() -> None:
    """A commit lists a deleted topic.

    Offsets of other topics are written at once, and the error names the deleted one.
    """
    found = consumer(3, group_id="g", enable_auto_commit=False)
    found.broker.add_topic("u")
    found.machine.assign_manually([T0, U0])
    found.values()
    del found.broker.topics["u"]
    offsets = {U0: OffsetAndMetadata(0), T0: OffsetAndMetadata(2)}
    began = found.wire.now
    with pytest.raises(CommitRefused, match="u was deleted") as caught:
        found.run(found.machine.commits.commit(offsets, timeout=60))
    assert caught.value.errors.keys() == {U0}
    assert found.broker.commits == {T0: (2, -1, "")}
    assert found.wire.now - began < 2
    found.run(found.machine.commits.commit({T0: OffsetAndMetadata(3)}, timeout=60))
    assert found.broker.commits == {T0: (3, -1, "")}


def test_automatic_commits_leave_a_deleted_topic_out_and_a_close_is_short() -> None:
    """A topic is deleted. Automatic commits leave it out after one log line, and `close` does not wait for it."""
    found = consumer(3, group_id="g", auto_commit_interval_ms=1000, allow_auto_create_topics=False)
    found.broker.add_topic("u")
    fill(found.broker, 1, topic="u")
    found.machine.assign_manually([T0, U0])
    found.poll(1)
    found.poll(1)
    del found.broker.topics["u"]
    for _ in range(5):
        found.poll(1)
    commits = len(found.broker.asked(OffsetCommitRequest))
    found.poll(1.5)
    later = found.broker.asked(OffsetCommitRequest)[commits:]
    assert later
    assert {topic.topic_id for request in later for topic in request.topics} == {
        found.broker.topics["t"].topic_id
    }
    began = found.wire.now
    found.close()
    assert found.wire.now - began < 1
    assert found.broker.commits[T0] == (3, 0, "")


def test_an_old_topics_offset_never_lands_in_a_new_one_of_its_name() -> None:
    """A topic is deleted and created again.

    A commit for the old topic is refused, since OffsetCommit 10 names topics by id (KIP-848).
    """
    found = reading(3, group_id="g", enable_auto_commit=False)
    found.values()
    found.broker.add_topic("t")
    with pytest.raises(CommitRefused, match="deleted and created again"):
        found.run(found.machine.commits.commit({T0: OffsetAndMetadata(3)}, timeout=60))
    assert not found.broker.commits


def test_a_coordinator_that_does_not_know_a_new_topic_yet_is_asked_again() -> None:
    """The coordinator answers UNKNOWN_TOPIC_ID, but metadata has the topic. The commit is repeated."""
    found = reading(3, group_id="g", enable_auto_commit=False)
    found.values()
    found.broker.trouble[ApiKey.OFFSET_COMMIT].extend([int(ErrorCode.UNKNOWN_TOPIC_ID)] * 3)
    found.run(found.machine.commits.commit({T0: OffsetAndMetadata(3)}, timeout=60))
    assert found.broker.commits == {T0: (3, -1, "")}


def test_no_offset_is_raised_until_the_application_seeks() -> None:
    """Without a commit and a reset policy, each poll raises NoOffsetForPartition until the application seeks."""
    found = reading(3, group_id="g", auto_offset_reset="none")
    for _ in range(3):
        with pytest.raises(NoOffsetForPartition):
            found.poll(1)
    found.machine.seek(T0, 1, -1)
    assert found.values() == numbers(1, 2)
