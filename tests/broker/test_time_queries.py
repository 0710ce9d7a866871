"""Look-ups by timestamp: one at a time on each disk, the others wait in order, and their number is limited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from odradek.data_plane.handlers.fetching.offsets import (
    MAX_TIMESTAMP,
    TIME_QUERIES_WAITING_MAX,
    Turns,
    find_offset,
)
from odradek.data_plane.replication.partition import Partition
from odradek.metadata_quorum.image.metadata_image import PartitionImage
from odradek.wire.errors import ErrorCode, KafkaError
from testkit.by_hand import NOW_MS
from tests.log.support import append, batch, new_log

T = TypeVar("T")


class Disk:
    """Workers whose look-ups last until the test releases them."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.looking: list[int] = []
        self.done: list[int] = []
        self.go_on = trio.Semaphore(0)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    async def look(self, number: int) -> None:
        await self.turns.wait(self)
        try:
            self.looking.append(number)
            await self.go_on.acquire()
            self.looking.remove(number)
            self.done.append(number)
        finally:
            self.turns.pass_on(self)


def play(script: Callable[[Turns, Disk, trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        turns = Turns(trio.Event)
        async with trio.open_nursery() as nursery:
            await script(turns, Disk(turns), nursery)

    trio.run(main)


async def start(nursery: trio.Nursery, disk: Disk, count: int) -> None:
    for number in range(count):
        nursery.start_soon(disk.look, number)
        await trio.testing.wait_all_tasks_blocked()


def test_one_at_a_time_in_order_for_each_disk() -> None:
    """Look-ups on one disk run one at a time, in order. A second disk does not wait for the first."""

    async def script(turns: Turns, disk: Disk, nursery: trio.Nursery) -> None:
        other = Disk(turns)
        await start(nursery, disk, 5)
        await start(nursery, other, 1)
        assert (disk.looking, other.looking) == ([0], [0])
        other.go_on.release()
        for number in range(5):
            assert disk.looking == [number]
            disk.go_on.release()
            await trio.testing.wait_all_tasks_blocked()
        assert disk.done == [0, 1, 2, 3, 4]

    play(script)


def test_whoever_goes_away_gives_up_its_turn() -> None:
    """If a connection ends while its look-up waits, or just as its turn comes, the next look-up goes on."""

    async def script(turns: Turns, disk: Disk, nursery: trio.Nursery) -> None:
        await start(nursery, disk, 1)
        async with trio.open_nursery() as leaving:
            await start(leaving, disk, 2)
            nursery.start_soon(disk.look, 7)
            await trio.testing.wait_all_tasks_blocked()
            disk.go_on.release()
            leaving.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        disk.go_on.release()
        await trio.testing.wait_all_tasks_blocked()
        assert disk.done[-1] == 7

    play(script)


def test_too_many_are_told_to_ask_again() -> None:
    """If too many look-ups wait, the next one gets OFFSET_NOT_AVAILABLE, so that its client asks again."""

    async def script(turns: Turns, disk: Disk, nursery: trio.Nursery) -> None:
        await start(nursery, disk, 1 + TIME_QUERIES_WAITING_MAX)
        with pytest.raises(KafkaError) as caught:
            await turns.wait(disk)
        assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
        nursery.cancel_scope.cancel()

    play(script)


def test_a_new_leader_tells_no_newest_record_before_its_high_watermark_is_right() -> None:
    """KIP-207: a new leader answers OFFSET_NOT_AVAILABLE to MAX_TIMESTAMP until its high watermark has caught up."""
    partition = Partition(new_log())
    for age_ms in (2, 1, 0):
        append(partition.log, batch(timestamp=NOW_MS - age_ms))
    partition.log.advance_high_watermark(2)
    partition.apply(PartitionImage(1, 4, 0, (1, 2), (1, 2)), 1)
    with pytest.raises(KafkaError) as caught:
        find_offset(partition, MAX_TIMESTAMP, False, 7, False)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    partition.apply(PartitionImage(1, 4, 0, (1, 2), (1,)), 1)
    assert find_offset(partition, MAX_TIMESTAMP, False, 7, False)[:2] == (NOW_MS, 2)
