"""The consumer without sockets and clock: membership, positions, truncation, fetching ahead, by scripts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from odradek.client.consumer.assignors import encode_assignment
from odradek.client.consumer.consumer_types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetsOutOfRange,
    TruncationDetected,
    UndecodableRecord,
)
from odradek.client.errors import RequestTimedOut
from odradek.wire.api import ApiKey
from odradek.wire.batches.batch_errors import CorruptBatch
from odradek.wire.batches.batch_header import assign_offsets, parse_header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from odradek.wire.messages.find_coordinator import FindCoordinatorRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.messages.leave_group import LeaveGroupRequest
from odradek.wire.messages.metadata import MetadataResponseBroker
from odradek.wire.messages.offset_commit import OffsetCommitRequest
from odradek.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.record_batch import RecordBatchBuilder
from odradek.wire.topic_partition import TopicPartition
from sim.load.producing import ProduceConfig, Producing, RecordToSend
from tests.client.consumer.fake_group import FakeConsumer, GroupBroker
from tests.client.fake_broker import HANG_UP, SILENCE, FakePartition

T0 = TopicPartition("t", 0)


def fill(
    broker: GroupBroker,
    count: int,
    *,
    topic: str = "t",
    partition: int = 0,
    per_batch: int = 3,
    epoch: int = 0,
) -> None:
    """Append records to a topic, values counted from the partition's end on."""
    target = broker.topics[topic].partitions[partition]
    for start in range(0, count, per_batch):
        builder = RecordBatchBuilder()
        for n in range(start, min(start + per_batch, count)):
            builder.append(1000 + n, None, b"%d" % (target.end_offset + n - start))
        data = builder.build()
        assign_offsets(data, 0, target.end_offset, epoch)
        target.batches.append((target.end_offset, bytes(data)))
        target.end_offset += parse_header(data).record_count


def consumer(count: int = 0, partitions: int = 1, **keys: Any) -> FakeConsumer:
    """Make a consumer of a broker whose topic `t` has `count` records in partition 0."""
    found = FakeConsumer(**keys)
    found.broker.add_topic("t", partitions)
    fill(found.broker, count)
    return found


def reading(count: int = 0, **keys: Any) -> FakeConsumer:
    """Make such a consumer that reads partition 0."""
    found = consumer(count, **keys)
    found.machine.assign_manually([T0])
    return found


def member(count: int = 0, partitions: int = 1, **keys: Any) -> FakeConsumer:
    """Make such a consumer that is in a group, and has its partitions."""
    found = consumer(count, partitions, group_id="g", **keys)
    found.machine.subscribe(["t"])
    found.join()
    assert len(found.machine.subscription.partitions) == partitions
    return found


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def everything(found: FakeConsumer, count: int) -> list[bytes]:
    """Poll until so many records have come, or more."""
    values: list[bytes] = []
    while len(values) < count:
        values += found.values()
    return values


# Membership


def test_a_join_asks_for_a_member_id_first_and_is_known_by_it() -> None:
    """KIP-394: the first JoinGroup is answered with an id only, and repeated with it."""
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
    """Eager: commit, revoke, join, assign, in this order."""
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
    """KIP-429: 'consumers will not revoke all their partitions'; it says what it owns."""
    found = member(3, partition_assignment_strategy=["cooperative-sticky"])
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.sleep(4)
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("assigned", [])]
    assert found.machine.membership is not None
    assert found.machine.membership.generation == 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_was_thrown_out_has_lost_its_partitions(code: ErrorCode) -> None:
    """Others may read them already: the listener hears `lost`, nothing is committed, the member joins anew."""
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
    """KIP-447: the coordinator refuses the offsets of what it has read; those of an outsider would be taken."""
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
    """Partitions assigned by hand belong to no generation. So behind `unsubscribe` the old one is forgotten."""
    found = member(3)
    found.run(found.machine.leave("unsubscribed", timeout=1))
    found.machine.assign_manually([T0])
    assert found.machine.group_metadata() == ConsumerGroupMetadata("g")


def test_a_sync_without_an_answer_costs_two_request_timeouts_not_a_rebalance() -> None:
    """A firewall forgot the connection, so nobody refuses its bytes: the member joins again over another."""
    found = consumer(3, group_id="g", request_timeout_ms=10_000)
    found.broker.trouble[ApiKey.SYNC_GROUP].append(SILENCE)
    found.machine.subscribe(["t"])
    assert found.values(19.0) == []
    assert len(found.broker.asked(SyncGroupRequest)) == 1
    assert found.values(10.0) == numbers(0, 2)
    assert len(found.broker.asked(SyncGroupRequest)) == 2


def test_a_poll_waits_while_its_group_is_joined_though_fetched_records_lie_there() -> None:
    """Fetched records are given out only after the group is joined. A poll that returned for them before would spin
    (seed 3007)."""
    found = member(3, enable_auto_commit="false")
    found.sleep(1)
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(ErrorCode.REBALANCE_IN_PROGRESS))
    found.broker.trouble[ApiKey.JOIN_GROUP].append(SILENCE)
    found.sleep(4)
    event = found.run(found.machine.wait(1.0))
    assert event is not None
    found.machine.told(event)
    began = found.wire.now
    assert found.machine.take(began, found.machine.take_records) == []
    assert found.run(found.machine.wait(1.0)) is None
    assert found.wire.now == began + 1.0


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID])
def test_what_was_fetched_before_a_partition_was_given_up_is_not_handed_over(code: ErrorCode) -> None:
    """A partition that comes back starts at the group's position, since others may have read on. Records that were
    fetched before it was given up would come a second time (seed 293)."""
    found = member(6, enable_auto_commit="false", max_poll_records="2")
    assert found.values() == numbers(0, 1)
    found.sleep(1)  # the rest is fetched ahead
    found.broker.trouble[ApiKey.HEARTBEAT].append(int(code))
    found.sleep(4)
    assert everything(found, 6) == numbers(0, 5)
    assert found.values() == []


def test_what_was_fetched_of_a_partition_that_is_read_no_longer_is_dropped() -> None:
    """Assigned by hand: `assign` with fewer partitions, then with the old ones again."""
    found = reading(6, max_poll_records="2")
    assert found.values() == numbers(0, 1)
    found.sleep(1)
    found.machine.assign_manually([])
    assert found.values() == []
    found.machine.assign_manually([T0])
    assert everything(found, 6) == numbers(0, 5)
    assert found.values() == []


def test_a_coordinator_that_moved_is_looked_for_again() -> None:
    """NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, a broken connection: none is the application's business."""
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
    """And each later poll tries again."""
    found = consumer(3, group_id="g")
    found.broker.trouble[ApiKey.JOIN_GROUP].append(int(code))
    found.machine.subscribe(["t"])
    with pytest.raises(KafkaError) as caught:
        found.poll(1)
    assert caught.value.code is code
    assert found.values() == numbers(0, 2)


def test_deleted_topics_leave_no_trace_among_the_commits() -> None:
    """A consumer whose pattern matches topics that come and go lives for months."""
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


def test_who_does_not_poll_leaves() -> None:
    """max.poll.interval.ms: 'the consumer is considered failed and the group will rebalance'."""
    found = member(3, max_poll_interval_ms=10_000)
    found.sleep(11)
    (leave,) = found.broker.asked(LeaveGroupRequest)
    assert leave.members[0].member_id == "member-1"
    found.poll(1)
    assert found.events == [("assigned", ["t-0"]), ("lost", ["t-0"]), ("assigned", ["t-0"])]


def test_a_closed_member_commits_and_leaves_but_a_static_one_stays() -> None:
    """KIP-345: 'static members ... will not send LeaveGroupRequest'."""
    for instance, leaves in ((None, 1), ("static", 0)):
        found = member(3, group_instance_id=instance)
        found.values()
        found.close()
        assert found.broker.commits == {T0: (3, 0, "")}
        assert found.events[-1] == ("revoked", ["t-0"])
        assert len(found.broker.asked(LeaveGroupRequest)) == leaves


def test_a_leader_that_need_not_assign_sends_no_assignment() -> None:
    """KIP-814: a static leader that returns skips the assignment."""
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
    """A topic with more partitions than before: the next metadata brings a rebalance."""
    found = member(3, metadata_max_age_ms=1000)
    found.broker.topics["t"].partitions.append(FakePartition())
    for _ in range(4):
        found.poll(1)
    assert found.events[-1] == ("assigned", ["t-0", "t-1"])


def test_a_refused_commit_raises_and_tells_the_membership() -> None:
    """ILLEGAL_GENERATION: the partitions are with others; retriable refusals are repeated."""
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
    """Ask for a commit that nobody waits for; `outcomes` gets the offset and its error."""
    callback = partial(_noted, outcomes)
    core = found.machine.core
    core.start(found.machine.commits.commit_later({T0: OffsetAndMetadata(offset)}, callback), found.wire.now)


def _noted(outcomes: list[tuple[int, Exception | None]], offsets: Any, error: Exception | None) -> None:
    outcomes.append((offsets[T0].offset, error))


def tell(found: FakeConsumer) -> None:
    """Call the application's callbacks for the commits that have ended, as a poll does."""
    completed = found.machine.commits.completed
    while completed:
        callback, offsets, error = completed.popleft()
        assert callback is not None
        callback(offsets, error)


def test_commits_that_wait_become_one_and_each_is_told() -> None:
    """An application that commits each record while the coordinator is silent keeps two requests, not thousands."""
    found = member(3, enable_auto_commit="false")
    found.broker.trouble[ApiKey.OFFSET_COMMIT].append(SILENCE)
    outcomes: list[tuple[int, Exception | None]] = []
    for offset in range(1, 3001):
        asked_for(found, offset, outcomes)
    found.sleep(50)  # the request times out, and is repeated on another connection
    tell(found)
    assert outcomes == [(offset, None) for offset in range(1, 3001)]
    asked = [
        request.topics[0].partitions[0].committed_offset
        for request in found.broker.asked(OffsetCommitRequest)
    ]
    assert asked == [1, 1, 3000]
    assert found.broker.commits[T0][0] == 3000


def test_a_commit_that_is_waited_for_comes_behind_those_asked_for_before() -> None:
    """Else an older commit would take its place. An error of the earlier member reaches only its own commits."""
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
    """The coordinator is silent: the application's own timeout holds, and the commits before it go on."""
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


# Positions


def test_a_position_out_of_range_is_reset_or_raised() -> None:
    """auto.offset.reset: earliest, latest, none; what was fetched before is handed out first."""
    for policy, position in (("earliest", 3), ("latest", 9)):
        found = reading(9, auto_offset_reset=policy)
        found.machine.seek(T0, 77, -1)
        found.broker.topics["t"].partitions[0].start_offset = 3
        found.poll(0.2)
        assert found.run(found.machine.position(T0, 5)) == (9 if policy == "earliest" else position)
    found = reading(9, auto_offset_reset="none")
    found.machine.seek(T0, 77, -1)
    with pytest.raises(OffsetsOutOfRange):
        found.poll(1)
    found.machine.seek(T0, 8, -1)
    assert found.values() == numbers(8, 8)


def test_after_a_change_of_leader_the_position_is_checked() -> None:
    """KIP-320: the new leader's log goes on from the position: the consumer reads on, each record once."""
    found = reading(9, metadata_max_age_ms=1000)
    assert found.values() == numbers(0, 8)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 9}
    found.sleep(2)
    fill(found.broker, 3, epoch=1)
    assert found.values() == numbers(9, 11)


def test_after_a_hint_the_position_is_checked_at_once() -> None:
    """KIP-951: the refusal names the new leader, so the position is checked at once, without new metadata."""
    found = reading(9)
    assert found.values() == numbers(0, 8)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 9}
    found.broker.leader_hint = LeaderIdAndEpoch(leader_id=1, leader_epoch=1)
    fill(found.broker, 3, epoch=1)
    assert found.values(5) == numbers(9, 11)


@pytest.mark.parametrize("policy", ["latest", "none"])
def test_a_truncated_log_is_noticed(policy: str) -> None:
    """KIP-320: 'truncation has been detected': go on where the logs part, or raise where there is no policy."""
    found = reading(9, metadata_max_age_ms=1000, auto_offset_reset=policy)
    found.machine.seek(T0, 0, -1)
    assert found.values() == numbers(0, 8)
    partition = found.broker.topics["t"].partitions[0]
    del partition.batches[2:]
    partition.end_offset = 6
    fill(found.broker, 6, epoch=1)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 6, 1: 12}
    if policy == "none":
        with pytest.raises(TruncationDetected) as caught:
            found.poll(3)
        assert (caught.value.position, caught.value.diverging) == (9, OffsetAndMetadata(6, 0))
        found.machine.seek(T0, 6, 0)
    assert found.values(3) == numbers(6, 11)


def test_what_was_only_fetched_of_a_truncated_log_is_fetched_again() -> None:
    """Records that have yet to reach the application are no loss."""
    found = reading(9, metadata_max_age_ms=1000, auto_offset_reset="none", max_poll_records=3)
    found.machine.seek(T0, 0, -1)
    assert found.values() == numbers(0, 2)
    partition = found.broker.topics["t"].partitions[0]
    del partition.batches[1:]
    partition.end_offset = 3
    fill(found.broker, 3, epoch=1)
    found.broker.leader_epoch = 1
    found.broker.epoch_ends = {0: 3, 1: 6}
    found.sleep(2)
    records = found.poll(3)
    assert [(record.offset, record.leader_epoch) for record in records] == [(3, 1), (4, 1), (5, 1)]


# Fetching


def test_chunks_are_fetched_ahead_and_no_further() -> None:
    """Two chunks per partition: one to work on, one to come."""
    found = reading(30, max_partition_fetch_bytes=200, max_poll_records=3)
    assert found.values() == numbers(0, 2)
    found.sleep(5)
    state = found.machine.subscription.partitions[T0]
    assert (state.position, len(state.chunks), state.fetch_offset) == (3, 2, 12)
    values = []
    while len(values) < 27:
        values += found.values()
        assert len(state.chunks) <= 2
    assert values == numbers(3, 29)


def test_a_quiet_partition_holds_no_busy_one_up() -> None:
    """While a busy partition is full, fetches of the quiet one ask with `max_wait_ms=0`, but only now and then."""
    found = consumer(60, 2, max_partition_fetch_bytes=200)
    found.machine.assign_manually([T0, TopicPartition("t", 1)])
    found.poll(0.1)
    found.sleep(5)
    fetches = found.broker.asked(FetchRequest)
    assert fetches[-1].max_wait_ms == 0
    assert [p.partition for t in fetches[-1].topics for p in t.partitions] == [1]
    assert len(fetches) < 20
    before = len(fetches)
    while found.machine.subscription.partitions[T0].position != 60:
        now = found.wire.now
        assert found.poll(1)
        assert found.wire.now - now < 0.1
    assert len(found.broker.asked(FetchRequest)) > before


def test_fetches_go_to_the_preferred_replica_until_it_fails() -> None:
    """KIP-392: the leader names a replica nearby; OFFSET_OUT_OF_RANGE there only sends us back to the leader."""
    follower = GroupBroker("near", 9093)
    found = FakeConsumer(brokers={("near", 9093): follower}, client_rack="r")
    topic = found.broker.add_topic("t")
    follower.topics = found.broker.topics
    fill(found.broker, 3)
    named = PartitionData(0, preferred_read_replica=2, high_watermark=3)
    found.broker.trouble[ApiKey.FETCH].append(
        FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[named])])
    )
    found.broker.more_brokers.append(MetadataResponseBroker(2, "near", 9093, "r"))
    found.machine.assign_manually([T0])
    assert found.values() == numbers(0, 2)
    assert any(isinstance(request, FetchRequest) for request in follower.requests)
    assert found.broker.asked(FetchRequest)[0].rack_id == "r"
    follower.trouble[ApiKey.FETCH].append(int(ErrorCode.OFFSET_OUT_OF_RANGE))
    fill(found.broker, 3)
    assert found.values(3) == numbers(3, 5)
    assert found.run(found.machine.position(T0, 1)) == 6


def test_a_preferred_replica_that_is_none_any_more_is_left() -> None:
    """KIP-392: the partition has moved away from it, so NOT_LEADER_OR_FOLLOWER there sends us back to the leader."""
    former = GroupBroker("near", 9093)
    found = FakeConsumer(brokers={("near", 9093): former}, client_rack="r")
    topic = found.broker.add_topic("t")
    former.topics = found.broker.topics
    fill(found.broker, 3)
    named = PartitionData(0, preferred_read_replica=2, high_watermark=3)
    found.broker.trouble[ApiKey.FETCH].append(
        FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[named])])
    )
    found.broker.more_brokers.append(MetadataResponseBroker(2, "near", 9093, "r"))
    moved = PartitionData(0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), high_watermark=-1)
    for _ in range(10):
        former.trouble[ApiKey.FETCH].append(
            FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[moved])])
        )
    found.machine.assign_manually([T0])
    assert found.values(5) == numbers(0, 2)
    assert len(former.asked(FetchRequest)) == 1


def test_a_broken_connection_costs_no_record() -> None:
    """Sessions and fetches begin anew."""
    found = reading(30, max_partition_fetch_bytes=200, max_poll_records=4)
    values: list[bytes] = []
    while len(values) < 30:
        if len(values) % 3 == 0:
            found.broker.trouble[ApiKey.FETCH].append(HANG_UP)
        values += found.values(5)
    assert values == numbers(0, 29)


def test_damaged_batches_are_raised_and_can_be_passed_over() -> None:
    """check.crcs: the error comes when the position reaches the batch, what stands before it first."""
    found = reading(9)
    batches = found.broker.topics["t"].partitions[0].batches
    base, data = batches[1]
    batches[1] = (base, data[:-1] + b"\xff")
    assert found.values() == numbers(0, 2)
    for _ in range(2):
        with pytest.raises(UndecodableRecord) as caught:
            found.poll(1)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 0, 3, 6)
        assert isinstance(error.__cause__, CorruptBatch)
    found.machine.seek(T0, 6, -1)
    assert found.values() == numbers(6, 8)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_a_topic_made_anew_is_read_by_the_reset_policy(policy: str) -> None:
    """Its position was another topic's: records of the new one below it are not passed over in silence."""
    found = reading(6, auto_offset_reset=policy)
    found.machine.seek(T0, 0, -1)
    assert everything(found, 6) == numbers(0, 5)
    found.broker.add_topic("t")
    fill(found.broker, 9)
    if policy == "none":
        with pytest.raises(OffsetsOutOfRange):
            found.poll(3)
        found.machine.seek(T0, 7, -1)
        assert everything(found, 2) == numbers(7, 8)
    elif policy == "latest":
        assert found.poll(3) == []
        fill(found.broker, 3)
        assert everything(found, 3) == numbers(9, 11)
    else:
        assert everything(found, 9) == numbers(0, 8)


def test_aborted_transactions_are_not_seen_with_read_committed() -> None:
    """isolation.level: the broker names what was aborted; control batches are never seen."""

    def batch(base: int, producer_id: int, value: bytes | None, *, marker: int | None = None) -> bytes:
        builder = RecordBatchBuilder(
            producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=marker is not None
        )
        builder.append(0, None if marker is None else b"\0\0" + marker.to_bytes(2, "big"), value)
        data = builder.build()
        assign_offsets(data, 0, base, 0)
        return bytes(data)

    def answer(topic_id: bytes) -> FetchResponse:
        log = [
            batch(0, 1, b"aborted"),
            batch(1, 2, b"committed"),
            batch(2, 1, b"", marker=0),
            batch(3, 2, b"", marker=1),
            batch(4, 1, b"later"),
            batch(5, 1, b"", marker=1),
        ]
        data = PartitionData(
            0, high_watermark=6, aborted_transactions=[AbortedTransaction(1, 0)], records=b"".join(log)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])])

    for level, expected in (
        ("read_committed", [b"committed", b"later"]),
        ("read_uncommitted", [b"aborted", b"committed", b"later"]),
    ):
        found = consumer(isolation_level=level)
        found.broker.topics["t"].partitions[0].end_offset = 6
        found.broker.trouble[ApiKey.FETCH].append(answer(found.broker.topics["t"].topic_id))
        found.machine.assign_manually([T0])
        assert found.values() == expected
        assert found.run(found.machine.position(T0, 1)) == 6


def test_a_bug_in_the_background_is_not_silence() -> None:
    """Every later poll raises it."""
    found = reading(3)
    found.machine._fetching.buffered_bytes = lambda: 1 // 0  # type: ignore[method-assign] # the bug
    for _ in range(2):
        with pytest.raises(AssertionError, match="the consumer broke"):
            found.poll(1)


def test_errors_that_are_waited_out_can_be_looked_at() -> None:
    """A poll that brings nothing has its reason in the statistics."""
    found = consumer(3, bootstrap_servers="nobody:1")
    found.machine.assign_manually([T0])
    assert found.poll(40) == []
    assert "cannot connect to nobody:1" in str(found.machine.statistics()["last_error"])


def test_subscribe_needs_a_group() -> None:
    """Only a group assigns partitions to its subscribers, so subscribing requires `group.id`."""
    found = consumer()
    with pytest.raises(ValueError, match=r"group\.id"):
        found.machine.subscribe(["t"])
    with pytest.raises(ValueError, match="not assigned"):
        found.machine.seek(T0, 0, -1)
    with pytest.raises(ValueError, match=r"group\.id"):
        found.run(found.machine.commits.commit({T0: OffsetAndMetadata(1)}, timeout=1))


def test_produced_records_are_read_with_their_fields() -> None:
    """Records of our producer come back whole: headers, keys, nulls, times; deserializers are applied."""
    found = consumer(
        key_deserializer=lambda key: key and key.decode(), value_deserializer="StringDeserializer"
    )
    record = RecordToSend("t", None, b"k", (("h", b"v"), ("n", None)), 0, 5)
    producing = Producing(found.wire.core, ProduceConfig())
    found.run(producing.produce([record, RecordToSend("t", b"v", None, (), 0, 6)], timeout=5))
    found.machine.assign_manually([T0])
    first, second = found.poll(3)
    assert first[:7] == ("t", 0, 0, 5, "k", None, (("h", b"v"), ("n", None)))
    assert second[:7] == ("t", 0, 1, 6, None, "v", ())
