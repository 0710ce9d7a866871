"""Commits during a rebalance: which are repeated under the new generation, which are refused, and how `close` waits."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.client.consumer.assignors import encode_assignment
from odradek.client.consumer.consumer_types import OffsetAndMetadata
from odradek.client.consumer.group_membership import MembershipState
from odradek.client.core.operation import Task
from odradek.wire.api import ApiKey
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.join_group import JoinGroupRequest
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.sync_group import SyncGroupResponse
from tests.client.consumer.consumers import T0, consumer, everything, member
from tests.client.consumer.fake_group import FakeConsumer
from tests.client.fake_broker import HANG_UP, SILENCE

_THREE = OffsetAndMetadata(3)


def rebalancing(assignor: str = "cooperative-sticky", **keys: Any) -> FakeConsumer:
    """Make a member that has read three records. Its last heartbeat said that the group is rebalancing."""
    found = member(3, partition_assignment_strategy=[assignor], **keys)
    everything(found, 3)
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.sleep(4)
    return found


def joining(late: ApiKey, **keys: Any) -> FakeConsumer:
    """Make a rebalancing member whose JoinGroup or SyncGroup is answered two seconds late."""
    found = rebalancing(**keys)
    found.broker.delays[late] = 2.0
    found.poll(0.1)
    del found.broker.delays[late]
    assert state(found) is MembershipState.JOINING
    return found


def state(found: FakeConsumer) -> MembershipState:
    assert found.machine.membership is not None
    return found.machine.membership.state


def begun(found: FakeConsumer, *, timeout: float = 60.0) -> Task[None]:
    """Start a commit of all three records, as the application does."""
    task = found.machine.core.start(
        found.machine.commits.commit({T0: _THREE}, timeout=timeout), found.wire.now
    )
    found.wire.settle()
    return task


def generations(found: FakeConsumer) -> list[int]:
    """Return the generation of each commit that was sent."""
    return [request.generation_id_or_member_epoch for request in found.broker.asked(OffsetCommitRequest)]


@pytest.mark.parametrize("late", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
@pytest.mark.parametrize("automatic", [True, False])
def test_a_close_beside_a_join_waits_for_it_and_commits(late: ApiKey, automatic: bool) -> None:
    """A cooperative member closes during a join.

    It waits for the join, commits the partitions that it kept, and leaves.
    """
    found = joining(late, enable_auto_commit=automatic)
    del found.broker.requests[:]
    found.broker.commits.clear()
    if not automatic:
        found.run(found.machine.commits.commit(found.machine.positions(), timeout=30))
    found.close()
    assert found.broker.commits == {T0: (3, 0, "")}
    assert generations(found)[-1] == 2
    kinds = [type(request) for request in found.broker.requests]
    assert OffsetCommitRequest not in kinds[kinds.index(LeaveGroupRequest) :]
    assert found.events[-1] == ("revoked", ["t-0"])
    assert found.wire.now < 10


@pytest.mark.parametrize("late", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_a_close_waits_for_a_join_no_longer_than_its_time(late: ApiKey) -> None:
    """A member closes during a join that is never answered. It leaves when the time for `close` is over."""
    found = rebalancing()
    found.broker.delays[late] = 1000.0
    found.poll(0.1)
    began = found.wire.now
    found.close()
    assert found.wire.now - began < 11
    assert found.broker.asked(LeaveGroupRequest)


def test_a_close_beside_a_join_that_others_hold_up_commits_and_leaves_at_once() -> None:
    """A member closes while others delay the join.

    It commits at once under the old generation, which the coordinator still accepts.
    """
    found = rebalancing()
    found.broker.commits.clear()
    found.broker.trouble[ApiKey.JOIN_GROUP].append(SILENCE)
    found.poll(0.1)
    began = found.wire.now
    found.close()
    assert found.wire.now - began < 1
    assert found.broker.commits == {T0: (3, 0, "")}
    assert generations(found)[-1] == 1
    assert found.broker.asked(LeaveGroupRequest)


def test_a_commit_during_a_join_does_not_end_the_membership() -> None:
    """A commit during a join fails with ILLEGAL_GENERATION.

    It is repeated after the join, and the member stays in the group.
    """
    found = joining(ApiKey.JOIN_GROUP, enable_auto_commit=False)
    found.wire.finish(begun(found))
    assert generations(found) == [1, 2]
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("assigned", [])]
    assert len(found.broker.asked(JoinGroupRequest)) == 3
    assert found.broker.commits == {T0: (3, -1, "")}


def test_an_eager_member_does_not_commit_what_it_gave_up() -> None:
    """An eager member gives up its partitions while a commit is under way.

    The commit is refused, and the join continues.
    """
    found = rebalancing("range", enable_auto_commit=False)
    found.broker.delays[ApiKey.OFFSET_COMMIT] = 1.0
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(int(ErrorCode.ILLEGAL_GENERATION))
    task = begun(found)
    found.broker.delays[ApiKey.JOIN_GROUP] = 2.0
    found.poll(3)
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        found.wire.finish(task)
    found.poll(1)
    assert generations(found) == [1]
    assert found.events == [("assigned", ["t-0"]), ("revoked", ["t-0"]), ("assigned", ["t-0"])]
    assert len(found.broker.asked(JoinGroupRequest)) == 3
    assert not found.broker.commits


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_what_was_lost_in_a_join_is_not_committed(code: ErrorCode) -> None:
    """A member loses its partitions during a join.

    A commit for them is not repeated, since other members may have had them.
    """
    found = rebalancing(enable_auto_commit=False)
    found.broker.delays[ApiKey.JOIN_GROUP] = 2.0
    found.broker.trouble[ApiKey.JOIN_GROUP].append(int(code))
    found.poll(0.1)
    found.broker.generation += 1
    task = begun(found)
    found.sleep(3)
    found.poll(5)
    with pytest.raises(KafkaError, match=r"ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID"):
        found.wire.finish(task)
    assert ("lost", ["t-0"]) in found.events
    assert found.events[-1] == ("assigned", ["t-0"])
    assert generations(found) == [1]
    assert not found.broker.commits


def test_what_was_given_up_and_is_back_is_not_committed() -> None:
    """A partition is given up and comes back while its commit is under way.

    The commit is not repeated, since the interim owner may have committed a newer offset.
    """
    found = rebalancing(enable_auto_commit=False)
    assert found.machine.coordinator is not None
    found.machine.coordinator.lane = 7  # A separate connection, so that the late answer delays nothing else.
    found.broker.delays[ApiKey.OFFSET_COMMIT] = 10.0
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(int(ErrorCode.ILLEGAL_GENERATION))
    task = begun(found)
    nothing = encode_assignment([])
    found.broker.trouble[ApiKey.SYNC_GROUP].append(
        SyncGroupResponse(protocol_type="consumer", protocol_name="cooperative-sticky", assignment=nothing)
    )
    found.poll(1)
    found.poll(1)
    assert found.events[1:] == [("revoked", ["t-0"]), ("assigned", []), ("assigned", ["t-0"])]
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        found.wire.finish(task)
    assert generations(found) == [1]


def test_a_generation_that_passed_without_the_member_breaks_the_hold() -> None:
    """A member misses a generation.

    Its commit is not repeated, since others may have owned its partitions in that generation.
    """
    found = rebalancing(enable_auto_commit=False)
    found.broker.trouble[ApiKey.JOIN_GROUP].append(HANG_UP)
    found.broker.generation += 1
    found.broker.delays[ApiKey.JOIN_GROUP] = 2.0
    found.poll(0.1)
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        found.wire.finish(begun(found))
    assert generations(found) == [1]
    assert not found.broker.commits


def test_a_rebalance_in_progress_is_waited_out() -> None:
    """A commit that fails with REBALANCE_IN_PROGRESS is repeated until the leader has assigned the partitions."""
    found = member(3, enable_auto_commit=False)
    everything(found, 3)
    found.broker.trouble[ApiKey.OFFSET_COMMIT].extend([int(ErrorCode.REBALANCE_IN_PROGRESS)] * 5)
    found.wire.finish(begun(found))
    assert found.broker.commits == {T0: (3, -1, "")}
    assert state(found) is MembershipState.STABLE


def test_a_rebalance_in_progress_is_not_waited_out_for_ever() -> None:
    """A commit that always fails with REBALANCE_IN_PROGRESS gives up early.

    The coordinator waits for this member's join, which needs a poll.
    """
    found = member(3, enable_auto_commit=False)
    everything(found, 3)
    found.broker.trouble[ApiKey.OFFSET_COMMIT].extend([int(ErrorCode.REBALANCE_IN_PROGRESS)] * 10_000)
    began = found.wire.now
    with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS"):
        found.wire.finish(begun(found))
    assert found.wire.now - began < 15
    assert state(found) is MembershipState.PREPARING


def test_a_close_waits_for_commits_that_were_asked_for() -> None:
    """`close` waits for the asynchronous commits before it leaves. Three of them are sent as two requests."""
    found = member(3, enable_auto_commit=False)
    everything(found, 3)
    found.broker.delays[ApiKey.OFFSET_COMMIT] = 0.5
    core, commits = found.machine.core, found.machine.commits
    for offset in (1, 2, 3):
        core.start(commits.commit_later({T0: OffsetAndMetadata(offset)}, None), found.wire.now)
    found.close()
    kinds = [type(request) for request in found.broker.requests]
    assert kinds.count(OffsetCommitRequest) == 2
    assert OffsetCommitRequest not in kinds[kinds.index(LeaveGroupRequest) :]
    assert found.broker.commits == {T0: (3, -1, "")}


def test_before_the_first_join_there_is_nothing_to_commit() -> None:
    """A commit before the first join sends nothing and returns at once, as Java's client does."""
    found = consumer(3, group_id="g", enable_auto_commit=False)
    found.machine.subscribe(["t"])
    found.broker.trouble[ApiKey.JOIN_GROUP].append(SILENCE)
    found.poll(0.1)
    found.run(found.machine.commits.commit(found.machine.positions(), timeout=5))
    heard: list[tuple[Any, Exception | None]] = []
    found.run(found.machine.commits.commit_later({}, lambda offsets, error: heard.append((offsets, error))))
    assert found.machine.commits.completed
    assert found.broker.asked(OffsetCommitRequest) == []
    callback, offsets, error = found.machine.commits.completed[0]
    callback(offsets, error)
    assert heard == [({}, None)]
