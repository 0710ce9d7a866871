"""Changes whose disk answers late, in a simulated cluster: others lead meanwhile, and in the end all replicas agree.

The simulated disk panics if a node's event loop makes an unbounded call to a hung disk: a real node would block there.
"""

from __future__ import annotations

import pytest

from odradek.data_plane.disks.replica_moves import ReplicaMoves
from odradek.data_plane.log.directory import future_logs
from odradek.data_plane.log.directory.log_dir import LogDir
from odradek.data_plane.log.log_types import Origin
from odradek.data_plane.log.partition_log import PartitionLog
from odradek.wire.errors import ErrorCode
from odradek.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from odradek.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.cluster.disks.test_moves_between_disks import Moving, batches_of
from tests.cluster.disks.test_troubled_disks import HANG_SECONDS, Troubled
from tests.log.support import batch

SHORT_SECONDS = 6.0
"""A time that is shorter than the time after which a disk counts as hung."""
SEEDS = pytest.mark.parametrize("seed", range(4))
ON_THE_SECOND_DISK = {"cordoned.log.dirs": "/data"}
"""Replicas go to the second disk and the metadata log is on the first, so the broker still receives metadata."""


def log_of(case: Troubled, node_id: int) -> PartitionLog:
    return case.broker(node_id).partition("t", 0).log


def same_on_all(case: Troubled) -> bool:
    """True if all three replicas have the same batches."""
    logs = [log_of(case, each) for each in (1, 2, 3)]
    return not any(log.offline for log in logs) and all(
        batches_of(log) == batches_of(logs[0]) for log in logs[1:]
    )


def is_up(case: Troubled, node_id: int) -> bool:
    node = case.member(node_id).node
    return case.member(node_id).is_up() and node is not None and node.broker is not None


async def restart(case: Troubled, node_id: int) -> None:
    await case.member(node_id).kill("all")
    await launch(case, node_id)


async def launch(case: Troubled, node_id: int) -> None:
    """Start a broker; return when its replicas are in sync."""
    case.member(node_id).launch()
    await case.until(lambda: is_up(case, node_id), writing=False)
    await case.until(lambda: sorted(case.seen_by(3).isr) == [1, 2, 3])


async def create(case: Troubled, name: str) -> ErrorCode:
    """Create a topic with one replica, on the first broker."""
    topic = CreatableTopic(name, -1, -1, [CreatableReplicaAssignment(0, [1])], [])
    answer = await case.cluster.observer.request(CreateTopicsRequest([topic], 10_000, False))
    return ErrorCode(answer.topics[0].error_code)


def is_served(case: Troubled, name: str) -> bool:
    """True if the first broker serves the topic with the id that this name has in the metadata."""
    known = case.broker(1).image.topics.get(name)
    partition = None if known is None else case.broker(1).hosted.partition(known.topic_id, 0)
    return partition is not None and partition.is_leader and not partition.log.offline


@SEEDS
@pytest.mark.parametrize("seconds", [SHORT_SECONDS, HANG_SECONDS])
def test_a_truncation_is_the_first_to_meet_the_hang(seed: int, seconds: float) -> None:
    """A truncation meets a disk that hangs. The follower truncates when the disk answers, and serves as a leader only
    then."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        log = log_of(case, 2)
        before = case.world.now
        # A record that no leader has, as if a dead leader had written it.
        data = batch(base_offset=log.log_end_offset, leader_epoch=0)
        log.append(memoryview(data), Origin.REPLICA, 0, 0)
        stray_end = log.log_end_offset
        case.silence(2, seconds)
        await case.until(lambda: log.home.is_unsettled, writing=False)
        assert (log.log_end_offset, case.disk(2).is_suspected) == (stray_end, True)
        await case.member(1).kill("all")
        await case.until(lambda: case.seen_by(3).leader == 2, writing=False)
        if case.world.now < before + seconds:
            assert not case.broker(2).partition("t", 0).is_leader
        await case.until(lambda: not log.home.is_unsettled, writing=False)
        await case.until(lambda: not log.offline, writing=False)
        await launch(case, 1)
        assert await case.write() == ErrorCode.NONE
        await case.until(lambda: same_on_all(case), writing=False)
        assert log_of(case, 2) is log
        await case.check_nothing_is_lost()
        await restart(case, 2)
        await case.until(lambda: same_on_all(case), writing=False)
        await case.check_nothing_is_lost()

    Troubled(seed=seed).play(script)


@SEEDS
def test_a_deletion_is_the_first_to_meet_the_hang(seed: int) -> None:
    """A deletion meets a silent disk. Other disks serve, and a new topic of the same name begins empty, also after a
    restart."""

    async def script(case: Troubled) -> None:
        assert await create(case, "u") == ErrorCode.NONE
        await case.until(lambda: is_served(case, "u"))
        root, disk = case.disk(1).path, case.world.machine("node-1").disk
        log_dir = case.disk(1)
        case.silence(1, HANG_SECONDS)
        await case.cluster.observer.request(DeleteTopicsRequest([DeleteTopicState("u", bytes(16))], [], 9000))
        await case.until(lambda: log_dir.is_suspected, writing=False)
        assert await create(case, "u") == ErrorCode.NONE
        await case.until(lambda: is_served(case, "u"), writing=False)
        await case.until(lambda: not log_dir.is_stalled)
        await case.until(lambda: is_served(case, "u"))
        assert case.broker(1).partition("u", 0).log.log_end_offset == 0
        await case.until(lambda: not any(name.endswith("-delete") for name in disk.in_cache(root)))
        await restart(case, 1)
        await case.until(lambda: is_served(case, "u"))
        await case.check_nothing_is_lost()

    Troubled(seed=seed, settings={**ON_THE_SECOND_DISK, "log.segment.delete.delay.ms": "1000"}).play(script)


@SEEDS
def test_a_creation_is_the_first_to_meet_the_hang(seed: int) -> None:
    """If the chosen disk is silent, a new replica is created once, on another disk. A restart finds it there."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        # The directory with the fewest logs is chosen first.
        log_dir = next(each for each in case.broker(1).log_dirs if not each.logs)
        case.silence_disk(1, log_dir, HANG_SECONDS)
        assert await create(case, "u") == ErrorCode.NONE
        await case.until(lambda: is_served(case, "u"), writing=False)
        owner = case.broker(1).partition("u", 0).log.owner
        assert isinstance(owner, LogDir)
        assert owner is not log_dir
        assert log_dir.is_suspected
        await case.until(lambda: not log_dir.is_stalled)
        disk = case.world.machine("node-1").disk
        await case.until(lambda: "u-0" not in disk.in_cache(log_dir.path))
        await restart(case, 1)
        await case.until(lambda: is_served(case, "u"))
        assert case.broker(1).partition("u", 0).log.owner is not log_dir

    Troubled(seed=seed, log_dirs=3).play(script)


STEPS = {
    "before": (ReplicaMoves, "_swap", "target"),
    "source": (future_logs.Swap, "remove_current", "source"),
    "behind": (future_logs.Swap, "remove_current", "target"),
}
"""For each step: the call before which a disk falls silent, and which of the two disks it is."""


@SEEDS
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("ending", ["answers", "dies", "deleted"])
def test_a_swap_meets_the_hang(seed: int, step: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the swap's point of no return the replica stays in place. After it, the replica serves when the target
    answers, unless deleted. Finally one directory has the live log."""

    async def script(case: Troubled) -> None:
        assert isinstance(case, Moving)
        await case.write_some()
        source, target = case.disk(1), case.other
        owner, name, side = STEPS[step]
        call = getattr(owner, name)
        silent = source if side == "source" else target

        def fall_silent_first(*args: object) -> None:
            case.silence_disk(1, silent, SHORT_SECONDS)
            monkeypatch.undo()
            call(*args)

        monkeypatch.setattr(owner, name, fall_silent_first)
        assert await case.ask(target.path) == ErrorCode.NONE
        await case.until(lambda: silent.is_suspected)
        if step == "before":
            assert case.lies_in(source.path)
        elif step == "source":
            assert case.lies_in(target.path)
        else:
            assert case.broker(1).partition("t", 0).log.is_closed
        if ending == "dies":
            await case.member(1).kill("all")
            case.member(1).launch()
            await case.until(case.is_up, writing=False)
        elif ending == "deleted":
            wanted = DeleteTopicsRequest([DeleteTopicState("t", bytes(16))], [], 9000)
            await case.cluster.observer.request(wanted)
            case.cluster.topics.remove("t")
            await case.until(lambda: "t" not in case.broker(1).image.topics, writing=False)
            await case.until(lambda: not silent.is_stalled, writing=False)
            await case.until(lambda: not case.live_on_disk() and not case.futures_on_disk(), writing=False)
            return
        disk = case.world.machine("node-1").disk
        await case.until(lambda: not disk.silent_roots)
        await case.until(lambda: not any(each.is_stalled for each in case.broker(1).log_dirs))
        await case.until(lambda: sorted(case.seen_by(2).isr) == [1, 2, 3])
        await case.until(lambda: len(case.live_on_disk()) == 1 and case.lies_in(case.live_on_disk()[0]))
        if step == "before":
            # A restarted broker resumes the move, unless it meets the same hang.
            await case.until(lambda: case.move is None and not case.futures_on_disk())
            assert ending == "dies" or case.lies_in(source.path)
            assert await case.ask(target.path) == ErrorCode.NONE
        await case.until(lambda: case.lies_in(target.path))
        assert await case.write() == ErrorCode.NONE
        await case.check_nothing_is_lost()
        await restart(case, 1)
        await case.until(lambda: case.lies_in(target.path))
        await case.until(lambda: same_on_all(case), writing=False)
        await case.check_nothing_is_lost()

    Moving(seed=seed, settings={"file.delete.delay.ms": "1000"}).play(script)


def test_a_node_stops_while_a_change_goes_on() -> None:
    """A node stops without waiting for the silent disk. The next start finds the log before or after the truncation."""

    async def script(case: Troubled) -> None:
        for _ in range(5):
            assert await case.write() == ErrorCode.NONE
        member, log = case.member(2), log_of(case, 2)
        data = batch(base_offset=log.log_end_offset, leader_epoch=0)
        log.append(memoryview(data), Origin.REPLICA, 0, 0)
        case.silence(2, 10 * HANG_SECONDS)
        await case.until(lambda: log.home.is_unsettled, writing=False)
        running = member.running
        assert running is not None
        member.ask_to_stop()
        await case.world.wait(running.ended, HANG_SECONDS)
        await member.kill("all")
        await case.world.sleep(10 * HANG_SECONDS)
        await launch(case, 2)
        await case.until(lambda: same_on_all(case), writing=False)
        await case.check_nothing_is_lost()

    Troubled().play(script)


def test_a_removal_holds_up_its_own_disk_alone() -> None:
    """A directory removal may take minutes on a hung disk. Only that disk's maintenance waits: removals on other disks
    continue in their own threads."""

    async def script(case: Troubled) -> None:
        assert await case.write() == ErrorCode.NONE
        hung = case.disk(1)
        (sound,) = (each for each in case.broker(1).log_dirs if each is not hung)
        disk = case.world.machine("node-1").disk

        def doom(log_dir: LogDir, name: str) -> None:
            log_dir.directory.subdir(name, create=True).write_atomic("file", b"")
            log_dir.background.remove_tree_at(name, 0)

        case.hang(1, HANG_SECONDS)
        ended = case.world.now + HANG_SECONDS
        doom(hung, "gone-0.0-delete")
        await case.world.sleep(2.0)
        for number in range(3):
            name = f"gone-{number}.1-delete"
            doom(sound, name)
            await case.until(lambda name=name: name not in disk.in_cache(sound.path), writing=False)
        assert case.world.now < ended
        assert "gone-0.0-delete" in disk.in_cache(hung.path)
        await case.until(lambda: "gone-0.0-delete" not in disk.in_cache(hung.path))
        await case.until(lambda: not hung.is_stalled)
        await case.check_nothing_is_lost()

    Troubled(settings=ON_THE_SECOND_DISK).play(script)
