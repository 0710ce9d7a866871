"""Small simulated clusters whose disks fill up, hang or rot, for the mutants of disks."""

from __future__ import annotations

import errno
from random import Random

from odradek.wire.errors import ErrorCode
from odradek.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from sim.machine.disk_files import SimFile
from tests.cluster.disks.test_moves_between_disks import Moving
from tests.cluster.disks.test_troubled_disks import Troubled
from tests.log.support import batch

_ROT_AT = 75


def fill_up(seed: int) -> None:
    """Let a single replica fill its disk up to the reserve. Retention frees space, and the writer must go on by
    itself."""
    random = Random(seed)
    segment_bytes = random.choice((1 << 20, 2 << 20))
    settings = {
        "min.insync.replicas": "1",
        "log.segment.bytes": str(segment_bytes),
        "log.retention.bytes": str(2 * segment_bytes),
        "log.segment.delete.delay.ms": "1000",
        "odradek.log.dir.reserve.bytes": str(segment_bytes),
    }

    async def script(case: Troubled) -> None:
        await case.until(lambda: len(case.acknowledged) > 0)
        log = case.broker(1).partition("t", 0).log
        while log.size_bytes < 4 * segment_bytes:
            assert await case.write(10_000) == ErrorCode.NONE
        disk = case.world.machine("node-1").disk
        disk.capacity_bytes = disk.used_bytes + segment_bytes // 2
        await case.until(lambda: case.disk(1).room.is_short, writing=False)
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        before = len(case.acknowledged)
        await case.until(lambda: len(case.acknowledged) > before)

    Troubled(settings=settings, seed=seed).play(script, (1,))


def fall_silent(seed: int) -> None:
    """Let a device stop answering all calls, even the loop's writes. The directory must count as hung from the first
    call on."""

    async def script(case: Troubled) -> None:
        await case.until(lambda: len(case.acknowledged) > 0)
        case.silence(1, 30.0)
        assert await case.write() == ErrorCode.KAFKA_STORAGE_ERROR
        assert case.disk(1).is_stalled, "nothing keeps the loop away from a device that is silent"
        await case.until(lambda: not case.disk(1).is_stalled)

    Troubled(seed=seed).play(script)


class MovingPairs(Moving):
    """A moving replica with two records in each batch, so that its log may begin inside a batch."""

    def batch(self) -> bytearray:
        return batch(2)


def move_and_die(seed: int) -> None:
    """Delete records of a replica, move it to another disk, and kill its broker. The records must stay deleted."""

    async def script(case: Troubled) -> None:
        assert isinstance(case, Moving)
        await case.write_some()
        start_offset = case.log.log_end_offset // 2 | 1
        wanted = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, start_offset)])]
        await case.cluster.observer.request(DeleteRecordsRequest(wanted, 5000), node=1)
        target = case.other.path
        assert await case.ask(target) == ErrorCode.NONE
        await case.until(lambda: case.lies_in(target))
        await case.member(1).kill("all")
        case.member(1).launch()
        await case.until(case.is_up, writing=False)
        await case.until(lambda: case.lies_in(target))
        assert case.log.log_start_offset == start_offset, "records that were deleted are there again"

    MovingPairs(settings={"min.insync.replicas": "1"}, seed=seed).play(script, (1,))


def rot_without_heirs(seed: int) -> None:
    """Damage the leader's log while the other replica lags. The leader, which alone has all records, must go on
    leading."""

    async def script(case: Troubled) -> None:
        await case.until(lambda: len(case.acknowledged) > 0)
        lagging = case.world.machine("node-2").disk
        lagging.fail_next(errno.ENOSPC, operation="append", path_part=f"{case.disk(2).path}/t-0", times=10**9)
        await case.until(lambda: case.seen_by(3).isr == (1,))
        await case.until(lambda: case.broker(2).partition("t", 0).log.log_end_offset < len(case.acknowledged))
        epoch = case.seen_by(3).leader_epoch
        file = case.broker(1).partition("t", 0).log.active.file
        assert isinstance(file, SimFile)
        await case.world.sleep(5.0)
        file.content[_ROT_AT] ^= 0x10
        await case.until(
            lambda: any(state.rotten for state in case.broker(1).scrubber.states.values()), writing=False
        )
        for _ in range(100):
            await case.world.sleep(0.2)
            seen = case.seen_by(3)
            assert (seen.leader, seen.leader_epoch) == (1, epoch), "the only one that has everything leads"

    settings = {
        "min.insync.replicas": "1",
        "replica.lag.time.max.ms": "3000",
        "odradek.scrub.interval.ms": "10000",
        "log.flush.interval.messages": "1",
    }
    Troubled(settings=settings, seed=seed).play(script, (1, 2))
