"""Replicas move between disks of a broker, in a simulated cluster. They are served meanwhile and survive every crash."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from odradek.data_plane.disks import replica_moves
from odradek.data_plane.disks.replica_moves import Move
from odradek.data_plane.log.directory import future_logs
from odradek.data_plane.log.directory.future_logs import CAUGHT_UP_FILE, parse_future_name
from odradek.data_plane.log.directory.log_dir import LogDir, parse_partition_name
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.batches.batch_header import parse_header
from odradek.wire.errors import ErrorCode, KafkaError
from odradek.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from odradek.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from odradek.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from sim.machine.disk import Keep
from sim.machine.members import TraceLog
from tests.cluster.disks.test_troubled_disks import Troubled
from tests.log.support import batch

WRITES = 6


class Moving(Troubled):
    """A topic of one partition whose replica on broker 1 moves between two directories."""

    @property
    def log(self) -> PartitionLog:
        return self.broker(1).partition("t", 0).log

    @property
    def other(self) -> LogDir:
        """The directory of broker 1 that does not hold the replica."""
        return next(each for each in self.broker(1).log_dirs if each is not self.log.owner)

    @property
    def move(self) -> Move | None:
        return next(iter(self.broker(1).moves.moves.values()), None)

    async def ask(self, path: str, topic: str = "t", index: int = 0) -> ErrorCode:
        wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(topic, [index])])]
        answer = await self.cluster.observer.request(AlterReplicaLogDirsRequest(wanted), node=1)
        return ErrorCode(answer.results[0].partitions[0].error_code)

    async def described(self) -> list[tuple[str, bool, int]]:
        """Return (path, is future replica, lag) of all replicas of `t` on broker 1."""
        answer = await self.cluster.observer.request(DescribeLogDirsRequest(None), node=1)
        return [
            (result.log_dir, partition.is_future_key, partition.offset_lag)
            for result in answer.results
            for topic in result.topics
            if topic.name == "t"
            for partition in topic.partitions
        ]

    def lies_in(self, path: str) -> bool:
        partition = self.broker(1).hosted.partition("t", 0)
        owner = None if partition is None else partition.log.owner
        return isinstance(owner, LogDir) and owner.path == path

    def live_on_disk(self) -> list[str]:
        """Return the directories that hold a live log of the partition."""
        return [path for path in self.member(1).config.log_dirs if self.is_live_in(path)]

    def is_live_in(self, path: str) -> bool:
        names = self.world.machine(self.member(1).name).disk.in_cache(path)
        return any(name.startswith("t-") and parse_partition_name(name) for name in names)

    def futures_on_disk(self) -> list[str]:
        disk = self.world.machine(self.member(1).name).disk
        return [
            f"{path}/{name}"
            for path in self.member(1).config.log_dirs
            for name in sorted(disk.in_cache(path))
            if parse_future_name(name)
        ]

    async def write_some(self) -> None:
        for _ in range(WRITES):
            assert await self.write() == ErrorCode.NONE

    def is_up(self) -> bool:
        node = self.member(1).node
        return self.member(1).is_up() and node is not None and node.broker is not None


def batches_of(log: PartitionLog) -> list[bytes]:
    """Return all batches of a log, in order."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = bytes(log.read_bytes(offset, 1, upper_bound=log.log_end_offset, min_one=True))
        found.append(data)
        offset = parse_header(data).next_offset
    return found


def play(
    script: Callable[[Moving], Awaitable[None]], replicas: tuple[int, ...] = (1, 2, 3), log_dirs: int = 2
) -> None:
    async def run(case: Troubled) -> None:
        assert isinstance(case, Moving)
        await script(case)

    Moving(settings={"file.delete.delay.ms": "1000"}, log_dirs=log_dirs).play(run, replicas)


def test_a_replica_moves_to_another_disk_while_it_is_written() -> None:
    """A replica moves while it is written to. Every write succeeds, the metadata names the new directory, and the old
    one is empty."""

    async def script(case: Moving) -> None:
        await case.write_some()
        case.log.roll(0)
        await case.write_some()
        source, target = case.disk(1), case.other
        assert await case.ask(target.path) == ErrorCode.NONE
        while not case.lies_in(target.path):
            assert await case.write() == ErrorCode.NONE
        assert case.seen_by(1).directory_of(1) == target.directory_id
        assert await case.write() == ErrorCode.NONE
        assert source.get("t", 0) is None
        assert await case.described() == [(target.path, False, 0)]
        assert case.live_on_disk() == [target.path]
        assert case.futures_on_disk() == []
        await case.check_nothing_is_lost()
        await case.member(1).kill("all")
        case.member(1).launch()
        await case.until(case.is_up)
        await case.whole(60.0)
        assert case.lies_in(target.path)
        await case.check_nothing_is_lost()

    play(script)


def test_a_move_is_given_up_when_the_replica_is_sent_back() -> None:
    """A copy is shown as a future replica with its lag. A move back to the current directory removes the copy."""

    async def script(case: Moving) -> None:
        await case.write_some()
        source, target = case.disk(1), case.other
        target.set_stalled(True)
        assert await case.ask(target.path) == ErrorCode.NONE
        assert await case.described() == sorted([(source.path, False, 0), (target.path, True, WRITES)])
        assert await case.ask(source.path) == ErrorCode.NONE
        assert await case.described() == [(source.path, False, 0)]
        target.set_stalled(False)
        await case.until(lambda: case.futures_on_disk() == [])
        assert not case.log.cleaning.is_held
        assert case.seen_by(1).directory_of(1) == source.directory_id

    play(script)


@pytest.mark.parametrize("keep", ["all", "synced"])
def test_a_move_that_was_given_up_stays_so(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled move is not resumed after a restart, even if the broker crashes directly after its answer."""

    async def script(case: Moving) -> None:
        await case.write_some()
        source, target = case.disk(1).path, case.other

        def never(*_: object) -> bool:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

        with monkeypatch.context() as patch:
            patch.setattr(replica_moves.ReplicaMoves, "_copy_rest", never)
            assert await case.ask(target.path) == ErrorCode.NONE
            await case.until(lambda: case.move is not None and case.move.lag == 0, writing=False)
            assert await case.ask(source) == ErrorCode.NONE
            await case.member(1).kill(keep)
        assert case.futures_on_disk() == []
        case.member(1).launch()
        await case.until(case.is_up, writing=False)
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        assert case.lies_in(source)
        assert case.move is None
        disk = case.world.machine(case.member(1).name).disk
        await case.until(lambda: not any("t-0" in name for name in disk.in_cache(target.path)))
        await case.check_nothing_is_lost()

    play(script)


def test_errors_are_those_of_kafka() -> None:
    """Unknown or cordoned directories, unknown or absent partitions, and names that are too long give Kafka's error
    codes."""

    async def script(case: Moving) -> None:
        path = case.broker(1).log_dirs[0].path
        assert await case.ask("/none") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await case.ask(path, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await case.ask(path, "x" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await case.ask(path) == ErrorCode.REPLICA_NOT_AVAILABLE
        case.broker(1).placement.cordoned = (case.broker(1).log_dirs[0].directory_id,)
        assert await case.ask(path) == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    play(script, replicas=(2, 3))


def test_a_deleted_topic_takes_its_copy_along() -> None:
    """If a topic is deleted while its replica moves, the future replica is removed, too."""

    async def script(case: Moving) -> None:
        await case.write_some()
        case.other.is_stalled = True
        assert await case.ask(case.other.path) == ErrorCode.NONE
        case.other.is_stalled = False
        case.cluster.topics.remove("t")
        await case.cluster.observer.request(DeleteTopicsRequest([DeleteTopicState("t")], [], 5000))
        await case.until(lambda: not case.futures_on_disk() and not case.live_on_disk(), writing=False)
        assert not case.broker(1).moves.moves

    play(script)


def test_a_full_target_is_waited_for() -> None:
    """If the target is full, the replica stays and is served. The move completes when there is room."""

    async def script(case: Moving) -> None:
        await case.write_some()
        source, target = case.disk(1), case.other
        disk = case.world.machine(case.member(1).name).disk
        disk.fail_next(errno.ENOSPC, operation="append", path_part="-future/0", times=10**9)
        assert await case.ask(target.path) == ErrorCode.NONE
        await case.until(lambda: case.move is not None and "space" in case.move.error.lower())
        assert target.offline_reason is None
        assert case.lies_in(source.path)
        assert await case.write() == ErrorCode.NONE
        disk.forget_faults()
        await case.until(lambda: case.lies_in(target.path))
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.check_nothing_is_lost()

    play(script)


@pytest.mark.parametrize("seed", range(2))
def test_the_log_is_cut_under_a_new_leader_while_it_moves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy with records of a deposed leader is truncated together with its log, and ends with the new leader's
    bytes."""

    async def script(case: Moving) -> None:
        await case.prefer()
        await case.write_some()
        await case.until(lambda: case.seen_by(2).leader == 1)
        target = case.other

        def never(*_: object) -> bool:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

        monkeypatch.setattr(replica_moves.ReplicaMoves, "_copy_rest", never)
        assert await case.ask(target.path) == ErrorCode.NONE
        first = case.member(1).name
        others = [member.name for member in case.cluster.members if member.name != first]
        for other in others:
            case.world.partition(first, other)
        truncations = case.log.durability.truncations
        records = PartitionProduceData(0, bytes(case.batch() if seed else batch(3)))
        topic_id = case.broker(2).image.topics["t"].topic_id
        for _ in range(3):
            request = ProduceRequest(None, 1, 2000, [TopicProduceData("t", topic_id, [records])])
            await case.cluster.observer.request(request, node=1)
        lost = case.log.log_end_offset
        await case.until(lambda: case.move is not None and case.move.lag == 0, writing=False)
        assert case.log.high_watermark < lost
        await case.until(lambda: case.seen_by(2).leader in (2, 3))
        for other in others:
            case.world.heal(first, other)
        await case.until(lambda: case.log.durability.truncations > truncations)
        monkeypatch.undo()
        await case.until(lambda: case.lies_in(target.path))
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        leader = case.broker(case.seen_by(2).leader).partition("t", 0).log
        await case.until(lambda: case.log.log_end_offset == leader.log_end_offset, writing=False)
        assert batches_of(case.log) == batches_of(leader)
        await case.check_nothing_is_lost()

    play(script)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_disk_dies_while_a_replica_moves(side: str) -> None:
    """If the target disk dies, the replica stays. If the source disk dies, the replica goes offline and other brokers
    serve."""

    async def script(case: Moving) -> None:
        await case.write_some()
        source, target = case.disk(1), case.other
        case.member(1).disk_is_bad = True
        assert await case.ask(target.path) == ErrorCode.NONE
        dead = source if side == "source" else target
        case.world.machine(case.member(1).name).disk.dead_paths[dead.path] = errno.EIO
        await case.until(lambda: dead.offline_reason is not None)
        await case.until(lambda: not case.broker(1).moves.moves)
        if side == "target":
            await case.until(lambda: case.seen_by(2).directory_of(1) == source.directory_id)
            await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        else:
            await case.until(lambda: case.seen_by(2).isr == (2, 3))
        assert await case.write() == ErrorCode.NONE
        await case.check_nothing_is_lost()

    play(script)


@pytest.mark.parametrize("keep", ["all", "random"])
@pytest.mark.parametrize(
    "step", ["close_future", "save_checkpoints", "mark_caught_up", "remove_current", "rename_future"]
)
def test_a_crash_behind_each_step_of_a_swap(step: str, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash after any step of the swap leaves one live log with all acknowledged records, and the move completes."""

    async def script(case: Moving) -> None:
        await case.write_some()
        target = case.other.path
        disk = case.world.machine(case.member(1).name).disk
        take = getattr(future_logs.Swap, step)

        def crash_behind(swap: future_logs.Swap) -> None:
            take(swap)
            disk.crash_at(disk.operation_count + 1)

        with monkeypatch.context() as patch:
            patch.setattr(future_logs.Swap, step, crash_behind)
            assert await case.ask(target) == ErrorCode.NONE
            running = case.member(1).running
            assert running is not None
            await case.world.wait(running.ended, 60.0)
            assert running.ended.is_set(), "the broker must have crashed at this step"
            disk.crash(keep)
        assert len(case.live_on_disk()) <= 1
        case.member(1).launch()
        await case.until(case.is_up, writing=False)
        await case.until(lambda: case.lies_in(target), writing=True)
        assert case.live_on_disk() == [target]
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.check_nothing_is_lost()

    play(script)


@pytest.mark.parametrize("seed", range(4))
def test_crashes_anywhere_in_a_move(seed: int) -> None:
    """Power fails at random disk operations while the only replica moves and is written. No acknowledged record is
    lost."""
    random = Random(seed)

    async def script(case: Moving) -> None:
        await case.write_some()
        for _ in range(3):
            target = case.other.path
            assert await case.ask(target) == ErrorCode.NONE
            await case.member(1).cut(random, 60, 20.0)
            case.world.machine(case.member(1).name).disk.crash("random")
            assert len(case.live_on_disk()) <= 1
            case.member(1).launch()
            await case.until(case.is_up, writing=False)
            await case.until(lambda: len(case.seen_by(2).isr) == 3)
            await case.until(lambda: not case.broker(1).moves.moves)
            await case.check_nothing_is_lost()

    play(script)


def test_a_log_that_was_about_to_move_from_a_disk_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source disk is lost before the swap, and the target has only a copy. The broker reports LOST, and creates no
    empty log."""

    async def script(case: Moving) -> None:
        await case.write_some()
        first = case.member(1).config.log_dirs[0]
        if case.lies_in(first):
            # The first directory cannot be the lost one: it has the metadata log, without which a node cannot start.
            assert await case.ask(case.other.path) == ErrorCode.NONE
            await case.until(lambda: not case.lies_in(first))
        source, target = case.disk(1).path, case.other.path

        def never(*_: object) -> bool:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

        monkeypatch.setattr(replica_moves.ReplicaMoves, "_copy_rest", never)
        assert await case.ask(target) == ErrorCode.NONE
        target_id = case.other.directory_id
        await case.until(lambda: case.seen_by(2).directory_of(1) == target_id, writing=False)
        await case.write_some()
        await case.member(1).kill("all")
        monkeypatch.undo()
        case.member(1).disk_is_bad = True
        case.world.machine(case.member(1).name).disk.dead_paths[source] = errno.EIO
        case.member(1).launch()
        await case.until(case.is_up)
        await case.until(lambda: case.seen_by(2).directory_of(1) != target_id)
        assert 1 not in case.seen_by(2).isr
        assert not case.is_live_in(target)
        await case.check_nothing_is_lost()

    play(script)


def test_a_copy_that_was_given_up_does_not_come_back_as_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap is given up while the copy's disk is away, so the copy misses later records. When only that disk returns,
    the copy is not served."""

    async def script(case: Moving) -> None:
        member = case.member(1)
        disk = case.world.machine(member.name).disk
        _, source, target = member.config.log_dirs
        if not case.lies_in(source):
            assert await case.ask(source) == ErrorCode.NONE
            await case.until(lambda: case.lies_in(source))
        await case.write_some()
        take = future_logs.Swap.mark_caught_up

        def crash_behind(swap: future_logs.Swap) -> None:
            take(swap)
            disk.crash_at(disk.operation_count + 1)

        with monkeypatch.context() as patch:
            patch.setattr(future_logs.Swap, "mark_caught_up", crash_behind)
            assert await case.ask(target) == ErrorCode.NONE
            running = member.running
            assert running is not None
            await case.world.wait(running.ended, 60.0)
            disk.crash("all")
        (copy,) = case.futures_on_disk()
        assert CAUGHT_UP_FILE in disk.in_cache(copy)
        member.disk_is_bad = True

        async def restart_without(path: str) -> None:
            disk.dead_paths.clear()
            disk.dead_paths[path] = errno.EIO
            member.launch()
            await case.until(case.is_up, writing=False)

        async def elect() -> None:
            # The controller knows only that the directory named by the metadata is offline, so it needs an unclean
            # election.
            request = ElectLeadersRequest(1, [TopicPartitions("t", [0])], 5000)
            await case.cluster.observer.request(request)
            await case.until(lambda: case.seen_by(2).leader == 1, writing=False)

        await restart_without(target)
        await case.until(lambda: case.lies_in(source))
        source_id = case.disk(1).directory_id
        await case.until(lambda: case.seen_by(2).directory_of(1) == source_id)
        await elect()
        acknowledged = len(case.acknowledged)
        await case.until(lambda: len(case.acknowledged) >= acknowledged + WRITES)
        await member.kill("all")
        await restart_without(source)
        await case.until(lambda: bool(case.broker(1).log_dirs[-1].is_loaded), writing=False)
        assert not case.is_live_in(target)
        assert case.broker(1).hosted.partition("t", 0) is None
        await member.kill("all")
        disk.dead_paths.clear()
        member.launch()
        await case.until(case.is_up, writing=False)
        await elect()
        await case.until(lambda: len(case.live_on_disk()) == 1 and case.move is None, writing=False)
        await case.check_nothing_is_lost()

    play(script, replicas=(1,), log_dirs=3)


def test_a_move_that_was_not_finished_is_told_of_when_its_new_disk_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A move is unfinished when its target disk is lost: the metadata names the target, but the source has the whole
    log. The broker's log names the source, and an unclean election recovers all records."""

    told: list[dict[str, Any]] = []
    write_line = TraceLog.error

    def note_line(log: TraceLog, event: str, **fields: Any) -> None:
        if event == "partition.found_elsewhere":
            told.append(fields)
        write_line(log, event, **fields)

    monkeypatch.setattr(TraceLog, "error", note_line)

    async def script(case: Moving) -> None:
        member = case.member(1)
        disk = case.world.machine(member.name).disk
        _, source, target = member.config.log_dirs

        def id_of(path: str) -> bytes:
            return next(each.directory_id for each in case.broker(1).log_dirs if each.path == path)

        if not case.lies_in(source):
            assert await case.ask(source) == ErrorCode.NONE
            await case.until(lambda: case.lies_in(source))
        await case.write_some()

        def never(*_: object) -> bool:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

        with monkeypatch.context() as patch:
            patch.setattr(replica_moves.ReplicaMoves, "_copy_rest", never)
            assert await case.ask(target) == ErrorCode.NONE
            target_id = id_of(target)
            await case.until(lambda: case.seen_by(2).directory_of(1) == target_id, writing=False)
            await member.kill("all")
        member.disk_is_bad = True
        disk.dead_paths[target] = errno.EIO
        member.launch()
        await case.until(case.is_up, writing=False)
        source_id = id_of(source)
        await case.until(lambda: case.seen_by(2).directory_of(1) == source_id, writing=False)
        assert (case.seen_by(2).leader, case.seen_by(2).isr) == (-1, ())
        assert [(each["directory"], each["log_end_offset"]) for each in told] == [
            (source, case.log.log_end_offset)
        ]
        request = ElectLeadersRequest(1, [TopicPartitions("t", [0])], 5000)
        await case.cluster.observer.request(request)
        await case.until(lambda: case.seen_by(2).leader == 1, writing=False)
        await case.check_nothing_is_lost()

    play(script, replicas=(1,), log_dirs=3)
