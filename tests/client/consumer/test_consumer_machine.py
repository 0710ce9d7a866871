"""The consumer's machine by scripts, without sockets or a clock: membership, rebalances and commits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from odradek.client.consumer.assignors import encode_assignment
from odradek.client.consumer.consumer_types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
)
from odradek.client.errors import RequestTimedOut
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.topic_partition import TopicPartition
from tests.client.consumer.consumers import T0, consumer, everything, member, numbers, reading
from tests.client.consumer.fake_group import FakeConsumer
from tests.client.fake_broker import HANG_UP, SILENCE, FakePartition

# Membership


def test_a_join_asks_for_a_member_id_first_and_is_known_by_it() -> None:
    """The first JoinGroup is answered with a member id only. The consumer repeats it with this id (KIP-394)."""
    found = member(3)
    assert [join.member_id for join in found.broker.asked(JoinGroupRequest)] == ["", "member-1"]
    (sync,) = found.broker.asked(SyncGroupRequest)
    assert (sync.member_id, sync.generation_id, sync.protocol_name) == ("member-1", 1, "range")
    assert found.events == [("assigned", ["t-0"])]
    found.sleep(10)
    beats = found.broker.asked(HeartbeatRequest)
    assert len(beats) == 3
    assert {(beat.member_id, beat.generation_id) for beat in beats} == {("member-1", 1)}


def test_a_rebalance_has_everything_given_up_before_the_join() -> None:
    """An eager member commits, calls `revoked`, joins and is assigned partitions, in this order."""
    found = member(3, group_instance_id=None)
    assert found.values() == numbers(0, 2)
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.sleep(4)
    assert len(found.broker.asked(JoinGroupRequest)) == 2
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("revoked", ["t-0"]), ("assigned", ["t-0"])]
    kinds = [type(request) for request in found.broker.requests]
    assert kinds.index(OffsetCommitRequest) < len(kinds) - 1 - kinds[::-1].index(JoinGroupRequest)
    assert found.broker.commits[T0] == (3, 0, "")


def test_a_cooperative_member_keeps_what_it_has_while_it_joins() -> None:
    """A cooperative member keeps its partitions while it joins, and its subscription lists them.

    KIP-429: 'consumers will not revoke all their partitions'.
    """
    found = member(3, partition_assignment_strategy=["cooperative-sticky"])
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.sleep(4)
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("assigned", [])]
    assert found.machine.membership is not None
    assert found.machine.membership.generation == 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_was_thrown_out_has_lost_its_partitions(code: ErrorCode) -> None:
    """A member was removed from its group, so others may read its partitions.

    `lost` is called, nothing is committed, and it joins again.
    """
    found = member(3, auto_commit_interval_ms=100_000)
    found.values()
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(code))
    found.sleep(4)
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("lost", ["t-0"]), ("assigned", ["t-0"])]
    assert found.broker.asked(OffsetCommitRequest) == []
    joins = [join.member_id for join in found.broker.asked(JoinGroupRequest)]
    forgets = code is ErrorCode.UNKNOWN_MEMBER_ID
    assert joins[2:] == (["", "member-2"] if forgets else ["member-1"])


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_was_thrown_out_commits_in_transactions_under_its_old_generation(
    code: ErrorCode,
) -> None:
    """A removed member keeps its old `group_metadata` until it has joined again (KIP-447).

    So the coordinator refuses its transactional offsets.
    """
    found = member(3)
    joined = found.machine.group_metadata()
    assert (joined.generation_id, joined.member_id) == (1, "member-1")
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(code))
    found.sleep(4)
    assert found.machine.membership is not None
    assert not found.machine.membership.is_member
    assert found.machine.group_metadata() == joined
    found.poll(1)
    assert found.machine.group_metadata().generation_id == 2


def test_a_consumer_without_a_subscription_commits_in_transactions_as_an_outsider() -> None:
    """After `unsubscribe` and `assign`, `group_metadata` has no generation.

    Partitions that were assigned by hand belong to no generation.
    """
    found = member(3)
    found.run(found.machine.leave("unsubscribed", timeout=1))
    found.machine.assign_manually([T0])
    assert found.machine.group_metadata() == ConsumerGroupMetadata("g")


def test_a_sync_without_an_answer_costs_two_request_timeouts_not_a_rebalance() -> None:
    """A SyncGroup gets no answer, for example because a firewall has dropped the connection.

    The member repeats it after two request timeouts, and does not wait for the rebalance timeout.
    """
    found = consumer(3, group_id="g", request_timeout_ms=10_000)
    found.broker.trouble[ApiKey.SYNC_GROUP].append(SILENCE)
    found.machine.subscribe(["t"])
    assert found.values(19.0) == []
    assert len(found.broker.asked(SyncGroupRequest)) == 1
    assert found.values(10.0) == numbers(0, 2)
    assert len(found.broker.asked(SyncGroupRequest)) == 2


def test_a_poll_waits_while_its_group_is_joined_though_fetched_records_lie_there() -> None:
    """Records were fetched, and the group rebalances.

    A poll waits for the join. If it returned at once and empty, its caller would spin (seed 3007).
    """
    found = member(3, enable_auto_commit="false")
    found.sleep(1)
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.broker.trouble[ApiKey.JOIN_GROUP].append(SILENCE)
    found.sleep(4)
    event = found.run(found.machine.wait(1.0))
    assert event is not None
    found.machine.notified(event)
    began = found.wire.now
    assert found.machine.take(began, found.machine.take_records) == []
    assert found.run(found.machine.wait(1.0)) is None
    assert found.wire.now == began + 1.0


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID])
def test_what_was_fetched_before_a_partition_was_given_up_is_not_handed_over(code: ErrorCode) -> None:
    """Records were fetched, and then their partition was given up.

    When it comes back it starts at the committed offset, so they are not returned twice (seed 293).
    """
    found = member(6, enable_auto_commit="false", max_poll_records="2")
    assert found.values() == numbers(0, 1)
    found.sleep(1)  # the remaining records are fetched ahead
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(code))
    found.sleep(4)
    assert everything(found, 6) == numbers(0, 5)
    assert found.values() == []


def test_what_was_fetched_of_a_partition_that_is_read_no_longer_is_dropped() -> None:
    """`assign` drops a partition, and later adds it again. Its records that were fetched before are dropped."""
    found = reading(6, max_poll_records="2")
    assert found.values() == numbers(0, 1)
    found.sleep(1)
    found.machine.assign_manually([])
    assert found.values() == []
    found.machine.assign_manually([T0])
    assert everything(found, 6) == numbers(0, 5)
    assert found.values() == []


def test_a_coordinator_that_moved_is_looked_for_again() -> None:
    """The coordinator moves, is still loading, or closes the connection.

    The consumer looks the coordinator up again, and the application gets no error.
    """
    found = consumer(3, group_id="g")
    for key, troubles in {
        ApiKey.FIND_COORDINATOR: [int(ErrorCode.COORDINATOR_NOT_AVAILABLE), 0],
        ApiKey.JOIN_GROUP: [
            int(ErrorCode.NOT_COORDINATOR),
            int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            HANG_UP,
        ],
        ApiKey.SYNC_GROUP: [int(ErrorCode.REBALANCE_IN_PROGRESS)],
        ApiKey.OFFSET_FETCH: [int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), int(ErrorCode.NOT_COORDINATOR)],
        ApiKey.HEARTBEAT: [int(ErrorCode.NOT_COORDINATOR), HANG_UP],
    }.items():
        found.broker.trouble[key].extend(troubles)
    found.machine.subscribe(["t"])
    assert found.values(30) == numbers(0, 2)
    found.sleep(10)
    assert found.events == [("assigned", ["t-0"])]
    assert len(found.broker.asked(FindCoordinatorRequest)) >= 5
    assert not any(found.broker.trouble.values())


@pytest.mark.parametrize(
    "code",
    [ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.GROUP_AUTHORIZATION_FAILED],
)
def test_what_keeps_a_member_out_is_raised(code: ErrorCode) -> None:
    """A refused join is raised by the poll, and the next poll tries again."""
    found = consumer(3, group_id="g")
    found.broker.trouble[ApiKey.JOIN_GROUP].append(int(code))
    found.machine.subscribe(["t"])
    with pytest.raises(KafkaError) as caught:
        found.poll(1)
    assert caught.value.code is code
    assert found.values() == numbers(0, 2)


def test_deleted_topics_leave_no_trace_among_the_commits() -> None:
    """A deleted topic is remembered only while its partition is assigned.

    If it were kept for longer, the memory of a consumer whose topics come and go would grow for ever.
    """
    found = consumer(3, group_id="g", auto_commit_interval_ms=1000, allow_auto_create_topics=False)
    for number in range(3):
        key = TopicPartition(f"u{number}", 0)
        found.broker.add_topic(key.topic)
        found.machine.assign_manually([T0, key])
        found.poll(1)
        del found.broker.topics[key.topic]
        for _ in range(5):
            found.poll(1)
        assert key in found.machine.commits.gone
    found.machine.assign_manually([T0])
    for _ in range(3):
        found.poll(1)
    assert not found.machine.commits.gone


@pytest.mark.reaches("client.left_for_not_polling")
def test_who_does_not_poll_leaves() -> None:
    """A consumer that does not poll for `max.poll.interval.ms` leaves.

    Kafka: 'the consumer is considered failed and the group will rebalance'.
    """
    found = member(3, max_poll_interval_ms=10_000)
    found.sleep(11)
    (leave,) = found.broker.asked(LeaveGroupRequest)
    assert leave.members[0].member_id == "member-1"
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("lost", ["t-0"]), ("assigned", ["t-0"])]


def test_a_closed_member_commits_and_leaves_but_a_static_one_stays() -> None:
    """`close` commits and sends LeaveGroup. A static member sends no LeaveGroup (KIP-345)."""
    for instance, leaves in ((None, 1), ("static", 0)):
        found = member(3, group_instance_id=instance)
        found.values()
        found.close()
        assert found.broker.commits == {T0: (3, 0, "")}
        assert found.events[-1] == ("revoked", ["t-0"])
        assert len(found.broker.asked(LeaveGroupRequest)) == leaves


def test_a_leader_that_need_not_assign_sends_no_assignment() -> None:
    """A static leader returns, and JoinGroup says `skip_assignment`. Its SyncGroup contains no assignment (KIP-814)."""
    found = consumer(3, group_id="g", group_instance_id="static")
    request = JoinGroupRequest(group_instance_id="static", protocol_type="consumer", protocols=[])
    request.protocols.append(JoinGroupRequestProtocol("range", b""))
    joined = found.broker._join(request, 0)
    joined.skip_assignment = True
    found.broker.trouble[ApiKey.JOIN_GROUP].append(joined)
    found.broker.trouble[ApiKey.SYNC_GROUP].append(
        SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=encode_assignment([T0]))
    )
    found.machine.subscribe(["t"])
    assert found.values(3) == numbers(0, 2)
    (sync,) = found.broker.asked(SyncGroupRequest)
    assert sync.assignments == []


def test_the_leader_has_a_grown_topic_assigned_again() -> None:
    """A topic gains partitions. The group's leader sees that in metadata, and joins again to assign them."""
    found = member(3, metadata_max_age_ms=1000)
    found.broker.topics["t"].partitions.append(FakePartition())
    for _ in range(4):
        found.poll(1)
    assert found.events[-1] == ("assigned", ["t-0", "t-1"])


def test_a_refused_commit_raises_and_tells_the_membership() -> None:
    """A commit that fails with ILLEGAL_GENERATION raises, and the partitions are lost. Retriable errors are retried."""
    found = member(3)
    found.values()
    found.broker.trouble[ApiKey.OFFSET_COMMIT].extend(
        [int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    )
    offsets = {T0: OffsetAndMetadata(2, 0, "note")}
    found.run(found.machine.commits.commit(offsets, timeout=5))
    assert found.broker.commits == {T0: (2, 0, "note")}
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(int(ErrorCode.ILLEGAL_GENERATION))
    with pytest.raises(KafkaError) as caught:
        found.run(found.machine.commits.commit(offsets, timeout=5))
    assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
    found.poll(1)
    assert found.events[1:] == [("lost", ["t-0"]), ("assigned", ["t-0"])]


def asked_for(found: FakeConsumer, offset: int, outcomes: list[tuple[int, Exception | None]]) -> None:
    """Start an asynchronous commit. Its callback adds the offset and the error to `outcomes`."""
    callback = partial(_noted, outcomes)
    core = found.machine.core
    core.start(found.machine.commits.commit_later({T0: OffsetAndMetadata(offset)}, callback), found.wire.now)


def _noted(outcomes: list[tuple[int, Exception | None]], offsets: Any, error: Exception | None) -> None:
    outcomes.append((offsets[T0].offset, error))


def tell(found: FakeConsumer) -> None:
    """Call the callbacks of the commits that have ended, as a poll does."""
    completed = found.machine.commits.completed
    while completed:
        callback, offsets, error = completed.popleft()
        assert callback is not None
        callback(offsets, error)


def test_commits_that_wait_become_one_and_each_is_told() -> None:
    """Thousands of asynchronous commits wait for a silent coordinator.

    They become one request, and each callback is called.
    """
    found = member(3, enable_auto_commit="false")
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(SILENCE)
    outcomes: list[tuple[int, Exception | None]] = []
    for offset in range(1, 3001):
        asked_for(found, offset, outcomes)
    found.sleep(50)  # the request times out, and is repeated over another connection
    tell(found)
    assert outcomes == [(offset, None) for offset in range(1, 3001)]
    asked = [
        request.topics[0].partitions[0].committed_offset
        for request in found.broker.asked(OffsetCommitRequest)
    ]
    assert asked == [1, 1, 3000]
    assert found.broker.commits[T0][0] == 3000


def test_a_commit_that_is_waited_for_comes_behind_those_asked_for_before() -> None:
    """A synchronous commit is sent after earlier asynchronous ones, which therefore cannot overwrite it.

    It does not raise the errors of the asynchronous commits.
    """
    found = member(3, enable_auto_commit="false")
    outcomes: list[tuple[int, Exception | None]] = []
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(int(ErrorCode.OFFSET_METADATA_TOO_LARGE))
    for offset in (1, 2, 3):
        asked_for(found, offset, outcomes)
    found.run(found.machine.commits.commit({T0: OffsetAndMetadata(2)}, timeout=5))
    tell(found)
    assert [(offset, error is None) for offset, error in outcomes] == [(1, False), (2, True), (3, True)]
    assert found.broker.commits[T0][0] == 2


def test_a_commit_waits_no_longer_than_its_timeout_for_those_before() -> None:
    """A synchronous commit waits for earlier ones, but no longer than its timeout. The earlier ones continue."""
    found = member(3, enable_auto_commit="false")
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(SILENCE)
    outcomes: list[tuple[int, Exception | None]] = []
    asked_for(found, 1, outcomes)
    with pytest.raises(RequestTimedOut):
        found.run(found.machine.commits.commit({T0: OffsetAndMetadata(2)}, timeout=3))
    found.sleep(50)
    tell(found)
    assert outcomes == [(1, None)]
    assert found.broker.commits[T0][0] == 1
