"""The coordinator of one partition: while it reads its log, while replicas lag, and when it loses its partition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from crc32c import crc32c

from odradek.data_plane.coordination.asking import Ask
from odradek.data_plane.coordination.shard import RELOAD_SECONDS, CoordinatorHost
from odradek.data_plane.groups.consumers import topic_hashes
from odradek.data_plane.groups.coordinator import GroupCoordinator, Shard
from odradek.data_plane.groups.group_settings import GroupSettings
from odradek.data_plane.groups.listing import DeleteGroup, ListGroups
from odradek.data_plane.groups.offsets import CommitOffsets, FetchedOffsets, FetchOffsets, PartitionCommit
from odradek.data_plane.groups.offsets_topic import OFFSETS_TOPIC
from odradek.data_plane.groups.state import GroupsState
from odradek.data_plane.log.log_config import LogConfig
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.newest_image import NewestImage
from odradek.data_plane.replication.partition import Partition
from odradek.env.agreed_clock import AgreedClock
from odradek.env.ports import DiskFull
from odradek.metadata_quorum.config.effective_config import BrokerConfigLayers
from odradek.metadata_quorum.image.metadata_image import MetadataImage, PartitionImage
from odradek.metadata_quorum.state_machine import NotEncoded
from odradek.serving.timers import Timers
from odradek.wire.batches.batch_header import CRC_START, HEADER_SIZE
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from odradek.wire.messages.heartbeat import HeartbeatRequest
from odradek.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.record_batch import RecordBatchBuilder
from testkit.by_hand import InlineWorkers, KeptLog, ManualClock, UnheardEvent
from testkit.coordinating import KeptReply
from tests.groups.consumers.consumer_script import image_of
from tests.log.support import new_log

BOTH = PartitionImage(1, 3, 0, (1, 2), (1, 2))
ALONE = PartitionImage(1, 3, 1, (1, 2), (1,))
TOO_FEW = LogConfig(min_insync_replicas=2)


@attrs.define
class FakeEnv:
    random: Random = attrs.field(factory=lambda: Random(1))
    workers: InlineWorkers = attrs.field(factory=InlineWorkers)

    def new_uuid(self) -> bytes:
        return self.random.randbytes(16)


class Tasks:
    """A nursery whose tasks run when the test says so."""

    def __init__(self) -> None:
        self.started: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.waiting: list[tuple[Callable[[Any], Coroutine[Any, Any, None]], Any]] = []
        """Tasks that take an argument."""

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        if args:
            self.waiting.append((function, *args))
        else:
            self.started.append(function)


class FakeBroker:
    """The part of a broker that a shard uses."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.clock = ManualClock()
        self.agreed_clock = AgreedClock(self.clock)
        self.timers = Timers(self.clock, cast("Callable[[], Any]", UnheardEvent))
        self.env = FakeEnv()
        self.log = KeptLog()
        self.woken: list[Callable[[], None]] = []
        self.topics: dict[str, Any] = {}
        self.newest = NewestImage(MetadataImage())

    def workers_for(self, log: object) -> InlineWorkers:
        return InlineWorkers()

    def run_woken(self) -> None:
        """Run the callbacks that a broker runs after a turn."""
        while self.woken:
            self.woken.pop(0)()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    with pytest.raises(StopIteration):
        work.send(None)


class Case:
    """A shard over a partition with two replicas. The other replica is in the ISR and has fetched nothing."""

    def __init__(self, image: PartitionImage = BOTH, config: LogConfig | None = None) -> None:
        self.broker = FakeBroker()
        self.partition = Partition(new_log(config or LogConfig()))
        self.partition.apply(image, 1)
        self.failed: list[Shard] = []
        self.shard = self.new_shard()

    def new_shard(self) -> Shard:
        return Shard(
            cast("CoordinatorHost", self.broker),
            GroupSettings(),
            self.partition,
            self.failed.append,
            NotEncoded(self.broker.clock, self.broker.log),
        )

    def ask(self, request: Any) -> KeptReply:
        told = KeptReply()
        self.shard.submit(Ask(request, 9, told, self.broker.agreed_clock.latest_ms()))
        return told

    def commit(self, offset: int = 5) -> KeptReply:
        return self.ask(
            CommitOffsets("g", "", None, -1, -1, (PartitionCommit("t", bytes(16), 0, offset, -1, ""),))
        )

    def follower_fetches(self) -> None:
        """Remove the other replica from the ISR, so that all written records are committed."""
        self.partition.apply(ALONE, 1)

    def pass_seconds(self, seconds: int) -> None:
        self.broker.clock.now_ms += 1000 * seconds
        self.broker.timers.fire_due(self.broker.clock.monotonic())


def test_requests_are_refused_while_the_log_is_read() -> None:
    """Until the log is read, requests get COORDINATOR_LOAD_IN_PROGRESS. Heartbeats succeed, so that members stay."""
    case = Case()
    assert case.commit().answers == [[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]]
    assert case.ask(ListGroups()).answers == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert case.ask(HeartbeatRequest("g", 1, "m")).answers[0].error_code == ErrorCode.NONE
    run(case.shard.load())
    assert case.ask(HeartbeatRequest("g", 1, "m")).answers[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_answer_waits_until_replicas_have_what_it_tells() -> None:
    """An answer, even to a read, waits until the high watermark has reached the records that it depends on."""
    case = Case()
    run(case.shard.load())
    commit, fetch = case.commit(), case.ask(FetchOffsets("g"))
    assert commit.answers == fetch.answers == []
    case.follower_fetches()
    assert commit.answers == [[ErrorCode.NONE]]
    found: FetchedOffsets = fetch.answers[0]
    assert found.offsets["t", 0].offset == 5


def test_an_answer_waits_for_the_sync_that_the_topic_asks_for() -> None:
    """With `flush.messages` set for `__consumer_offsets`, a commit is answered after the leader's sync."""
    case = Case(ALONE, LogConfig(flush_messages=1))
    run(case.shard.load())
    commit = case.commit()
    assert commit.answers == []
    case.partition.log.flush()
    case.partition.look_again()
    assert commit.answers == [[ErrorCode.NONE]]

    case = Case(ALONE)
    run(case.shard.load())
    assert case.commit().answers == [[ErrorCode.NONE]], "without it the page cache is enough"


def test_a_commit_that_replicas_hold_up_times_out() -> None:
    """If replicas lag for `offsets.commit.timeout.ms`, a commit gets COORDINATOR_NOT_AVAILABLE, but may count later."""
    case = Case()
    run(case.shard.load())
    first = case.commit(5)
    case.pass_seconds(3)
    second = case.commit(6)
    case.pass_seconds(2)
    assert (first.answers, second.answers) == ([[ErrorCode.COORDINATOR_NOT_AVAILABLE]], [])
    case.pass_seconds(3)
    assert second.answers == [[ErrorCode.COORDINATOR_NOT_AVAILABLE]]
    case.follower_fetches()
    assert len(first.answers) == len(second.answers) == 1
    assert case.ask(FetchOffsets("g")).answers[0].offsets["t", 0].offset == 6


def test_too_few_replicas_refuse_what_would_be_written() -> None:
    """With fewer replicas than `min.insync.replicas`, a commit gets COORDINATOR_NOT_AVAILABLE, and nothing is
    appended."""
    case = Case(ALONE, TOO_FEW)
    run(case.shard.load())
    assert case.commit().answers == [[ErrorCode.COORDINATOR_NOT_AVAILABLE]]
    assert case.partition.log.log_end_offset == 0
    beat = case.ask(HeartbeatRequest("g", 1, "m"))
    assert beat.answers[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_whoever_waits_is_told_when_leadership_goes() -> None:
    """If the leadership moves, waiting requests get NOT_COORDINATOR, and their clients look for the new coordinator."""
    case = Case()
    run(case.shard.load())
    commit = case.commit()
    case.shard.stop()
    assert commit.answers == [[ErrorCode.NOT_COORDINATOR]]
    case.follower_fetches()
    assert len(commit.answers) == 1


@pytest.mark.reaches("coordination.decision_not_written")
def test_a_disk_that_is_full_ends_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a shard cannot write a decision, it ends. After a while the coordinator loads its log again, without the
    decision."""
    case = Case(ALONE)
    run(case.shard.load())
    assert case.commit(5).answers == [[ErrorCode.NONE]]

    def full(*_: object, **__: object) -> None:
        raise DiskFull("/data", "/data/x", "append", 28, "no space left")

    monkeypatch.setattr(type(case.partition.log), "append", full)
    case.commit(6)
    assert case.failed == [case.shard]
    assert "coordinator.not_written" in case.broker.log.events
    monkeypatch.undo()
    case.shard.stop()
    case.shard = case.new_shard()
    run(case.shard.load())
    assert case.ask(FetchOffsets("g")).answers[0].offsets["t", 0].offset == 5
    assert RELOAD_SECONDS > 0


def test_a_record_that_cannot_be_read_is_skipped_and_told() -> None:
    """A record that cannot be read is skipped and logged. All groups before and after it are served."""
    case = Case(ALONE)
    run(case.shard.load())
    case.commit()
    case.shard.stop()
    for key, value in ((b"\0\2\0\1g", b"\0\3broken"), (b"\0\1", b""), (b"\0\1\0\x63g", None)):
        builder = RecordBatchBuilder()
        builder.append(1, key, value)
        case.partition.log.append(memoryview(builder.build()), Origin.COORDINATOR, 3, 1)
    lying = bytearray(builder.build())
    lying[HEADER_SIZE] ^= 0x7E  # the length field of the record
    struct.pack_into(">I", lying, CRC_START - 4, crc32c(memoryview(lying)[CRC_START:]))
    case.partition.log.append(memoryview(lying), Origin.COORDINATOR, 3, 1)
    case.partition.advance_high_watermark()
    case.broker.log.events.clear()
    case.shard = case.new_shard()
    run(case.shard.load())
    assert case.failed == []
    assert case.broker.log.events == ["coordinator.records_skipped", "coordinator.loaded"]
    assert case.ask(FetchOffsets("g")).answers[0].offsets["t", 0].offset == 5


@pytest.mark.reaches("coordination.log_not_read")
def test_a_log_that_rots_is_tried_again() -> None:
    """If a batch has a wrong checksum, the shard logs it, serves nothing from the incomplete state, and tries again."""
    case = Case(ALONE)
    run(case.shard.load())
    case.commit()
    case.shard.stop()
    log = case.partition.log
    data = bytearray(log.read_bytes(0, 1 << 20, upper_bound=log.log_end_offset, min_one=True))
    data[-1] ^= 1
    log.active.file.truncate(0)
    log.active.file.append(bytes(data))
    case.broker.log.events.clear()
    case.shard = case.new_shard()
    run(case.shard.load())
    assert case.failed == [case.shard]
    assert case.broker.log.events == ["coordinator.not_loaded"]
    assert case.commit().answers == [[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]]


def test_shards_that_fail_twice_are_begun_once() -> None:
    """If the leadership moves while a shard fails, the coordinator starts one new shard, not two."""
    case = Case(ALONE)
    coordinator = GroupCoordinator(cast("CoordinatorHost", case.broker), GroupSettings())
    begun: list[int] = []
    coordinator.follow_leadership = lambda: begun.append(1)  # type: ignore[method-assign]  # counts calls
    for _ in range(2):
        coordinator.shards[0] = case.shard = case.new_shard()
        coordinator._shard_failed(case.shard)
    case.pass_seconds(1)
    assert begun == [1]
    coordinator._shard_failed(case.shard)
    assert coordinator.shards == {}
    coordinator.shards[0] = case.shard
    coordinator._shard_failed(case.shard)
    case.pass_seconds(1)
    assert begun == [1, 1]


def test_nothing_is_coordinated_before_the_broker_is_back() -> None:
    """A restarted broker that still sees itself as leader coordinates nothing until it has registered again."""
    case = Case(ALONE)
    case.broker.topics = {OFFSETS_TOPIC: SimpleNamespace(partitions={0: case.partition})}
    coordinator = GroupCoordinator(cast("CoordinatorHost", case.broker), GroupSettings())
    coordinator.hold(True)
    coordinator.follow_leadership()
    assert coordinator.shards == {}
    coordinator.hold(False)
    assert list(coordinator.shards) == [0]
    coordinator.hold(True)
    assert coordinator.shards == {}


def test_a_change_of_the_configuration_keeps_the_keys_of_the_properties_file() -> None:
    """A dynamic change of Kafka's keys leaves our own keys as the properties file has them."""
    case = Case(ALONE)
    settings = GroupSettings(consumer_members_per_partition_max=5)
    coordinator = GroupCoordinator(cast("CoordinatorHost", case.broker), settings)
    coordinator.shards[0] = case.shard
    coordinator.config_changed(BrokerConfigLayers({"group.consumer.assignment.interval.ms": "7"}))
    assert coordinator.settings.consumer_assignment_interval_ms == 7
    assert coordinator.settings.consumer_members_per_partition_max == 5


def test_topics_deleted_while_the_log_is_read_are_forgotten() -> None:
    """Committed offsets of a topic that is deleted while the log is read are forgotten."""
    case = Case(ALONE)
    run(case.shard.load())
    case.commit()
    case.shard.stop()
    case.shard = case.new_shard()
    case.shard.forget_topics(frozenset({"t"}))
    run(case.shard.load())
    assert case.ask(FetchOffsets("g")).answers[0].offsets == {}


def test_a_timer_that_comes_exactly_in_time_finds_something_due() -> None:
    """A timer that fires exactly on time finds its work due. As a float, 4.004 s times 1000 is less than 4004 ms."""
    case = Case(ALONE)
    run(case.shard.load())
    case.broker.clock.now_ms = 1004
    told = KeptReply()
    protocols = [JoinGroupRequestProtocol("range", b"m")]
    join = JoinGroupRequest("g", 10_000, 10_000, "", "one", "consumer", protocols)
    case.shard.submit(Ask(join, 9, told, 0))
    case.broker.clock.now_ms += GroupSettings().initial_rebalance_delay_ms
    assert int(case.broker.clock.monotonic() * 1000) < case.broker.clock.now_ms
    case.broker.timers.fire_due(case.broker.clock.monotonic())
    assert told.answers[0].error_code == ErrorCode.NONE


def test_a_decision_larger_than_a_segment_is_several_batches() -> None:
    """A decision larger than a segment is written as several batches, for example for a topic that many groups read."""
    case = Case(ALONE, LogConfig(segment_bytes=2 << 20))
    run(case.shard.load())
    group = "g" * 30_000
    for index in range(100):
        commit = PartitionCommit("t", bytes(16), index, 5, -1, "")
        assert case.ask(CommitOffsets(group, "", None, -1, -1, (commit,))).answers == [[ErrorCode.NONE]]
    assert case.ask(DeleteGroup(group)).answers == [ErrorCode.NONE]
    assert not case.failed
    assert case.partition.log.log_end_offset == 201
    case.shard = case.new_shard()
    run(case.shard.load())
    assert case.ask(ListGroups()).answers == [[]]


def test_a_decision_that_cannot_be_replayed_ends_the_node_and_is_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decision that cannot be replayed ends the node before the decision is written, since it would stop every later
    coordinator."""
    case = Case()
    run(case.shard.load())
    end_offset = case.partition.log.log_end_offset

    def refuse(*_: object) -> GroupsState:
        raise ValueError("does not fit")

    monkeypatch.setattr(GroupsState, "replay", refuse)
    with pytest.raises(AssertionError, match="does not fit"):
        case.commit()
    assert case.partition.log.log_end_offset == end_offset
    (end,) = case.broker.tasks.started
    with pytest.raises(AssertionError, match="does not fit"):
        end().send(None)


def test_a_heartbeat_waits_for_the_hashes_of_large_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats wait while a worker hashes large topics once. All heartbeats are answered, even if the shard ends."""
    monkeypatch.setattr(topic_hashes, "INLINE_UNITS_MAX", 0)
    case = Case(ALONE)
    run(case.shard.load())
    case.broker.newest.image = image_of({"t": 3}, 1)

    def beat(name: str) -> KeptReply:
        request = ConsumerGroupHeartbeatRequest("g", name, 0, None, None, 60_000, ["t"], topic_partitions=[])
        return case.ask(request)

    first, second = beat("A"), beat("B")
    assert not first.answers
    ((start, work),) = case.broker.tasks.waiting
    run(start(work))
    assert [each.answers[0].error_code for each in (first, second)] == [ErrorCode.NONE] * 2
    assert beat("C").answers
    case.broker.newest.image = image_of({"t": 4}, 2)
    late = [beat("D"), beat("E")]
    (start, work) = case.broker.tasks.waiting[-1]
    case.shard.stop()
    run(start(work))
    assert [each.answers[0].error_code for each in late] == [ErrorCode.NOT_COORDINATOR] * 2
